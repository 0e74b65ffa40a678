"""One running member: its loop, group commit, sockets, and what it sends to other members."""
