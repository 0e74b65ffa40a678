"""A set that follows another set."""
