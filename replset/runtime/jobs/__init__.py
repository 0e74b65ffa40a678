"""Work in the background, each a task of its own."""
