"""Spark over the members' oplogs."""
