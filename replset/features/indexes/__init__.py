"""Indexes: made, dropped and listed."""
