"""Regular expressions: PCRE's syntax, and the limit of the time that they use."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from replset.errors import ErrorCode, ReplError
from replset.query import regex
from replset.query.match import compile_filter
from replset.query.order import Predicate
from tests.unit.query.regex_clock import SlowExpressions

# pattern, options, texts that hold it, texts that do not
SPELLINGS: list[tuple[str, str, list[str], list[str]]] = [
    ("fox", "", ["a fox"], ["Fox", ""]),
    ("^a.c$", "i", ["ABC", "axc\n"], ["abcd", "a\nc"]),
    (r"a\.b", "", ["a.b"], ["axb"]),
    (r"^\h+\H\R$", "", ["\t x\r\n", " x\v"], ["  \n"]),
    (r"\v\V", "", ["\u2028x", "\nx"], ["xx", "\n\n"]),
    (r"^[\v\h]+$", "", ["\n\t\x85 "], ["a"]),
    (r"\A\N+\z", "", ["ab"], ["a\nb", "ab\n"]),
    (r"b\Z", "", ["b", "b\n"], ["b\n\n"]),
    (r"\e\x{41}\x42[\x{1F600}]", "", ["\x1bAB\U0001f600"], ["AB"]),
    (r"\Q(a+\E+", "", ["(a+", "(a+++"], ["(a", "aa"]),
    (r"[\Q]^\E]x", "", ["]x", "^x"], ["x"]),
    (r"^[[:alpha:]&&|~-]+$", "", ["a&|~-", "Z"], ["1"]),
    (r"^[^[:digit:]]$", "", ["a"], ["1"]),
    (r"^[+--]$", "", ["+", ",", "-"], ["."]),
    (r"^[--/]$", "", ["-", ".", "/"], ["+"]),
    (r"^[a[b]$", "", ["a", "["], ["]"]),
    (r"(?<n>a)\k<n>\k{n}\k'n'", "", ["aaaa"], ["aaa"]),
    (r"(?'n'a)(?P=n)\g{1}\g1", "", ["aaaa"], ["aaa"]),
    (r"^(\((?:[^()]|(?1))*\))$", "", ["(a(b)())"], ["(a(b)"]),
    (r"^(?<p>a(?&p)?b)$", "", ["aabb"], ["aab"]),
    (r"^(a\g<1>?b)$", "", ["aabb"], ["aab"]),
    (r"x(?i)y", "", ["xY", "xy"], ["Xy"]),
    (r"x(?i:y)z", "", ["xYz"], ["xYZ"]),
    (r"(?-i)x", "i", ["x"], ["X"]),
    (r"a++b(?>c|cd)e", "", ["aabce"], ["aabcde", "b"]),
    (r"(a)?(?(1)b|c)$", "", ["ab", "c"], ["d"]),
    (r"a{2,}{x}", "", ["aa{x}"], ["a{x}"]),
    (r"a{,2}", "", ["a{,2}"], ["aa"]),
    (r"a(?#a word)b # not so", "x", ["ab"], ["a b"]),
    ("ß", "i", ["ß"], ["ss", "SS"]),
    (r"\d\w\s", "", ["1a "], ["a1 "]),
    (r"\p{Lu}\pL\P{L}", "", ["ÄÖ1"], ["äÖ1"]),
    (r"a\Kb", "", ["ab"], ["a"]),
]


@pytest.mark.parametrize(("pattern", "options", "taken", "left"), SPELLINGS, ids=[row[0] for row in SPELLINGS])
def test_spelling(pattern: str, options: str, taken: list[str], left: list[str]) -> None:
    holds = regex.regex_predicate(pattern, options)
    assert [text for text in taken if not holds(text)] == []
    assert [text for text in left if holds(text)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "[a",
        "a**",
        r"\C",
        r"\m",
        r"\L<a>",
        r"\N{DIGIT ONE}x\u0041",
        r"\x{110000}",
        r"(a)\g{9}",
        r"\k<n>",
        "(?V0)a",
        "(?e)a",
        "(?L)a",
        "(?r:a)",
        "(*ACCEPT)a",
        "(?C1)a",
        "a{2,1}",
        "[z-a]",
        "(?<n>a)(?<1>b)",
        "(?:" * 5_000 + "a" + ")" * 5_000,
        "(?:a{1000}){1000}",
        "(?:(?:(?:a{20}){20}){20}){20}",
        "a" * 40_000,
        "\ud800(",
    ],
    ids=lambda pattern: pattern[:30],
)
def test_what_cannot_be_read_is_one_short_error(pattern: str) -> None:
    with pytest.raises(ReplError) as caught:
        regex.regex_predicate(pattern, "")
    assert (caught.value.code, len(caught.value.message) < 300) == (51091, True), caught.value.message


# --- time -------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def saved_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins with all the time that expressions may have."""
    monkeypatch.setattr(regex, "_budget", regex._TimeBudget())
    monkeypatch.setattr(regex, "_thread_slot", threading.BoundedSemaphore())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SlowExpressions:
    return SlowExpressions(monkeypatch)


