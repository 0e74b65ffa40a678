"""hello, explain, serverStatus, and what else says how a member is."""
