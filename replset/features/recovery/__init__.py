"""What rollbacks undid: it is read, compared with the set as it is, and put back."""
