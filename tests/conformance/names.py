"""Turns the test format's names and values into PyMongo's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pymongo import read_preferences
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern


def snake(name: str) -> str:
    """Return snake_case of camelCase: maxTimeMS is max_time_ms."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def read_preference(value: Mapping[str, Any]) -> Any:
    mode = read_preferences.read_pref_mode_from_name(value["mode"])
    staleness = value.get("maxStalenessSeconds", -1)
    return read_preferences.make_read_preference(mode, value.get("tagSets"), staleness)


def write_concern(value: Mapping[str, Any]) -> WriteConcern:
    return WriteConcern(w=value.get("w"), wtimeout=value.get("wtimeoutMS"), j=value.get("journal"))


def common_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the options of a database, a collection, a bucket, a session or a transaction."""
    converted: dict[str, Any] = {}
    for name, value in options.items():
        match name:
            case "readConcern":
                converted["read_concern"] = ReadConcern(value.get("level"))
            case "writeConcern":
                converted["write_concern"] = write_concern(value)
            case "readPreference":
                converted["read_preference"] = read_preference(value)
            case "maxCommitTimeMS":
                converted["max_commit_time_ms"] = value
            case "timeoutMS":
                converted["timeout"] = value / 1000
            case _:
                converted[snake(name)] = value
    return converted
