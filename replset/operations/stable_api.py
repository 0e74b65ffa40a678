"""MongoDB's Stable API: `apiVersion`, `apiStrict` and `apiDeprecationErrors`, and what is part of version 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from replset.bson import RawDocument
from replset.errors import ErrorCode, ReplError
from replset.operations import fields

API_FIELDS: Final = ("apiVersion", "apiStrict", "apiDeprecationErrors")
_VERSION_1: Final = (
    "abortTransaction aggregate collMod commitTransaction count create createIndexes delete drop dropDatabase"
    " dropIndexes endSessions explain find findAndModify findandmodify getMore hello insert killCursors listCollections"
    " listDatabases listIndexes ping refreshSessions update testDeprecation testVersions1And2"
)
_IN_VERSION_1: Final = frozenset(_VERSION_1.split())
"""Names as a client writes them: isMaster is an alias of hello that is not part of the Stable API."""
_DEPRECATED: Final = frozenset({"testDeprecation"})
_UNSTABLE: Final = {
    "aggregate": frozenset({"exchange", "explain", "fromMongos", "needsMerge"}),
    "count": frozenset({"queryOptions"}),
    "create": frozenset({"autoIndexId", "capped", "indexOptionDefaults", "max", "size", "storageEngine"}),
    "createIndexes": frozenset({"commitQuorum"}),
    "createIndexes.indexes": frozenset({"background", "bucketSize", "sparse", "storageEngine"}),
    "find": frozenset(
        {"awaitData", "max", "min", "noCursorTimeout", "oplogReplay", "returnKey", "showRecordId", "tailable"}
    ),
}
"""Fields that are not part of version 1, of commands that are."""
_UNSTABLE_STAGES: Final = frozenset(
    {"$currentOp", "$indexStats", "$listLocalSessions", "$listSessions", "$planCacheStats", "$search", "$searchMeta"}
)


@dataclass(frozen=True, slots=True)
class ApiParameters:
    """The three fields of one command; None: not given. All commands of a cursor must give the same."""

    version: str | None = None
    strict: bool | None = None
    deprecation_errors: bool | None = None

    def __str__(self) -> str:
        given = zip(API_FIELDS, (self.version, self.strict, self.deprecation_errors), strict=True)
        return "{" + ", ".join(f"{name}: {value}" for name, value in given if value is not None) + "}"


NO_API = ApiParameters()


def api_parameters(body: RawDocument, command: str) -> ApiParameters:
    """Return the command's API parameters; `NO_API` when it gives none."""
    if not any([name in body for name in API_FIELDS]):
        return NO_API
    flags = (fields.boolean(body, name, command) if name in body else None for name in API_FIELDS[1:])
    version = fields.text(body, "apiVersion", command) if "apiVersion" in body else None
    return ApiParameters(version, *flags)


def check_api(body: RawDocument, command: str) -> None:
    """Raise ReplError if the command, or a field of it, is not what its API parameters ask for: 322, 323, 324, 4886600.

    command: its name as the client wrote it.
    """
    api = api_parameters(body, command)
    if api.version is None:
        if api != NO_API:
            raise ReplError(
                "Provided apiStrict and/or apiDeprecationErrors without passing apiVersion",
                code=ErrorCode.API_FIELDS_WITHOUT_VERSION,
            )
        return
    if api.version != "1":
        raise ReplError(f'API version must be "1", not {api.version!r:.40}', code=ErrorCode.API_VERSION_ERROR)
    if api.strict:
        _check_strict(body, command)
    if api.deprecation_errors and command in _DEPRECATED:
        raise ReplError(
            f"Provided apiDeprecationErrors:true, but the command {command} is deprecated in API Version 1",
            code=ErrorCode.API_DEPRECATION_ERROR,
        )


def _check_strict(body: RawDocument, command: str) -> None:
    if command not in _IN_VERSION_1:
        raise ReplError(
            f"Provided apiStrict:true, but the command {command} is not in API Version 1",
            code=ErrorCode.API_STRICT_ERROR,
        )
    _check_stable(body, command)
    if command == "aggregate" and body.type_of("pipeline") == 4:
        for stage in fields.documents(body, {}, "pipeline", command):
            if stage.first_key in _UNSTABLE_STAGES:
                raise ReplError(
                    f"stage {stage.first_key} is not allowed with 'apiStrict: true' in API Version 1",
                    code=ErrorCode.API_STRICT_ERROR,
                )
    if command == "createIndexes" and body.type_of("indexes") == 4:
        for index in fields.documents(body, {}, "indexes", command):
            _check_stable(index, f"{command}.indexes")


def _check_stable(document: RawDocument, place: str) -> None:
    unstable = _UNSTABLE.get(place, frozenset())
    for name in document.keys():  # noqa: SIM118 - a RawDocument is no mapping
        if name in unstable:
            raise ReplError(
                f"BSON field '{place}.{name}' is not allowed with apiStrict:true.", code=ErrorCode.API_STRICT_ERROR
            )
