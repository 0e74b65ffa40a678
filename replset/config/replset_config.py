"""A whole configuration: parse, validate, compare (map C1, C3, C8, C13).

`ReplSetConfig.parse` refuses a document that can never be valid, with MongoDB's code and the name of the field. The
rules between an old and a new configuration are in `core/reconfig_rules.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from replset.bson import Int64
from replset.config.feature_version import FIELD, OLDEST, FeatureVersion, read_feature_version
from replset.config.fields import other_fields, read_boolean, read_integer
from replset.config.member import Member, parse_member
from replset.config.settings import Settings, parse_settings
from replset.errors import BadValueError, ErrorCode, ReplError, TypeMismatchError
from replset.ids import HostPort, MemberId

MAX_MEMBERS = 50
MAX_VOTERS = 7
MAX_GIVEN_VERSION = 2_147_483_647
"""The highest version that a person may give (map C1)."""
MAX_VERSION = (1 << 53) - 1
"""The highest version. Those above MAX_GIVEN_VERSION are left for what follows: each change raises the version, also
those of the primary, and a forced one by up to 110,000."""
MAX_VERSION_JUMP = 1 << 40
"""How far above its own version a member accepts one. So many come from ten million forced changes."""
_DEFAULT_SETTINGS = Settings()
_LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})


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
    settings: Settings = _DEFAULT_SETTINGS
    write_concern_majority_journal_default: bool = True
    former_hosts: tuple[HostPort, ...] = ()
    """Members that the last reconfig removed. They may have a newer configuration, if this one was never committed."""
    feature_version: FeatureVersion = OLDEST
    others: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    """Fields of a newer release, as they came."""
    # Needed for every message, so computed once.
    voters: tuple[Member, ...] = field(init=False, repr=False, compare=False)
    oplog_voters: tuple[Member, ...] = field(init=False, repr=False, compare=False)
    """Voters with data, and witnesses: who can hold an entry for the commit point."""
    oplog_holders: tuple[Member, ...] = field(init=False, repr=False, compare=False)
    majority_vote_count: int = field(init=False, repr=False, compare=False)
    write_majority: int = field(init=False, repr=False, compare=False)
    _by_id: dict[MemberId | None, Member] = field(init=False, repr=False, compare=False)
    _by_host: dict[HostPort, Member] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        reverse = self.members[::-1]  # the first of two alike is found, in what is not validated yet
        object.__setattr__(self, "_by_id", {member.id: member for member in reverse})
        object.__setattr__(self, "_by_host", {member.host: member for member in reverse})
        voters = tuple(member for member in self.members if member.is_voter)
        object.__setattr__(self, "voters", voters)
        oplog_voters = tuple(member for member in voters if member.holds_oplog)
        object.__setattr__(self, "oplog_voters", oplog_voters)
        object.__setattr__(self, "oplog_holders", tuple(member for member in self.members if member.holds_oplog))
        majority = len(voters) // 2 + 1
        object.__setattr__(self, "majority_vote_count", majority)
        object.__setattr__(self, "write_majority", min(majority, len(oplog_voters)))

    # --- counts (map C8) -----------------------------------------------------------------------------------------

    @property
    def data_bearing(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.bears_data)

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
        return self._by_id.get(member_id)

    def member_at(self, host: HostPort) -> Member | None:
        return self._by_host.get(host)

    def with_member(self, changed: Member) -> ReplSetConfig:
        """Return the same configuration with the member of this `_id` replaced."""
        return replace(self, members=tuple(changed if member.id == changed.id else member for member in self.members))

    # --- order ---------------------------------------------------------------------------------------------------

    @property
    def version_and_term(self) -> tuple[int, int]:
        return (self.version, self.term)

    def is_newer_than(self, version: int, term: int) -> bool:
        if self.term != -1 and term != -1 and self.term != term:
            return self.term > term
        return self.version > version

    def is_plausible_after(self, version: int) -> bool:
        """Whether a member whose configuration has `version` accepts this one.

        A version never falls. If a forged or damaged message raised it to the highest number, nothing could follow.
        """
        return self.version <= max(version, MAX_GIVEN_VERSION) + MAX_VERSION_JUMP

    # --- documents -----------------------------------------------------------------------------------------------

    def document(self, internal: bool = False) -> dict[str, object]:
        """Return what replSetGetConfig shows; internal: with what users do not see (between members and on disk)."""
        document: dict[str, object] = {"_id": self.set_name, "version": self.version}
        if self.term != -1:
            document["term"] = self.term
        document["members"] = [member.document(internal=internal) for member in self.members]
        document["protocolVersion"] = Int64(1)
        document["writeConcernMajorityJournalDefault"] = self.write_concern_majority_journal_default
        document["settings"] = self.settings.document()
        if self.feature_version != OLDEST:
            document[FIELD] = str(self.feature_version)
        if internal and self.former_hosts:
            document["formerHosts"] = list(self.former_hosts)
        return {**document, **self.others}

    @classmethod
    def parse(
        cls, document: Mapping[str, object], *, allow_multiple_arbiters: bool = True, keep: bool = False
    ) -> ReplSetConfig:
        """Read and validate a configuration document. keep: see `other_fields`.

        Raises BadValueError (2), TypeMismatchError (14), InvalidReplicaSetConfigError (93) naming the place.
        allow_multiple_arbiters: whether more than one arbiter is accepted (map C6).
        """
        if "repaired" in document:
            raise ReplError("the configuration was repaired and cannot be used", code=ErrorCode.REPAIRED_CONFIG)
        others = other_fields(document, _CONFIG_FIELDS, "", keep)
        set_name = document.get("_id")
        if not isinstance(set_name, str):
            raise TypeMismatchError("_id of the configuration must be a string: the name of the set")
        if not set_name:
            raise BadValueError("_id of the configuration must not be empty")
        version = read_integer(document, "version", 1)
        if not 1 <= version <= MAX_VERSION:
            raise BadValueError(f"version must be from 1 to {MAX_VERSION}, not {version}")
        term = read_integer(document, "term", -1)
        if term < -1:
            raise BadValueError(f"term must be -1 or above, not {term}")
        if read_integer(document, "protocolVersion", 1) != 1:
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
            tuple(parse_member(row, f"members.{index}", keep) for index, row in enumerate(rows)),
            parse_settings(document.get("settings", {}), keep),
            read_boolean(document, "writeConcernMajorityJournalDefault", True, ""),
            _read_former_hosts(document),
            read_feature_version(document),
            others,
        )
        _validate(config, allow_multiple_arbiters)
        return config


def is_weaker(new: ReplSetConfig, old: ReplSetConfig) -> bool:
    """Whether fewer members may fail with `new` than with `old` before majority writes or elections stop."""
    after, before = new.tolerance, old.tolerance
    return after.majority_writes < before.majority_writes or after.elections < before.elections


_CONFIG_FIELDS = {*ReplSetConfig("", 1, 0, ()).document(), "configsvr", "formerHosts", FIELD}


def _read_former_hosts(document: Mapping[str, object]) -> tuple[HostPort, ...]:
    hosts = document.get("formerHosts", ())
    if not isinstance(hosts, list | tuple) or not all(isinstance(host, str) for host in hosts):
        raise TypeMismatchError("formerHosts must be an array of strings")
    return tuple(HostPort(host) for host in hosts)


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
