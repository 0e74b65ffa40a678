"""Names of a member's files, for programs that read them without opening a member."""

from __future__ import annotations

DATABASE_FILE = "replset.db"
DATA_APPLICATION_ID = 0x72706C73
"""SQLite's application_id of the file that holds what is replicated."""
LOCK_FILE = "replset.lock"
"""The file in the dbpath that the member which runs there has locked; it holds the pid."""
RESTORE_FILE = "restoring"
"""A file that is in the dbpath while a restore fills it: no member starts there."""
SPILL_PREFIX = "spill-"
"""How the names of queries' temporary files in the dbpath begin; a number follows."""
