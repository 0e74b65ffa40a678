"""How results look: documents (JSON for scripts), and from them tables for a terminal and pages for a browser."""
