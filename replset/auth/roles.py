"""The built-in roles, and what each allows. An action is what a command needs: one of MongoDB's, by its name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import Final


class Action(Enum):
    """What somebody has to be allowed to do. The value is MongoDB's name of it, and on what it is allowed."""

    # For all, and for all who have logged in
    OPEN = "open", "nothing"
    LOGIN = "login", "nothing"
    CHANGE_OWN = "changeOwnPassword", "nothing"
    # On a database
    FIND = "find", "database"
    INSERT = "insert", "database"
    UPDATE = "update", "database"
    REMOVE = "remove", "database"
    LIST_COLLECTIONS = "listCollections", "database"
    LIST_INDEXES = "listIndexes", "database"
    COLL_STATS = "collStats", "database"
    DB_STATS = "dbStats", "database"
    DB_HASH = "dbHash", "database"
    VALIDATE = "validate", "database"
    CREATE_COLLECTION = "createCollection", "database"
    DROP_COLLECTION = "dropCollection", "database"
    RENAME_COLLECTION = "renameCollectionSameDB", "database"
    COLL_MOD = "collMod", "database"
    CREATE_INDEX = "createIndex", "database"
    DROP_INDEX = "dropIndex", "database"
    DROP_DATABASE = "dropDatabase", "database"
    PROFILE = "enableProfiler", "database"
    CREATE_USER = "createUser", "database"
    DROP_USER = "dropUser", "database"
    CHANGE_USER = "changePassword", "database"
    VIEW_USER = "viewUser", "database"
    VIEW_ROLE = "viewRole", "database"
    GRANT_ROLE = "grantRole", "database"
    REVOKE_ROLE = "revokeRole", "database"
    CHANGE_STREAM = "changeStream", "database"
    MANAGE_CONSUMERS = "manageConsumers", "database"
    # On the set and its members
    LIST_DATABASES = "listDatabases", "cluster"
    SERVER_STATUS = "serverStatus", "cluster"
    SET_STATUS = "replSetGetStatus", "cluster"
    SET_CONFIG = "replSetGetConfig", "cluster"
    GET_LOG = "getLog", "cluster"
    GET_OPTIONS = "getCmdLineOpts", "cluster"
    HOST_INFO = "hostInfo", "cluster"
    SET_FEATURE_VERSION = "setFeatureCompatibilityVersion", "cluster"
    GET_PARAMETER = "getParameter", "cluster"
    SET_PARAMETER = "setParameter", "cluster"
    IN_PROGRESS = "inprog", "cluster"
    KILL_OP = "killop", "cluster"
    ROTATE_CERTIFICATES = "rotateCertificates", "cluster"
    KILL_SESSION = "killAnySession", "cluster"
    TOP = "top", "cluster"
    CONFIGURE_SET = "replSetConfigure", "cluster"
    CHANGE_STATE = "replSetStateChange", "cluster"
    RESYNC = "resync", "cluster"
    APPEND_NOTE = "appendOplogNote", "cluster"
    APPLY_OPS = "applyOps", "cluster"
    SET_DEFAULTS = "setDefaultRWConcern", "cluster"
    READ_OPLOG = "readOplog", "cluster"
    READ_ROLLBACKS = "readRollbacks", "cluster"
    RESTORE = "restoreRollback", "cluster"
    BACKUP = "backup", "cluster"
    INTERNAL = "internal", "cluster"

    @property
    def is_of_database(self) -> bool:
        kind: str = self.value[1]
        return kind == "database"


