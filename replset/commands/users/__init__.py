"""Logins, users, what a user may do, and the audit trail."""
