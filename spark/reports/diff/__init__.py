"""`diff`: where the members' oplogs differ."""
