"""Key files, and what a proof is worth: on its own connection, for its own role and address, with a key of both."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path

import pytest

from replset.errors import BadValueError
from replset.ids import HostPort
from replset.key_file import Handshake, Keys, parse_keys, read_key_file

ME, YOU = HostPort("a:27017"), HostPort("b:27017")
TALK = Handshake(ME, YOU, bytes(32), bytes(range(32)))
OLD, NEW = "b2xkLWtleQ==", "bmV3LWtleQ=="


def knows_the_same(one: Keys, other: Keys) -> bool:
    proof = other.answer(TALK, one.proofs("asking", TALK))
    return proof is not None and one.accept(TALK, proof)


def test_keys_are_read() -> None:
    one = (OLD, "  b2xk\n LWtl\teQ==\r\n", "123456", "A" * 1024, "null==")
    two = (f"- {OLD}\n- {NEW}\n", f'["{OLD}", {NEW}]')
    assert [len(parse_keys(text.encode()).proofs("asking", TALK)) for text in (*one, *two)] == [1] * 5 + [2] * 2
    assert knows_the_same(parse_keys(OLD.encode()), parse_keys(b" b2xk\nLWtleQ==\n")), "whitespace counts for nothing"


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\n", b"short", b"A" * 1025, b"not base64!", b"key: value", b"\xff" * 9, b"x" * 70_000, b"*a"),
        *(b"[]", b"[", b"- - a", b"- b2xkLWtleQ==\n- short", b"- abcdef\n" * 9),
    ],
)
def test_files_that_hold_no_keys_are_refused_without_a_word_of_what_they_hold(data: bytes) -> None:
    with pytest.raises(BadValueError) as caught:
        parse_keys(data)
    assert "short" not in caught.value.message
    assert "value" not in caught.value.message


def test_a_key_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(OLD)
    for mode in (0o640, 0o604, 0o644, 0o660, 0o610):
        path.chmod(mode)
        with pytest.raises(BadValueError, match="chmod 600"):
            read_key_file(path)
    for mode in (0o600, 0o400):
        path.chmod(mode)
        assert knows_the_same(read_key_file(path), Keys([OLD]))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a file of root's")
def test_a_file_of_roots_may_be_read_by_the_group_of_who_runs_the_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So orchestrators mount a secret for a user that is not root."""
    path = tmp_path / "key"
    path.write_text(OLD)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for mode in (0o440, 0o640):
        path.chmod(mode)
        assert knows_the_same(read_key_file(path), Keys([OLD]))
    for mode in (0o444, 0o660, 0o644):
        path.chmod(mode)
        with pytest.raises(BadValueError, match="chmod 600"):
            read_key_file(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "no", tmp_path):
        with pytest.raises(BadValueError, match=str(path)):
            read_key_file(path)
    assert os.listdir(tmp_path) == []


def test_keys_are_changed_one_member_after_the_other() -> None:
    """Old, then both, then both in another order, then the new one alone: neighbours of each step know each other."""
    steps = [Keys([OLD]), Keys([OLD, NEW]), Keys([NEW, OLD]), Keys([NEW])]
    for one, other in itertools.pairwise(steps):
        assert knows_the_same(one, other)
        assert knows_the_same(other, one)
    assert not knows_the_same(steps[0], steps[-1])


OTHERS = {
    "another-who-asks": replace(TALK, asking=HostPort("c:27017")),
    "another-address": replace(TALK, asked=HostPort("c:27017")),
    "another-connection": replace(TALK, asking_nonce=bytes([1] * 32)),
    "an-answer-of-another-connection": replace(TALK, asked_nonce=bytes([1] * 32)),
    "the-ends-exchanged": Handshake(YOU, ME, TALK.asked_nonce, TALK.asking_nonce),
    "parts-shifted": replace(TALK, asking=HostPort("a:27017b"), asked=HostPort(":27017")),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_proof_is_worth_nothing_elsewhere(other: Handshake) -> None:
    keys = Keys([OLD])
    assert keys.answer(TALK, keys.proofs("asking", other)) is None
    (proof,) = keys.proofs("asked", other)
    assert not keys.accept(TALK, proof)


def test_a_proof_given_back_proves_nothing() -> None:
    keys = Keys([OLD])
    assert keys.answer(TALK, keys.proofs("asked", TALK)) is None
    assert not keys.accept(TALK, keys.proofs("asking", TALK)[0])
    assert not keys.accept(TALK, b"")
    assert keys.answer(TALK, []) is None
