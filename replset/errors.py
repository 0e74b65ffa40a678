"""The ReplError tree: one class per cause, with MongoDB's code and codeName.

An operating failure is raised as one of these; only the dispatcher in `commands/` and `api/` turn it
into a reply. `labels` and `details` travel into the reply document (`errorLabels`, extra fields).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Flag, IntEnum, auto


class Trait(Flag):
    """What a program may make of an error beside its text."""

    ROLE = auto()
    """It tells of a changed role, so the topology version goes with it (map W5)."""
    SHUTDOWN = auto()
    RETRYABLE = auto()
    """A driver sends a retryable write once more: RetryableWriteError (map B4)."""
    TRANSIENT = auto()
    """The whole transaction may be run again: TransientTransactionError; before its commit also with RETRYABLE."""
    RESUMABLE = auto()
    """A change stream may be opened again behind its token: ResumableChangeStreamError."""
    NOT_RESUMABLE = auto()
    """What the token names is gone: NonResumableChangeStreamError."""
    UNKNOWN = auto()
    """In a write's reply: this member does not know what was applied and whether it stays."""


_NONE = Trait(0)
_BROKEN = Trait.RETRYABLE | Trait.RESUMABLE
_ROLE, _DOWN = _BROKEN | Trait.ROLE, _BROKEN | Trait.SHUTDOWN