_READ: Final = frozenset(
    {Action.FIND, Action.LIST_COLLECTIONS, Action.LIST_INDEXES, Action.COLL_STATS, Action.DB_STATS, Action.DB_HASH}
    | {Action.CHANGE_STREAM}
)
_WRITE: Final = frozenset(
    {Action.INSERT, Action.UPDATE, Action.REMOVE, Action.CREATE_COLLECTION, Action.DROP_COLLECTION}
    | {Action.RENAME_COLLECTION, Action.CREATE_INDEX, Action.DROP_INDEX, Action.MANAGE_CONSUMERS}
)
_READ_WRITE: Final = _READ | _WRITE
_DB_ADMIN: Final = frozenset(
    {Action.LIST_COLLECTIONS, Action.LIST_INDEXES, Action.COLL_STATS, Action.DB_STATS, Action.DB_HASH}
    | {Action.VALIDATE, Action.CREATE_COLLECTION, Action.DROP_COLLECTION, Action.RENAME_COLLECTION, Action.COLL_MOD}
    | {Action.CREATE_INDEX, Action.DROP_INDEX, Action.DROP_DATABASE, Action.PROFILE, Action.MANAGE_CONSUMERS}
)
_USER_ADMIN: Final = frozenset(
    {Action.CREATE_USER, Action.DROP_USER, Action.CHANGE_USER, Action.VIEW_USER, Action.VIEW_ROLE}
    | {Action.GRANT_ROLE, Action.REVOKE_ROLE}
)
_MONITOR: Final = frozenset(
    {Action.LIST_DATABASES, Action.SERVER_STATUS, Action.SET_STATUS, Action.SET_CONFIG, Action.GET_LOG}
    | {Action.GET_OPTIONS, Action.HOST_INFO, Action.GET_PARAMETER, Action.IN_PROGRESS, Action.TOP}
)
_MANAGE: Final = frozenset(
    {Action.SET_STATUS, Action.SET_CONFIG, Action.CONFIGURE_SET, Action.CHANGE_STATE, Action.RESYNC}
    | {Action.APPEND_NOTE, Action.SET_DEFAULTS, Action.SET_FEATURE_VERSION}
)
_HOST: Final = frozenset({Action.SET_PARAMETER, Action.KILL_OP, Action.KILL_SESSION, Action.ROTATE_CERTIFICATES})
_STATISTICS: Final = frozenset({Action.COLL_STATS, Action.DB_STATS, Action.LIST_INDEXES, Action.LIST_COLLECTIONS})
_BACKUP: Final = frozenset(
    {Action.BACKUP, Action.LIST_DATABASES, Action.SET_STATUS, Action.SET_CONFIG, Action.READ_OPLOG}
    | {Action.READ_ROLLBACKS, Action.GET_PARAMETER, Action.APPEND_NOTE, Action.SERVER_STATUS}
)
_RESTORE: Final = frozenset({Action.RESTORE, Action.APPLY_OPS, Action.READ_ROLLBACKS})


AUDITED: Final = (
    (_DB_ADMIN - _READ - {Action.CREATE_COLLECTION, Action.CREATE_INDEX})
    | (_USER_ADMIN - {Action.VIEW_USER, Action.VIEW_ROLE})
    | (_MANAGE - {Action.SET_STATUS, Action.SET_CONFIG})
    | _HOST
    | _RESTORE
    | {Action.BACKUP, Action.CHANGE_OWN}
)
"""What the audit log is about: who changes the set, its members, users, or what collections there are."""


@dataclass(frozen=True, slots=True)
class RoleRights:
    """What one role allows: on its own database, on every database but local and config, on these two, on the set."""

    own: frozenset[Action] = frozenset()
    any: frozenset[Action] = frozenset()
    internal: frozenset[Action] = frozenset()
    cluster: frozenset[Action] = frozenset()


