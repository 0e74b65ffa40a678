"""Change streams: the committed entries as events."""
