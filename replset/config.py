"""The replica-set configuration: parse, validate, compare (map A1).

`ReplSetConfig.parse` refuses a document that can never be valid, with MongoDB's code and the name of the field. The
rules between an old and a new configuration are in `core/reconfig_rules.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from replset.bson import Int64, ObjectId
from replset.durability_levels import DurabilityRule, parse_rules
from replset.errors import BadValueError, ErrorCode, InvalidReplicaSetConfigError, ReplError, TypeMismatchError
from replset.ids import HostPort, MemberId, Millis

MAX_MEMBERS = 50
MAX_VOTERS = 7
MAX_MEMBER_ID = 255
MAX_VERSION = 2_147_483_647
MAX_DELAY_SECS = 31_622_400
DEFAULT_PORT = 27017
RESERVED_MODES = frozenset({"majority", "inSync"})
TagCounts = tuple[tuple[str, int], ...]
"""Of how many different values of each tag there must be a member: `(("dc", 2), ("disk", 1))`."""
HEARTBEAT_INTERVAL_MS = Millis(2_000)
ELECTION_TIMEOUT_MS = Millis(10_000)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/,@\[\]]+)(?::(\d{1,5}))?")
_LONGEST_NAME = 253
_LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True, slots=True)
class Member:
    """One member. `votes` and `priority` are as configured; `newly_added` makes both count as 0 (map C14).

    incarnation: id of the data that may vote, set by the primary; None: not yet known. Not shown to users.
    spare_after_secs: a member without a vote may vote in the place of one that is gone for so long; 0: it does not.
    spare_for: the voter in whose place it votes now, set by the primary (`core/spares.py`).
    witness: it keeps the oplog and no documents (docs/witness.md).
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
        return document


