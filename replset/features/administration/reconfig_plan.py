"""Which safe steps lead from one configuration to another (map C10, C15, D19).

One step changes at most one vote. Among the steps that are allowed, the one is taken after which most members may fail.
So a member comes before another one leaves, and a secondary beside an arbiter first gets its vote, then its priority.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from replset.config import Member, ReplSetConfig, next_member_id
from replset.core.reconfig_rules import reconfig_refusal
from replset.errors import InvalidReplicaSetConfigError, ReplError
from replset.ids import HostPort

MAX_STEPS = 100


@dataclass(frozen=True, slots=True)
class Step:
    """One reconfig. text: what it does. config: the whole configuration after it."""

    text: str
    config: ReplSetConfig

    def needs_other_primary(self, primary: HostPort) -> bool:
        """Whether the primary must hand over first: it is not electable any more after this step."""
        member = self.config.member_at(primary)
        return member is None or not member.is_electable


def plan_reconfig(current: ReplSetConfig, target: ReplSetConfig) -> list[Step]:
    """Return the steps from `current` to `target`; none: they are equal. InvalidReplicaSetConfigError: there is no way.

    Each step's configuration is as it is once the members that it adds have their vote.
    """
    target = _with_free_ids(current, target)
    steps: list[Step] = []
    while not is_same(current, target):
        step = _best_step(current, target)
        if step is None or len(steps) == MAX_STEPS:
            reasons = "; ".join(_refusal(current, step.config) for step in _steps(current, target))
            raise InvalidReplicaSetConfigError(f"no safe steps lead to this configuration: {reasons}")
        steps.append(step)
        current = step.config
    return steps


def _with_free_ids(current: ReplSetConfig, target: ReplSetConfig) -> ReplSetConfig:
    """Give a new host an `_id` of its own: under that of a member that leaves it would have to come and go at once.

    A known host keeps its `_id`, so a plan that broke off continues from the same target.
    """
    taken = {member.id for member in (*current.members, *target.members)}
    members = []
    for member in target.members:
        known = current.member_at(member.host)
        if known is not None:
            member = replace(member, id=known.id)
        elif current.member(member.id) is not None:
            free = next_member_id(taken)
            taken.add(free)
            member = replace(member, id=free)
        members.append(member)
    return replace(target, members=tuple(members))


def is_same(config: ReplSetConfig, target: ReplSetConfig) -> bool:
    """Whether nothing that a person writes differs."""
    return _shown(config) == _shown(target)


def _shown(config: ReplSetConfig) -> dict[str, object]:
    """What a person writes of a configuration, whatever the order of its members."""
    document = config.document()
    del document["version"]
    document.pop("term", None)
    settings = dict(document["settings"]) if isinstance(document["settings"], dict) else {}
    settings.pop("replicaSetId", None)
    members = {member.host: member.document() for member in config.members}
    return {**document, "settings": settings, "members": members}


def _best_step(current: ReplSetConfig, target: ReplSetConfig) -> Step | None:
    """Return the allowed step after which most members may fail; of equal ones the first."""
    allowed = [step for step in _steps(current, target) if not _refusal(current, step.config)]
    return max(allowed, key=lambda step: _tolerated(step.config), default=None)


def _tolerated(config: ReplSetConfig) -> tuple[int, int]:
    return (config.tolerance.majority_writes, config.tolerance.elections)


def _refusal(old: ReplSetConfig, new: ReplSetConfig) -> str:
    """Why the rules refuse the step, whichever member that stays electable is primary; empty: they allow it."""
    try:
        ReplSetConfig.parse(new.document(), keep=True)
    except ReplError as error:
        return error.message
    reason = "no member would stay that can be primary"
    for member in new.members:
        if member.is_electable and old.member_at(member.host):
            refusal = reconfig_refusal(old, new, member.host, force=False, default_set=True)
            if refusal is None:
                return ""
            reason = refusal.reason
    return reason


def _steps(current: ReplSetConfig, target: ReplSetConfig) -> list[Step]:
    """All next steps towards `target`: those that add, give and take a vote, remove; after them all other fields."""
    found: list[Step] = []
    for member in target.members:
        known = current.member_at(member.host)
        if known is None:
            # Most sets may have one arbiter only: the one that leaves goes first.
            if not member.arbiter_only or _arbiters(current) < _arbiters(target):
                found += _additions(current, member)
        elif member.votes > known.votes:
            found += _votes_given(current, known, member)
    for member in current.members:
        wanted = target.member_at(member.host)
        if wanted is None:
            rest = tuple(other for other in current.members if other.host != member.host)
            found.append(_step(current, f"remove {member.host}", rest))
        elif wanted.votes < member.votes:
            found.append(_changed(current, wanted, f"take the vote of {member.host} away"))
    return found or [Step(_differences(current, target), replace(target, version=current.version + 1))]


def _arbiters(config: ReplSetConfig) -> int:
    return sum(member.arbiter_only for member in config.members)


def _additions(current: ReplSetConfig, member: Member) -> list[Step]:
    kind = "arbiter" if member.arbiter_only else "witness" if member.witness else "member"
    whole = _step(current, f"add {kind} {member.host}, and wait until it has caught up", (*current.members, member))
    if member.arbiter_only or member.priority == 0:
        return [whole]
    waiting = _step(
        current,
        f"add {kind} {member.host} with priority 0, and wait until it has caught up",
        (*current.members, replace(member, priority=0.0)),
    )
    return [whole, waiting]


def _votes_given(current: ReplSetConfig, known: Member, wanted: Member) -> list[Step]:
    whole = _changed(current, wanted, f"give {wanted.host} its vote, and wait until it has caught up")
    if wanted.priority == 0:
        return [whole]
    text = f"give {wanted.host} its vote with priority 0, and wait until it has caught up"
    return [whole, _changed(current, replace(wanted, priority=0.0), text)]


def _changed(current: ReplSetConfig, member: Member, text: str) -> Step:
    return _step(current, text, current.with_member(member).members)


def _step(current: ReplSetConfig, text: str, members: tuple[Member, ...]) -> Step:
    return Step(text, replace(current, version=current.version + 1, members=members))


def _differences(current: ReplSetConfig, target: ReplSetConfig) -> str:
    """Name the fields that the last step changes."""
    parts = []
    for member in target.members:
        known = current.member_at(member.host)
        if known is not None:
            before, after = known.document(), member.document()
            changed = [f"{name} {after.get(name)}" for name in after if before.get(name) != after[name]]
            if changed:
                parts.append(f"{member.host}: {', '.join(changed)}")
    now = current.settings.document()
    wanted = target.settings.document().items()
    settings = [name for name, value in wanted if name != "replicaSetId" and now.get(name) != value]
    if settings:
        parts.append(f"settings: {', '.join(settings)}")
    return f"set {'; '.join(parts)}" if parts else "install the new configuration"
