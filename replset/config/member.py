"""One member of the configuration: its fields, their forms and ranges (map C4 to C6)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from replset.bson import Int64
from replset.config.fields import other_fields, read_boolean, read_integer
from replset.errors import BadValueError, InvalidReplicaSetConfigError, TypeMismatchError
from replset.ids import HostPort, MemberId

MAX_MEMBER_ID = 255
MAX_DELAY_SECS = 31_622_400
DEFAULT_PORT = 27017
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/,@\[\]]+)(?::(\d{1,5}))?")
_LONGEST_NAME = 253


@dataclass(frozen=True, slots=True)
class Member:
    """One member. `votes` and `priority` are as configured; `newly_added` makes both count as 0 (map C14).

    incarnation: id of the data that may vote, set by the primary; None: not yet known. Not shown to users.
    spare_after_secs: a member without a vote may vote in the place of one that is gone for so long; 0: it does not.
    spare_for: the voter in whose place it votes now, set by the primary (`core/spares.py`).
    witness: it keeps the oplog and no documents (docs/witness.md).
    others: fields of a newer release, as they came.
    """

    id: MemberId
    host: HostPort
    arbiter_only: bool = False
    newly_added: bool = False
    build_indexes: bool = True
    hidden: bool = False
    priority: float = 1.0
    tags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    secondary_delay_secs: int = 0
    votes: int = 1
    incarnation: str | None = None
    spare_after_secs: int = 0
    spare_for: MemberId | None = None
    witness: bool = False
    others: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def is_voter(self) -> bool:
        return self.votes == 1 and not self.newly_added

    @property
    def is_electable(self) -> bool:
        return self.priority > 0 and self.bears_data and not self.newly_added

    @property
    def bears_data(self) -> bool:
        """Whether it has documents: it can be read, elected and copied, and counts for `w: N`."""
        return not self.arbiter_only and not self.witness

    @property
    def holds_oplog(self) -> bool:
        """Whether it has the entries on its disk, and so can be counted for the commit point. A witness is, too."""
        return not self.arbiter_only

    def document(self, *, internal: bool = False) -> dict[str, object]:
        """In MongoDB's order of fields. internal: with newlyAdded and incarnation."""
        document: dict[str, object] = {"_id": int(self.id), "host": str(self.host), "arbiterOnly": self.arbiter_only}
        if internal and self.newly_added:
            document["newlyAdded"] = True
        document["buildIndexes"] = self.build_indexes
        document["hidden"] = self.hidden
        document["priority"] = int(self.priority) if self.priority == int(self.priority) else self.priority
        document["tags"] = dict(self.tags)
        document["secondaryDelaySecs"] = Int64(self.secondary_delay_secs)
        document["votes"] = self.votes
        if self.spare_after_secs:
            document["spareAfterSecs"] = self.spare_after_secs
        if self.spare_for is not None:
            document["spareFor"] = int(self.spare_for)
        if self.witness:
            document["witness"] = True
        if internal and self.incarnation is not None:
            document["incarnation"] = self.incarnation
        return {**document, **self.others}


def next_member_id(taken: Iterable[int]) -> MemberId:
    """Return the `_id` for a member that is added: one above all others, or the lowest free one."""
    known = set(taken)
    above = max(known, default=-1) + 1
    return MemberId(above if above <= MAX_MEMBER_ID else min(set(range(MAX_MEMBER_ID + 1)) - known))


_MEMBER_FIELDS = {
    *Member(MemberId(0), HostPort(""), witness=True).document(),
    *("newlyAdded", "incarnation", "horizons", "slaveDelay"),
}
_MEMBER_FIELDS |= {"spareAfterSecs", "spareFor"}


