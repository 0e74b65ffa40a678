"""Every metric is documented with its type and labels, and follows Prometheus' conventions."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from dataclasses import MISSING, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from replset.core.election_metrics import ElectionMetrics
from replset.core.member_state import MemberState
from replset.core.messages import Position
from replset.core.status import MemberStatus, Status
from replset.ids import HostPort, MemberId
from tests.unit.api.kit import ME, NEWEST, OTHER, Api

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"
POSITION = Position(NEWEST, NEWEST, 1_700_000_000_000, 1_700_000_000_000)
LAGGING = POSITION._replace(applied_wall_ms=POSITION.applied_wall_ms - 2500)


def member(host: HostPort, state: MemberState, position: Position, source: HostPort | None) -> MemberStatus:
    """One member as another sees it, with what the metrics tell of it."""
    known = {
        "id": MemberId(0),
        "host": host,
        "is_self": host == ME,
        "state": state,
        "healthy": True,
        "counted": True,
        "position": position,
        "sync_source": source,
        "ping_ms": 4,
    }
    names = [field.name for field in fields(MemberStatus) if field.default is MISSING]
    status = MemberStatus(**{name: known.get(name) for name in names})  # type: ignore[arg-type]
    return replace(status, lag_ms=0 if host == ME else 2_500)


@pytest.fixture
def text(api: Api) -> str:
    operations = api.dispatcher.operations
    operations.write_concern_failures[64] = 1
    operations.write_concern_waits.observe(0.2)
    operations.took_ms["find"] = 1500
    rows = (member(ME, MemberState.PRIMARY, POSITION, None), member(OTHER, MemberState.SECONDARY, LAGGING, ME))
    elections = ElectionMetrics(called={"electionTimeout": 2}, successful={"electionTimeout": 1})
    api.member.node.status_value = cast("Status", SimpleNamespace(members=rows, elections=elections))
    return api.get("/metrics").text


def families(text: str) -> list[Metric]:
    return list(text_string_to_metric_families(text))


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    found = {}
    for line in DOCS.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 6 and cells[1].startswith("`"):
            for name in re.findall(r"\w+", cells[1]):
                found[name] = cells[2], frozenset(re.findall(r"\w+", cells[3]))
    return found


def name_of(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def test_docs_list_every_metric_with_type_and_labels(text: str) -> None:
    rows = documented()
    for family in families(text):
        kind, labels = rows.pop(name_of(family))
        if family.name.startswith("process_"):
            continue
        assert kind == family.type, family.name
        found = {label for sample in family.samples for label in sample.labels} - {"le"}
        if family.samples:
            assert found == labels, family.name
    left = [name for name in rows if not name.startswith("process_")]  # those of the system exist on Linux alone
    assert not left, "docs/metrics.md lists what is not there"


def test_what_they_say(text: str) -> None:
    found = {
        (sample.name, *sample.labels.values()): sample.value for family in families(text) for sample in family.samples
    }
    expected = {
        ("replset_member_lag_seconds", OTHER): 2.5,
        ("replset_member_state", OTHER, "SECONDARY"): 1,
        ("replset_member_sync_source", OTHER, ME): 1,
        ("replset_member_ping_seconds", OTHER): 0.004,
        ("replset_elections_total", "electionTimeout"): 2,
        ("replset_elections_won_total", "electionTimeout"): 1,
        ("replset_elections_won_total", "priorityTakeover"): 0,
        ("replset_commit_point_age_seconds",): 1.5,
        ("replset_write_concern_wait_seconds_bucket", "0.25"): 1,
        ("replset_write_concern_wait_seconds_bucket", "0.1"): 0,
        ("replset_write_concern_wait_seconds_count",): 1,
        ("replset_write_concern_failures_total", "64", "WriteConcernTimeout"): 1,
        ("replset_flow_control_limit_bytes",): math.inf,
        ("replset_flow_control_held_seconds_total",): 1.5,
        ("replset_majority_lag_seconds",): 0.25,
        ("replset_command_seconds_total", "find"): 1.5,
        ("replset_queue_depth", "clients"): 3,
        ("replset_follow_lag_seconds", "site1"): 7,
        ("replset_follow_failing", "site1"): 1,
        ("replset_network_bytes_total", "out"): 200,
        ("replset_disk_free_bytes",): 1e9,
    }
    assert {key: found.get(key) for key in expected} == expected


def test_names_follow_the_conventions(text: str) -> None:
    """As `promtool check metrics` asks, which not every machine has."""
    for family in families(text):
        assert family.documentation, family.name
        assert re.fullmatch(r"(replset|process)_[a-z_]+", family.name)
        assert not re.search(r"_(ms|millis|milliseconds|minutes|hours|kb|mb|percent)(_|$)", family.name)
        assert not re.search(r"_(gauge|counter|histogram|summary)(_|$)", family.name)
        assert family.type == "histogram" or not family.name.endswith(("_count", "_sum", "_bucket", "_total"))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian's package prometheus) is not installed")
def test_promtool_finds_nothing(text: str) -> None:
    done = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
