"""`./dev mutate`: which faults it makes, and that a fork judges each without touching the file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.programs import run_to_end
from tools.importers import importing_tests
from tools.mutate import __main__ as program
from tools.mutate.judges import TESTS_S, chosen_tests, seeds_of, trial
from tools.mutate.mutations import Mutation, mutated_code, mutations_of
from tools.mutate.record import Record
from tools.mutate.runs import RUNS_S, SIMULATOR, chosen_runs

SOURCE = '''
"""A text, with 1 in it."""
import logging
log = logging.getLogger("x")
LIMIT = 4711


class Counter:
    def add(self, count: int = 0, *, twice: bool = False) -> int:
        """Add it."""
        log.info("adds %d", 1)
        if count < 0 and not twice:
            raise ValueError("less than 0")
        if count is None:
            return 0
        self.seen.append(count)
        self.tell()
        self.sum += count
        return count + LIMIT
'''
EXPECTED = [
    ("Counter.add", "0 -> 1"),
    ("Counter.add", "False -> True"),
    ("Counter.add", "count < 0 and (not twice) -> count < 0 or not twice"),
    ("Counter.add", "count < 0 -> count <= 0"),
    ("Counter.add", "0 -> 1"),
    ("Counter.add", "not twice -> not not twice"),
    ("Counter.add", "raise ValueError('less than 0') -> dropped"),
    ("Counter.add", "count is None -> count is not None"),
    ("Counter.add", "return 0 -> dropped"),
    ("Counter.add", "0 -> 1"),
    ("Counter.add", "self.seen.append(count) -> dropped"),
    ("Counter.add", "self.seen.append(count) -> swapped with the next"),
    ("Counter.add", "self.tell() -> dropped"),
    ("Counter.add", "self.sum += count -> dropped"),
    ("Counter.add", "self.sum += count -> self.sum -= count"),
    ("Counter.add", "count + LIMIT -> count - LIMIT"),
]


@pytest.fixture
def found(tmp_path: Path) -> list[Mutation]:
    (tmp_path / "counter.py").write_text(SOURCE)
    return mutations_of(tmp_path / "counter.py", tmp_path)


def test_the_faults_of_a_file(found: list[Mutation]) -> None:
    assert [(one.where, f"{one.before} -> {one.after}") for one in found] == EXPECTED
    assert [one.number for one in found] == list(range(len(found)))


def test_how_a_derived_field_is_compared_and_shown_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "class A:\n    a: int = field(init=False, compare=False, repr=False)\n    b: int = field(compare=False)\n"
    )
    found = mutations_of(tmp_path / "a.py", tmp_path)
    assert [(one.line, f"{one.before} -> {one.after}") for one in found] == [(2, "False -> True"), (3, "False -> True")]


def test_each_number_makes_its_fault_and_no_other(tmp_path: Path, found: list[Mutation]) -> None:
    class Told(list[str]):
        def __getattr__(self, name: str) -> object:
            return lambda: self.append(name)

    def answer(number: int) -> object:
        space: dict[str, object] = {}
        exec(mutated_code(tmp_path / "counter.py", number), space)
        counter = space["Counter"]()  # type: ignore[operator]
        counter.sum, counter.seen, told = 0, [], []
        counter.tell = lambda: told.append(list(counter.seen))
        try:
            return counter.add(2), counter.sum, counter.seen, told
        except ValueError:
            return "refused"

    right = (4713, 2, [2], [[2]])
    by_text = {f"{one.before} -> {one.after}": answer(one.number) for one in found}
    assert by_text["count < 0 and (not twice) -> count < 0 or not twice"] == "refused"
    assert by_text["count + LIMIT -> count - LIMIT"] == (-4709, 2, [2], [[2]])
    assert by_text["self.seen.append(count) -> swapped with the next"] == (4713, 2, [2], [[]])
    assert by_text["self.tell() -> dropped"] == (4713, 2, [2], [])
    assert by_text["self.sum += count -> self.sum -= count"] == (4713, -2, [2], [[2]])
    assert by_text["return 0 -> dropped"] == right, "it shows with another argument alone"


def test_a_fork_loads_the_module_with_the_fault() -> None:
    name = "tools.mutate.mutations"
    path = name.replace(".", "/") + ".py"
    (fault,) = [
        one for one in mutations_of(Path(path).resolve(), Path.cwd()) if one.before == "LARGEST" or one.after == "3"
    ]

    def largest() -> str:
        sys.modules.pop(name)
        from tools.mutate.mutations import LARGEST

        return str(LARGEST)

    assert trial(None, largest, 20) == "2"
    assert trial(fault, largest, 20) == "3"


@pytest.mark.in_turns
def test_what_does_not_end_or_ends_the_process_has_noticed() -> None:
    def never() -> str:
        while True:
            pass

    assert trial(None, lambda: "", 20) == ""
    assert trial(None, never, 1)
    assert trial(None, lambda: sys.exit(3), 20) == "SystemExit"


def test_a_test_that_fails_without_a_fault_notices_none(monkeypatch: pytest.MonkeyPatch, found: list[Mutation]) -> None:
    """In a trial: some start a process, which may not work there. The others go on to judge."""
    failing = {"a::always[1]": "", "b::sound": found[0], "c::other": found[1]}

    def trial(mutation: Mutation | None, work: Callable[[], str], limit_s: float) -> str:
        current.append(mutation)
        return work()

    def by_tests(tests: Sequence[str]) -> str:
        fails = (name for name, fault in failing.items() if fault in ("", current[-1]))
        return next((name for name in fails if name.partition("[")[0] in tests), "")

    current: list[Mutation | None] = []
    monkeypatch.setattr(program, "trial", trial)
    monkeypatch.setattr(program, "by_tests", by_tests)
    tests = dict.fromkeys(("a::always", "b::sound", "c::other"), 1.0)
    assert program._by_sound_tests(found[0], tests) == "b::sound"
    assert program._by_sound_tests(found[1], tests) == "c::other"
    assert program._by_sound_tests(found[2], tests) == ""
    assert program._unsound == {"a::always"}
    program._unsound.clear()
    program._sound.clear()


def test_an_equivalent_fault_needs_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "equivalent.txt"
    monkeypatch.setattr(program, "EQUIVALENT", file)
    file.write_text("# a remark\na.py:f: a -> b\tnobody can see it\n")
    assert program.equivalent() == {"a.py:f: a -> b"}
    file.write_text("a.py:f: a -> b\n")
    with pytest.raises(SyntaxError, match=r"no reason for a\.py:f"):
        program.equivalent()


@pytest.mark.in_turns
def test_a_sample_is_the_same_for_the_same_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    first = program.choose(["replset/core"], None, 10, seed=3)
    assert first == program.choose(["replset/core"], None, 10, seed=3)
    assert first != program.choose(["replset/core"], None, 10, seed=4)
    assert len(first) == 10
    monkeypatch.setattr(program, "equivalent", lambda: {first[4].name})
    assert program.choose(["replset/core"], None, 10, seed=3) == [*first[:4], *first[5:]], "it draws no other instead"


@pytest.mark.in_turns
def test_the_closest_tests_come_first() -> None:
    assert importing_tests("replset/core/reconfig.py", ["unit"])[0].startswith("tests/unit/core/test_reconfig")
    assert seeds_of("replset/core/quorum.py")[0] == ("core", 0)
    assert {kind for kind, _ in seeds_of("replset/features/archive/archive.py")} == {
        "",
        "rollbacks",
        "archive",
        "changes",
    }


# --- the record of which tests run which lines ----------------------------------------------------------------------

QUORUM = "replset/core/quorum.py"
ITS_TESTS = "tests/unit/core/test_quorum.py"


def held(line: str, tests: list[tuple[str, float]]) -> Record:
    """Return a record in which these tests run one line of `has_majority`."""
    files = dict.fromkeys((name.partition("::")[0] for name, _ in tests), "")
    return Record(files, tests, {QUORUM: {f"has_majority:{line}": list(range(len(tests)))}})


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(Path(QUORUM).read_text().splitlines(), 1) if line.strip() == text)


def test_a_line_is_judged_by_the_tests_that_run_it_the_closest_and_cheapest_first() -> None:
    body = "return votes * 2 > voters"
    far, slow, fast = "tests/unit/core/test_votes.py::a", f"{ITS_TESTS}::slow", f"{ITS_TESTS}::fast"
    known = held(body, [(far, 0.1), (slow, 2.0), (fast, 1.0)])
    assert list(chosen_tests(known, QUORUM, line_of(body))) == [fast, slow, far]
    of_function = held("if a line that is gone:", [(slow, 2.0)])
    assert list(chosen_tests(of_function, QUORUM, line_of(body))) == [slow], "no test ran the line as it is now"


def test_what_runs_at_import_is_judged_by_the_tests_that_import_it() -> None:
    known = held("", [(f"{ITS_TESTS}::a", 1.0)])
    assert list(chosen_tests(known, QUORUM, 1)) == [ITS_TESTS]


def test_the_tests_of_a_mutation_have_a_bound() -> None:
    body = "return votes * 2 > voters"
    many = [(f"{ITS_TESTS}::t{n}", TESTS_S / 4) for n in range(9)]
    assert len(chosen_tests(held(body, many), QUORUM, line_of(body))) == 4
    assert chosen_tests(held(body, [(f"{ITS_TESTS}::t", TESTS_S * 2)]), QUORUM, line_of(body)), "one, in any case"


def test_the_runs_of_a_mutation_execute_its_line_each_kind_in_turn() -> None:
    body = "return votes * 2 > voters"
    runs = [("core 1", 3.0), ("core 2", 2.0), ("usual 7", 4.0), ("stale 1", RUNS_S)]
    known = held(body, [(f"{SIMULATOR}::{name}", seconds) for name, seconds in runs])
    assert list(chosen_runs(known, QUORUM, line_of(body))) == [("core", 2), ("", 7), ("core", 1)]
    other_line = held("if a line that is gone:", [(f"{SIMULATOR}::core 1", 3.0)])
    assert not chosen_runs(other_line, QUORUM, line_of(body))


@pytest.mark.in_turns
def test_recorded_tests_notice_a_fault_in_their_lines_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    begin = f"from tools.mutate import record; record.PATH = record.Path({str(path)!r})"
    run_to_end([sys.executable, "-c", f"{begin}; record.main([{ITS_TESTS!r}])"])
    judge = f"""{begin}
from tools.mutate import judges
from tools.mutate.mutations import mutations_of
judges.import_what_is_not_ours()
fault = next(one for one in mutations_of(record.ROOT / {QUORUM!r}, record.ROOT) if one.where == "has_majority")
tests = list(judges.chosen_tests(record.read(), fault.path, fault.line))
for mutation in (None, fault):
    print(judges.trial(mutation, lambda: judges.by_tests(tests), 60) or "nothing")
"""
    assert run_to_end([sys.executable, "-c", judge]).stdout.splitlines() == [
        "nothing",
        f"{ITS_TESTS}::test_a_primary_needs_more_than_half[1-2-False]",
    ]
