"""The history of single documents. docs/history.md describes it."""
