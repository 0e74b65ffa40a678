"""PlaceError: how it travels between processes and through a text."""

from __future__ import annotations

import pickle
import traceback

import pytest

from spark.jobs import place_error
from spark.places import PlaceError, PlaceTrimmedError

ODD = 'a: b "c"\n\u00e9\U0001f600'


@pytest.mark.parametrize("kind", [PlaceError, PlaceTrimmedError])
def test_a_pickled_error_is_the_same(kind: type[PlaceError]) -> None:
    copy = pickle.loads(pickle.dumps(kind("m1", "gone")))
    assert (type(copy), copy.name, copy.reason, str(copy)) == (kind, "m1", "gone", "m1: gone")
    assert copy.__notes__ == kind("m1", "gone").__notes__


@pytest.mark.parametrize("kind", [PlaceError, PlaceTrimmedError])
def test_an_error_is_found_again_in_a_traceback(kind: type[PlaceError]) -> None:
    raised = kind(ODD, ODD)
    raised.__cause__ = OSError("disk")
    text = "".join(traceback.format_exception(raised))
    assert place_error(raised) is raised
    found = place_error(RuntimeError(f"Job aborted:\n{text}\nDriver stacktrace:"))
    assert (type(found), found and found.name, found and found.reason) == (kind, ODD, ODD)


def test_an_error_is_found_behind_another() -> None:
    inner = PlaceError("m1", "gone")
    outer = RuntimeError("while reading")
    outer.__cause__ = inner
    assert place_error(outer) is inner


def test_other_errors_are_none_of_ours() -> None:
    assert place_error(RuntimeError("m1: gone")) is None
    assert place_error(RuntimeError("oplog-place-error: [")) is None
