"""Sizes and depths that documents and messages must keep to; MongoDB's own numbers."""

from __future__ import annotations

MAX_BSON_SIZE = 16 * 1024 * 1024
"""Bytes of one document as a client may store it."""
MAX_INTERNAL_SIZE = MAX_BSON_SIZE + 16 * 1024
"""Bytes of one document as members exchange it: a full-size document plus what wraps it."""
MAX_MESSAGE_SIZE = 48_000_000
"""Bytes of one wire message."""
MAX_WRITE_BATCH = 100_000
"""Operations in one write command."""
MAX_DEPTH = 200
"""Nested documents and arrays, the outermost document counted as level 1."""
