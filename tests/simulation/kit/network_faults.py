"""Links that are cut or bad, messages that come twice, strangers, and members that are away too long."""

from __future__ import annotations

import asyncio

from replset.bson import ObjectId, decode, encode
from replset.core.messages import HeartbeatRequest, MemberProgress, Position, ProgressRequest, VoteRequest
from replset.ids import OpTime
from replset.member.peers.message_documents import request_document
from tests.simulation.kit.cluster import FORGED_TERMS
from tests.simulation.kit.fault_base import FaultBase
from tests.simulation.kit.network import QUIET, LinkFaults
from tests.simulation.kit.wire import NoAnswerError

SMALL_OPLOG = 64 << 10
BAD_LINKS = LinkFaults(slow=0.05, slow_ms=600.0, stall=0.004, stall_ms=4_000.0)


class NetworkFaults(FaultBase):
    """Harms what members hear of each other."""

    def _isolate_primary(self) -> None:
        primary = self._cluster.primary()
        if primary is not None:
            self._cut_for_a_while([primary], "both")

    def _isolate_someone(self) -> None:
        names = list(self._cluster.machines)
        self._cut_for_a_while(self._rng.sample(names, self._rng.randrange(1, len(names))), "both")

    def _one_way(self) -> None:
        name = self._rng.choice(list(self._cluster.machines))
        self._cut_for_a_while([name], self._rng.choice(("in", "out")))

    def _lasting_one_way(self) -> None:
        """One member does not hear one other one for long, while everybody else hears both."""
        source, target = self._rng.sample(list(self._cluster.machines), 2)
        network = self._cluster.network
        network.cut(source, target)
        self._cluster.trace.add("network", f"nothing from {source} reaches {target}")

        def uncut() -> None:
            network.uncut(source, target)
            self._cluster.trace.add("network", f"{target} hears {source} again")

        self._later(self._at_most(self._rng.uniform(8.0, 25.0)), uncut)

    def _bridge(self) -> None:
        """Two members do not hear each other for long, while everybody else hears both."""
        one, other = self._rng.sample(list(self._cluster.machines), 2)
        network = self._cluster.network
        network.cut(one, other)
        network.cut(other, one)
        self._cluster.trace.add("network", f"{one} and {other} do not hear each other")

        def whole() -> None:
            network.uncut(one, other)
            network.uncut(other, one)
            self._cluster.trace.add("network", f"{one} and {other} hear each other again")

        self._later(self._at_most(self._rng.uniform(8.0, 25.0)), whole)

    def _make_too_stale(self) -> None:
        """A member is away while the others write more than their oplogs keep."""
        cluster = self._cluster
        primary = cluster.primary()
        behind = [name for name in cluster.alive() if name != primary and not cluster.machines[name].arbiter]
        if primary is None or not behind or cluster.environment.oplog_bytes > SMALL_OPLOG:
            return
        name = self._rng.choice(behind)
        if self._rng.random() < 0.5:
            cluster.kill(name)
            self._later(self._rng.uniform(3.0, 7.0), lambda: self._revive(name))
        else:
            self._cut_for_a_while([name], "both", (3.0, 7.0))
        documents = 2 * cluster.environment.oplog_bytes // 900
        self._background(self._fill(primary, documents))

    async def _fill(self, primary: str, documents: int) -> None:
        """Inserts that nobody is promised, but that every member must agree on."""
        client = self._cluster.client()
        padding = "x" * 800
        for at in range(0, documents, 10):
            batch = [{"_id": f"fill{self._cluster.loop.now_ms}-{n}", "padding": padding} for n in range(at, at + 10)]
            try:
                await client.call(self._cluster.host(primary), "app", {"insert": "scratch0", "documents": batch}, 4.0)
            except NoAnswerError:
                break
        client.close()

    def _resend_message(self) -> None:
        """A message of one member to another one comes twice, now or much later."""
        heard = self._cluster.network.recent_messages()
        if heard:
            message, wait = self._rng.choice(heard), self._rng.choice((0.0, 0.5, 3.0, 10.0))

            async def again() -> None:
                await asyncio.sleep(wait)
                await self._cluster.network.resend_message(message)

            self._background(again())

    def _stranger(self) -> None:
        """A stranger sends a message as a member: of a term that cannot be, of entries that nobody has, or for another
        set of the same name. Positions and terms that could be true are for members with a key only.
        """
        cluster = self._cluster
        rows = [row for row in cluster.running_nodes if row.node.config is not None]
        if not rows:
            return
        row = self._rng.choice(rows)
        node, config = row.node, row.node.config
        assert config is not None
        claimed = self._rng.choice(config.members)
        term = self._rng.choice(((1 << 63) - 1, (1 << 63) - 2, 1 << 53, node.term + (1 << 21)))  # nobody believes it
        newest = OpTime(node.term, node.position.last_applied.ts + (1_000 << 31))
        kinds = ["heartbeat", "votes", "another set"] + ["position"] * cluster.environment.keyed
        kind = self._rng.choice(kinds)
        version, config_term, incarnation = config.version, config.term, claimed.incarnation or ""
        set_id = config.settings.replica_set_id
        body: HeartbeatRequest | VoteRequest | ProgressRequest
        if kind == "votes":
            body = VoteRequest(
                self._cluster.set_name,
                term,
                claimed.id,
                incarnation,
                version,
                config_term,
                newest,
                False,
                "forged",
                set_id,
            )
        elif kind == "position":
            place = Position(newest, newest, 0, 0)
            progress = tuple(MemberProgress(m.id, m.incarnation or "", place) for m in config.members)
            body = ProgressRequest(claimed.id, node.term, version, config_term, progress, set_id)
        else:
            if kind == "another set":
                term, set_id = node.term + FORGED_TERMS, ObjectId(self._rng.randbytes(12))
            body = HeartbeatRequest(
                self._cluster.set_name,
                claimed.host,
                claimed.id,
                term,
                version,
                config_term,
                None,
                incarnation,
                False,
                set_id,
            )
        cluster.trace.add(row.name, f"hears a stranger: {kind} {term}")
        self._background(self._send_forged(row.name, decode(encode(request_document(body)))))

    async def _send_forged(self, name: str, document: dict[str, object]) -> None:
        await self._ask(name, document)

    def _bad_links(self) -> None:
        self._cluster.network.faults = BAD_LINKS
        self._cluster.trace.add("network", "bad links")
        self._later(self._rng.uniform(2.0, 6.0), self._good_links)

    def _good_links(self) -> None:
        self._cluster.network.faults = QUIET
        self._cluster.trace.add("network", "good links")
