"""One file for each kind of oplog."""