_EVERY_DATABASE: Final = _READ_WRITE | _DB_ADMIN | _USER_ADMIN
DATABASE_ROLES: Final[Mapping[str, RoleRights]] = MappingProxyType(
    {
        "read": RoleRights(own=_READ),
        "readWrite": RoleRights(own=_READ_WRITE),
        "dbAdmin": RoleRights(own=_DB_ADMIN),
        "userAdmin": RoleRights(own=_USER_ADMIN),
        "dbOwner": RoleRights(own=_READ_WRITE | _DB_ADMIN | _USER_ADMIN),
    }
)
"""The roles that every database has."""
ADMIN_ROLES: Final[Mapping[str, RoleRights]] = MappingProxyType(
    {
        "readAnyDatabase": RoleRights(any=_READ, cluster=frozenset({Action.LIST_DATABASES})),
        "readWriteAnyDatabase": RoleRights(any=_READ_WRITE, cluster=frozenset({Action.LIST_DATABASES})),
        "dbAdminAnyDatabase": RoleRights(any=_DB_ADMIN, cluster=frozenset({Action.LIST_DATABASES})),
        "userAdminAnyDatabase": RoleRights(any=_USER_ADMIN, cluster=frozenset({Action.LIST_DATABASES})),
        "clusterMonitor": RoleRights(any=_STATISTICS, internal=_STATISTICS, cluster=_MONITOR),
        "clusterManager": RoleRights(cluster=_MANAGE),
        "clusterAdmin": RoleRights(
            any=_STATISTICS | {Action.DROP_DATABASE},
            internal=_STATISTICS,
            cluster=_MONITOR | _MANAGE | _HOST,
        ),
        "backup": RoleRights(any=_READ, internal=_READ, cluster=_BACKUP),
        "restore": RoleRights(any=_READ_WRITE | _DB_ADMIN, cluster=_RESTORE),
        "root": RoleRights(
            any=_EVERY_DATABASE, internal=_READ, cluster=_MONITOR | _MANAGE | _HOST | _BACKUP | _RESTORE
        ),
    }
)
"""The roles that only the database admin has."""
FOR_ALL: Final = frozenset({Action.OPEN, Action.LOGIN, Action.CHANGE_OWN})
"""What whoever has logged in may do."""
INTERNAL_DATABASES: Final = frozenset({"local", "config"})


@dataclass(frozen=True, slots=True, order=True)
class Role:
    """One role of one database."""

    name: str
    database: str

    @property
    def rights(self) -> RoleRights | None:
        """What it allows; None: there is no such role."""
        found = DATABASE_ROLES.get(self.name)
        return ADMIN_ROLES.get(self.name) if found is None and self.database == "admin" else found

    def document(self) -> dict[str, str]:
        return {"role": self.name, "db": self.database}

    def privileges(self) -> list[dict[str, object]]:
        """What it allows, as MongoDB shows it."""
        rights = self.rights or RoleRights()
        resources: list[tuple[dict[str, object], frozenset[Action]]] = [
            ({"cluster": True}, rights.cluster),
            ({"db": self.database, "collection": ""}, rights.own),
            ({"db": "", "collection": ""}, rights.any),
            ({"db": "config", "collection": ""}, rights.internal),
            ({"db": "local", "collection": ""}, rights.internal),
        ]
        return [
            {"resource": resource, "actions": sorted(action.value[0] for action in actions)}
            for resource, actions in resources
            if actions
        ]


class Grants:
    """What some roles allow together."""

    __slots__ = ("_any", "_cluster", "_internal", "_of")

    def __init__(self, roles: Iterable[Role]) -> None:
        self._any: frozenset[Action] = frozenset()
        self._internal: frozenset[Action] = frozenset()
        self._cluster: frozenset[Action] = frozenset()
        self._of: dict[str, frozenset[Action]] = {}
        for role in roles:
            rights = role.rights
            if rights is not None:
                self._any |= rights.any
                self._internal |= rights.internal
                self._cluster |= rights.cluster
                self._of[role.database] = self._of.get(role.database, frozenset()) | rights.own

    def allow(self, action: Action, database: str = "") -> bool:
        """Whether they allow it, on this database where it is one of a database."""
        if not action.is_of_database:
            return action in self._cluster or action in FOR_ALL
        general = self._internal if database in INTERNAL_DATABASES else self._any
        return action in general or action in self._of.get(database, ())


@lru_cache(maxsize=1024)
def grants_of(roles: frozenset[Role]) -> Grants:
    return Grants(roles)
