"""What a member can do beyond its kernel, a folder each. The list is in `all.py`."""
