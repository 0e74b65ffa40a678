"""featureCompatibilityVersion: the newest release whose files, entries and messages a set may use (docs/upgrade.md).

A set stays at that of the release which made it, until somebody raises it by setFeatureCompatibilityVersion. Until then
its members can go back to that release. It stands in the configuration, so each member has it before it opens its
data, and an older release keeps it as a field that it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from replset.errors import BadValueError, ReplError, TypeMismatchError

FIELD: Final = "featureCompatibilityVersion"
_TEXT: Final = re.compile(r"(\d{1,4})\.(\d{1,4})")


class FeatureVersion(NamedTuple):
    """The first two numbers of a release."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @classmethod
    def parse(cls, text: str) -> FeatureVersion:
        """Read `MAJOR.MINOR`; ValueError for anything else."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"not a version (MAJOR.MINOR): {text!r:.80}")
        return cls(int(match[1]), int(match[2]))


KNOWN: Final = (FeatureVersion(1, 0), FeatureVersion(1, 1))
"""Those that this release can run a set with. 1.1: collations of collections and indexes, kept events of consumers."""
OLDEST, LATEST = KNOWN[0], KNOWN[-1]


def read_feature_version(document: Mapping[str, object]) -> FeatureVersion:
    """Return that of a configuration document, which may be newer than LATEST; OLDEST without the field."""
    value = document.get(FIELD, str(OLDEST))
    if not isinstance(value, str):
        raise TypeMismatchError(f"{FIELD} must be a string")
    try:
        return FeatureVersion.parse(value)
    except ValueError as error:
        raise BadValueError(f"{FIELD}: {error}") from None


def refuse_below(since: FeatureVersion, version: FeatureVersion, what: str, error: type[ReplError]) -> None:
    """Refuse what release `since` brought in a set that is at an older version: a member may read it as something else.

    what: is refused, in the plural or with an article.
    """
    if version < since:
        raise error(f"{what} cannot be made while the set's {FIELD} is {version} (docs/upgrade.md)")


def newer_features(version: FeatureVersion) -> str:
    """Say that a set needs a newer release than this one."""
    return f"the set's {FIELD} is {version}, and this release knows {OLDEST} to {LATEST}: start a newer release"
