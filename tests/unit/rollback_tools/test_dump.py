"""`rollback-tools dump` beside bsondump's documented output: bytes, exit codes and lines on standard error (map C)."""

from __future__ import annotations

import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from replset.bson import (
    Binary,
    Code,
    CodeWithScope,
    DateTime,
    DBPointer,
    Decimal128,
    Int64,
    MaxKey,
    MinKey,
    ObjectId,
    Regex,
    Symbol,
    Timestamp,
    Undefined,
    encode,
)
from replset.ejson import to_ejson
from rollback_tools import main

EXAMPLE = encode({"_id": 7, "owner": {"name": "Ana", "tags": ["x", 2]}, "ok": True})
EXAMPLE_JSON = '{"_id":{"$numberInt":"7"},"owner":{"name":"Ana","tags":["x",{"$numberInt":"2"}]},"ok":true}\n'
EXAMPLE_PRETTY = """\
{
	"_id": {
		"$numberInt": "7"
	},
	"owner": {
		"name": "Ana",
		"tags": [
			"x",
			{
				"$numberInt": "2"
			}
		]
	},
	"ok": true
}
"""
EXAMPLE_DEBUG = """\
--- new object ---
	size : 72
		_id
			type:   16 size: 9
		owner
			type:    3 size: 53
			--- new object ---
				size : 46
					name
						type:    2 size: 14
					tags
						type:    4 size: 27
						--- new object ---
							size : 21
								0
									type:    2 size: 9
								1
									type:   16 size: 7
		ok
			type:    8 size: 5
"""
GOOD = encode({"a": 1})
GOOD_JSON = '{"a":{"$numberInt":"1"}}\n'
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+0000\t(.*)")


