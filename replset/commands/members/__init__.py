"""The commands that members send to each other."""
