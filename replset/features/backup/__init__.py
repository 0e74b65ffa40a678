"""Backups of a member's data."""
