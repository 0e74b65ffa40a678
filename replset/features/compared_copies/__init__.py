"""Copies of the data for members that are too stale: only the documents that differ are sent."""