class ErrorCode(IntEnum):
    """The error codes of this product: MongoDB's numbers, each with the `codeName` that its server sends.

    A row: number, name, HTTP status, traits. Rows without a name are MongoDB's numbered assertions, which its server
    calls `LocationNNN`. Without a status it is 400: the client can correct the request. 503: "not here" or "not now".
    docs/errors.md describes each code.
    """

    code_name: str
    http_status: int
    traits: Trait

    def __new__(cls, number: int, code_name: str = "", http_status: int = 400, traits: Trait = _NONE) -> ErrorCode:
        member = int.__new__(cls, number)
        member._value_ = number
        member.code_name = code_name or f"Location{number}"
        member.http_status = http_status
        member.traits = traits
        return member

    INTERNAL_ERROR = 1, "InternalError", 503, Trait.UNKNOWN
    BAD_VALUE = 2, "BadValue"
    NO_SUCH_KEY = 4, "NoSuchKey"
    GRAPH_CONTAINS_CYCLE = 5, "GraphContainsCycle"
    HOST_UNREACHABLE = 6, "HostUnreachable", 503, _BROKEN
    HOST_NOT_FOUND = 7, "HostNotFound", 503, _BROKEN
    FAILED_TO_PARSE = 9, "FailedToParse"
    USER_NOT_FOUND = 11, "UserNotFound", 404
    UNAUTHORIZED = 13, "Unauthorized", 403
    TYPE_MISMATCH = 14, "TypeMismatch"
    OVERFLOW = 15, "Overflow"
    INVALID_LENGTH = 16, "InvalidLength"
    PROTOCOL_ERROR = 17, "ProtocolError"
    AUTHENTICATION_FAILED = 18, "AuthenticationFailed", 401
    ILLEGAL_OPERATION = 20, "IllegalOperation"
    INVALID_BSON = 22, "InvalidBSON"
    ALREADY_INITIALIZED = 23, "AlreadyInitialized"
    LOCK_TIMEOUT = 24, "LockTimeout", 503, Trait.TRANSIENT
    NAMESPACE_NOT_FOUND = 26, "NamespaceNotFound", 404
    INDEX_NOT_FOUND = 27, "IndexNotFound"
    PATH_NOT_VIABLE = 28, "PathNotViable"
    ROLE_NOT_FOUND = 31, "RoleNotFound"
    CONFLICTING_UPDATE_OPERATORS = 40, "ConflictingUpdateOperators"
    CURSOR_NOT_FOUND = 43, "CursorNotFound", 404
    NO_MATCHING_DOCUMENT = 47, "NoMatchingDocument"
    NAMESPACE_EXISTS = 48, "NamespaceExists"
    MAX_TIME_EXPIRED = 50, "MaxTimeMSExpired", 503
    DOLLAR_PREFIXED_FIELD_NAME = 52, "DollarPrefixedFieldName"
    INVALID_ID_FIELD = 53, "InvalidIdField"
    NOT_SINGLE_VALUE_FIELD = 54, "NotSingleValueField"
    EMPTY_FIELD_NAME = 56, "EmptyFieldName"
    COMMAND_NOT_FOUND = 59, "CommandNotFound"
    STALE_SHARD_VERSION = 63, "StaleShardVersion", 503, Trait.RESUMABLE
    WRITE_CONCERN_TIMEOUT = 64, "WriteConcernTimeout", 504, Trait.UNKNOWN
    IMMUTABLE_FIELD = 66, "ImmutableField"
    CANNOT_CREATE_INDEX = 67, "CannotCreateIndex"
    INVALID_OPTIONS = 72, "InvalidOptions"
    INVALID_NAMESPACE = 73, "InvalidNamespace"
    NODE_NOT_FOUND = 74, "NodeNotFound"
    NO_REPLICATION_ENABLED = 76, "NoReplicationEnabled", 503
    UNKNOWN_WRITE_CONCERN_MODE = 79, "UnknownReplWriteConcern"
    INDEX_OPTIONS_CONFLICT = 85, "IndexOptionsConflict"
    INDEX_KEY_SPECS_CONFLICT = 86, "IndexKeySpecsConflict"
    NETWORK_TIMEOUT = 89, "NetworkTimeout", 503, _BROKEN | Trait.UNKNOWN
    SHUTDOWN_IN_PROGRESS = 91, "ShutdownInProgress", 503, _DOWN
    INVALID_CONFIG = 93, "InvalidReplicaSetConfig"
    NOT_YET_INITIALIZED = 94, "NotYetInitialized", 503
    NOT_SECONDARY = 95, "NotSecondary"
    OPERATION_FAILED = 96, "OperationFailed"
    DB_PATH_IN_USE = 98, "DBPathInUse"
    UNSATISFIABLE_WRITE_CONCERN = 100, "UnsatisfiableWriteConcern"
    NEW_CONFIG_INCOMPATIBLE = 103, "NewReplicaSetConfigurationIncompatible"
    NODE_NOT_ELECTABLE = 104, "NodeNotElectable"
    INCONSISTENT_REPLICA_SET_NAMES = 108, "InconsistentReplicaSetNames"
    CONFIGURATION_IN_PROGRESS = 109, "ConfigurationInProgress", 503
    CANNOT_INITIALIZE_NODE_WITH_DATA = 110, "CannotInitializeNodeWithData"
    NOT_EXACT_VALUE_FIELD = 111, "NotExactValueField"
    WRITE_CONFLICT = 112, "WriteConflict", 503, Trait.TRANSIENT
    CONFLICTING_OPERATION_IN_PROGRESS = 117, "ConflictingOperationInProgress", 503
    INVALID_SYNC_SOURCE = 119, "InvalidSyncSource", 503
    OPLOG_START_MISSING = 120, "OplogStartMissing"
    DOCUMENT_VALIDATION_FAILURE = 121, "DocumentValidationFailure"
    COMMAND_FAILED = 125, "CommandFailed"
    UNRECOVERABLE_ROLLBACK = 127, "UnrecoverableRollbackError"
    READ_PREFERENCE_NOT_SATISFIED = 133, "FailedToSatisfyReadPreference", 503, Trait.RESUMABLE
    READ_CONCERN_MAJORITY_NOT_AVAILABLE = 134, "ReadConcernMajorityNotAvailableYet", 503, Trait.RESUMABLE
    CAPPED_POSITION_LOST = 136, "CappedPositionLost"
    EXCEEDED_MEMORY_LIMIT = 146, "ExceededMemoryLimit"
    STALE_EPOCH = 150, "StaleEpoch", 503, Trait.RESUMABLE
    DURATION_OVERFLOW = 159, "DurationOverflow"
    MAX_STALENESS_OUT_OF_RANGE = 160, "MaxStalenessOutOfRange"
    VIEW_DEPTH_LIMIT_EXCEEDED = 165, "ViewDepthLimitExceeded"
    COMMAND_NOT_SUPPORTED_ON_VIEW = 166, "CommandNotSupportedOnView"
    OPTION_NOT_SUPPORTED_ON_VIEW = 167, "OptionNotSupportedOnView"
    INVALID_PIPELINE_OPERATOR = 168, "InvalidPipelineOperator"
    CANNOT_INDEX_PARALLEL_ARRAYS = 171, "CannotIndexParallelArrays"
    QUERY_PLAN_KILLED = 175, "QueryPlanKilled", 400, Trait.RESUMABLE
    AMBIGUOUS_INDEX_KEY_PATTERN = 181, "AmbiguousIndexKeyPattern"
    LINEARIZABLE_READ_CONCERN_ERROR = 187, "LinearizableReadConcernError", 503
    INCOMPATIBLE_SERVER_VERSION = 188, "IncompatibleServerVersion"
    PRIMARY_STEPPED_DOWN = 189, "PrimarySteppedDown", 503, _ROLE | Trait.UNKNOWN
    VIEW_PIPELINE_TOO_LARGE = 195, "ViewPipelineMaxSizeExceeded"
    INVALID_INDEX_OPTION = 197, "InvalidIndexSpecificationOption"
    CANNOT_BUILD_INDEX_KEYS = 201, "CannotBuildIndexKeys"
    CLUSTER_TIME_FAILS_RATE_LIMITER = 205, "ClusterTimeFailsRateLimiter"
    INVALID_UUID = 207, "InvalidUUID"
    INCOMPLETE_TRANSACTION_HISTORY = 217, "IncompleteTransactionHistory", 409
    FAIL_POINT_SET_FAILED = 222, "FailPointSetFailed"
    TRANSACTION_TOO_OLD = 225, "TransactionTooOld", 422
    MAX_SUB_PIPELINE_DEPTH_EXCEEDED = 232, "MaxSubPipelineDepthExceeded"
    RETRY_CHANGE_STREAM = 234, "RetryChangeStream", 503, Trait.RESUMABLE
    CURSOR_IN_USE = 237, "CursorInUse", 503
    NOT_IMPLEMENTED = 238, "NotImplemented"
    SNAPSHOT_TOO_OLD = 239, "SnapshotTooOld", 503, Trait.TRANSIENT
    CONVERSION_FAILURE = 241, "ConversionFailure"
    SNAPSHOT_UNAVAILABLE = 246, "SnapshotUnavailable", 503, Trait.TRANSIENT | Trait.RESUMABLE
    NO_SUCH_TRANSACTION = 251, "NoSuchTransaction", 400, Trait.TRANSIENT
    TRANSACTION_COMMITTED = 256, "TransactionCommitted"
    TRANSACTION_TOO_LARGE = 257, "TransactionTooLarge", 413
    INVALID_RESUME_TOKEN = 260, "InvalidResumeToken"
    EXCEEDED_TIME_LIMIT = 262, "ExceededTimeLimit", 503, _BROKEN
    OPERATION_NOT_SUPPORTED_IN_TRANSACTION = 263, "OperationNotSupportedInTransaction"
    PREPARED_TRANSACTION_IN_PROGRESS = 267, "PreparedTransactionInProgress", 503, Trait.TRANSIENT
    REPAIRED_CONFIG = 270
    INDEX_BUILD_ABORTED = 276, "IndexBuildAborted"
    CHANGE_STREAM_FATAL = 280, "ChangeStreamFatalError", 400, Trait.NOT_RESUMABLE
    CHANGE_STREAM_HISTORY_LOST = 286, "ChangeStreamHistoryLost", 400, Trait.NOT_RESUMABLE
    TRANSACTION_EXCEEDED_LIFETIME = 290, "TransactionExceededLifetimeLimitSeconds"
    NO_QUERY_EXECUTION_PLANS = 291, "NoQueryExecutionPlans"
    SORT_EXCEEDED_MEMORY_LIMIT = 292, "QueryExceededMemoryLimitNoDiskUseAllowed"
    CONFIG_NOT_COMMITTED_YET = 308, "CurrentConfigNotCommittedYet", 503
    API_VERSION_ERROR = 322, "APIVersionError"
    API_STRICT_ERROR = 323, "APIStrictError"
    API_DEPRECATION_ERROR = 324, "APIDeprecationError"
    MECHANISM_UNAVAILABLE = 334, "MechanismUnavailable"
    CANNOT_DOWNGRADE = 344, "CannotDowngrade"
    UNSUPPORTED_OP_QUERY = 352, "UnsupportedOpQueryCommand"
    API_MISMATCH = 364, "APIMismatchError"
    OVERLOADED = 462, "IngressRequestRateLimitExceeded", 503
    SOCKET_EXCEPTION = 9001, "SocketException", 503, _BROKEN
    NOT_WRITABLE_PRIMARY = 10107, "NotWritablePrimary", 503, _ROLE
    DOCUMENT_TOO_LARGE = 10334, "BSONObjectTooLarge", 413
    DUPLICATE_KEY = 11000, "DuplicateKey", 409
    INTERRUPTED_AT_SHUTDOWN = 11600, "InterruptedAtShutdown", 503, _DOWN
    INTERRUPTED = 11601, "Interrupted", 503, Trait.UNKNOWN
    INTERRUPTED_BY_STATE_CHANGE = 11602, "InterruptedDueToReplStateChange", 503, _ROLE | Trait.UNKNOWN
    BACKGROUND_OPERATION_IN_PROGRESS = 12587, "BackgroundOperationInProgressForNamespace"
    MERGE_NO_MATCH = 13113, "MergeStageNoMatchingDocument"
    DATABASE_DIFFER_CASE = 13297, "DatabaseDifferCase"
    STALE_CONFIG = 13388, "StaleConfig", 503, Trait.RESUMABLE
    NOT_PRIMARY_NO_SECONDARY_OK = 13435, "NotPrimaryNoSecondaryOk", 503, _ROLE
    NOT_PRIMARY_OR_SECONDARY = 13436, "NotPrimaryOrSecondary", 503, _ROLE
    OUT_OF_DISK_SPACE = 14031, "OutOfDiskSpace", 503
    GROUP_NO_OBJECT = 15947
    UNKNOWN_GROUP_OPERATOR = 15952
    GROUP_WITHOUT_ID = 15955
    LIMIT_ZERO = 15958
    MATCH_NO_OBJECT = 15959
    PROJECT_NO_OBJECT = 15969
    SORT_NO_OBJECT = 15973
    SORT_DIRECTION_NOT_A_NUMBER = 15974
    SORT_DIRECTION_NOT_ONE = 15975
    SORT_EMPTY = 15976
    EMPTY_PATH_PART = 15998
    DOLLAR_IN_PATH = 16410
    NUL_IN_PATH = 16411
    DOLLAR_ALONE = 16872
    DISTINCT_TOO_LARGE = 17217
    GROUP_ID_SHOWS_FIELDS = 17390
    UPDATE_RESULT_TOO_LARGE = 17419, "BSONObjectTooLarge", 413
    SEARCH_NOT_ENABLED = 31082, "SearchNotEnabled"
    PROJECTION_PATH_COLLISION_BELOW = 31249
    PROJECTION_PATH_COLLISION = 31250
    PROJECTION_INCLUDES_IN_EXCLUSION = 31253
    PROJECTION_EXCLUDES_IN_INCLUSION = 31254
    SLICE_LIMIT_NOT_POSITIVE = 31259
    SLICE_ARRAY_LENGTH = 31272
    SLICE_TYPE = 31273
    ELEM_MATCH_TYPE = 31274
    ELEM_MATCH_NESTED = 31275
    HELLO_AWAIT_FIELDS_APART = 31368
    HELLO_COUNTER_NEGATIVE = 31372
    HELLO_AWAIT_TIME_NEGATIVE = 31373
    HELLO_COUNTER_AHEAD = 31382
    COUNT_NO_STRING = 40156
    COUNT_EMPTY = 40157
    COUNT_DOLLAR = 40158
    COUNT_NUL = 40159
    COUNT_DOT = 40160
    GROUP_FIELD_NO_ACCUMULATOR = 40234
    GROUP_FIELD_DOT = 40235
    GROUP_FIELD_DOLLAR = 40236
    GROUP_FIELD_TWO_ACCUMULATORS = 40238
    STAGE_NOT_ONE_FIELD = 40323
    UNRECOGNIZED_PIPELINE_STAGE = 40324
    EMPTY_PATH = 40352
    PATH_ENDS_WITH_DOT = 40353
    DUPLICATE_FIELD = 40413
    MISSING_FIELD = 40414
    UNKNOWN_FIELD = 40415
    MISSING_DATABASE = 40571
    STAGE_NOT_IN_FACET = 40600
    STAGE_MUST_BE_LAST = 40601
    STAGE_MUST_BE_FIRST = 40602
    CURSOR_WITHOUT_SESSION = 50736
    CURSOR_NEEDS_SESSION = 50737
    CURSOR_OF_OTHER_SESSION = 50738
    CURSOR_WITHOUT_TRANSACTION = 50739
    CURSOR_NEEDS_TRANSACTION = 50740
    CURSOR_OF_OTHER_TRANSACTION = 50741
    TXN_NUMBER_NOT_ALLOWED = 50768
    FAIL_POINT = 50985
    USER_EXISTS = 51003
    NUMBER_OUT_OF_RANGE = 51024
    STAGE_NOT_IN_LOOKUP = 51047
    REGEX_OPTIONS_TWICE = 51075
    INVALID_REGEX = 51091
    INVALID_REGEX_OPTION = 51108
    REGEX_TIME_LIMIT = 51156
    MIN_MAX_NEEDS_HINT = 51173
    MIN_MAX_OF_ANOTHER_INDEX = 51174
    MIN_NOT_BEFORE_MAX = 51175
    MIN_MAX_FIELDS_DIFFER = 51176
    EMPTY_SUB_PROJECTION = 51270
    PROJECT_EMPTY = 51272
    HELLO_EXHAUST_WITHOUT_TIME = 51756
    DUPLICATE_FIELD_IN_DIFF = 4728000
    API_FIELDS_WITHOUT_VERSION = 4886600
    SKIP_NO_COUNT = 5107200
    LIMIT_NO_COUNT = 5107201
    GET_LAST_ERROR_DEFAULTS_SET = 5624102
    CONFIRMATION_NEEDED = 7369100
    PIPELINE_TOO_LONG = 7749501
    NOT_ENOUGH_IN_SYNC = 9_900_001, "NotEnoughInSync", 503
    CONSUMER_NOT_FOUND = 9_900_011, "ConsumerNotFound", 404
    CONSUMER_TAKEN = 9_900_012, "ConsumerTaken", 409
    CONSUMER_MOVED = 9_900_013, "ConsumerMoved", 409


