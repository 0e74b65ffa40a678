"""Comparisons of the members' documents, in the background and on request, and their repair."""
