"""The process that reads and writes a member's archive, `python -m replset.features.archive.worker ADDRESS`.

So a member keeps its memory small, and neither a slow network nor a library for it can hold the event loop. Requests
and answers are pickled: both ends of the two pipes are this program. It ends with the member, at once: what it was
writing is then no segment yet.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from typing import BinaryIO

import apsw

from replset.errors import ErrorCode, ReplError
from replset.features.archive.archive import Archive
from replset.features.archive.files import open_files
from replset.features.archive.jobs import HEADER, Failure, ReadJob, WriteJob, pack, unpack
from replset.features.archive.write_segment import write_segment
from replset.storage import DATABASE_FILE
from replset.storage.disk import RealDisk
from replset.storage.sqlite import BUSY_MS

MODULE = "replset.features.archive.worker"


class Worker:
    """Carries out one request after the other."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._files = open_files(address)
        self._archive: Archive | None = None

    def answer(self, job: object) -> object:
        """Return the result, or a Failure."""
        try:
            return self._run(job)
        except ReplError as error:
            return Failure(error.code, error.message)
        except (apsw.Error, OSError) as error:
            return Failure(ErrorCode.OPERATION_FAILED, f"archive: {type(error).__name__}: {error}")

    def _run(self, job: object) -> object:
        if isinstance(job, WriteJob):
            connection = RealDisk().connect(os.path.join(job.dbpath, DATABASE_FILE), read_only=True)
            try:
                connection.set_busy_timeout(BUSY_MS)
                return write_segment(self._files, connection, job)
            finally:
                connection.close(True)
        if self._archive is None:
            self._archive = Archive.open(self._address, self._files)
        if isinstance(job, ReadJob):
            return self._archive.rows_after(job.after, job.limit, job.max_bytes)
        return self._archive.oldest()


def _read_jobs(source: BinaryIO, jobs: queue.Queue[object]) -> None:
    while header := source.read(HEADER.size):
        jobs.put(unpack(source.read(HEADER.unpack(header)[0])))
    os._exit(0)


def main(address: str) -> None:
    worker = Worker(address)
    jobs: queue.Queue[object] = queue.Queue()
    threading.Thread(target=_read_jobs, args=(sys.stdin.buffer, jobs), daemon=True).start()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not come between
    while True:
        answers.write(pack(worker.answer(jobs.get())))
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
