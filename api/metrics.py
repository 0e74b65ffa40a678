"""Collects the metrics of one member for Prometheus. docs/metrics.md describes each; a test compares both."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import version

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from replset.core.election_metrics import ElectionMetrics
from replset.core.member_state import MemberState
from replset.core.status import Status
from replset.errors import code_name
from replset.features.diagnostics.server_status import ELECTION_COUNTERS
from replset.ids import OPTIME_NULL
from replset.member.feature import Features
from replset.member.member import RunningMember
from replset.member.net.server import WireServer
from replset.member.peers.flows import Flows
from replset.member.process.machine import RecentLog
from replset.operations.audit_trail import AuditTrail
from replset.operations.current_operations import Histogram
from replset.operations.flow_control import FlowControl
from replset.operations.lag import age_ms
from replset.operations.slow_operations import SlowReason
from replset.operations.transactions import TransactionTable
from replset.replication.initial_sync_progress import InitialSyncProgress

REASONS = tuple(reason for reasons in ELECTION_COUNTERS.values() for reason in reasons)
ROLLBACK_STATES = ("planned", "finished", "exported", "abandoned", "unreadable")


class MemberCollector(Collector):
    """See the module. rollbacks: the state of each rollback whose files are here. unacknowledged: how many of them
    nobody acknowledged. free_bytes: of the data's disk.
    """

    def __init__(self, member: RunningMember, rollbacks: list[str], unacknowledged: int, free_bytes: float) -> None:
        self._member = member
        self._rollbacks = rollbacks
        self._unacknowledged = unacknowledged
        self._free_bytes = free_bytes

    def collect(self) -> Iterator[Metric]:
        member = self._member
        status = member.node.status(member.clock.now())
        yield from self._process()
        yield from self._place_in_set()
        yield from self._members(status)
        yield from self._elections(status)
        yield from self._oplog()
        yield from self._features()
        yield from self._rollback_files()
        yield from self._writes()
        yield from self._flow_control()
        yield from self._clients()
        yield from self._commands()

    def _features(self) -> Iterator[Metric]:
        for part in self._member[Features]:
            for one in part.figures():
                plain = one.values.get("", 0.0)
                yield (
                    _gauges(one.name, one.help, one.label, one.values)
                    if one.label
                    else _gauge(one.name, one.help, plain)
                )

    def _process(self) -> Iterator[Metric]:
        member = self._member
        build = GaugeMetricFamily("replset_build_info", "1, with the version", labels=["version", "python"])
        build.add_metric([version("replset"), platform.python_version()], 1)
        yield build
        yield _gauge("replset_up", "1: this member answers", 1)
        yield _gauge(
            "replset_uptime_seconds", "since this process started", (member.clock.now() - member.started_at) / 1000
        )
        yield _gauge(
            "replset_overloaded", "1 while the event loop or the disk is late again and again", member.load.is_high
        )
        yield _gauge("replset_event_loop_delay_seconds", "how late the event loop is, on average", member.load.late_s)
        yield _counter("replset_event_loop_stalls", "times that the event loop was over 50 ms late", member.load.stalls)
        yield _counter("replset_log_lines", "lines of the log", member[RecentLog].total)
        yield _counter("replset_log_lines_dropped", "lines that were not written", member[RecentLog].dropped)
        if member.tls is not None:
            text = "when this member's certificate ends"
            yield _gauge("replset_certificate_expiry_timestamp_seconds", text, member.tls.expires_at)

    def _place_in_set(self) -> Iterator[Metric]:
        node = self._member.node
        states = {state.name: node.state is state for state in MemberState}
        yield _gauges("replset_state", "1 for the state that the member is in", "state", states)
        yield _gauge("replset_term", "the newest term known", node.term)
        yield _gauge("replset_writable", "1 while clients may write here", node.writable)
        yield _gauge("replset_quarantined", "1 while the member keeps out of the set", bool(node.quarantine))
        config_version = 0 if node.config is None else node.config.version
        yield _gauge("replset_config_version", "version of the configuration in force", config_version)

    def _members(self, status: Status | None) -> Iterator[Metric]:
        """Each member as this one sees it, and how far the data-bearing ones are behind the newest entry known here."""
        rows = {} if status is None else {str(row.host): row for row in status.members}
        flows = {host: self._member[Flows].of(row.id) for host, row in rows.items() if not row.is_self}
        lag = {host: row.lag_ms / 1000 for host, row in rows.items() if row.lag_ms is not None}
        health = {host: row.healthy for host, row in rows.items()}
        ping = {host: rows[host].ping_ms / 1000 for host in flows}
        counted = {host: row.counted for host, row in rows.items()}
        states = GaugeMetricFamily("replset_member_state", "1 for the member's state", labels=["member", "state"])
        sources = GaugeMetricFamily(
            "replset_member_sync_source", "1: the member fetches from the source", labels=["member", "source"]
        )
        for host, row in rows.items():
            states.add_metric([host, row.state.name], 1)
            if row.sync_source is not None:
                sources.add_metric([host, str(row.sync_source)], 1)
        waiting = {host: row.unacknowledged_rollbacks for host, row in rows.items()}
        sent = {host: flow.sent for host, flow in flows.items()}
        limit = {host: flow.limit for host, flow in flows.items()}
        held = {host: flow.held_s for host, flow in flows.items()}
        yield _gauges("replset_member_lag_seconds", "behind the newest entry known", "member", lag)
        yield _gauges("replset_member_health", "1 while the member answers", "member", health)
        yield _gauges("replset_member_ping_seconds", "last round trip of a heartbeat", "member", ping)
        yield _gauges("replset_member_counted", "1: counts for votes and majorities", "member", counted)
        yield from (states, sources)
        text = "rollbacks that nobody has acknowledged"
        yield _gauges("replset_member_rollbacks_unacknowledged", text, "member", waiting)
        yield _counters("replset_member_sent_bytes", "sent to it: oplog and copies", "member", sent)
        text = "in force for the last answer to it, 0: none"
        yield _gauges("replset_member_send_limit_bytes", text, "member", limit)
        text = "for how long answers to it waited for the limit"
        yield _counters("replset_member_send_held_seconds", text, "member", held)

    def _elections(self, status: Status | None) -> Iterator[Metric]:
        found = ElectionMetrics() if status is None else status.elections
        began = {reason: found.called.get(reason, 0) for reason in REASONS}
        won = {reason: found.successful.get(reason, 0) for reason in REASONS}
        yield _counters("replset_elections", "elections that this member began, by their reason", "reason", began)
        yield _counters("replset_elections_won", "elections that this member won, by their reason", "reason", won)

    def _oplog(self) -> Iterator[Metric]:
        member, store, node = self._member, self._member.store, self._member.node
        position, committed = node.position, node.commit_point
        optimes = {"applied": position.last_applied, "durable": position.last_durable, "committed": committed}
        seconds = {point: optime.seconds for point, optime in optimes.items()}
        text = "seconds of the newest entry applied, on disk, committed"
        yield _gauges("replset_optime_seconds", text, "point", seconds)
        age_s = 0.0 if committed == OPTIME_NULL else max(0, age_ms(member, committed)) / 1000
        yield _gauge("replset_commit_point_age_seconds", "age of the newest entry known to be committed", age_s)
        yield _gauge("replset_oplog_window_seconds", "from the oldest entry to the newest", store.window_s())
        yield _gauge("replset_oplog_bytes", "bytes of all oplog entries", store.oplog_bytes)
        yield _gauge("replset_oplog_max_bytes", "size at which the oldest go", store.options.oplog_max_bytes)
        yield _gauge("replset_data_bytes", "bytes of the database file", store.data_bytes())
        yield _gauge("replset_wal_bytes", "bytes of the write-ahead log in use", store.wal.size)
        yield _gauge("replset_disk_free_bytes", "bytes that are free on the disk of the data", self._free_bytes)
        sync = member[InitialSyncProgress]
        yield _gauge("replset_initial_sync_running", "1 while this member copies another one's data", sync.running)
        yield _gauge("replset_initial_sync_total_bytes", "size of the copy, 0 while it is unknown", sync.total)
        yield _gauge("replset_initial_sync_copied_bytes", "how much of the copy is here", sync.copied)

    def _rollback_files(self) -> Iterator[Metric]:
        states = {state: self._rollbacks.count(state) for state in ROLLBACK_STATES}
        yield _gauges("replset_rollbacks", "rollbacks whose files are here", "state", states)
        yield _gauge(
            "replset_rollbacks_unacknowledged",
            "rollbacks and exports of this member that nobody has acknowledged",
            self._unacknowledged,
        )
        yield _gauge("replset_rollback_id", "grows with each rollback of this member", self._member.store.rollback_id)

    def _writes(self) -> Iterator[Metric]:
        member, operations = self._member, self._member.dispatcher.operations
        text = "how long writes waited for their write concern"
        yield _histogram("replset_write_concern_wait_seconds", text, operations.write_concern_waits)
        yield _gauge("replset_write_concern_waiting", "writes that wait now", len(member.write_waiters))
        text = "writes whose write concern was not met"
        yield _failures("replset_write_concern_failures", text, operations.write_concern_failures)
        yield _histogram("replset_write_group_operations", "clients' operations in one transaction", member.group_sizes)
        yield _counter(
            "replset_oplog_written_bytes", "bytes of entries of clients' writes", member[FlowControl].written
        )
        yield _histogram("replset_sync_seconds", "how long the disk took to sync the WAL", member.durability.sync_times)
        yield _gauges("replset_queue_depth", "how much waits in each queue", "queue", member.queue_depths())

    def _flow_control(self) -> Iterator[Metric]:
        flow = self._member[FlowControl]
        yield _gauge("replset_flow_control_limited", "1 while flow control slows writers", flow.is_lagged)
        limit = float("inf") if flow.per_second is None else flow.per_second
        yield _gauge("replset_flow_control_limit_bytes", "bytes of oplog that writers get in a second", limit)
        yield _gauge("replset_majority_lag_seconds", "how far the write majority is behind", flow.lag_ms / 1000)
        yield _counter("replset_flow_control_held_seconds", "for how long writers were held back", flow.held_ms / 1000)

    def _clients(self) -> Iterator[Metric]:
        member = self._member
        yield _gauge("replset_connections", "connections on the wire port", member[WireServer].connection_count)
        yield _gauge(
            "replset_connections_limit", "the most connections on the wire port", member[WireServer].slots.most
        )
        yield _counter(
            "replset_connections_accepted",
            "connections on the wire port so far",
            member[WireServer].traffic.connections,
        )
        http_connections = 0 if member.http_slots is None else len(member.http_slots)
        yield _gauge("replset_http_connections", "connections on the HTTP port", http_connections)
        yield _counter("replset_failed_logins", "logins that failed", member[AuditTrail].failed_logins)
        traffic = {"in": member[WireServer].traffic.bytes_in, "out": member[WireServer].traffic.bytes_out}
        yield _counters("replset_network_bytes", "bytes on the wire port", "direction", traffic)
        yield _gauge("replset_held_bytes", "bytes of large requests and answers under way", member.admission.in_use)
        yield _counter("replset_requests_refused", "requests refused by an overloaded member", member.admission.refused)
        yield _gauge("replset_cursors", "open cursors", len(member.dispatcher.cursors))
        yield _gauge("replset_transactions", "open transactions", member[TransactionTable].open_count)

    def _commands(self) -> Iterator[Metric]:
        dispatcher = self._member.dispatcher
        operations = dispatcher.operations
        yield _counters("replset_commands", "commands run, by name", "command", dispatcher.counts)
        took_s = {name: ms / 1000 for name, ms in operations.took_ms.items()}
        yield _counters("replset_command_seconds", "time that commands of clients took", "command", took_s)
        yield _failures("replset_command_failures", "commands refused", dispatcher.failures)
        yield _gauge("replset_operations_running", "commands of clients that run now", len(operations.running))
        slow = {reason.value: operations.slow.counts[reason] for reason in SlowReason}
        yield _counters("replset_slow_operations", "operations of over 100 ms, by what took longest", "reason", slow)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value))


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=float(value))


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], float(value))
    return family


def _counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


def _failures(name: str, text: str, counts: Mapping[int, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=["code", "name"])
    for code, count in sorted(counts.items()):
        family.add_metric([str(code), code_name(code)], count)
    return family


def _histogram(name: str, text: str, found: Histogram) -> Metric:
    return HistogramMetricFamily(name, text, buckets=found.buckets(), sum_value=found.total)
