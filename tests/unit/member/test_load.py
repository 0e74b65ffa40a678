"""An event loop that is late again and again is overloaded; one long stall is none."""

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


def test_when_it_ends() -> None:
    assert after(*[0.2] * 3, *[0.02] * 50), "still half late"
    assert not after(*[0.2] * 3, *[0.0] * 6)
    assert after(*[0.2] * 3, *[0.0] * 6, *[0.2] * 3)
