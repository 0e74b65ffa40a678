"""The commands that read, and how a read is planned: find, count, distinct, explain."""
