"""The versions of the messages between members. Both ends of a connection say theirs when they prove themselves.

A field that is added needs no new version: who does not know it passes over it. A new version is for what an older
release would read as something else.
"""

from __future__ import annotations

from typing import Any, Final

from replset.bson import RawDocument
from replset.config.feature_version import LATEST

LEAST, MOST = 1, 1
"""Those that this release reads and writes."""
FIELDS: Final[dict[str, Any]] = {"messageVersions": [LEAST, MOST], "release": str(LATEST)}


def other_messages(document: RawDocument, who: str) -> str:
    """Say that the other end knows none of our versions; empty where there is a common one. A release before 1.1 sent
    version 1 without saying so.
    """
    found = document.get("messageVersions")
    if not isinstance(found, list) or len(found) != 2 or not all(isinstance(one, int) for one in found):
        return ""
    least, most = found
    if least <= MOST and most >= LEAST:
        return ""
    release = document.get("release")
    return (
        f"{who} runs release {release if isinstance(release, str) else '?':.20} with versions {least} to {most} of the"
        f" messages between members, and this member runs release {LATEST} with {LEAST} to {MOST}: upgrade one release"
        " at a time (docs/upgrade.md)"
    )
