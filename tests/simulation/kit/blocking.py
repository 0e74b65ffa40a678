"""Code that waits for sockets, on virtual time: a follower's client of its source, and the command line.

It runs in threads of which one runs at a time (threads.py). While one waits, the loop carries its command over the
simulated network, from the machine and the process that it belongs to.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self, TypeVar

import pytest

from replset.bson import RawDocument, decode
from replset.cli import calls
from replset.cli import follow as command_line
from replset.errors import HostUnreachableError
from replset.features.follower import follow_source
from replset.features.follower.follow_source import SourceSet
from replset.ids import HostPort
from tests.simulation.kit.cluster import SimCluster
from tests.simulation.kit.loop import current_process
from tests.simulation.kit.network import NetworkPort
from tests.simulation.kit.threads import Job, current_job
from tests.simulation.kit.wire import NoAnswerError, SimClient

T = TypeVar("T")
LONGEST_POLL_S = 0.05


async def run_blocking(work: Callable[..., T], *args: object) -> T:
    """Run what blocks. Cancelled, with the process that it belongs to, it fails at its next wait."""
    job = Job(partial(work, *args), random.Random(0), 0.0, stops=False)
    try:
        job.go_on()
        while not job.done:
            await asyncio.sleep(job.waits_s)
            job.go_on()
    except asyncio.CancelledError:
        job.to_the_end()
        raise
    if job.error is not None:
        raise job.error
    result: T = job.result
    return result


class BlockingSite:
    """Where such code runs. said: what the command line printed."""

    def __init__(self, *clusters: SimCluster) -> None:
        self._clusters = clusters
        self._loop = clusters[0].loop
        self.said: list[str] = []
        self.on_command: list[Callable[[Mapping[str, object]], None]] = []

    def port(self) -> NetworkPort:
        """The network as the process sees it that asks; who belongs to no member is a client."""
        process = current_process.get()
        for cluster in self._clusters:
            for machine in cluster.machines.values():
                if process is not None and machine.process is process:
                    return cluster.network.port(machine.name, process)
        return self._clusters[0].client_port()

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of what the loop does meanwhile; for a thread."""
        job, pause_s = current_job(), 0.002
        assert job is not None, "it runs on the loop"
        task = self._loop.create_task(work)
        while not task.done():
            if job.abandoned:
                task.cancel()
                raise HostUnreachableError("this process is dead")
            job.stop(pause_s)
            pause_s = min(2 * pause_s, LONGEST_POLL_S)
        return task.result()

    # --- the module `time`, for a thread

    def monotonic(self) -> float:
        return self._loop.time()

    def sleep(self, seconds: float) -> None:
        job = current_job()
        assert job is not None
        job.stop(seconds)


class SimWireClient:
    """replset.client.WireClient on the simulated network."""

    def __init__(self, site: BlockingSite, host: str, *, timeout_s: float = 10.0, login: object = None) -> None:
        self.host = host
        self._site = site
        self._timeout_s = timeout_s
        self._client = SimClient(site.port())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def command(self, database: str, document: Mapping[str, object]) -> dict[str, Any]:
        return decode(self.ask(database, document).raw)

    def ask(
        self, database: str, document: Mapping[str, object], _: tuple[str, Sequence[bytes]] | None = None
    ) -> RawDocument:
        for look in self._site.on_command:
            look(document)
        asked = self._client.ask(HostPort(self.host), database, document, self._timeout_s)
        try:
            return RawDocument(self._site.wait_for(asked))
        except NoAnswerError as error:
            raise HostUnreachableError(str(error)) from error


@contextmanager
def blocking_clients(*clusters: SimCluster) -> Iterator[BlockingSite]:
    """Members of these sets follow each other, and the command line reaches them, on virtual time."""
    site = BlockingSite(*clusters)
    client = partial(SimWireClient, site)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SourceSet, "run", lambda _, work, *args: run_blocking(work, *args))
        patch.setattr(follow_source, "WireClient", client)
        patch.setattr(calls, "WireClient", client)
        patch.setattr(command_line, "time", site)
        patch.setattr(command_line, "echo", site.said.append)
        yield site