def refused(holds: Predicate, text: str) -> None:
    """`text` is refused, with a short message."""
    with pytest.raises(ReplError) as caught:
        holds(text)
    assert caught.value.code == ErrorCode.REGEX_TIME_LIMIT
    assert caught.value.message.startswith("Regular expression takes too long to match: ")
    assert len(caught.value.message) < 300


CATASTROPHES: list[tuple[str, str]] = [
    ("(a+)+$", "a" * 50_000 + "b"),
    (r"(?=(a+)c?)\1b", "a" * 200_000 + "cb"),
    (r"\s+$", " " * 200_000 + "b"),
    (r"\s+$", " " * 4_000_000 + "b"),
    (r"(?:x+x+)+y", "x" * 100_000 + "zy"),
    (r"^(([a-z])+.)+[A-Z]([a-z])+$", "a" * 30_000),
    (r"a++$", "a" * 200_000 + "b"),
    (r"(?:\w|\d)+$", "a" * 4_000_000 + " "),
    (r"(a(?1)?b)c", "a" * 30_000 + "bbc"),
    ("[" + "".join(map(chr, range(1_000, 3_000, 2))) + "]+$", "\u0bb6" * 60_000 + "a"),
    ("|".join(f"a{number}" for number in range(4_000)), "a" * 60_000),
]


