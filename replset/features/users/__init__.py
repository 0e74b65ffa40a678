"""Logins and users."""
