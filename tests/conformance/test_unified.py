"""The suites against a real set; each failure and each surprise is held against `known.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.real_set import real_set
from tests.conformance.report import unexpected
from tests.conformance.runner import Runner, fast_monitoring
from tests.conformance.suites import FOLDERS, VARIABLE, files_of, specifications

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # a test may leave a cursor or a thread behind
    pytest.mark.skipif(specifications() is None, reason=f"{VARIABLE} names no clone of mongodb/specifications"),
]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with real_set(tmp_path_factory.mktemp("conformance")) as local, fast_monitoring():
        made = Runner([member.host for member in local.members], local.name)
        yield made
        made.close()


@pytest.mark.parametrize("suite", FOLDERS)
def test_suite(suite: str, runner: Runner) -> None:
    clone = specifications()
    assert clone is not None
    results = [result for file in files_of(suite, clone) for result in runner.run_file(file)]
    reasons = {result.name: result.reason for result in results}
    surprises = [f"{line}\n  {reasons.get(line.split(': ', 1)[-1], '')}" for line in unexpected(results)]
    assert not surprises, "\n".join(surprises)
