"""Rules of named consumers, each broken on purpose. See `mutants.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from replset.features.consumers import consumer_commands, consumer_reads, kept_events, read_here
from replset.features.consumers.consumer import Claim, Consumer, Leases
from replset.features.consumers.consumer_directory import CommittedFloor, ConsumerDirectory
from replset.features.consumers.shared_window import SharedWindow
from replset.ids import OpTime
from replset.operations.history import History
from tests.simulation.kit.mutant import Mutant


def consumers_not_kept_for(patch: pytest.MonkeyPatch) -> None:
    """The oplog is trimmed as if there were no consumers."""
    patch.setattr(ConsumerDirectory, "needed", lambda _: None)


def acknowledged_by_one(patch: pytest.MonkeyPatch) -> None:
    """An acknowledgement is answered before a majority has it."""

    async def at_once(*_: object) -> None: ...

    patch.setattr(consumer_reads, "wait_for_write_concern", at_once)


def uncommitted_events_shown(patch: pytest.MonkeyPatch) -> None:
    """Consumers are given entries that are not committed."""
    patch.setattr(History, "committed", property(lambda self: self._member.store.last_applied))


def shared_position_too_far(patch: pytest.MonkeyPatch) -> None:
    """The position of a shared consumer passes events that are with a reader."""
    real = SharedWindow.acknowledge

    def acknowledge(self: SharedWindow, tokens: Iterable[str]) -> str:
        tokens = list(tokens)
        return max([*tokens, real(self, tokens)])

    patch.setattr(SharedWindow, "acknowledge", acknowledge)


def acknowledged_ahead_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A new primary does not know what was acknowledged ahead of a shared consumer's position."""
    real = SharedWindow.__init__

    def init(self: SharedWindow, position: str, _: Iterable[str], *rest: Any) -> None:
        real(self, position, (), *rest)

    patch.setattr(SharedWindow, "__init__", init)


def documents_out_of_order(patch: pytest.MonkeyPatch) -> None:
    """A shared consumer gives an event to a reader while another one has an earlier event of the same document."""
    real = SharedWindow.add

    def add(self: SharedWindow, events: Iterable[tuple[str, bytes]], through: str) -> None:
        real(self, [(token, token.encode()) for token, _ in events], through)

    patch.setattr(SharedWindow, "add", add)


def reading_acknowledges(patch: pytest.MonkeyPatch) -> None:
    """A read acknowledges what it gives, also when its answer is lost."""
    real = consumer_reads.read

    async def read(ctx: Any, asked: Any, consumer: Consumer) -> Any:
        reply = await real(ctx, asked, consumer)
        if isinstance(reply, dict) and reply.get("next"):
            generation, token = reply["generation"], reply["next"]
            await consumer_reads.save(ctx, consumer.name, lambda now: now.acknowledged_through(generation, token))
        return reply

    patch.setattr(consumer_commands, "read", read)


def earlier_generation_acknowledges(patch: pytest.MonkeyPatch) -> None:
    """What was read before a seek is acknowledged after it."""
    patch.setattr(Consumer, "check_generation", lambda *_: None)


def lease_ends_with_the_term(patch: pytest.MonkeyPatch) -> None:
    """A new primary gives the holder of a consumer no time."""
    real: Callable[..., Claim] = Leases.claim

    def claim(self: Leases, consumer: Consumer, reader: str, now: Any) -> Claim:
        is_new = (consumer.name, consumer.generation) not in self._due
        return Claim.MAY_TAKE if is_new else real(self, consumer, reader, now)

    patch.setattr(Leases, "claim", claim)


def held_by_anybody(patch: pytest.MonkeyPatch) -> None:
    """A member gives events to whoever says that it holds the consumer."""
    patch.setattr(read_here, "_held_copy", lambda ctx, asked: read_here._committed(ctx.member, asked.name))


def floor_of_uncommitted_positions(patch: pytest.MonkeyPatch) -> None:
    """What a position passed is trimmed before the position is committed."""

    def advance(_self: CommittedFloor, _store: object, _commit_point: OpTime, least: OpTime | None) -> OpTime | None:
        return least

    patch.setattr(CommittedFloor, "advance", advance)


def held_events_given_at_once(patch: pytest.MonkeyPatch) -> None:
    """A held event is given whatever its time."""
    real = kept_events.due
    patch.setattr(kept_events, "due", lambda store, name, _, most: real(store, name, 1 << 62, most))


def held_events_never_removed(patch: pytest.MonkeyPatch) -> None:
    """An acknowledgement leaves the document of a held event."""
    patch.setattr(kept_events, "remove_kept", lambda *_: None)


KEPT = "tests/unit/features/test_kept_events.py"
TESTS = "tests/unit/features/test_consumers.py"
WINDOWS = "tests/unit/features/consumers/test_consumer.py"
CONSUMER_MUTANTS = (
    Mutant(consumers_not_kept_for, test=f"{TESTS}::test_the_oplog_is_kept_for_a_consumer_up_to_a_limit"),
    Mutant(acknowledged_by_one, (0,), "invariant 18"),
    Mutant(uncommitted_events_shown, test=f"{TESTS}::test_events_that_are_not_committed_are_not_shown"),
    Mutant(
        shared_position_too_far, test=f"{WINDOWS}::test_the_position_is_before_the_first_event_that_is_not_acknowledged"
    ),
    Mutant(acknowledged_ahead_forgotten, test=f"{TESTS}::test_a_shared_consumer_gives_each_event_to_one_reader"),
    Mutant(documents_out_of_order, test=f"{WINDOWS}::test_events_of_one_document_stay_in_order"),
    Mutant(reading_acknowledges, test=f"{TESTS}::test_events_come_again_until_they_are_acknowledged"),
    Mutant(earlier_generation_acknowledges, test=f"{TESTS}::test_a_seek_ends_what_was_read_before"),
    Mutant(lease_ends_with_the_term, test=f"{TESTS}::test_a_failover_consumer_goes_to_the_next_reader"),
    Mutant(held_by_anybody, test="tests/unit/features/test_read_here.py::test_refusals"),
    Mutant(held_events_given_at_once, test=f"{KEPT}::test_an_event_is_given_once_its_time_is_over"),
    Mutant(held_events_never_removed, test=f"{KEPT}::test_parked_events_are_put_back_or_forgotten"),
    Mutant(floor_of_uncommitted_positions, test=f"{TESTS}::test_the_floor_follows_what_is_committed"),
)