class Outcome:
    """What one run gave: exit status, standard output, and standard error without its time stamps."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status = status
        self.out = out
        self.err: list[str] = []
        for line in err.splitlines():
            match = LOG_LINE.fullmatch(line)
            assert match is not None, f"no time stamp: {line}"
            self.err.append(match[1])


Dump = Callable[..., Outcome]


@pytest.fixture
def dump(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Dump:
    """Run `rollback-tools dump` on these bytes with these arguments."""

    def run(data: bytes, *arguments: str) -> Outcome:
        path = tmp_path / "x.bson"
        path.write_bytes(data)
        try:
            status = main.main(["dump", *arguments, str(path)])
        except SystemExit as stop:
            status = int(stop.code or 0)
        sys.stdout.flush()
        sys.stderr.flush()
        out, err = capfdbinary.readouterr()
        return Outcome(status, out.decode(errors="replace"), err.decode())

    return run


def raw(*elements: bytes) -> bytes:
    """A document of these element bytes."""
    body = b"".join(elements)
    return struct.pack("<i", len(body) + 5) + body + b"\0"


# --- json ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [(), ("--type", "json"), ("--type=json",), ("--type=",), ("--objcheck",)])
def test_json_is_canonical_and_one_document_a_line(dump: Dump, arguments: tuple[str, ...]) -> None:
    outcome = dump(EXAMPLE + GOOD, *arguments)
    assert (outcome.status, outcome.out, outcome.err) == (0, EXAMPLE_JSON + GOOD_JSON, ["2 objects found"])


ID = ObjectId("0123456789abcdef01234567")
VALUES: list[object] = [
    *(2.0, float("nan"), float("-inf"), 1e6, 1.5e-7, 0.0001, -0.0, -5, Int64(5), Decimal128("1.50"), None, False),
    *(DateTime(1_700_000_000_000), DateTime(-1), Binary(b"\x01\x02", 4), Binary(b"", 0), ID, Timestamp(5, 6)),
    *(Regex('a/b"', "xi"), Code("f()"), CodeWithScope("f()", {"n": 1}), Symbol("s"), DBPointer("d.c", ID)),
    *(Undefined(), MinKey(), MaxKey(), {}, [], [[], {}]),
    *("<a> & 'b'", '"\\\n\t\r\b\f\x01\x7f', "\u2028\u2029é😀"),
]


def test_every_type_is_as_the_codec_prints_it(dump: Dump) -> None:
    documents: list[dict[str, object]] = [{"v": value} for value in VALUES]
    outcome = dump(b"".join(map(encode, documents)))
    assert outcome.out.splitlines() == [to_ejson(document, canonical=True) for document in documents]


def test_pretty_indents_with_tabs_and_leaves_strings_and_empty_brackets_alone(dump: Dump) -> None:
    assert dump(EXAMPLE, "--pretty").out == EXAMPLE_PRETTY
    outcome = dump(encode({"a": {}, "b": [], "c": '{"x":[1,2]}\\"', "d": [[], 1.0]}) + encode({}), "--pretty")
    assert outcome.out == (
        '{\n\t"a": {},\n\t"b": [],\n\t"c": "{\\"x\\":[1,2]}\\\\\\"",\n\t"d": [\n\t\t[],\n\t\t{\n'
        '\t\t\t"$numberDouble": "1.0"\n\t\t}\n\t]\n}\n{}\n'
    )


@pytest.mark.parametrize("more", [(), ("--pretty",)])
def test_debug(dump: Dump, more: tuple[str, ...]) -> None:
    outcome = dump(EXAMPLE + encode({"low": MinKey()}), "--type=debug", *more)
    low = "--- new object ---\n\tsize : 10\n\t\tlow\n\t\t\ttype:   -1 size: 5\n"
    assert (outcome.status, outcome.out, outcome.err) == (0, EXAMPLE_DEBUG + low, ["2 objects found"])


# --- damage -------------------------------------------------------------------------------------------------------

MODES = {"json": (), "objcheck": ("--objcheck",), "debug": ("--type=debug",), "both": ("--type=debug", "--objcheck")}


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_file_is_sound(dump: Dump, mode: str) -> None:
    outcome = dump(b"", *MODES[mode])
    assert (outcome.status, outcome.out, outcome.err) == (0, "", ["0 objects found"])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("tail", "words"),
    [
        pytest.param(EXAMPLE[:2], "unexpected EOF", id="cut inside the length"),
        pytest.param(EXAMPLE[:40], "unexpected EOF", id="cut inside the body"),
        pytest.param(EXAMPLE[:-1], "unexpected EOF", id="cut before the last byte"),
        pytest.param(EXAMPLE[:4], "invalid bson: EOF", id="cut behind the length"),
        pytest.param(struct.pack("<i", 4) + b"\0", "invalid BSONSize: 4 bytes", id="too short"),
        pytest.param(struct.pack("<i", -1) + b"\0", "invalid BSONSize: -1 bytes", id="negative"),
        pytest.param(struct.pack("<i", 16793601) + b"\0", "invalid BSONSize: 16793601 bytes", id="too long"),
    ],
)
def test_a_file_that_ends_badly_gives_1_and_what_came_before(dump: Dump, mode: str, tail: bytes, words: str) -> None:
    outcome = dump(GOOD + tail, *MODES[mode])
    assert outcome.status == 1
    assert outcome.err == ["1 objects found", words]
    assert outcome.out == dump(GOOD, *MODES[mode]).out


BAD = {
    "type byte": raw(b"\x10a\0\1\0\0\0", b"\x20b\0\1\0\0\0"),
    "boolean": raw(b"\x10a\0\1\0\0\0", b"\x08b\0\2"),
    "string length": raw(b"\x10a\0\1\0\0\0", b"\x02b\0\x7f\0\0\0x\0"),
    "terminator": raw(b"\x10a\0\1\0\0\0")[:-1] + b"\1",
    "inner terminator": raw(b"\x03a\0" + struct.pack("<i", 5) + b"\1"),
    "code with scope": raw(b"\x0fa\0" + struct.pack("<ii", 14, 9) + b"\0" + b"\5\0\0\0\0"),
}


@pytest.mark.parametrize("damage", BAD)
def test_a_bad_document_is_skipped_but_counted(dump: Dump, damage: str) -> None:
    outcome = dump(GOOD + BAD[damage] + GOOD)
    assert outcome.status == 0
    assert outcome.out == GOOD_JSON * 2
    assert outcome.err[0].startswith("unable to dump document 2: ")
    assert outcome.err[1:] == ["3 objects found"]


@pytest.mark.parametrize("damage", BAD)
@pytest.mark.parametrize("mode", ["objcheck", "both"])
def test_objcheck_stops_at_a_bad_document_and_does_not_count_it(dump: Dump, damage: str, mode: str) -> None:
    outcome = dump(GOOD + BAD[damage] + GOOD, *MODES[mode])
    assert outcome.status == 1
    assert outcome.out == dump(GOOD, *MODES[mode]).out
    assert outcome.err[0] == "1 objects found"
    assert outcome.err[1].startswith("failed to validate bson during objcheck: ")
    assert len(outcome.err) == 2


@pytest.mark.parametrize("damage", BAD)
def test_debug_notices_what_lengths_show_and_prints_nothing_of_that_document(dump: Dump, damage: str) -> None:
    outcome = dump(BAD[damage] + GOOD, "--type=debug")
    good = dump(GOOD, "--type=debug").out
    assert (outcome.status, outcome.err[-1], outcome.out.endswith(good)) == (0, "2 objects found", True)
    if damage in ("type byte", "string length"):
        assert outcome.out == f"--- new object ---\n\tsize : {len(BAD[damage])}\n{good}"
    elif damage != "code with scope":
        assert len(outcome.err) == 1


def test_debug_prints_every_level(dump: Dump) -> None:
    nested = encode({})
    for _ in range(1500):
        nested = raw(b"\x03a\0" + nested)
    outcome = dump(nested, "--type=debug")
    assert outcome.err == ["1 objects found"]
    assert outcome.out.count("--- new object ---") == 1501


@pytest.mark.parametrize("mode", MODES)
def test_bad_utf8_and_repeated_names_are_printed_as_they_are(dump: Dump, mode: str) -> None:
    outcome = dump(raw(b"\x10a\0\1\0\0\0", b"\x10a\0\2\0\0\0", b"\x02\xff\0\5\0\0\0x\xe2\x82y\0"), *MODES[mode])
    assert (outcome.status, outcome.err) == (0, ["1 objects found"])
    if "debug" not in " ".join(MODES[mode]):
        assert outcome.out == '{"a":{"$numberInt":"1"},"a":{"$numberInt":"2"},"\\ufffd":"x\\ufffd\\ufffdy"}\n'


def test_a_document_whose_json_could_not_be_read_again_is_an_error(dump: Dump) -> None:
    outcome = dump(encode({"$date": "yesterday"}) + encode({"$set": {"price$": "$5"}}))
    assert outcome.out == '{"$set":{"price$":"$5"}}\n'
    assert outcome.err[0].startswith("unable to dump document 1: ")
    assert outcome.status == 0


def test_too_many_levels_are_one_bad_document(dump: Dump) -> None:
    deep = b"\5\0\0\0\0"
    for _ in range(200):
        deep = raw(b"\x03a\0" + deep)
    for mode in ((), ("--type=debug",), ("--type=debug", "--objcheck")):
        outcome = dump(deep, *mode)
        assert outcome.status == 0
        assert outcome.err[-1] == "1 objects found"
    assert dump(deep, "--objcheck").status == 1


# --- options ------------------------------------------------------------------------------------------------------


def test_quiet_hides_the_count_but_not_what_ends_the_dump(dump: Dump) -> None:
    assert dump(GOOD + BAD["boolean"], "--quiet").err == []
    cut = dump(GOOD + b"\1", "--quiet")
    assert (cut.status, cut.out, cut.err) == (1, GOOD_JSON, ["unexpected EOF"])


TWO_LINES = ["will listen for SIGTERM and SIGINT", "running with --objcheck: true"]


@pytest.mark.parametrize(
    ("flags", "lines"),
    [
        *((flags.split(), []) for flags in ("-v", "--verbose", "-v=1", "--verbose=1")),
        *((flags.split(), TWO_LINES) for flags in ("-vv", "-v --verbose", "-v=2", "--verbose=2", "-vvvvv")),
    ],
)
def test_more_is_told_from_the_second_v_on(dump: Dump, flags: list[str], lines: list[str]) -> None:
    outcome = dump(GOOD, *flags, "--objcheck")
    assert (outcome.out, outcome.err) == (GOOD_JSON, [*lines, "1 objects found"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("other.bson",), "more than one input file"),
        (("--bsonFile=other.bson",), "more than one input file"),
        (("--type=xml",), "unsupported output type 'xml'; choose json or debug"),
        (("--frobnicate",), "unrecognized arguments: --frobnicate"),
        (("--obj",), "unrecognized arguments: --obj"),
    ],
)
def test_wrong_options_give_1_and_a_hint(dump: Dump, arguments: tuple[str, ...], words: str) -> None:
    outcome = dump(GOOD, *arguments)
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err == [
        f"error parsing command line options: {words}",
        "try 'rollback-tools dump --help' for more information",
    ]


def test_files_in_and_out_and_those_that_cannot_be_opened(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "in.bson", tmp_path / "out.json"
    source.write_bytes(EXAMPLE)
    target.write_text("old")
    assert main.main(["dump", f"--bsonFile={source}", "--outFile", str(target)]) == 0
    assert target.read_text() == EXAMPLE_JSON
    assert capfd.readouterr().out == ""
    for arguments, name in (
        ([str(tmp_path / "none.bson")], "none.bson"),
        ([str(source), "--outFile", str(tmp_path / "no" / "out.json")], "no/out.json"),
        ([str(source), "--config", str(tmp_path / "none.yaml")], "none.yaml"),
    ):
        assert main.main(["dump", *arguments]) == 1
        assert capfd.readouterr().err.split("\t")[1] == f"{tmp_path}/{name}: No such file or directory\n"


def test_the_config_file_is_read_and_sets_nothing(dump: Dump, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("password: x\n")
    assert dump(GOOD, f"--config={config}").out == GOOD_JSON
    config.write_text("- a\n")
    outcome = dump(GOOD, f"--config={config}")
    assert (outcome.status, outcome.err) == (1, [f"error parsing config file {config}: not a mapping"])


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_give_0(dump: Dump, option: str) -> None:
    outcome = dump(GOOD, option)
    assert outcome.status == 0
    assert "rollback-tools dump" in outcome.out


# --- as a process -------------------------------------------------------------------------------------------------

COMMAND = [sys.executable, "-m", "rollback_tools.main", "dump"]


def test_a_broken_pipe_gives_1_and_a_message(tmp_path: Path) -> None:
    path = tmp_path / "x.bson"
    path.write_bytes(EXAMPLE * 20_000)
    process = subprocess.Popen([*COMMAND, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().decode() == EXAMPLE_JSON
    process.stdout.close()
    err = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(timeout=60) == 1
    assert re.fullmatch(r".*\t\d+ objects found\n.*\twrite: broken pipe\n", err)


def test_a_full_disk_gives_1() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(COMMAND, input=EXAMPLE, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr.decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_give_1_and_what_came_before(number: int) -> None:
    process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(EXAMPLE * 300 + b"\1")  # and no end: it waits for more
    process.stdin.flush()
    first = process.stdout.read(len(EXAMPLE_JSON))
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert first.decode() == EXAMPLE_JSON
    assert process.returncode == 1
    assert b"Traceback" not in err
