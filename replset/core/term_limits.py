"""Limits for terms that other members send, so that one wrong message cannot stop a set for ever.

A term never falls. If a forged or damaged message raised it to the highest number, no term would be left in which a
member could be elected.
"""

from __future__ import annotations

from typing import Final

MAX_TERM: Final = (1 << 53) - 1
"""The highest term. It is far below 2^63, so that every sum with a term fits into 64 bits."""
MAX_TERM_JUMP: Final = 1 << 20
"""How far above its own term a member accepts one. A set with one election a second needs twelve days for so many."""


def is_plausible_term(own: int, received: int) -> bool:
    """Whether a member in term `own` accepts the term `received` of another member.

    A member without a term yet (0) has nothing to compare with and accepts any up to MAX_TERM.
    """
    return received <= MAX_TERM and (own == 0 or received <= own + MAX_TERM_JUMP)
