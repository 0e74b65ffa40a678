"""Every metric is documented with its type and labels, and follows Prometheus' conventions."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.rig import Rig, a_set
from tests.unit.api.kit import Api

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with a_set(3) as made:
        yield made


@pytest.fixture(scope="module")
def text(rig: Rig) -> Iterator[str]:
    """Of a primary that has run a few commands, one of them in vain."""
    with pytest.MonkeyPatch.context() as patch:
        client = rig.client()
        client.ok({"insert": "c", "documents": [{"_id": 1}], "writeConcern": {"w": 3}})
        assert client.code({"find": "c", "filter": {"$x": 1}}) == 2
        rig.cluster.cut(["a"])
        client.ok({"insert": "c", "documents": [{"_id": 2}], "writeConcern": {"w": 3, "wtimeout": 200}})
        rig.cluster.heal()
        yield Api(rig, patch).get("/metrics").text


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
    assert left == ["replset_certificate_expiry_timestamp_seconds"], "docs/metrics.md lists what is not there"


def test_what_they_say(rig: Rig, text: str) -> None:
    found = {
        (sample.name, *sample.labels.values()): sample.value for family in families(text) for sample in family.samples
    }
    member = rig.member()
    assert member.node.config is not None
    exact = {
        ("replset_up",): 1,
        ("replset_state", "PRIMARY"): 1,
        ("replset_state", "SECONDARY"): 0,
        ("replset_term",): member.node.term,
        ("replset_config_version",): member.node.config.version,
        ("replset_oplog_bytes",): member.store.oplog_bytes,
        ("replset_optime_seconds", "applied"): member.store.last_applied.seconds,
        ("replset_optime_seconds", "committed"): member.node.commit_point.seconds,
        ("replset_member_state", "b:27017", "SECONDARY"): 1,
        ("replset_member_sync_source", "b:27017", "a:27017"): 1,
        ("replset_elections_total", "electionTimeout"): 0,
        ("replset_elections_won_total", "initiate"): 1,
        ("replset_write_concern_wait_seconds_count",): 2,
        ("replset_write_concern_wait_seconds_bucket", "0.1"): 1,
        ("replset_write_concern_wait_seconds_bucket", "0.25"): 2,
        ("replset_flow_control_limit_bytes",): math.inf,
        ("replset_command_seconds_total", "insert"): member.dispatcher.operations.took_ms["insert"] / 1000,
        ("replset_write_concern_failures_total", "64", "WriteConcernTimeout"): 1,
        ("replset_commands_total", "find"): 1,
        ("replset_command_failures_total", "2", "BadValue"): 1,
    }
    assert {key: found.get(key) for key in exact} == exact
    assert 0.01 < found["replset_member_lag_seconds", "b:27017"] < 1
    assert 0.1 < found["replset_uptime_seconds",] < 60


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
