"""Sessions and transactions."""