@dataclass(frozen=True, slots=True)
class Settings:
    """Timeouts and switches, with MongoDB's defaults (map C2). Unknown settings are kept as they came.

    write_concern_modes: getLastErrorModes, by name. in_sync_lag_secs: a member that lacks older entries than this is
    not in sync. min_in_sync: with fewer members in sync, a write that waits for other members is refused.
    flow_control_target_lag_secs: 0 switches flow control off. follower_bytes_per_second: what a member sends at most to
    each one that copies its data or is far behind; 0: no limit.
    """

    chaining_allowed: bool = True
    heartbeat_interval_ms: Millis = HEARTBEAT_INTERVAL_MS
    heartbeat_timeout_secs: int = 10
    election_timeout_ms: Millis = ELECTION_TIMEOUT_MS
    catch_up_timeout_ms: int = -1
    catch_up_takeover_delay_ms: int = 30_000
    replica_set_id: ObjectId | None = None
    fast_failover: bool = True
    write_concern_modes: Mapping[str, TagCounts] = field(default_factory=lambda: MappingProxyType({}))
    in_sync_lag_secs: int = 10
    min_in_sync: int = 1
    flow_control_target_lag_secs: int = 10
    follower_bytes_per_second: int = 0
    durability_levels: Mapping[str, DurabilityRule] = field(default_factory=lambda: MappingProxyType({}))
    others: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def heartbeat_timeout_ms(self) -> Millis:
        return Millis(self.heartbeat_timeout_secs * 1000)

    def document(self) -> dict[str, object]:
        document: dict[str, object] = {
            "chainingAllowed": self.chaining_allowed,
            "heartbeatIntervalMillis": int(self.heartbeat_interval_ms),
            "heartbeatTimeoutSecs": self.heartbeat_timeout_secs,
            "electionTimeoutMillis": int(self.election_timeout_ms),
            "catchUpTimeoutMillis": self.catch_up_timeout_ms,
            "catchUpTakeoverDelayMillis": self.catch_up_takeover_delay_ms,
            "getLastErrorModes": {name: dict(counts) for name, counts in self.write_concern_modes.items()},
            "getLastErrorDefaults": {"w": 1, "wtimeout": 0},
        }
        for name, number, default in (
            ("inSyncLagSecs", self.in_sync_lag_secs, 10),
            ("minInSync", self.min_in_sync, 1),
            ("flowControlTargetLagSecs", self.flow_control_target_lag_secs, 10),
            ("followerBytesPerSecond", self.follower_bytes_per_second, 0),
        ):
            if number != default:
                document[name] = number
        if self.durability_levels:
            document["durabilityLevels"] = {ns: rule.document() for ns, rule in self.durability_levels.items()}
        if self.replica_set_id is not None:
            document["replicaSetId"] = self.replica_set_id
        if not self.fast_failover:
            document["fastFailover"] = False
        return {**document, **self.others}


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How many data-bearing members may fail, whichever they are, before majority writes and elections stop."""

    majority_writes: int
    elections: int


@dataclass(frozen=True, slots=True)
class ReplSetConfig:
    """A whole configuration. Ordered by (term, version); a term of -1 (forced) compares by version alone (map C13)."""

    set_name: str
    version: int
    term: int
    members: tuple[Member, ...]
    settings: Settings = Settings()
    write_concern_majority_journal_default: bool = True
    # Needed for every message, so computed once.
    voters: tuple[Member, ...] = field(init=False, repr=False, compare=False)
    oplog_voters: tuple[Member, ...] = field(init=False, repr=False, compare=False)
    """Voters with data, and witnesses: who can hold an entry for the commit point."""

    def __post_init__(self) -> None:
        voters = tuple(member for member in self.members if member.is_voter)
        object.__setattr__(self, "voters", voters)
        object.__setattr__(self, "oplog_voters", tuple(member for member in voters if member.holds_oplog))

    # --- counts (map C8) -----------------------------------------------------------------------------------------

    @property
    def majority_vote_count(self) -> int:
        return len(self.voters) // 2 + 1

    @property
    def write_majority(self) -> int:
        return min(self.majority_vote_count, len(self.oplog_voters))

    @property
    def data_bearing(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.bears_data)

    @property
    def oplog_holders(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.holds_oplog)

    @property
    def in_sync_voters(self) -> tuple[Member, ...]:
        """Who can be in sync: voting members with data, but for delayed ones, which are behind on purpose."""
        return tuple(each for each in self.voters if each.bears_data and not each.secondary_delay_secs)

    @property
    def tolerance(self) -> Tolerance:
        """What the set survives while its arbiters are up. A write needs a primary, so it never survives more."""
        electable = sum(member.is_electable for member in self.voters)
        elections = max(0, min(len(self.voters) - self.majority_vote_count, electable - 1))
        return Tolerance(min(elections, len(self.oplog_voters) - self.write_majority), elections)

    # --- finding members -----------------------------------------------------------------------------------------

    def member(self, member_id: MemberId | None) -> Member | None:
        return next((member for member in self.members if member.id == member_id), None)

    def member_at(self, host: HostPort) -> Member | None:
        return next((member for member in self.members if member.host == host), None)

    def with_member(self, changed: Member) -> ReplSetConfig:
        """The same configuration with the member of this `_id` replaced."""
        return replace(self, members=tuple(changed if member.id == changed.id else member for member in self.members))

    # --- order ---------------------------------------------------------------------------------------------------

    @property
    def version_and_term(self) -> tuple[int, int]:
        return (self.version, self.term)

    def is_newer_than(self, version: int, term: int) -> bool:
        if self.term != -1 and term != -1 and self.term != term:
            return self.term > term
        return self.version > version

    # --- documents -----------------------------------------------------------------------------------------------

    def document(self, internal: bool = False) -> dict[str, object]:
        """As replSetGetConfig shows it; internal: with what users do not see (between members and on disk)."""
        document: dict[str, object] = {"_id": self.set_name, "version": self.version}
        if self.term != -1:
            document["term"] = self.term
        document["members"] = [member.document(internal=internal) for member in self.members]
        document["protocolVersion"] = Int64(1)
        document["writeConcernMajorityJournalDefault"] = self.write_concern_majority_journal_default
        document["settings"] = self.settings.document()
        return document

    @classmethod
    def parse(cls, document: Mapping[str, object], *, allow_multiple_arbiters: bool = True) -> ReplSetConfig:
        """Read and validate a configuration document.

        Raises BadValueError (2), TypeMismatchError (14), InvalidReplicaSetConfigError (93) naming the place.
        allow_multiple_arbiters: whether more than one arbiter is accepted (map C6).
        """
        if "repaired" in document:
            raise ReplError("the configuration was repaired and cannot be used", code=ErrorCode.REPAIRED_CONFIG)
        for name in document:
            if name not in _CONFIG_FIELDS:
                raise BadValueError(f"unknown field {name!r} in the replica set configuration")
        set_name = document.get("_id")
        if not isinstance(set_name, str):
            raise TypeMismatchError("_id of the configuration must be a string: the name of the set")
        if not set_name:
            raise BadValueError("_id of the configuration must not be empty")
        version = _integer(document, "version", 1)
        if not 1 <= version <= MAX_VERSION:
            raise BadValueError(f"version must be from 1 to {MAX_VERSION}, not {version}")
        term = _integer(document, "term", -1)
        if term < -1:
            raise BadValueError(f"term must be -1 or above, not {term}")
        if _integer(document, "protocolVersion", 1) != 1:
            raise BadValueError("protocolVersion must be 1")
        if document.get("configsvr") not in (None, False):
            raise BadValueError("configsvr: config servers do not exist here")
        rows = document.get("members")
        if not isinstance(rows, list | tuple):
            raise TypeMismatchError("members must be an array")
        config = cls(
            set_name,
            version,
            term,
            tuple(_parse_member(row, f"members.{index}") for index, row in enumerate(rows)),
            _parse_settings(document.get("settings", {})),
            _boolean(document, "writeConcernMajorityJournalDefault", True, ""),
        )
        _validate(config, allow_multiple_arbiters)
        return config


def is_weaker(new: ReplSetConfig, old: ReplSetConfig) -> bool:
    """Whether fewer members may fail with `new` than with `old` before majority writes or elections stop."""
    after, before = new.tolerance, old.tolerance
    return after.majority_writes < before.majority_writes or after.elections < before.elections


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


# --- reading fields ---------------------------------------------------------------------------------------------

_CONFIG_FIELDS = {*ReplSetConfig("", 1, 0, ()).document(), "configsvr"}
_MEMBER_FIELDS = {
    *Member(MemberId(0), HostPort(""), witness=True).document(),
    *("newlyAdded", "incarnation", "horizons", "slaveDelay"),
}
_MEMBER_FIELDS |= {"spareAfterSecs", "spareFor"}
_SETTINGS_FIELDS = {
    *Settings().document(),
    *("replicaSetId", "fastFailover", "inSyncLagSecs", "minInSync", "flowControlTargetLagSecs", "durabilityLevels"),
    "followerBytesPerSecond",
}


def _integer(document: Mapping[str, object], name: str, default: int, place: str = "") -> int:
    value = document.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeMismatchError(f"{place}{name} must be a number")
    if isinstance(value, float) and not value.is_integer():
        raise BadValueError(f"{place}{name} must be a whole number, not {value}")
    if not -(1 << 63) <= value < 1 << 63:
        raise BadValueError(f"{place}{name} must fit into 64 bits")
    return int(value)


def _boolean(document: Mapping[str, object], name: str, default: bool, place: str) -> bool:
    value = document.get(name, default)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return bool(value)
    if not isinstance(value, bool):
        raise TypeMismatchError(f"{place}{name} must be true or false")
    return value


def _parse_member(row: object, place: str) -> Member:
    if not isinstance(row, Mapping):
        raise TypeMismatchError(f"{place} must be a document")
    at = f"{place}."
    for name in row:
        if name not in _MEMBER_FIELDS:
            raise BadValueError(f"unknown field {at}{name}")
    if "_id" not in row:
        raise BadValueError(f"{at}_id is missing")
    member_id = _integer(row, "_id", 0, at)
    if not 0 <= member_id <= MAX_MEMBER_ID:
        raise BadValueError(f"{at}_id must be from 0 to {MAX_MEMBER_ID}, not {member_id}")
    host = row.get("host")
    if not isinstance(host, str):
        raise TypeMismatchError(f"{at}host must be a string HOST:PORT")
    arbiter, witness = _boolean(row, "arbiterOnly", False, at), _boolean(row, "witness", False, at)
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
        _boolean(row, "buildIndexes", True, at),
        _boolean(row, "hidden", False, at),
        0.0 if never_leads and priority == 1 else float(priority),
        MappingProxyType(_parse_tags(row.get("tags", {}), at)),
        _integer(row, delay_name, 0, at),
        _integer(row, "votes", 1, at),
        incarnation,
        _integer(row, "spareAfterSecs", 0, at),
        MemberId(_integer(row, "spareFor", 0, at)) if "spareFor" in row else None,
        witness,
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


def _parse_settings(value: object) -> Settings:
    if not isinstance(value, Mapping):
        raise TypeMismatchError("settings must be a document")
    at = "settings."
    defaults = value.get("getLastErrorDefaults", {"w": 1, "wtimeout": 0})
    if not isinstance(defaults, Mapping) or dict(defaults) != {"w": 1, "wtimeout": 0}:
        raise ReplError(
            "settings.getLastErrorDefaults must stay {w: 1, wtimeout: 0}; use setDefaultRWConcern",
            code=ErrorCode.GET_LAST_ERROR_DEFAULTS_SET,
        )
    set_id = value.get("replicaSetId")
    if set_id is not None and not isinstance(set_id, ObjectId):
        raise TypeMismatchError("settings.replicaSetId must be an ObjectId")
    settings = Settings(
        _boolean(value, "chainingAllowed", True, at),
        Millis(_integer(value, "heartbeatIntervalMillis", 2_000, at)),
        _integer(value, "heartbeatTimeoutSecs", 10, at),
        Millis(_integer(value, "electionTimeoutMillis", 10_000, at)),
        _integer(value, "catchUpTimeoutMillis", -1, at),
        _integer(value, "catchUpTakeoverDelayMillis", 30_000, at),
        set_id,
        _boolean(value, "fastFailover", True, at),
        write_concern_modes=MappingProxyType(_parse_modes(value.get("getLastErrorModes"))),
        in_sync_lag_secs=_integer(value, "inSyncLagSecs", 10, at),
        min_in_sync=_integer(value, "minInSync", 1, at),
        flow_control_target_lag_secs=_integer(value, "flowControlTargetLagSecs", 10, at),
        follower_bytes_per_second=_integer(value, "followerBytesPerSecond", 0, at),
        durability_levels=MappingProxyType(parse_rules(value.get("durabilityLevels"))),
        others=MappingProxyType({name: setting for name, setting in value.items() if name not in _SETTINGS_FIELDS}),
    )
    for name, number, least in (
        ("heartbeatIntervalMillis", settings.heartbeat_interval_ms, 1),
        ("heartbeatTimeoutSecs", settings.heartbeat_timeout_secs, 1),
        ("electionTimeoutMillis", settings.election_timeout_ms, 1),
        ("catchUpTimeoutMillis", settings.catch_up_timeout_ms, -1),
        ("catchUpTakeoverDelayMillis", settings.catch_up_takeover_delay_ms, -1),
        ("inSyncLagSecs", settings.in_sync_lag_secs, 1),
        ("minInSync", settings.min_in_sync, 1),
        ("flowControlTargetLagSecs", settings.flow_control_target_lag_secs, 0),
        ("followerBytesPerSecond", settings.follower_bytes_per_second, 0),
    ):
        if number < least:
            raise BadValueError(f"settings.{name} must be {least} or above, not {number}")
    return settings


def _parse_modes(value: object) -> dict[str, TagCounts]:
    """Read getLastErrorModes: by name of the mode, how many different values of each tag (map C7)."""
    at = "settings.getLastErrorModes"
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeMismatchError(f"{at} must be a document")
    modes: dict[str, TagCounts] = {}
    for name, counts in value.items():
        if not name or name.startswith("$") or name in RESERVED_MODES:
            raise BadValueError(f"{at}.{name}: this name is the server's own")
        if not isinstance(counts, Mapping):
            raise TypeMismatchError(f"{at}.{name} must be a document {{tag: count}}")
        modes[name] = parse_tag_counts(counts, f"{at}.{name}.")
    return modes


def parse_tag_counts(counts: Mapping[str, object], at: str) -> TagCounts:
    """Read `{tag: count}`. TypeMismatchError (14), BadValueError (2)."""
    for tag in counts:
        if _integer(counts, tag, 0, at) < 1:
            raise BadValueError(f"{at}{tag} must be 1 or above, not {counts[tag]}")
    return tuple((tag, _integer(counts, tag, 0, at)) for tag in counts)


# --- rules (map C3 to C6) ---------------------------------------------------------------------------------------


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


def _validate(config: ReplSetConfig, allow_multiple_arbiters: bool) -> None:
    members = config.members
    if not 1 <= len(members) <= MAX_MEMBERS:
        raise BadValueError(f"members must hold from 1 to {MAX_MEMBERS} members, not {len(members)}")
    # A spare votes in the place of another one, which has no vote meanwhile.
    voters = sum(member.votes for member in members if config.member(member.spare_for) is None)
    if not 1 <= voters <= MAX_VOTERS:
        raise BadValueError(f"from 1 to {MAX_VOTERS} members may vote, not {voters}")
    if not any(member.priority > 0 and member.bears_data for member in members):
        raise BadValueError("at least one member that is no arbiter and no witness must have a priority above 0")
    seen_ids: dict[int, int] = {}
    seen_hosts: dict[str, int] = {}
    for index, member in enumerate(members):
        if member.id in seen_ids:
            raise BadValueError(f"members.{index}._id: {member.id} is the _id of members.{seen_ids[member.id]} already")
        if member.host in seen_hosts:
            raise BadValueError(f"members.{index}.host: {member.host} is members.{seen_hosts[member.host]} already")
        seen_ids[member.id], seen_hosts[member.host] = index, index
    local = [member.host.rpartition(":")[0] in _LOCAL for member in members]
    if any(local) and not all(local):
        raise BadValueError("either all members' hosts are localhost, or none is")
    tags = {tag for member in members for tag in member.tags}
    for name, counts in config.settings.write_concern_modes.items():
        for tag, _ in counts:
            if tag not in tags:
                raise ReplError(
                    f"settings.getLastErrorModes.{name}.{tag}: no member has this tag", code=ErrorCode.NO_SUCH_KEY
                )
    arbiters = sum(member.arbiter_only for member in members)
    if arbiters > 1 and not allow_multiple_arbiters:
        raise BadValueError("more than one arbiter needs --allow-multiple-arbiters on every member")
