"""How often each kind of fault comes in a seeded run."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class FaultMix:
    """Weights of the kinds of fault, and the seconds between two."""

    kill: int = 3
    power_loss: int = 2
    power_loss_of_all: int = 1
    isolate_primary: int = 3
    isolate_someone: int = 2
    one_way: int = 2
    kill_primary: int = 2
    bad_links: int = 2
    pause: int = 2
    stop_cleanly: int = 1
    step_down: int = 1
    disk_full: int = 1
    change_votes: int = 2
    wipe: int = 1
    clock_jump: int = 0
    slow_disk: int = 0
    out_of_space: int = 0
    resend_message: int = 0
    lasting_one_way: int = 0
    make_too_stale: int = 0
    reconfigure: int = 0
    remove_and_add: int = 0
    strike_at_change: int = 0
    hit_undo: int = 0
    resync: int = 0
    freeze: int = 0
    bridge: int = 0
    add_new: int = 0
    failing_disk: int = 0
    damage_entry: int = 0
    stranger: int = 0
    wipe_two: int = 0
    lose_wal: int = 0
    lose_pages: int = 0
    force_reconfig: int = 0
    sync_from: int = 0
    step_up: int = 0
    gone: int = 0
    maintenance: int = 0
    change_role: int = 0
    switch: int = 0
    arbiter: int = 0
    damage_document: int = 0
    strike_at_copy: int = 0
    far_clock: int = 0
    pause_s: tuple[float, float] = (0.5, 5.0)


OLD_KINDS = (
    *("kill", "power_loss", "power_loss_of_all", "isolate_primary", "isolate_someone", "one_way", "kill_primary"),
    *("bad_links", "pause", "stop_cleanly", "step_down", "disk_full", "change_votes", "wipe"),
)
NEW_KINDS = (
    *("clock_jump", "slow_disk", "out_of_space", "resend_message", "lasting_one_way", "make_too_stale", "reconfigure"),
    *("remove_and_add", "strike_at_change"),
)


NEWER_KINDS = (
    "hit_undo",
    "resync",
    "freeze",
    "bridge",
    "add_new",
    "failing_disk",
    "damage_entry",
    "stranger",
    "wipe_two",
)
NEWEST_KINDS = ("lose_wal",)
RARE_KINDS = ("lose_pages", "force_reconfig")
"""In one run of ten each, by a generator of their own: recorded seeds stay as they were drawn."""
CHAINS = "sync_from"
"""In every third run, often: chains then come and go all the time."""
VOTE_CHANGES = ("change_votes", "remove_and_add", "add_new")


NO_FAULTS = FaultMix(**dict.fromkeys(OLD_KINDS + NEW_KINDS + NEWER_KINDS + NEWEST_KINDS + RARE_KINDS + (CHAINS,), 0))  # type: ignore[arg-type]


def draw_mix(rng: random.Random) -> FaultMix:
    """Some kinds are left out of a run, some come often: what never happens together in an average run does in one."""
    chosen = {name: rng.choice((0, 1, 1, 2, 4)) for name in OLD_KINDS + NEW_KINDS}
    chosen["resend_message"] *= 2
    chosen["strike_at_change"] *= 2
    if not any(chosen.values()):
        chosen["kill"] = 1
    chosen |= {name: rng.choice((0, 0, 1, 1, 2)) for name in NEWER_KINDS}
    chosen["hit_undo"] *= 2
    pause_s = rng.choice(((0.5, 5.0), (0.2, 2.0), (1.0, 7.0)))
    chosen |= {name: rng.choice((0, 0, 1, 1, 2)) for name in NEWEST_KINDS}
    return FaultMix(**chosen, pause_s=pause_s)  # type: ignore[arg-type]


CHANGES = ("step_up", "gone", "maintenance", "change_role", "switch", "arbiter", CHAINS, *VOTE_CHANGES)
BESIDE_CHANGES = (
    *("kill", "power_loss", "isolate_primary", "isolate_someone", "kill_primary", "pause", "step_down", "wipe"),
    *("reconfigure", "strike_at_change", "resync", "freeze", "bridge", "lasting_one_way", "make_too_stale"),
)


def draw_changes(rng: random.Random) -> FaultMix:
    """Changes of the set above all; of all the rest what meets them."""
    chosen = {name: rng.choice((0, 2, 4, 6)) for name in CHANGES}
    chosen |= {name: rng.choice((0, 1, 1, 2)) for name in BESIDE_CHANGES}
    if rng.random() < 0.1:
        chosen |= {"force_reconfig": 6, "arbiter": 0, "gone": 0} | dict.fromkeys(VOTE_CHANGES, 0)
    chosen["step_up"] += 1
    return replace(NO_FAULTS, **chosen, pause_s=rng.choice(((0.5, 4.0), (0.2, 2.0))))  # type: ignore[arg-type]


def with_far_clocks(rng: random.Random, mix: FaultMix) -> FaultMix:
    """The mix, in a quarter of the runs with clocks that are wrong by up to ten years for a while."""
    return replace(mix, far_clock=12) if rng.random() < 0.25 else mix


def draw_rare(rng: random.Random, mix: FaultMix) -> FaultMix:
    """Damaged pages and forced configurations. Where configurations are forced no votes change: then all of them have
    the same majorities, and every invariant still holds, whichever configuration wins.
    """
    rare = {name: 4 for name in RARE_KINDS if rng.random() < 0.1}
    if rng.random() < 0.33:
        rare[CHAINS] = 12
    if "force_reconfig" in rare:
        rare |= dict.fromkeys(VOTE_CHANGES, 0)
    if rng.random() < 0.25:
        rare["damage_document"] = 4
    if rng.random() < 0.15:
        rare["strike_at_copy"] = 6
        rare["make_too_stale"] = max(4, mix.make_too_stale)
    return replace(mix, **rare)