def code_name(code: int) -> str:
    """Return MongoDB's name of `code`; a number that is not in the table reads `LocationNNN`, as in MongoDB."""
    known = _BY_NUMBER.get(code)
    return f"Location{code}" if known is None else known.code_name


def http_status_of(code: int) -> int:
    """Return the HTTP status of an error; 400 for a number that is not in the table."""
    known = _BY_NUMBER.get(code)
    return 400 if known is None else known.http_status


def has_trait(code: object, trait: Trait) -> bool:
    """Whether the error of this number has one of these traits."""
    known = _BY_NUMBER.get(code)
    return known is not None and bool(known.traits & trait)


_BY_NUMBER: dict[object, ErrorCode] = {int(code): code for code in ErrorCode}


LONGEST_MESSAGE = 2_000
"""How many characters a message has. It quotes the request, which may hold a name of 16 MB."""


def cut_message(text: str) -> str:
    """Return `text`, without its middle if it is longer than a message may be."""
    if len(text) <= LONGEST_MESSAGE:
        return text
    half = LONGEST_MESSAGE // 2
    return f"{text[: half - 3]}...{text[-half:]}"


class ReplError(Exception):
    """An operating failure with MongoDB's `code`. `details` are extra reply fields, `labels` its errorLabels.

    `message` is cut in the middle where it is too long.
    """

    code: int = ErrorCode.INTERNAL_ERROR

    def __init_subclass__(cls, *, code: int | None = None) -> None:
        """code: of the errors of this class; None: its base's."""
        if code is not None:
            cls.code = code

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

    def has(self, trait: Trait) -> bool:
        """Whether its code has one of these traits."""
        return has_trait(self.code, trait)


