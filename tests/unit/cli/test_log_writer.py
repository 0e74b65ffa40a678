"""The log's thread: who logs never waits for who reads, and what was dropped is told."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from replset.cli.log_writer import LogWriter, open_log_file
from replset.ids import HostPort

Pipe = tuple[int, int]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def logger(writer: LogWriter) -> logging.Logger:
    log = logging.Logger("replset.test")
    log.addHandler(writer)
    return log


def read_until(reading: int, end: bytes) -> bytes:
    found = b""
    while end not in found:
        found += os.read(reading, 1 << 16)
    return found


def test_lines_come_in_order_and_the_last_ones_before_the_end(pipe: Pipe) -> None:
    writer = LogWriter(pipe[1])
    log = logger(writer)
    for number in range(300):
        log.warning("line %d", number)
    writer.flush()
    lines = os.read(pipe[0], 1 << 16).decode().splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == [str(number) for number in range(300)]
    assert lines[0].endswith("WARNING replset.test line 0")


def test_a_slow_reader_blocks_no_logger_and_learns_what_was_dropped(pipe: Pipe) -> None:
    writer = LogWriter(pipe[1], max_lines=100)
    log = logger(writer)
    done = threading.Event()

    def flood() -> None:
        for number in range(3_000):
            log.warning("%d %s", number, "x" * 200)
        done.set()

    threading.Thread(target=flood, daemon=True).start()
    assert done.wait(20), "who logs waits for who reads"
    assert writer.recent.dropped >= 1_000
    writer.flush()  # it gives up, for nobody reads
    dropped, found = writer.recent.dropped, b""
    while sum(int(count) for count in re.findall(rb"(\d+) lines of the log were dropped", found)) < dropped:
        found += os.read(pipe[0], 1 << 16)
    log.warning("and on")
    assert read_until(pipe[0], b"and on")


def test_a_closed_pipe_is_given_up() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    writer = LogWriter(writing)
    logger(writer).warning("nobody hears this")
    writer.flush()
    os.close(writing)
    assert writer.recent.dropped == 0


def test_a_record_that_cannot_be_formatted_does_no_harm(pipe: Pipe) -> None:
    writer = LogWriter(pipe[1])
    logger(writer).warning("%d", "x")
    writer.flush()
    assert b"could not be written" in os.read(pipe[0], 1 << 16)


@pytest.mark.parametrize("as_json", [False, True])
def test_what_a_client_sent_begins_no_line_and_steers_no_terminal(pipe: Pipe, as_json: bool) -> None:
    writer = LogWriter(pipe[1], as_json=as_json)
    logger(writer).warning("no %s", "x\n2026-01-01T00:00:00.000Z ERROR forged\r\x1b\x9b2J")
    writer.flush()
    line = os.read(pipe[0], 1 << 16)
    assert b"no x\\n2026-01-01T00:00:00.000Z ERROR forged\\r\\u001b\\u009b2J" in line
    assert line.decode().removesuffix("\n").isprintable()


def test_json_has_the_names_of_mongodb_s_log(pipe: Pipe) -> None:
    writer = LogWriter(pipe[1], as_json=True)
    log = logger(writer)
    log.warning("slow\n%s", "find", extra={"attr": {"ns": "a.b", "ms": 120, "host": HostPort("m:1")}})
    log.info("half of a pair: %s", "\ud800", extra={"attr": {"n": 1 << 70}})
    try:
        raise KeyError("x")
    except KeyError:
        log.exception("failed")
    writer.flush()
    rows = [json.loads(line) for line in os.read(pipe[0], 1 << 16).splitlines()]
    assert rows[0].pop("t")["$date"].endswith("Z")
    assert rows[0] == {
        "s": "W",
        "c": "test",
        "ctx": "MainThread",
        "msg": "slow\nfind",
        "attr": {"ns": "a.b", "ms": 120, "host": "m:1"},
    }
    assert rows[1]["msg"] == "half of a pair: \\ud800"
    assert rows[2]["s"] == "E"
    assert "KeyError: 'x'" in rows[2]["attr"]["error"]


def test_a_renamed_file_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "m.log"
    writer = LogWriter(open_log_file(path), path=path)
    log = logger(writer)
    log.warning("first")
    writer.flush()
    path.rename(tmp_path / "m.log.1")
    log.warning("second")
    writer.flush()
    writer.reopen()
    wait_until(path.exists)
    log.warning("third")
    writer.flush()
    assert [line[-6:].strip() for line in (tmp_path / "m.log.1").read_text().splitlines()] == ["first", "second"]
    assert path.read_text().endswith("third\n")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_opened_again_leaves_the_old_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    path = folder / "m.log"
    writer = LogWriter(open_log_file(path), path=path)
    folder.rename(tmp_path / "old")
    writer.reopen()
    wait_until(lambda: "cannot be opened again" in caplog.text)
    logger(writer).warning("on")
    writer.flush()
    assert (tmp_path / "old" / "m.log").read_text().endswith("on\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_drops_lines_and_the_log_says_so(tmp_path: Path) -> None:
    """The kernel's /dev/full takes nothing."""
    path = tmp_path / "m.log"
    path.symlink_to("/dev/full")
    writer = LogWriter(open_log_file(path), path=path)
    log = logger(writer)
    log.warning("lost")
    writer.flush()
    assert writer.recent.dropped == 1
    path.unlink()
    writer.reopen()
    wait_until(path.exists)
    log.warning("on")
    writer.flush()
    assert "on\n1 lines of the log were dropped" in path.read_text()


def test_the_last_line_is_in_the_file_and_on_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.log"
    writer = LogWriter(open_log_file(path), path=path)
    writer.write_last("replset start: stopped: no disk")
    assert path.read_text().endswith("ERROR replset replset start: stopped: no disk\n")
    assert capsys.readouterr().err == "replset start: stopped: no disk\n"


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)
