"""Has `replset start`, which runs one member. Only this file imports both runtime and api.

It does not import typer or rich, to keep a member's memory small.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import logging
import os
import random
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import uvloop

from api.app import create_app
from api.prepared import PreparedActions
from api.serve import HttpServer
from replset.cli.descriptors import backlog_for, raise_descriptor_limit, share_descriptors
from replset.cli.log_writer import LogWriter, log_to_file, start_log
from replset.cli.start_options import about, all_options, flag_of, resolve_options, variable_of
from replset.cli.watchdog import Watchdog
from replset.client import SETTINGS
from replset.errors import ReplError
from replset.features.all import OPTIONS, all_features
from replset.member.member import RunningMember
from replset.member.net.connections import HTTP_CONNECTIONS, ConnectionSlots
from replset.member.net.credentials import Credentials
from replset.member.net.network import RealNetwork, split_host_port
from replset.member.options import JSON_LOG, MemberOptions
from replset.member.outside import MemberPorts
from replset.member.process.machine import RealClock, RealSyncThread, RealWorkers
from replset.operations.audit_trail import AuditTrail
from replset.release import described
from replset.storage.disk import RealDisk
from replset.text import printable

log = logging.getLogger("replset.member")

M_MMAP_THRESHOLD, LARGE_BLOCK = -3, 1 << 20
GC_THRESHOLDS = 10_000, 20, 20
"""Python's own, 700 objects, cost a loaded member 6 % of its time, and pauses of up to 20 ms."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(refuse(f"{message} (see `replset start --help`)"))


def give_back_large_blocks() -> None:
    """Let the C library give blocks of LARGE_BLOCK bytes back to the system once they are free.

    By default it keeps those of up to 32 MiB from the first that is freed on. Each large document, message and answer
    then made a member larger for ever.
    """
    with suppress(AttributeError, OSError):  # not with every C library
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)


def build_parser() -> argparse.ArgumentParser:
    """Make a flag of every option. None has a default here, so that file and environment count."""
    parser = _Parser(
        prog="replset start",
        usage="replset start --replSet NAME --dbpath DIR [--port PORT] [OPTIONS]",
        description="Run one member of a replica set until SIGTERM.",
        epilog="Each option also comes from the environment (--replSet: REPLSET_REPL_SET) or from the file named by "
        "--config (same names, flat); the flag wins, then the environment, then the file.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE.yaml", help="read options from a YAML file")
    for field in all_options(OPTIONS):
        flag, text = f"--{flag_of(field.name)}", f"{about(field).help} [{variable_of(field.name)}]"
        if field.type == "bool":
            parser.add_argument(flag, dest=field.name, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            parser.add_argument(flag, dest=field.name, metavar=about(field).metavar, help=text)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run until a signal ends the member. Exit status 0: stopped cleanly, 2: could not start, 1: had to stop."""
    parsed = vars(build_parser().parse_args(argv))
    try:
        options = resolve_options(parsed, os.environ, OPTIONS)
        credentials = Credentials.of_options(options)
    except ReplError as error:
        return refuse(error.message)
    if options.auth:  # the files hold keys of users, and documents that not everybody may read
        os.umask(0o077)
    try:
        writer = start_log(options.log_level, options.log_file, as_json=options.log_format == JSON_LOG)
    except OSError as error:
        return refuse(f"--log-file: {options.log_file} cannot be written: {reason_of(error)}")
    try:
        audit = None if options.audit_log is None else log_to_file(options.audit_log)
    except OSError as error:
        return refuse(f"--audit-log: {options.audit_log} cannot be written: {reason_of(error)}")
    give_back_large_blocks()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.freeze()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(options, credentials, writer, audit))


def refuse(reason: str, writer: LogWriter | None = None) -> int:
    """Print why the member does not start, as one line. With a `writer` the line goes there."""
    if writer is None:
        print(printable(f"replset start: {reason}"), file=sys.stderr)
    else:
        writer.write_last(f"replset start: {reason}")
    return 2


def taken_port(options: MemberOptions) -> str | None:
    """Return the reason why one of the member's two addresses cannot be used; None: both are free."""
    for address in (options.listen, options.http_listen):
        host, port = split_host_port(address)
        try:
            socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
        except OSError as error:
            return f"cannot listen on {address}: {reason_of(error)}"
    return None


def reason_of(error: OSError) -> str:
    """Return the system's text for an error, without what Python adds. Unknown host names have a text of their own."""
    return str(error.strerror or error) if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)


