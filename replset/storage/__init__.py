"""Names of a member's files, for programs that read them without opening a member."""

from __future__ import annotations

DATABASE_FILE = "replset.db"
DATA_APPLICATION_ID = 0x72706C73
"""SQLite's application_id of the file that holds what is replicated."""
LOCK_FILE = "replset.lock"
"""In the dbpath: locked by the member that runs there, and holds its pid."""
RESTORE_FILE = "restoring"
"""In the dbpath while a restore fills it: no member starts there."""
SPILL_PREFIX = "spill-"
"""In the dbpath: temporary files of queries, followed by a number."""