@pytest.mark.parametrize(("pattern", "text"), CATASTROPHES, ids=[f"{p[:30]} {len(t)}" for p, t in CATASTROPHES])
def test_an_expression_that_goes_back_without_end_is_refused(
    pattern: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`regex` looks at the time seldom, so nobody waits for a search in a long text by a long pattern."""
    limits: list[float] = []
    search = regex._search_in_thread

    def noted(pattern: str, *rest: Any) -> Any:
        limits.append(rest[-1])
        return search(pattern, *rest)

    monkeypatch.setattr(regex, "_search_in_thread", noted)
    holds = regex.regex_predicate(pattern, "")
    regex.begin_time_slice()
    refused(holds, text)
    work = (len(pattern) + 1) * len(text)
    assert len(limits) == (1 << 20 < work <= regex._MAX_WORK)
    assert not limits or max(limits) <= regex.LIMIT_S


def test_a_text_of_megabytes_and_a_pattern_of_kilobytes_are_not_tried() -> None:
    holds = regex.regex_predicate("(?:ab|c)" * 400, "")
    regex.begin_time_slice()
    refused(holds, "c" * 1_500_000)
    assert regex._budget.used == 0


def test_a_pattern_is_quoted_only_in_part() -> None:
    holds = regex.regex_predicate("(a+)+$|" + "b" * 20_000, "")
    refused(holds, "a" * 50_000 + "b")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches in a thread of their own may wait for it as long as a busy machine makes them."""
    monkeypatch.setattr(regex, "LIMIT_S", 60.0)
    monkeypatch.setattr(regex, "_budget", regex._TimeBudget())


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("piece", ["a", "é", "(?:a)", "[a]", "a{1}", "(?:a){1}?", r"\x61"])
@pytest.mark.parametrize("options", ["", "i"])
def test_long_runs_are_not_prepared_in_cubic_time(piece: str, options: str) -> None:
    holds = regex.regex_predicate("(?:)" + piece * (6_000 // len(piece)), options)
    assert not holds("b" * 10_000), "in cubic time it takes minutes, and is refused"


@pytest.mark.usefixtures("patient")
def test_a_long_run_is_found() -> None:
    text = "".join(map(chr, range(300, 3_000)))
    for pattern in (text, rf"\Q{text}\E", f"(?:{text})+$", f"(?i){text}$"):
        holds = regex.regex_predicate(pattern, "")
        assert holds("xx" + text)
        assert not holds("xx" + text[:-1])


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("pattern", ["word$", "^word", ".word"])
def test_a_word_is_found_in_a_text_of_megabytes(pattern: str) -> None:
    around = "some text. " * 200_000
    holds = regex.regex_predicate(pattern, "")
    assert holds({"word$": around + "word", "^word": "word" + around, ".word": f"{around}word{around}"}[pattern])
    assert not holds(around)


def test_slow_expressions_share_one_time_budget(clock: SlowExpressions) -> None:
    """Many slow searches, in one slice after the other, use what is saved once, and then little more than slices."""
    holds = regex.regex_predicate("(a+)+$", "")
    clock.search_s = 60.0
    began, searches = clock.now, 10
    for _ in range(searches):
        regex.begin_time_slice()
        refused(holds, "a" * 100)
    assert clock.now - began < 1.01 * (regex.LIMIT_S + searches * 2 * regex.SLICE_S)


def test_compiling_many_expressions_uses_the_same_time_budget(clock: SlowExpressions) -> None:
    many = [regex.Regex(f"(?:a|b|c){{{number}}}") for number in range(1_000, 3_000)]
    clock.compile_s = regex.LIMIT_S / 10
    regex.begin_time_slice()
    with pytest.raises(ReplError) as caught:
        compile_filter({"a": {"$in": many}})
    assert caught.value.code == ErrorCode.REGEX_TIME_LIMIT
    assert 10 <= clock.compiled <= 11


def test_quick_expressions_are_never_refused(clock: SlowExpressions) -> None:
    """Slices that end in time use nothing of the saved budget."""
    holds = regex.regex_predicate("(?:x+x+)+y", "")
    clock.search_s = regex.SLICE_S / 10
    for _ in range(40):
        regex.begin_time_slice()
        while not regex.is_time_slice_over():
            assert not holds("xxz")
            assert holds("xxy")
    assert clock.now > 40 * regex.SLICE_S


def test_without_slices_there_is_a_new_one_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000.0]
    monkeypatch.setattr(regex.time, "perf_counter", lambda: now[0])
    budget = regex._TimeBudget()
    budget.begin()
    assert budget.left("a") == regex.LIMIT_S
    budget.used = regex.LIMIT_S
    now[0] += 0.9
    with pytest.raises(ReplError, match="too long to match: a"):
        budget.left("a")
    now[0] += 0.2
    assert budget.left("a") == regex.LIMIT_S


def test_many_words_and_many_texts_are_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """No single search is slow. Their assumed times are added up, although none is measured."""
    monkeypatch.setattr(regex.time, "perf_counter", lambda: 1_000.0)
    monkeypatch.setattr(regex.time, "thread_time", lambda: 1.0)
    regex.begin_time_slice()
    matcher = compile_filter({"a": {"$in": [regex.Regex(f"word{number}$") for number in range(300)]}})
    with pytest.raises(ReplError) as caught:
        matcher.matches({"a": ["some text of a few words"] * 2_000_000})
    assert caught.value.code == ErrorCode.REGEX_TIME_LIMIT


def test_a_filter_of_many_expressions_is_refused_as_a_whole() -> None:
    query = {"a": {"$all": [regex.Regex("(a|aa)+$"), regex.Regex("(?:a|a?)+$")]}}
    with pytest.raises(ReplError) as caught:
        compile_filter(query).matches({"a": "a" * 40_000 + "b"})
    assert caught.value.code == ErrorCode.REGEX_TIME_LIMIT
