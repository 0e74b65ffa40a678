"""OplogError: how it travels between processes and through a text."""

from __future__ import annotations

import pickle
import traceback

import pytest

from spark.jobs import oplog_error
from spark.oplog import OplogError, OplogRolledBackError, OplogTrimmedError

ODD = 'a: b "c"\n\u00e9\U0001f600'


def facts(error: OplogError | None) -> tuple[object, ...]:
    return type(error), str(error), error.name, error.reason, getattr(error, "through", None)


@pytest.mark.parametrize(
    "raised", [OplogError(ODD, ODD), OplogTrimmedError(ODD, ODD, 1 << 62), OplogRolledBackError(ODD, ODD)]
)
def test_an_error_is_the_same_pickled_and_in_a_traceback(raised: OplogError) -> None:
    copy = pickle.loads(pickle.dumps(raised))
    assert facts(copy) == facts(raised)
    assert copy.__notes__ == raised.__notes__
    raised.__cause__ = OSError("disk")
    text = "".join(traceback.format_exception(raised))
    assert oplog_error(raised) is raised
    assert facts(oplog_error(RuntimeError(f"Job aborted:\n{text}\nDriver stacktrace:"))) == facts(raised)


def test_of_errors_raised_from_one_another_the_last_is_found() -> None:
    """It says more, and is what `oplog_error` finds where the errors themselves are at hand."""
    outer = OplogRolledBackError("m1", "gone; begin anew")
    outer.__cause__ = OplogRolledBackError("m1", "gone")
    assert facts(oplog_error(RuntimeError("".join(traceback.format_exception(outer))))) == facts(outer)
    assert oplog_error(outer) is outer
    behind = RuntimeError("while reading")
    behind.__cause__ = outer
    assert oplog_error(behind) is outer
    assert oplog_error(RuntimeError("m1: gone")) is oplog_error(RuntimeError("oplog-error: [")) is None
