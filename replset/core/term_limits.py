"""How far a member believes another one: bounds for what enters from outside, so that one message cannot end a set.

A term is never taken back. One that was raised to the highest number by a forged or damaged message would leave no
term in which anybody could be elected.
"""

from __future__ import annotations

from typing import Final

MAX_TERM: Final = (1 << 53) - 1
"""The highest term that there is; far below what 64 bits hold, so that every sum with a term fits into them."""
MAX_TERM_JUMP: Final = 1 << 20
"""How far above its own a member takes a term: at one election a second, what a set reaches in twelve days."""


def is_plausible_term(mine: int, told: int) -> bool:
    """Whether a member in term `mine` takes term `told` from another member.

    A member that was in no term yet (0) has nothing to compare with and takes what its set says.
    """
    return told <= MAX_TERM and (mine == 0 or told <= mine + MAX_TERM_JUMP)
