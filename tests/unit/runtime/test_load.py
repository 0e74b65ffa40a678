"""An event loop that is late again and again is overloaded; one long stall is none."""

from __future__ import annotations

from replset.runtime.load import Load


def after(*late_s: float) -> bool:
    load = Load()
    for beat in late_s:
        load.on_beat(beat)
    return load.is_high


def test_when_a_member_is_overloaded() -> None:
    assert not after(*[0.0] * 100)
    assert not after(*[0.04] * 100)
    assert not after(30.0), "one stall"
    assert not after(*[0.0, 0.0, 0.2] * 30)
    assert after(*[0.2] * 4)
    assert after(*[0.06] * 20)


def test_when_it_ends() -> None:
    assert after(*[0.2] * 9, *[0.03] * 50), "still half late"
    assert not after(*[0.2] * 9, *[0.0] * 9)