class BadValueError(ReplError, code=ErrorCode.BAD_VALUE):
    """A value that the command, operator or option cannot take (2)."""


class FailedToParseError(ReplError, code=ErrorCode.FAILED_TO_PARSE):
    """Input of the wrong form (9)."""


class TypeMismatchError(ReplError, code=ErrorCode.TYPE_MISMATCH):
    """A field of the wrong BSON type (14)."""


class AuthenticationFailedError(ReplError, code=ErrorCode.AUTHENTICATION_FAILED):
    """Somebody did not prove who he is: a member that it knows a key, a user that he knows his password (18)."""


class IllegalOperationError(ReplError, code=ErrorCode.ILLEGAL_OPERATION):
    """Not allowed here, ever (20)."""


class NamespaceNotFoundError(ReplError, code=ErrorCode.NAMESPACE_NOT_FOUND):
    """The collection or database does not exist (26)."""


class NamespaceExistsError(ReplError, code=ErrorCode.NAMESPACE_EXISTS):
    """The collection exists already, with other options (48)."""


class InvalidNamespaceError(ReplError, code=ErrorCode.INVALID_NAMESPACE):
    """A database or collection name that cannot be (73)."""


class InvalidOptionsError(ReplError, code=ErrorCode.INVALID_OPTIONS):
    """Options that do not go together (72)."""


