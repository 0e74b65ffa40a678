"""The settings of the configuration: timeouts, switches, write concern modes (map C2, C7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from replset.bson import ObjectId
from replset.config.durability_rules import DurabilityRule, parse_rules
from replset.config.fields import read_boolean, read_integer
from replset.errors import BadValueError, ErrorCode, ReplError, TypeMismatchError
from replset.ids import Millis

RESERVED_MODES = frozenset({"majority", "inSync"})
TagCounts = tuple[tuple[str, int], ...]
"""For how many different values of each tag there must be a member: `(("dc", 2), ("disk", 1))`."""
HEARTBEAT_INTERVAL_MS = Millis(2_000)
ELECTION_TIMEOUT_MS = Millis(10_000)


@dataclass(frozen=True, slots=True)
class Settings:
    """Timeouts and switches, with MongoDB's defaults (map C2). Unknown settings are kept as they came.

    write_concern_modes: getLastErrorModes, by name. in_sync_lag_secs: a member that lacks older entries than this is
    not in sync. min_in_sync: with fewer members in sync, a write that waits for other members is refused.
    flow_control_target_lag_secs: 0 switches flow control off. follower_bytes_per_second: what a member sends at most to
    each one that copies its data or is far behind; 0: no limit. manual_failover: no member stands by itself.
    auto_repair: a secondary takes over the majority's version of a document that its disk changed.
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
    manual_failover: bool = False
    auto_repair: bool = True
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
        if self.manual_failover:
            document["failover"] = "manual"
        if not self.auto_repair:
            document["autoRepair"] = False
        return {**document, **self.others}


_SETTINGS_FIELDS = {
    *Settings().document(),
    *("replicaSetId", "fastFailover", "inSyncLagSecs", "minInSync", "flowControlTargetLagSecs", "durabilityLevels"),
    *("followerBytesPerSecond", "failover", "autoRepair"),
}


def parse_settings(value: object, keep: bool = False) -> Settings:
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
        read_boolean(value, "chainingAllowed", True, at),
        Millis(read_integer(value, "heartbeatIntervalMillis", 2_000, at)),
        read_integer(value, "heartbeatTimeoutSecs", 10, at),
        Millis(read_integer(value, "electionTimeoutMillis", 10_000, at)),
        read_integer(value, "catchUpTimeoutMillis", -1, at),
        read_integer(value, "catchUpTakeoverDelayMillis", 30_000, at),
        set_id,
        read_boolean(value, "fastFailover", True, at),
        write_concern_modes=MappingProxyType(_parse_modes(value.get("getLastErrorModes"))),
        in_sync_lag_secs=read_integer(value, "inSyncLagSecs", 10, at),
        min_in_sync=read_integer(value, "minInSync", 1, at),
        flow_control_target_lag_secs=read_integer(value, "flowControlTargetLagSecs", 10, at),
        follower_bytes_per_second=read_integer(value, "followerBytesPerSecond", 0, at),
        manual_failover=_read_failover(value.get("failover", "automatic")) == "manual",
        auto_repair=read_boolean(value, "autoRepair", True, at),
        durability_levels=MappingProxyType(parse_rules(value.get("durabilityLevels"), keep)),
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


def _read_failover(value: object) -> str:
    if not isinstance(value, str):
        raise TypeMismatchError("settings.failover must be a string")
    if value not in ("automatic", "manual"):
        raise BadValueError(f'settings.failover must be "automatic" or "manual", not {value!r}')
    return value


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
        if read_integer(counts, tag, 0, at) < 1:
            raise BadValueError(f"{at}{tag} must be 1 or above, not {counts[tag]}")
    return tuple((tag, read_integer(counts, tag, 0, at)) for tag in counts)
