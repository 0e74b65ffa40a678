"""Documents that open transactions hold."""

from __future__ import annotations

import pytest

from replset.errors import DocumentHeldError, InvariantError, WriteConflictError
from replset.replication.held_keys import HeldKeys

UUID = b"u" * 16


def test_a_document_is_released_by_its_holder_alone() -> None:
    held = HeldKeys()
    assert held.hold(UUID, b"1", "one")
    assert not held.hold(UUID, b"1", "one")
    with pytest.raises(WriteConflictError):
        held.hold(UUID, b"1", "another")
    with pytest.raises(DocumentHeldError):
        held.check(UUID, b"1")
    with pytest.raises(InvariantError):
        HeldKeys().release([(UUID, b"1")], "one")
    held.release([(UUID, b"1")], "one")
    assert not len(held)
    held.hold(UUID, b"1", "one")
    with pytest.raises(InvariantError):
        held.release([(UUID, b"1")], "another")