class ConsumerNotFoundError(ReplError, code=ErrorCode.CONSUMER_NOT_FOUND):
    """No consumer has this name (9900011)."""


class ConsumerTakenError(ReplError, code=ErrorCode.CONSUMER_TAKEN):
    """Another reader holds an exclusive consumer (9900012)."""


class ConsumerMovedError(ReplError, code=ErrorCode.CONSUMER_MOVED):
    """What was read counts no more: another reader has the consumer, or its position was set (9900013)."""


class CommandNotFoundError(ReplError, code=ErrorCode.COMMAND_NOT_FOUND):
    """No such command (59)."""


class UnknownFieldError(ReplError, code=ErrorCode.UNKNOWN_FIELD):
    """A field that the command does not know (40415)."""


class NotBuiltError(ReplError, code=ErrorCode.NOT_IMPLEMENTED):
    """A command, option or operator that MongoDB 7.0 has and this product does not (238); the message names it."""


class DocumentValidationError(ReplError, code=ErrorCode.DOCUMENT_VALIDATION_FAILURE):
    """A document that the validator of its collection does not accept (121). `details` hold errInfo."""


class DuplicateKeyError(ReplError, code=ErrorCode.DUPLICATE_KEY):
    """A document with this key exists already (11000). `details` hold keyPattern and keyValue."""