def reload_on_hangup(credentials: Credentials, workers: RealWorkers) -> None:
    """Let SIGHUP read the key file and the certificates again. Without such files it ends the process, as ever."""
    if not credentials.has_files:
        return
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[None]] = set()

    async def reload() -> None:
        try:
            await workers.run(credentials.reload)
        except ReplError as error:
            log.error("SIGHUP: nothing is changed: %s", error.message)
        else:
            log.info("SIGHUP: key file and certificates are read again")

    def begin() -> None:
        task = loop.create_task(reload())
        running.add(task)
        task.add_done_callback(running.discard)

    loop.add_signal_handler(signal.SIGHUP, begin)


def _in_no_set(options: MemberOptions) -> str:
    """Return the end of the log's first line for a member that nobody has told of a set."""
    host = options.host
    return f"; in no set yet: `replset initiate --host {host}` makes one, `replset add {host} --host MEMBER` joins one"


def exit_if_broken(member: RunningMember, writer: LogWriter) -> None:
    """End the process if the disk or an invariant failed. A clean close would write to the damaged files."""
    if member.broken.done():
        writer.write_last(f"replset start: stopped: {member.broken.result()}")
        os._exit(1)


async def run(options: MemberOptions, credentials: Credentials, writer: LogWriter, audit: LogWriter | None) -> int:
    taken = taken_port(options)  # checked first, so that a wrong port leaves the dbpath untouched
    if taken is not None:
        return refuse(taken, writer)
    workers, sync_thread = RealWorkers(), RealSyncThread()
    descriptors = raise_descriptor_limit()
    backlog = backlog_for(descriptors)
    rng, core_rng = random.SystemRandom(), random.Random()
    wire_slots, http_slots = ConnectionSlots(options.max_connections, "wire"), ConnectionSlots(HTTP_CONNECTIONS, "HTTP")
    share_descriptors(descriptors, wire_slots, http_slots)
    network = RealNetwork(backlog, credentials.tls, wire_slots.has_room)
    ports = MemberPorts(network, RealDisk(), RealClock(), workers, rng, core_rng, sync_thread)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    logs = [writer] if audit is None else [writer, audit]

    def reopen_logs() -> None:
        for one in logs:
            one.reopen()

    loop.add_signal_handler(signal.SIGUSR1, reopen_logs)
    reload_on_hangup(credentials, workers)
    trail = AuditTrail(None if audit is None else audit.write, ports.clock.wall_ms)
    try:
        member = await RunningMember.start(
            options,
            ports,
            credentials=credentials,
            wire_slots=wire_slots,
            audit=trail,
            features=all_features(),
        )
    except ReplError as error:
        return refuse(error.message, writer)
    except OSError as error:
        return refuse(f"{error.filename or options.listen}: {reason_of(error)}", writer)
    member.add(writer.recent)
    member.http_slots = http_slots
    tls = credentials.tls  # for a restore over HTTP: it is a client of the primary, and shows itself as this member
    if tls is not None:
        SETTINGS.tls = lambda: tls.client
    SETTINGS.user = lambda: None
    SETTINGS.login = lambda client: client.prove(member.keys.on(certified=True), member.host)
    app = create_app(member, options.allowed_hosts)
    http = HttpServer(
        app,
        options.http_listen,
        http_slots,
        member.admission,
        member.turns,
        backlog,
        credentials.tls,
        PreparedActions(member),
    )
    try:
        await http.start()
    except OSError as error:
        await member.stop()
        return refuse(f"cannot listen on {options.http_listen}: {reason_of(error)}", writer)
    print(printable(f"replset {options.repl_set}: wire {options.host}, http {options.http_url}"), flush=True)
    log.info(
        "replset %s serves set %s: wire %s, http %s, data in %s, pid %d%s",
        *(described(), options.repl_set, options.host, options.http_address, options.dbpath, os.getpid()),
        "" if member.node.config is not None or options.expected else _in_no_set(options),
    )
    watchdog = Watchdog(member.load.on_beat)
    watchdog.start()
    gc.freeze()
    member.broken.add_done_callback(lambda _: stop.set())
    await stop.wait()
    exit_if_broken(member, writer)
    log.info("a signal asks this member to stop")
    watchdog.stop()
    await member.hand_over()
    exit_if_broken(member, writer)
    await http.stop()
    await member.stop()
    workers.close()
    sync_thread.close()
    log.info("stopped: all is on disk")
    for one in logs:
        one.flush()
    return 0
