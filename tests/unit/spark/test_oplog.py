"""OplogError: how it travels between processes and through a text."""

from __future__ import annotations

import pickle
import traceback

import pytest

from spark.jobs import oplog_error
from spark.oplog import OplogError, OplogRolledBackError, OplogTrimmedError

ODD = 'a: b "c"\n\u00e9\U0001f600'


ERRORS = [OplogError(ODD, ODD), OplogTrimmedError(ODD, ODD, 1 << 62), OplogRolledBackError(ODD, ODD)]


@pytest.mark.parametrize("error", ERRORS)
def test_a_pickled_error_is_the_same(error: OplogError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert facts(copy) == facts(error)
    assert copy.__notes__ == error.__notes__


@pytest.mark.parametrize("raised", ERRORS)
def test_an_error_is_found_again_in_a_traceback(raised: OplogError) -> None:
    raised.__cause__ = OSError("disk")
    text = "".join(traceback.format_exception(raised))
    assert oplog_error(raised) is raised
    found = oplog_error(RuntimeError(f"Job aborted:\n{text}\nDriver stacktrace:"))
    assert found is not None
    assert facts(found) == facts(raised)


def test_of_errors_raised_from_one_another_the_last_is_found() -> None:
    """It says more, and is what `oplog_error` finds where the errors themselves are at hand."""
    outer = OplogRolledBackError("m1", "gone; begin anew")
    outer.__cause__ = OplogRolledBackError("m1", "gone")
    text = "".join(traceback.format_exception(outer))
    found = oplog_error(RuntimeError(text))
    assert found is not None
    assert facts(found) == facts(outer)
    assert oplog_error(outer) is outer


def facts(error: OplogError) -> tuple[object, ...]:
    return type(error), str(error), error.name, error.reason, getattr(error, "through", None)


def test_an_error_is_found_behind_another() -> None:
    inner = OplogError("m1", "gone")
    outer = RuntimeError("while reading")
    outer.__cause__ = inner
    assert oplog_error(outer) is inner


def test_other_errors_are_none_of_ours() -> None:
    assert oplog_error(RuntimeError("m1: gone")) is None
    assert oplog_error(RuntimeError("oplog-error: [")) is None