class CannotIndexParallelArraysError(ReplError, code=ErrorCode.CANNOT_INDEX_PARALLEL_ARRAYS):
    """Two fields of one index go through two different arrays of the document (171)."""


class CannotBuildIndexKeysError(ReplError, code=ErrorCode.CANNOT_BUILD_INDEX_KEYS):
    """The document has too many keys in one index (201)."""


class IndexNotFoundError(ReplError, code=ErrorCode.INDEX_NOT_FOUND):
    """There is no such index (27)."""


class CannotCreateIndexError(ReplError, code=ErrorCode.CANNOT_CREATE_INDEX):
    """An index cannot be made so (67)."""


class IndexBuildAbortedError(ReplError, code=ErrorCode.INDEX_BUILD_ABORTED):
    """An index build was ended before its commit (276)."""


class InterruptedDueToReplStateChangeError(ReplError, code=ErrorCode.INTERRUPTED_BY_STATE_CHANGE):
    """The member is not primary any more; the operation may go on without its client (11602)."""


class QueryPlanKilledError(ReplError, code=ErrorCode.QUERY_PLAN_KILLED):
    """The index or the collection that a query reads is gone (175)."""


class WriteConflictError(ReplError, code=ErrorCode.WRITE_CONFLICT):
    """Another operation wrote the same document meanwhile. Run the whole transaction again (112)."""


