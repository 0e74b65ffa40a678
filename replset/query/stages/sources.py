"""Stages that begin a pipeline with documents about the member: their arguments. The caller makes the documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from replset.bson import Decimal128
from replset.errors import BadValueError, ErrorCode, FailedToParseError, TypeMismatchError
from replset.query.errors import check_fields, not_built
from replset.query.expressions import fault
from replset.query.order import is_number, type_name
from replset.query.stages.basic import whole
from replset.query.stages.stage import SourceStage, StageScope


class CollStatsStage(SourceStage):
    """Makes one document about the collection; `count`, `latencyStats` and `storageStats` are built.

    scale: of storageStats, 0 without them.
    """

    _PARTS: ClassVar = frozenset({"count", "latencyStats", "storageStats", "queryExecStats", "operationStats"})

    def __init__(self, spec: object, _scope: StageScope) -> None:
        if not isinstance(spec, Mapping):
            raise TypeMismatchError("$collStats must take a nested object")
        check_fields(spec, self._PARTS, "$collStats")
        for name, value in spec.items():
            if not isinstance(value, Mapping):
                raise TypeMismatchError(f"$collStats.{name} must be an object")
            if name not in ("count", "latencyStats", "storageStats"):
                raise not_built(f"$collStats.{name}")
        latency = spec.get("latencyStats", {})
        if latency.get("histograms"):
            raise not_built("$collStats.latencyStats.histograms")
        self.has_latency = "latencyStats" in spec
        self.has_count = "count" in spec
        storage = spec.get("storageStats")
        self.scale = 0 if storage is None else _scale(storage.get("scale", 1))


def _scale(value: Any) -> int:
    if not is_number(value) or (type(value) is not Decimal128 and not value >= 1):
        raise BadValueError("scale has to be a number >= 1")
    return whole("$collStats", value, ErrorCode.BAD_VALUE) or 1


class CurrentOpStage(SourceStage):
    """Makes a document for each operation that runs. The caller makes the documents."""

    _OPTIONS: ClassVar = frozenset(
        {"allUsers", "idleConnections", "idleCursors", "idleSessions", "localOps", "truncateOps", "backtrace"}
    )

    def __init__(self, spec: object, _scope: StageScope) -> None:
        if not isinstance(spec, Mapping):
            raise FailedToParseError("$currentOp options must be specified in an object")
        for name, value in spec.items():
            if name not in self._OPTIONS:
                raise FailedToParseError(f"Unrecognized option '{name:.80}' in $currentOp stage.")
            if type(value) is not bool:
                raise FailedToParseError(f"The '{name}' parameter of the $currentOp stage must be a boolean value")
        self.all_users = bool(spec.get("allUsers"))
        self.idle_cursors = bool(spec.get("idleCursors"))


class IndexStatsStage(SourceStage):
    """Makes a document for each index of the collection: how often it was used."""

    def __init__(self, spec: object, _scope: StageScope) -> None:
        if spec != {}:
            raise fault(28803, "The $indexStats stage specification must be an empty object")


class ListLocalSessionsStage(SourceStage):
    """Makes a document for each session in use on this member. users: name and database of those that are asked for."""

    _NAME: ClassVar = "$listLocalSessions"

    def __init__(self, spec: object, _scope: StageScope) -> None:
        if not isinstance(spec, Mapping):
            raise TypeMismatchError(f"{self._NAME} options must be specified in an object")
        check_fields(spec, ("allUsers", "users"), self._NAME)
        self.all_users = spec.get("allUsers", False)
        users = spec.get("users", [])
        if type(self.all_users) is not bool or type(users) is not list:
            raise TypeMismatchError(f"{self._NAME} takes allUsers as a boolean and users as an array")
        if self.all_users and users:
            raise fault(9, f"{self._NAME} may not specify {{allUsers:true}} and {{users:[...]}} at the same time")
        self.users: list[tuple[str, str]] = []
        for user in users:
            if not isinstance(user, Mapping) or not all(isinstance(user.get(part), str) for part in ("user", "db")):
                raise TypeMismatchError(f"{self._NAME}.users takes documents {{user, db}}")
            self.users.append((user["user"], user["db"]))


class ListSessionsStage(ListLocalSessionsStage):
    """Makes a document for each session of the set."""

    _NAME: ClassVar = "$listSessions"


class DocumentsStage(SourceStage):
    """Makes documents of an expression, without a collection."""

    def __init__(self, spec: object, scope: StageScope) -> None:
        self._expression = scope.expression(spec)

    def documents(self, variables: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the documents. 5858203 if the value is no array of documents."""
        value = self._expression.evaluate({}, variables)
        if type(value) is not list or not all(isinstance(one, Mapping) for one in value):
            raise fault(5858203, f"$documents must be an array of objects, but found {type_name(value)}")
        return value
