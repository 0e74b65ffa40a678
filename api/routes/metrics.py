"""`GET /metrics`: Prometheus text, computed when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from api.ports import ApiDispatcher, ApiMember
from replset.replication.rollback_files import list_manifests


class MemberCollector(Collector):
    """What one member knows of itself and the set."""

    def __init__(self, dispatcher: ApiDispatcher, member: ApiMember) -> None:
        self._dispatcher = dispatcher
        self._member = member

    def collect(self) -> Iterator[Metric]:
        member, node, store = self._member, self._member.node, self._member.store
        gauges: list[tuple[str, str, float]] = [
            ("replset_state", "member state, in MongoDB's numbers", int(node.state)),
            ("replset_term", "the newest term known", node.term),
            ("replset_writable", "1 while clients may write here", node.writable),
            ("replset_last_applied_seconds", "seconds of the newest entry here", node.position.last_applied.seconds),
            ("replset_last_durable_seconds", "seconds of the newest entry on disk", node.position.last_durable.seconds),
            ("replset_commit_point_seconds", "seconds of the commit point", node.commit_point.seconds),
            ("replset_oplog_bytes", "bytes of all oplog entries", store.oplog_bytes),
            (
                "replset_oplog_window_seconds",
                "oldest to newest entry",
                store.last_applied.seconds - store.oldest.seconds,
            ),
            ("replset_wal_bytes", "bytes of the write-ahead log in use", store.wal_bytes),
            ("replset_connections", "connections on the wire port", member.connection_count),
            ("replset_rollback_id", "grows with each rollback of this member", store.rollback_id),
            ("replset_rollbacks", "rollbacks whose files are here", len(list_manifests(member.rollback_folder))),
            ("replset_uptime_seconds", "since this process started", (member.clock.now() - member.started_at) / 1000),
        ]
        for name, text, value in gauges:
            yield GaugeMetricFamily(name, text, value=float(value))
        yield self._members()
        commands = CounterMetricFamily("replset_commands", "commands so far", labels=["command"])
        for name, count in sorted(self._dispatcher.counts.items()):
            commands.add_metric([name], count)
        yield commands
        failures = CounterMetricFamily("replset_command_failures", "commands that failed, by code", labels=["code"])
        for code, count in sorted(self._dispatcher.failures.items()):
            failures.add_metric([str(code)], count)
        yield failures

    def _members(self) -> Metric:
        """How far each data-bearing member is behind the newest entry that this one knows of."""
        lag = GaugeMetricFamily("replset_member_lag_seconds", "behind the newest entry known", labels=["member"])
        node = self._member.node
        positions = {node.self_id: node.position}
        config = node.config
        holders = () if config is None else config.data_bearing
        for holder in holders:
            peer = node.peer_at(holder.host)
            if peer is not None:
                positions[holder.id] = peer.position
        newest = max((position.last_applied.seconds for position in positions.values()), default=0)
        for holder in holders:
            position = positions.get(holder.id)
            if position is not None:
                lag.add_metric([holder.host], newest - position.last_applied.seconds)
        return lag


def router(dispatcher: ApiDispatcher, member: ApiMember) -> APIRouter:
    routes = APIRouter(tags=["health"])
    registry = CollectorRegistry()
    registry.register(MemberCollector(dispatcher, member))

    @routes.get("/metrics", summary="Prometheus text.", response_class=Response)
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return routes
