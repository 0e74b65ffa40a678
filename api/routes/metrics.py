"""`GET /metrics` returns Prometheus text, computed for each request. docs/http.md lists the names."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from replset.core.member_state import MemberState
from replset.core.status import MemberStatus
from replset.errors import code_name
from replset.ids import OPTIME_NULL
from replset.runtime.member import RunningMember


class MemberCollector(Collector):
    """Collects the metrics of one member.

    rollbacks: the state of each rollback whose files are here. unacknowledged: how many of them nobody acknowledged.
    """

    def __init__(self, member: RunningMember, rollbacks: list[str], unacknowledged: int) -> None:
        self._member = member
        self._rollbacks = rollbacks
        self._unacknowledged = unacknowledged

    def collect(self) -> Iterator[Metric]:
        for name, text, value in self._gauges():
            yield GaugeMetricFamily(name, text, value=float(value))
        yield self._states()
        yield self._optimes()
        yield from self._members()
        yield self._rollback_states()
        commands = CounterMetricFamily("replset_commands", "commands run, by name", labels=["command"])
        for name, count in sorted(self._member.dispatcher.counts.items()):
            commands.add_metric([name], count)
        yield commands
        failures = CounterMetricFamily("replset_command_failures", "commands refused", labels=["code", "name"])
        for code, count in sorted(self._member.dispatcher.failures.items()):
            failures.add_metric([str(code), code_name(code)], count)
        yield failures
        yield CounterMetricFamily(
            "replset_requests_refused", "requests refused by an overloaded member", value=self._member.admission.refused
        )

    def _gauges(self) -> list[tuple[str, str, float]]:
        member, node, store = self._member, self._member.node, self._member.store
        window = 0 if store.oldest == OPTIME_NULL else max(0, store.last_applied.seconds - store.oldest.seconds)
        config = node.config
        return [
            ("replset_up", "1: this member answers", 1),
            ("replset_term", "the newest term known", node.term),
            ("replset_writable", "1 while clients may write here", node.writable),
            ("replset_quarantined", "1 while the member keeps out of the set", bool(node.quarantine)),
            (
                "replset_config_version",
                "version of the configuration in force",
                0 if config is None else config.version,
            ),
            ("replset_oplog_bytes", "bytes of all oplog entries", store.oplog_bytes),
            ("replset_oplog_window_seconds", "from the oldest entry to the newest", window),
            ("replset_data_bytes", "bytes of the database file", store.data_bytes()),
            ("replset_wal_bytes", "bytes of the write-ahead log in use", store.wal.size),
            ("replset_connections", "connections on the wire port", member.connection_count),
            ("replset_held_bytes", "bytes of large requests and answers under way", member.admission.in_use),
            (
                "replset_rollbacks_unacknowledged",
                "rollbacks and exports of this member that nobody has acknowledged",
                self._unacknowledged,
            ),
            ("replset_rollback_id", "grows with each rollback of this member", store.rollback_id),
            ("replset_uptime_seconds", "since this process started", (member.clock.now() - member.started_at) / 1000),
        ]

    def _states(self) -> Metric:
        states = GaugeMetricFamily("replset_state", "1 for the state that the member is in", labels=["state"])
        for state in MemberState:
            states.add_metric([state.name], int(self._member.node.state is state))
        return states

    def _optimes(self) -> Metric:
        node = self._member.node
        optimes = GaugeMetricFamily(
            "replset_optime_seconds", "seconds of the newest entry applied, on disk, committed", labels=["point"]
        )
        position = node.position
        optimes.add_metric(["applied"], position.last_applied.seconds)
        optimes.add_metric(["durable"], position.last_durable.seconds)
        optimes.add_metric(["committed"], node.commit_point.seconds)
        return optimes

    def _members(self) -> Iterator[Metric]:
        """Return each member's health, and how far the data-bearing members are behind the newest entry known here."""
        lag = GaugeMetricFamily("replset_member_lag_seconds", "behind the newest entry known", labels=["member"])
        health = GaugeMetricFamily("replset_member_health", "1 while the member answers", labels=["member"])
        ping = GaugeMetricFamily("replset_member_ping_seconds", "last round trip of a heartbeat", labels=["member"])
        counted = GaugeMetricFamily("replset_member_counted", "1: counts for votes and majorities", labels=["member"])
        status = self._member.node.status(self._member.clock.now())
        rows: tuple[MemberStatus, ...] = () if status is None else status.members
        newest = max((row.position.applied_wall_ms for row in rows if row.position is not None), default=0)
        for row in rows:
            labels = [str(row.host)]
            health.add_metric(labels, int(row.healthy))
            counted.add_metric(labels, int(row.counted))
            if not row.is_self:
                ping.add_metric(labels, row.ping_ms / 1000)
            if row.position is not None:
                lag.add_metric(labels, max(0, newest - row.position.applied_wall_ms) / 1000)
        yield from (lag, health, ping, counted)

    def _rollback_states(self) -> Metric:
        rollbacks = GaugeMetricFamily("replset_rollbacks", "rollbacks whose files are here", labels=["state"])
        for state in ("planned", "finished", "exported", "abandoned", "unreadable"):
            rollbacks.add_metric([state], self._rollbacks.count(state))
        return rollbacks


def router(member: RunningMember) -> APIRouter:
    routes = APIRouter(tags=["health"])

    @routes.get(
        "/metrics",
        summary="Prometheus text.",
        responses={200: {"description": "metrics", "content": {"text/plain": {}}}},
        response_class=Response,
    )
    async def metrics() -> Response:
        states = [str(row.get("state", "unreadable")) for row in await member.rollbacks.listed()]
        registry = CollectorRegistry()
        registry.register(MemberCollector(member, states, await member.rollbacks.refresh()))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return routes