class DocumentHeldError(WriteConflictError):
    """An open transaction has written the document: wait until it no longer holds `place`, then write (112)."""

    def __init__(self, place: tuple[bytes, bytes]) -> None:
        super().__init__("an open transaction has written this document")
        self.place = place


class CursorNotFoundError(ReplError, code=ErrorCode.CURSOR_NOT_FOUND):
    """The cursor is gone: exhausted, killed, timed out or closed by a rollback (43)."""


class CappedPositionLostError(ReplError, code=ErrorCode.CAPPED_POSITION_LOST):
    """The place in the oplog was trimmed away (136)."""


class ChangeStreamHistoryLostError(ReplError, code=ErrorCode.CHANGE_STREAM_HISTORY_LOST):
    """The entries behind a resume token are gone (286). The reply names the oldest token that can be had."""


class SnapshotTooOldError(ReplError, code=ErrorCode.SNAPSHOT_TOO_OLD):
    """The read point lies before the undo that is still kept (239)."""


class NotWritablePrimaryError(ReplError, code=ErrorCode.NOT_WRITABLE_PRIMARY):
    """A write reached a member that is not primary (10107)."""

    def __init__(self, message: str = "not primary") -> None:
        super().__init__(message)


class NotPrimaryNoSecondaryOkError(ReplError, code=ErrorCode.NOT_PRIMARY_NO_SECONDARY_OK):
    """A read reached a secondary without a read preference that allows it (13435)."""


class NotPrimaryOrSecondaryError(ReplError, code=ErrorCode.NOT_PRIMARY_OR_SECONDARY):
    """A read reached a member that is neither primary nor secondary (13436)."""


class PrimarySteppedDownError(ReplError, code=ErrorCode.PRIMARY_STEPPED_DOWN):
    """The primary stepped down while the operation waited; it may or may not survive (189)."""


class LinearizableReadConcernError(ReplError, code=ErrorCode.LINEARIZABLE_READ_CONCERN_ERROR):
    """It is not known whether the read was linearizable; nothing of it is answered (187)."""


class ShutdownInProgressError(ReplError, code=ErrorCode.SHUTDOWN_IN_PROGRESS):
    """The member is shutting down (91)."""


