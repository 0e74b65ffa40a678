"""aggregate, views, and what reads through them."""