def parse_member(row: object, place: str, keep: bool = False) -> Member:
    if not isinstance(row, Mapping):
        raise TypeMismatchError(f"{place} must be a document")
    at = f"{place}."
    others = other_fields(row, _MEMBER_FIELDS, at, keep)
    if "_id" not in row:
        raise BadValueError(f"{at}_id is missing")
    member_id = read_integer(row, "_id", 0, at)
    if not 0 <= member_id <= MAX_MEMBER_ID:
        raise BadValueError(f"{at}_id must be from 0 to {MAX_MEMBER_ID}, not {member_id}")
    host = row.get("host")
    if not isinstance(host, str):
        raise TypeMismatchError(f"{at}host must be a string HOST:PORT")
    arbiter, witness = read_boolean(row, "arbiterOnly", False, at), read_boolean(row, "witness", False, at)
    never_leads = arbiter or witness
    if "newlyAdded" in row and row["newlyAdded"] is not True:
        raise InvalidReplicaSetConfigError(f"{at}newlyAdded may only be true")
    if row.get("horizons"):
        raise BadValueError(f"{at}horizons: split horizons do not exist here")
    priority = row.get("priority", 0 if never_leads else 1)
    if isinstance(priority, bool) or not isinstance(priority, int | float):
        raise TypeMismatchError(f"{at}priority must be a number")
    delay_name = "slaveDelay" if "slaveDelay" in row else "secondaryDelaySecs"
    incarnation = row.get("incarnation")
    if incarnation is not None and not isinstance(incarnation, str):
        raise TypeMismatchError(f"{at}incarnation must be a string")
    member = Member(
        MemberId(member_id),
        parse_host(host, f"{at}host"),
        arbiter,
        bool(row.get("newlyAdded", False)),
        read_boolean(row, "buildIndexes", True, at),
        read_boolean(row, "hidden", False, at),
        0.0 if never_leads and priority == 1 else float(priority),
        MappingProxyType(_parse_tags(row.get("tags", {}), at)),
        read_integer(row, delay_name, 0, at),
        read_integer(row, "votes", 1, at),
        incarnation,
        read_integer(row, "spareAfterSecs", 0, at),
        MemberId(read_integer(row, "spareFor", 0, at)) if "spareFor" in row else None,
        witness,
        others,
    )
    _validate_member(member, at)
    return member


def _parse_tags(value: object, at: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise TypeMismatchError(f"{at}tags must be a document")
    tags: dict[str, str] = {}
    for name, tag in value.items():
        if not isinstance(tag, str):
            raise TypeMismatchError(f"{at}tags.{name} must be a string")
        if name.startswith("$"):
            raise BadValueError(f"{at}tags.{name}: tags that begin with $ are the server's own")
        tags[name] = tag
    return tags


def parse_host(text: str, place: str = "host") -> HostPort:
    """Parse HOST or HOST:PORT; the default port is 27017.

    Raises BadValueError when the text has another form, and InvalidReplicaSetConfigError (93) when no host can have the
    name.
    """
    match = _HOST.fullmatch(text.strip())
    port = int(match[2] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise BadValueError(f"{place}: {text!r:.100} is not HOST:PORT")
    try:
        is_name = len(match[1]) <= _LONGEST_NAME and len(match[1].encode("idna")) <= _LONGEST_NAME
    except UnicodeError:
        is_name = False
    if not is_name:
        raise InvalidReplicaSetConfigError(
            f"{place}: {text!r:.100} is no name that a host can have: at most {_LONGEST_NAME} characters in all, and"
            " between dots from 1 to 63"
        )
    return HostPort(f"{match[1]}:{port}")


def _validate_member(member: Member, at: str) -> None:
    if member.votes not in (0, 1):
        raise BadValueError(f"{at}votes must be 0 or 1, not {member.votes}")
    if not 0 <= member.priority <= 1000:
        raise BadValueError(f"{at}priority must be from 0 to 1000, not {member.priority:g}")
    if not 0 <= member.secondary_delay_secs <= MAX_DELAY_SECS:
        delay = member.secondary_delay_secs
        raise BadValueError(f"{at}secondaryDelaySecs must be from 0 to {MAX_DELAY_SECS}, not {delay}")
    spare_after = member.spare_after_secs
    if not 0 <= spare_after <= MAX_DELAY_SECS:
        raise BadValueError(f"{at}spareAfterSecs must be from 0 to {MAX_DELAY_SECS}, not {spare_after}")
    if spare_after and (not member.bears_data or member.secondary_delay_secs):
        raise BadValueError(
            f"{at}spareAfterSecs must be 0 on an arbiter, a witness or a delayed member: its vote must bring a copy"
        )
    if not member.bears_data:
        _validate_voter_only(member, at)
        return
    for reason, given in (
        ("votes is 0", member.votes == 0),
        ("secondaryDelaySecs is set", member.secondary_delay_secs > 0),
        ("hidden is true", member.hidden),
        ("buildIndexes is false", not member.build_indexes),
    ):
        if given and member.priority != 0:
            raise BadValueError(f"{at}priority must be 0 when {reason}")


def _validate_voter_only(member: Member, at: str) -> None:
    """The rules of a member without documents: an arbiter (map C6), or a witness."""
    kind = "an arbiter" if member.arbiter_only else "a witness"
    if member.arbiter_only and member.witness:
        raise BadValueError(f"{at}witness: an arbiter keeps no oplog; leave arbiterOnly out")
    if member.votes != 1:
        raise BadValueError(f"{at}votes must be 1: {kind} is there to vote")
    if member.priority != 0:
        raise InvalidReplicaSetConfigError(f"{at}priority must be 0 or 1 on {kind}, not {member.priority:g}")
    if member.tags:
        raise BadValueError(f"{at}tags: {kind} has none")
    if member.witness and member.secondary_delay_secs:
        raise BadValueError(f"{at}secondaryDelaySecs: a witness applies nothing, so it cannot be delayed")
