"""Limits of the sizes and depths of documents and messages; the numbers are MongoDB's."""

from __future__ import annotations

MAX_BSON_SIZE = 16 * 1024 * 1024
"""Bytes of one document that a client may store."""
MAX_INTERNAL_SIZE = MAX_BSON_SIZE + 16 * 1024
"""Bytes of one document that members exchange: a document of full size and the fields around it."""
MAX_ENTRY_SIZE = MAX_INTERNAL_SIZE - 1024
"""Bytes of an oplog entry that a primary writes. The rest is for what a follower of the set adds to it (`from`)."""
MAX_MESSAGE_SIZE = 48_000_000
"""Bytes of one wire message."""
MAX_WRITE_BATCH = 100_000
"""Operations in one write command."""
MAX_DEPTH = 200
"""Levels of documents and arrays; the outermost document is level 1."""
