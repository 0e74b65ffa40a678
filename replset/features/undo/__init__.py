"""Taking back what was written in a span of the oplog. docs/undo.md describes it."""
