"""The ReplError tree: one class per cause, with MongoDB's code and codeName.

An operating failure is raised as one of these; only the dispatcher in `commands/` and `api/` turn it
into a reply. `labels` and `details` travel into the reply document (`errorLabels`, extra fields).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replset.ids import OpTime

# MongoDB's numbers for the codes that this product answers with (map A8 W4, W5, B3).
CODE_NAMES: dict[int, str] = {
    1: "InternalError",
    2: "BadValue",
    6: "HostUnreachable",
    9: "FailedToParse",
    11: "UserNotFound",
    13: "Unauthorized",
    14: "TypeMismatch",
    18: "AuthenticationFailed",
    15: "Overflow",
    16: "InvalidLength",
    20: "IllegalOperation",
    22: "InvalidBSON",
    23: "AlreadyInitialized",
    26: "NamespaceNotFound",
    28: "PathNotViable",
    40: "ConflictingUpdateOperators",
    43: "CursorNotFound",
    48: "NamespaceExists",
    50: "MaxTimeMSExpired",
    52: "DollarPrefixedFieldName",
    53: "InvalidIdField",
    54: "NotSingleValueField",
    56: "EmptyFieldName",
    59: "CommandNotFound",
    64: "WriteConcernTimeout",
    66: "ImmutableField",
    67: "CannotCreateIndex",
    72: "InvalidOptions",
    73: "InvalidNamespace",
    74: "NodeNotFound",
    76: "NoReplicationEnabled",
    79: "UnknownReplWriteConcern",
    85: "IndexOptionsConflict",
    89: "NetworkTimeout",
    91: "ShutdownInProgress",
    93: "InvalidReplicaSetConfig",
    94: "NotYetInitialized",
    95: "NotSecondary",
    98: "DBPathInUse",
    100: "UnsatisfiableWriteConcern",
    103: "NewReplicaSetConfigurationIncompatible",
    104: "NodeNotElectable",
    108: "InconsistentReplicaSetNames",
    109: "ConfigurationInProgress",
    110: "CannotInitializeNodeWithData",
    111: "NotExactValueField",
    112: "WriteConflict",
    115: "CommandNotSupported",
    117: "ConflictingOperationInProgress",
    119: "InvalidSyncSource",
    120: "OplogStartMissing",
    125: "CommandFailed",
    127: "UnrecoverableRollbackError",
    133: "FailedToSatisfyReadPreference",
    134: "ReadConcernMajorityNotAvailableYet",
    136: "CappedPositionLost",
    146: "ExceededMemoryLimit",
    160: "MaxStalenessOutOfRange",
    175: "QueryPlanKilled",
    187: "LinearizableReadConcernError",
    189: "PrimarySteppedDown",
    197: "InvalidIndexSpecificationOption",
    211: "KeyNotFound",
    237: "CursorInUse",
    239: "SnapshotTooOld",
    246: "SnapshotUnavailable",
    257: "TransactionTooLarge",
    262: "ExceededTimeLimit",
    292: "QueryExceededMemoryLimitNoDiskUseAllowed",
    308: "CurrentConfigNotCommittedYet",
    322: "APIVersionError",
    352: "UnsupportedOpQueryCommand",
    462: "IngressRequestRateLimitExceeded",
    10003: "CannotGrowDocumentInCappedNamespace",
    10107: "NotWritablePrimary",
    10334: "BSONObjectTooLarge",
    11000: "DuplicateKey",
    11600: "InterruptedAtShutdown",
    11601: "Interrupted",
    11602: "InterruptedDueToReplStateChange",
    13388: "StaleConfig",
    13435: "NotPrimaryNoSecondaryOk",
    13436: "NotPrimaryOrSecondary",
    14031: "OutOfDiskSpace",
    17280: "KeyTooLong",
    17419: "BSONObjectTooLarge",
    40324: "Location40324",
    40353: "Location40353",
    40414: "Location40414",
    40415: "Location40415",
}


def code_name(code: int) -> str:
    """MongoDB's name of `code`; unnamed assertion numbers read `LocationNNN`, as its server prints them."""
    return CODE_NAMES.get(code, f"Location{code}")


LONGEST_MESSAGE = 2_000
"""In characters. Messages quote what was asked, which may be a name of 16 MB."""


def cut_message(text: str) -> str:
    """`text` without its middle where it is longer than a message may be."""
    if len(text) <= LONGEST_MESSAGE:
        return text
    half = LONGEST_MESSAGE // 2
    return f"{text[: half - 3]}...{text[-half:]}"


class ReplError(Exception):
    """An operating failure with MongoDB's `code`. `details` are extra reply fields, `labels` its errorLabels.

    `message` is cut in the middle where it is too long.
    """

    code: int = 1

    def __init__(
        self,
        message: str,
        *,
        code: int | None = None,
        details: Mapping[str, object] | None = None,
        labels: tuple[str, ...] = (),
    ) -> None:
        message = cut_message(message)
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        self.details: dict[str, object] = dict(details or {})
        self.labels = labels

    @property
    def code_name(self) -> str:
        return code_name(self.code)


class BadValueError(ReplError):
    """A value that the command, operator or option cannot take (2)."""

    code = 2


class FailedToParseError(ReplError):
    """Input of the wrong form (9)."""

    code = 9


class TypeMismatchError(ReplError):
    """A field of the wrong BSON type (14)."""

    code = 14


class AuthenticationFailedError(ReplError):
    """Who asks, or who was asked, did not prove that it is a member of the set."""

    code = 18


