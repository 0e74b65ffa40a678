"""Says whether a test may run on a server: `runOnRequirements`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pymongo
from pymongo.errors import OperationFailure

TOPOLOGY = "replicaset"


@dataclass(frozen=True, slots=True)
class Server:
    """What requirements are compared with."""

    version: tuple[int, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, client: pymongo.MongoClient[dict[str, Any]]) -> Server:
        version = tuple(client.admin.command("buildInfo")["versionArray"][:3])
        try:
            parameters = client.admin.command("getParameter", "*")
        except OperationFailure:
            parameters = {}
        return cls(version, parameters)


def unmet(server: Server, alternatives: Iterable[Mapping[str, Any]] | None) -> str:
    """Return why none of the alternatives is met; empty when one is, or when there are none."""
    if not alternatives:
        return ""
    reasons = [_unmet_one(server, requirement) for requirement in alternatives]
    return "" if not all(reasons) else "needs " + " or ".join(dict.fromkeys(reasons))


def _unmet_one(server: Server, requirement: Mapping[str, Any]) -> str:
    """Return what the requirement asks that this server is not. Another topology tells more than a version."""
    topologies = requirement.get("topologies", [TOPOLOGY])
    if TOPOLOGY not in topologies:
        return f"the topology {'/'.join(topologies)}"
    if requirement.get("serverless") == "require":
        return "a serverless instance"
    if requirement.get("auth") or requirement.get("authMechanism"):
        return "authentication"
    if requirement.get("csfle"):
        return "client-side encryption"
    lowest, highest = requirement.get("minServerVersion"), requirement.get("maxServerVersion")
    if lowest is not None and server.version < _version(lowest):
        return f"MongoDB {lowest} or newer"
    if highest is not None and server.version > _version(highest):
        return f"MongoDB {highest} or older"
    for name, value in requirement.get("serverParameters", {}).items():
        if server.parameters.get(name) != value:
            return f"the server parameter {name}: {value}"
    return ""


def _version(text: str) -> tuple[int, ...]:
    """Return three numbers; "4.2" is (4, 2, 0), and "4.2.99" stands for the last of 4.2."""
    numbers = [int(part) for part in text.split("-")[0].split(".")[:3]]
    return tuple(numbers + [0] * (3 - len(numbers)))
