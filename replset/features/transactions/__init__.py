"""The commands of sessions and transactions, and what forgets old sessions."""
