"""The commands that write documents."""
