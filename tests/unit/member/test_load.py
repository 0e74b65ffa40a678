"""A loop that is late, or a disk that is slow, again and again is overload; one long stall is none."""

from __future__ import annotations

from replset.member.process.machine import Load


def after(*late_s: float) -> bool:
    load = Load()
    for beat in late_s:
        load.on_beat(beat)
    return load.is_high


def test_when_a_member_is_overloaded() -> None:
    assert not after(*[0.0] * 100)
    assert not after(*[0.025] * 100)
    assert not after(30.0), "one stall"
    assert not after(*[30.0, 0.0, 0.0, 0.0, 0.0] * 30), "a stall now and then"
    assert after(0.1, 0.1)
    assert after(*[0.04] * 5)


def test_a_slow_disk_counts_as_well() -> None:
    load, found = Load(), list[bool]()
    for took_s in (0.02, 30.0, *[0.2] * 3, *[0.0] * 9):
        load.on_synced(took_s)
        found.append(load.is_high)
    first, last = found.index(True), len(found) - found[::-1].index(True)
    assert 1 < first < 4, "one slow sync is none"
    assert first + 4 < last < len(found), "it ends when the disk is well again"
    for _ in range(10):
        load.on_beat(0.1)
        load.on_synced(0.0)
    assert load.is_high, "the loop is late all the same"


def test_when_it_ends() -> None:
    assert after(*[0.2] * 3, *[0.02] * 50), "still half late"
    assert not after(*[0.2] * 3, *[0.0] * 6)
    assert after(*[0.2] * 3, *[0.0] * 6, *[0.2] * 3)
