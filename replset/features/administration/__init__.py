"""The commands with which an operator looks at a set and changes it."""
