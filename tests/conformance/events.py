"""Records what a client publishes, and compares it with the events that a test expects."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from pymongo import monitoring

from tests.conformance.matching import Matcher, MismatchError
from tests.conformance.names import snake

_SENSITIVE = {
    "authenticate", "saslstart", "saslcontinue", "getnonce", "createuser", "updateuser",
    "copydbgetnonce", "copydbsaslstart", "copydb",
}  # fmt: skip
_RENAMED = {"topologyOpenedEvent": "topologyOpeningEvent"}
_FIELDS = {"interruptInUseConnections": "interrupt_connections"}


class Recorder(
    monitoring.CommandListener,
    monitoring.ConnectionPoolListener,
    monitoring.ServerListener,
    monitoring.ServerHeartbeatListener,
    monitoring.TopologyListener,
):
    """Keeps the events of one client in order, each with the name that the test format gives it."""

    def __init__(self, observed: Iterable[str], ignored_commands: Iterable[str], *, sensitive: bool) -> None:
        self._observed = set(observed)
        self._ignored = {"configurefailpoint", *(name.lower() for name in ignored_commands)}
        self._sensitive = sensitive
        self._lock = threading.Lock()
        self._events: list[tuple[str, Any]] = []
        self.checked_out = 0

    def events(self, kind: str | None = None) -> list[tuple[str, Any]]:
        """Return (name, event) pairs. kind: command, cmap or sdam; None: all."""
        with self._lock:
            return [pair for pair in self._events if kind is None or _kind(pair[0]) == kind]

    def matching(self, matcher: Matcher, expected: dict[str, Any]) -> int:
        """Count the events so far that match an expected one."""
        return sum(_matches(matcher, expected, pair) for pair in self.events())

    def _record(self, event: Any) -> None:
        name = type(event).__name__
        name = name[0].lower() + name[1:]
        name = _RENAMED.get(name, name)
        with self._lock:
            self.checked_out += {"connectionCheckedOutEvent": 1, "connectionCheckedInEvent": -1}.get(name, 0)
            if name in self._observed and not self._is_ignored(event):
                self._events.append((name, event))

    def _is_ignored(self, event: Any) -> bool:
        if not hasattr(event, "command_name"):
            return False
        command = event.command_name.lower()
        if command in self._ignored:
            return True
        # A hello with credentials is sensitive as well; PyMongo publishes it with an empty body.
        secret = command in _SENSITIVE or getattr(event, "command", None) == {} or getattr(event, "reply", None) == {}
        return secret and not self._sensitive

    started = succeeded = failed = opened = closed = description_changed = _record
    pool_created = pool_ready = pool_cleared = pool_closed = _record
    connection_created = connection_ready = connection_closed = _record
    connection_check_out_started = connection_check_out_failed = _record
    connection_checked_out = connection_checked_in = _record


def check(matcher: Matcher, recorder: Recorder, expectation: dict[str, Any]) -> None:
    """Compare the events of one client with an `expectEvents` document."""
    kind = expectation.get("eventType", "command")
    actual, expected = recorder.events(kind), expectation["events"]
    if expectation.get("ignoreExtraEvents"):
        actual = actual[: len(expected)]
    if len(actual) != len(expected):
        found = ", ".join(_describe(pair) for pair in actual)
        wanted = ", ".join(_describe_expected(one) for one in expected)
        raise MismatchError(f"{len(actual)} {kind} events: {found}; expected {len(expected)}: {wanted}")
    for number, (one, pair) in enumerate(zip(expected, actual, strict=True)):
        _match_event(matcher, one, pair, f"event {number}")


def _matches(matcher: Matcher, expected: dict[str, Any], pair: tuple[str, Any]) -> bool:
    try:
        _match_event(matcher, expected, pair, "event")
    except MismatchError:
        return False
    return True


def _match_event(matcher: Matcher, expected: dict[str, Any], pair: tuple[str, Any], path: str) -> None:
    (wanted, fields), (name, event) = next(iter(expected.items())), pair
    if name != wanted:
        raise MismatchError(f"{path} is {_describe(pair)}; expected {_describe_expected(expected)}")
    for field, value in fields.items():
        where = f"{path} ({name}).{field}"
        if field in ("hasServiceId", "hasServerConnectionId"):
            number = getattr(event, snake(field.removeprefix("has")))
            if (number is not None) is not value:
                raise MismatchError(f"{where}: the event has {number!r}")
        elif field in ("previousDescription", "newDescription"):
            _match_description(matcher, value, getattr(event, snake(field)), where)
        else:
            matcher.match(value, getattr(event, _FIELDS.get(field, snake(field))), where)


def _match_description(matcher: Matcher, expected: dict[str, Any], actual: Any, path: str) -> None:
    for field, value in expected.items():
        names = ("server_type_name", "topology_type_name") if field == "type" else (snake(field),)
        found = next(getattr(actual, name) for name in names if hasattr(actual, name))
        matcher.match(value, found, f"{path}.{field}")


def _kind(name: str) -> str:
    if name.startswith("command"):
        return "command"
    return "cmap" if name.startswith(("pool", "connection")) else "sdam"


def _describe(pair: tuple[str, Any]) -> str:
    return f"{pair[0]} {getattr(pair[1], 'command_name', '')}".strip()


def _describe_expected(expected: dict[str, Any]) -> str:
    name, fields = next(iter(expected.items()))
    command = fields.get("commandName") or next(iter(fields.get("command", {})), "")
    return f"{name} {command}".strip()
