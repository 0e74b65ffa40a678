"""Collections: made, changed, dropped, listed and counted."""