class OverloadedError(ReplError, code=ErrorCode.OVERLOADED):
    """Refused before anything was done, since the member has too much to do (462, as MongoDB 8.2's rate limiter)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, labels=("SystemOverloadedError", "RetryableError"))


class NotEnoughInSyncError(ReplError, code=ErrorCode.NOT_ENOUGH_IN_SYNC):
    """Refused before anything was applied: too few members are in sync (settings.minInSync). A code of this product."""

    def __init__(self, message: str) -> None:
        super().__init__(message, labels=("NoWritesPerformed",))


class MaxTimeMSExpiredError(ReplError, code=ErrorCode.MAX_TIME_EXPIRED):
    """maxTimeMS ran out (50)."""


class InvalidReplicaSetConfigError(ReplError, code=ErrorCode.INVALID_CONFIG):
    """The configuration breaks a rule (93, or the code given)."""


class NotYetInitializedError(ReplError, code=ErrorCode.NOT_YET_INITIALIZED):
    """The member has no replica-set configuration yet (94)."""


class NodeNotFoundError(ReplError, code=ErrorCode.NODE_NOT_FOUND):
    """Too few members answered, or none of the hosts is this member (74)."""


class OutOfDiskSpaceError(ReplError, code=ErrorCode.OUT_OF_DISK_SPACE):
    """The disk is nearly full: writes are refused before anything is damaged (14031)."""


class CannotApplyError(ReplError):
    """An entry that the set has accepted cannot be applied to what is on this member's disk (1)."""


class InvalidSyncSourceError(ReplError, code=ErrorCode.INVALID_SYNC_SOURCE):
    """The source lacks what this member acknowledged or knows to be committed; nothing of it is copied (119)."""


class UnrecoverableRollbackError(ReplError, code=ErrorCode.UNRECOVERABLE_ROLLBACK):
    """The rollback would undo what must stay; the member quarantines itself (127)."""


class HostUnreachableError(ReplError, code=ErrorCode.HOST_UNREACHABLE):
    """A member could not be reached, or the connection broke (6)."""


class NothingSentError(HostUnreachableError):
    """No connection came about, so the command was not sent and nothing of it is applied (6)."""


class ConnectRefusedError(NothingSentError):
    """A fresh connect was refused: no process listens there (6)."""


class UnprovenMemberError(NothingSentError):
    """The process at this address did not prove to be a member of this set, so it was sent nothing more (6)."""


class StorageError(ReplError):
    """SQLite or the file system failed under us (1)."""


class SyncFailedError(StorageError):
    """SQLite could not sync a file: what the disk holds of it is unknown, so the member must stop (1)."""


class CorruptDataError(StorageError):
    """A file of this member is damaged; the message has its name and the reason (1)."""


class DataMismatchError(StorageError):
    """What is on this member's disk does not fit a change that the set made (1)."""


class StoreBusyError(StorageError):
    """Another connection holds SQLite's write lock. Nothing was done: try again (1)."""


class DbPathLockedError(ReplError, code=ErrorCode.DB_PATH_IN_USE):
    """Another process holds the data folder (98)."""


class CatalogChangedError(ReplError, code=ErrorCode.SNAPSHOT_UNAVAILABLE):
    """The collection was created or dropped after the read point (246). Wait until the point reaches `until` (a ts)."""

    def __init__(self, message: str, *, until: int) -> None:
        super().__init__(message)
        self.until = until


class SnapshotCutError(ReplError, code=ErrorCode.SNAPSHOT_UNAVAILABLE):
    """The read was cut off so that the WAL could be copied into the database: read again from a new snapshot (246)."""


class LocalProtocolError(ReplError):
    """We were about to send bytes that the protocol does not allow (1)."""


class RemoteProtocolError(ReplError, code=ErrorCode.FAILED_TO_PARSE):
    """The peer sent bytes that the protocol does not allow; the connection is closed (9)."""


class InvariantError(Exception):
    """An invariant is broken. Only the shell catches this error, and stops the member."""


def forget_frames(error: BaseException | None) -> None:
    """Let go of what was under way when the error was raised.

    Some of these frames hold the error in their turn. A decoded filter of 100 MB would stay until the next full
    collection of garbage.
    """
    seen: set[int] = set()  # a chain of causes may be a ring
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
