"""Answers between members, nearly right: the primary, or the others, of a real set send one kind of answer changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from hypothesis import strategies as st

from replset.bson import InvalidBSONError, InvalidValueError, decode, encode
from replset.core.messages import MAX_TERM, MAX_TERM_JUMP
from replset.operations.request import CommandRequest, Reply
from tests.simulation.kit.errors import SimulationError
from tools.fuzz.kit import Check, Target
from tools.fuzz.members import CHANGES, NAMES, Change, ThreeMembers, changed, quiet

KINDS = {
    "replSetHeartbeat": "nothing",
    "replSetUpdatePosition": "write",
    "replSetOplogFetch": "write",
    "replSetRequestVotes": "step down",
    "replSetSnapshot": "resync",
    "replSetOplogProbe": "write to roll back",
}
"""The answers that are changed, and what makes members ask for them."""


class AnswerChanger:
    """Changes one kind of answer of one member. `changed_count`: how many it changed."""

    def __init__(self, members: ThreeMembers, name: str, kind: str, changes: list[Change]) -> None:
        self.dispatcher = members.member(name).dispatcher
        self._kind = kind
        self._changes = changes
        self._original: Callable[[CommandRequest], Awaitable[Reply]] = self.dispatcher.run
        self.changed_count = 0

    def __enter__(self) -> AnswerChanger:
        self.dispatcher.run = self._change  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        self.dispatcher.run = self._original  # type: ignore[method-assign, assignment]

    async def _change(self, request: CommandRequest) -> Reply:
        reply = await self._original(request)
        if request.body.first_key != self._kind:
            return reply
        document = decode(reply if isinstance(reply, bytes) else encode(reply))
        with suppress(InvalidBSONError, InvalidValueError):
            different = encode(changed(document, self._changes))
            self.changed_count += 1
            return different
        return reply


def cause_request(members: ThreeMembers, what: str, primary: str) -> None:
    cluster = members.cluster
    members.write()
    if what == "step down":
        members.ask(primary, encode({"replSetStepDown": 1, "force": True, "$db": "admin"}), 0)
    elif what == "resync":
        other = next(other for other in NAMES if other != primary)
        members.ask(other, encode({"replSetResync": 1, "$db": "admin"}), 0)
    elif what == "write to roll back":
        cluster.cut([primary])
        members.write()
        cluster.run_for(6)
        cluster.heal()


INPUTS = st.tuples(st.booleans(), st.sampled_from(list(KINDS)), CHANGES)


def check(members: ThreeMembers, value: tuple[bool, str, list[Change]]) -> str:
    """No answer ends a member or raises its term beyond the bound; a secondary's changes who leads only by a term.

    A set whose primary sent changed answers may not get well: the others trust its oplog and its commit point.
    """
    primary_changed, kind, changes = value
    before, primary = members.term(), members.cluster.primary()
    assert primary is not None
    names = [name for name in NAMES if (name == primary) == primary_changed]
    with ExitStack() as stack:
        changers = [stack.enter_context(AnswerChanger(members, name, kind, changes)) for name in names]
        cause_request(members, KINDS[kind], primary)
        members.cluster.run_for(1.5)
        changes_made, after = sum(changer.changed_count for changer in changers), members.term()
    members.is_unbroken()
    assert after <= min(MAX_TERM, before + changes_made * MAX_TERM_JUMP + 20), (before, after)
    if after == before and not primary_changed and KINDS[kind] in ("nothing", "write", "resync"):
        assert members.cluster.primary() == primary, (primary, members.cluster.summary())
    well = "well"
    try:
        members.gets_well()
    except SimulationError:
        assert {primary, members.cluster.primary()} & set(names), members.cluster.summary()
        members.open()
        well = "a primary's answers changed, not well again"
    return f"{kind}: {'changed' if changes_made else 'not asked'}, {well}"


@contextmanager
def opened() -> Iterator[Check]:
    with quiet() as members:
        yield lambda value: check(members, value)


TARGET = Target("answers", INPUTS, opened, 10, slow_s=30.0)  # minutes of a whole set
