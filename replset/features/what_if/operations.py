"""The operation of this feature, declared once (operations/declared.py)."""

from __future__ import annotations

from typing import Final

from replset.auth.roles import Action
from replset.ids import HostPort
from replset.operations.declared import HOST, one_of, operation, value, whole_between

DEED: Final = one_of(str, "kill", "stop", "cut", "lose-disk", "remove")


@operation("replSetWhatIf", needs=Action.SET_STATUS, http="POST /v1/replset/whatIf")
class WhatIf:
    """Say what the set would do if a member died, stopped, was cut off, lost its disk or was removed now. It changes
    nothing.
    """

    deed: str = value(DEED, help="what happens to the member")
    host: HostPort = value(HOST, help="the member, as the configuration names it")
    plays: int = value(whole_between(1, 100), default=100, help="how many plays at most, each with other random delays")
