"""Filters, updates, oplog diffs, projections, sorts and distinct values: pure functions over decoded documents."""
