"""What members answer each other, nearly right: the primary, or the others, of a real set lie in one kind of answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from hypothesis import strategies as st

from replset.bson import InvalidBSONError, InvalidValueError, decode, encode
from replset.commands.ports import CommandRequest, Reply
from replset.core.term_limits import MAX_TERM, MAX_TERM_JUMP
from tests.simulation.kit.errors import SimulationError
from tools.fuzz.kit import Check, Target
from tools.fuzz.members import CHANGES, NAMES, Change, ThreeMembers, changed, quiet

KINDS = {
    "replSetHeartbeat": "nothing",
    "replSetUpdatePosition": "write",
    "replSetOplogFetch": "write",
    "replSetRequestVotes": "step down",
    "replSetSnapshot": "resync",
    "replSetOplogProbe": "doomed write",
}
"""The answers that are changed, and what makes members ask for them."""


class Liar:
    """Changes one kind of answer of one member. `told`: how many it gave."""

    def __init__(self, members: ThreeMembers, name: str, kind: str, changes: list[Change]) -> None:
        self.dispatcher = members.member(name).dispatcher
        self._kind = kind
        self._changes = changes
        self._honest: Callable[[CommandRequest], Awaitable[Reply]] = self.dispatcher.run
        self.told = 0

    def __enter__(self) -> Liar:
        self.dispatcher.run = self._lie  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        self.dispatcher.run = self._honest  # type: ignore[method-assign, assignment]

    async def _lie(self, request: CommandRequest) -> Reply:
        reply = await self._honest(request)
        if request.body.first_key != self._kind:
            return reply
        document = decode(reply if isinstance(reply, bytes) else encode(reply))
        with suppress(InvalidBSONError, InvalidValueError):
            lie = encode(changed(document, self._changes))
            self.told += 1
            return lie
        return reply


def stir(members: ThreeMembers, what: str, primary: str) -> None:
    cluster = members.cluster
    members.write()
    if what == "step down":
        members.ask(primary, encode({"replSetStepDown": 1, "force": True, "$db": "admin"}), 0)
    elif what == "resync":
        other = next(other for other in NAMES if other != primary)
        members.ask(other, encode({"replSetResync": 1, "$db": "admin"}), 0)
    elif what == "doomed write":
        cluster.cut([primary])
        members.write()
        cluster.run_for(6)
        cluster.heal()


INPUTS = st.tuples(st.booleans(), st.sampled_from(list(KINDS)), CHANGES)


def check(members: ThreeMembers, value: tuple[bool, str, list[Change]]) -> str:
    """No answer ends a member or raises its term beyond the bound; a secondary's changes who leads only by a term.

    A set whose primary lied may not get well: what a primary says of its oplog and of the commit point is believed.
    """
    primary_lies, kind, changes = value
    before, primary = members.term(), members.cluster.primary()
    assert primary is not None
    names = [name for name in NAMES if (name == primary) == primary_lies]
    with ExitStack() as stack:
        liars = [stack.enter_context(Liar(members, name, kind, changes)) for name in names]
        stir(members, KINDS[kind], primary)
        members.cluster.run_for(1.5)
        lied, after = sum(liar.told for liar in liars), members.term()
    members.is_unbroken()
    assert after <= min(MAX_TERM, before + lied * MAX_TERM_JUMP + 20), (before, after)
    if after == before and not primary_lies and KINDS[kind] in ("nothing", "write", "resync"):
        assert members.cluster.primary() == primary, (primary, members.cluster.summary())
    well = "well"
    try:
        members.gets_well()
    except SimulationError:
        assert {primary, members.cluster.primary()} & set(names), members.cluster.summary()
        members.open()
        well = "a primary lied, not well again"
    return f"{kind}: {'lied' if lied else 'not asked'}, {well}"


@contextmanager
def opened() -> Iterator[Check]:
    with quiet() as members:
        yield lambda value: check(members, value)


TARGET = Target("answers", INPUTS, opened, 10, slow_s=30.0)  # minutes of a whole set
