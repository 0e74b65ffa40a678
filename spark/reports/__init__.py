"""One file or folder for each command: what it computes, its JSON document, its text and its charts."""
