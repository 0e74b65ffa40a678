"""The archive of the oplog: its files, and what writes them before the oplog is trimmed."""
