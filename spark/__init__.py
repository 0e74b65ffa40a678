"""Spark over the members' oplogs: `register(session)` makes `format("oplog")` known to a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark.source import register

__all__ = ["register"]


def __getattr__(name: str) -> object:
    """Only who asks for the data source needs PySpark."""
    if name == "register":
        from spark.source import register

        return register
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
