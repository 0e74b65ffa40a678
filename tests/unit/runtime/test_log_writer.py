"""The log's thread: who logs never waits for who reads, and what was dropped is told."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Iterator

import pytest

from replset.runtime.log_writer import FLUSH_S, LogWriter

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
    assert writer.dropped >= 1_000
    began = time.monotonic()
    writer.flush()
    assert time.monotonic() - began < FLUSH_S + 10
    dropped, found = writer.dropped, b""
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
    assert writer.dropped == 0


def test_a_record_that_cannot_be_formatted_does_no_harm(pipe: Pipe) -> None:
    writer = LogWriter(pipe[1])
    logger(writer).warning("%d", "x")
    writer.flush()
    assert b"could not be written" in os.read(pipe[0], 1 << 16)