class IllegalOperationError(ReplError):
    """Not allowed here, ever (20)."""

    code = 20


class NamespaceNotFoundError(ReplError):
    """The collection or database does not exist (26)."""

    code = 26


class NamespaceExistsError(ReplError):
    """The collection exists already, with other options (48)."""

    code = 48


class InvalidNamespaceError(ReplError):
    """A database or collection name that cannot be (73)."""

    code = 73


class InvalidOptionsError(ReplError):
    """Options that do not go together (72)."""

    code = 72


class CommandNotFoundError(ReplError):
    """No such command (59)."""

    code = 59


class UnknownFieldError(ReplError):
    """A field that the command does not know (40415)."""

    code = 40415


class DuplicateKeyError(ReplError):
    """A document with this key exists already (11000). `details` hold keyPattern and keyValue."""

    code = 11000


class CursorNotFoundError(ReplError):
    """The cursor is gone: exhausted, killed, timed out or closed by a rollback (43)."""

    code = 43


class CappedPositionLostError(ReplError):
    """The place in the oplog was trimmed away (136)."""

    code = 136


class SnapshotTooOldError(ReplError):
    """The read point lies before the undo that is still kept (239)."""

    code = 239


class NotWritablePrimaryError(ReplError):
    """A write reached a member that is not primary (10107). Try again on `primary` if it is known."""

    code = 10107

    def __init__(self, message: str = "not primary", *, primary: str | None = None) -> None:
        super().__init__(message)
        self.primary = primary


class NotPrimaryNoSecondaryOkError(ReplError):
    """A read reached a secondary without a read preference that allows it (13435)."""

    code = 13435


class NotPrimaryOrSecondaryError(ReplError):
    """A read reached a member that is neither primary nor secondary (13436)."""

    code = 13436


class PrimarySteppedDownError(ReplError):
    """The primary stepped down while the operation waited; it may or may not survive (189)."""

    code = 189


class LinearizableReadConcernError(ReplError):
    """It could not be told whether the read was linearizable; nothing of it is answered (187)."""

    code = 187


class ShutdownInProgressError(ReplError):
    """The member is shutting down (91)."""

    code = 91


class OverloadedError(ReplError):
    """Refused before anything was done, since the member has too much to do (462, as MongoDB 8.2's rate limiter)."""

    code = 462

    def __init__(self, message: str) -> None:
        super().__init__(message, labels=("SystemOverloadedError", "RetryableError"))


class MaxTimeMSExpiredError(ReplError):
    """maxTimeMS ran out (50)."""

    code = 50


class ExceededTimeLimitError(ReplError):
    """The server's own time limit ran out (262)."""

    code = 262


class InvalidReplicaSetConfigError(ReplError):
    """The configuration breaks a rule (93, or the code given)."""

    code = 93


class NewReplicaSetConfigurationIncompatibleError(ReplError):
    """The new configuration does not follow from the current one (103)."""

    code = 103


class NotYetInitializedError(ReplError):
    """The member has no replica-set configuration yet (94)."""

    code = 94


class NodeNotFoundError(ReplError):
    """Too few members answered, or none of the hosts is this member (74)."""

    code = 74


class WriteConcernTimeoutError(ReplError):
    """wtimeout ran out; the write itself is applied (64)."""

    code = 64


class UnsatisfiableWriteConcernError(ReplError):
    """More members asked for than the set holds (100)."""

    code = 100


class OutOfDiskSpaceError(ReplError):
    """The disk is nearly full: writes are refused before anything is damaged (14031)."""

    code = 14031


class InvalidSyncSourceError(ReplError):
    """The source lacks what this member acknowledged or knows to be committed; nothing of it is copied (119)."""

    code = 119


class OplogStartMissingError(ReplError):
    """The sync source's history does not hold my newest entry (120)."""

    code = 120


class UnrecoverableRollbackError(ReplError):
    """The rollback would undo what must stay; the member quarantines itself (127)."""

    code = 127


class HostUnreachableError(ReplError):
    """A member could not be reached, or the connection broke (6)."""

    code = 6


class NothingSentError(HostUnreachableError):
    """No connection came about, so the command was not sent and nothing of it is applied (6)."""


class StorageError(ReplError):
    """SQLite or the file system failed under us (1)."""

    code = 1


class CorruptDataError(StorageError):
    """A file of this member does not hold what it must: name and reason in the message (1)."""


class DamagedEntryError(CorruptDataError):
    """The oplog entry `at` is not the one that was written. Another member has it whole (1)."""

    def __init__(self, message: str, at: OpTime) -> None:
        super().__init__(message)
        self.at = at


class StoreBusyError(StorageError):
    """Another connection holds SQLite's write lock. Nothing was done: try again (1)."""


class DbPathLockedError(ReplError):
    """Another process holds the data folder (98)."""

    code = 98


class CatalogChangedError(ReplError):
    """The collection was created or dropped after the read point (246). Wait until the point reaches `until` (a ts)."""

    code = 246

    def __init__(self, message: str, *, until: int) -> None:
        super().__init__(message)
        self.until = until


class SnapshotCutError(ReplError):
    """The read was cut off so that the log could be folded into the database: read again from a new snapshot (246)."""

    code = 246


class LocalProtocolError(ReplError):
    """We were about to send bytes that the protocol does not allow (1)."""


class RemoteProtocolError(ReplError):
    """The peer sent bytes that the protocol does not allow; the connection is closed (9)."""

    code = 9


class InvariantError(Exception):
    """A broken invariant: nobody catches it but the shell, which stops the member."""
