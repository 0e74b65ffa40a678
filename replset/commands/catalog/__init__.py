"""The commands about collections and indexes."""
