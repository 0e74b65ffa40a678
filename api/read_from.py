"""The header `x-replset-read-from`: it names the members that can answer a read which this one refuses, or should not.

The value is a list of HTTP addresses, the best first. A refused read has it (wrong role, not suitable for the read
preference, overloaded, shutting down). An answered one has it while this member has more to do than it can and the
read preference allows others: the client then reads the next time there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from api.commands import Reply
from api.errors import HttpError
from replset.bson import RawDocument, encode
from replset.errors import ErrorCode, ReplError
from replset.ids import HostPort
from replset.member.member import RunningMember
from replset.operations.read_preference import ReadPreference, other_readers, parse_read_preference

READ_FROM = "x-replset-read-from"
READ_COMMANDS = frozenset({"find", "aggregate", "count", "distinct"})
_PRIMARY = ReadPreference()
REFUSED_HERE = frozenset(
    {
        ErrorCode.NOT_PRIMARY_NO_SECONDARY_OK,
        ErrorCode.NOT_PRIMARY_OR_SECONDARY,
        ErrorCode.READ_PREFERENCE_NOT_SATISFIED,
        ErrorCode.SHUTDOWN_IN_PROGRESS,
        ErrorCode.OVERLOADED,
    }
)
"""Another member may answer a read that ends with one of these codes."""


def add_read_from(member: RunningMember, error: HttpError, given: object) -> None:
    """Add the header to a refused read. given: its read preference, as in the command."""
    code = error.body.get("code")
    preference = _PRIMARY if code == ErrorCode.NOT_WRITABLE_PRIMARY else _parse(given)  # a linearizable read
    if preference is not None and (code in REFUSED_HERE or code == ErrorCode.NOT_WRITABLE_PRIMARY):
        error.headers |= read_from(member, preference)


def advised_elsewhere(member: RunningMember, given: object) -> dict[str, str]:
    """Return the header for an answered read, {} while this member is not overloaded."""
    preference = _parse(given) if member.load.is_high and given is not None else None
    return {} if preference is None or preference.mode == "primary" else read_from(member, preference)


def read_from(member: RunningMember, preference: ReadPreference) -> dict[str, str]:
    """Return the header, {} where no other member can answer."""
    return _header(member, other_readers(member, preference))


def read_from_in(member: RunningMember, reply: Reply) -> dict[str, str]:
    """Return the header of a reply that names a member to read from, as that of a consumer's primary does."""
    host = reply.get("readFrom")
    return _header(member, [HostPort(host)]) if isinstance(host, str) else {}


def _header(member: RunningMember, hosts: Sequence[HostPort]) -> dict[str, str]:
    known = [address for host in hosts if (address := member.node.http_address_of(host))]
    return {READ_FROM: ", ".join(known)} if known else {}


def _parse(given: Any) -> ReadPreference | None:
    """Return the read preference; None where it has not its form, which the error says already."""
    try:
        if given is None:
            return _PRIMARY
        document = given if isinstance(given, RawDocument) else RawDocument(encode(given))
        return parse_read_preference(document, over_http=True)
    except (ReplError, TypeError, AttributeError):
        return None
