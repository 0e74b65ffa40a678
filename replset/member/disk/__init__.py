"""From a write to the disk: the files, group commit, syncing, and what keeps the files in order."""
