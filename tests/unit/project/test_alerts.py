"""compose/monitoring/alerts.yaml: each alert fires when it should, and none in a healthy set. promtool decides."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

RULES = Path(__file__).parents[3] / "compose/monitoring/alerts.yaml"
HEALTHY = {
    "up": "1x80",
    "replset_writable": "{}x80",
    "replset_commit_point_age_seconds": "5x80",
    'replset_member_health{member="b"}': "1x80",
    'replset_member_lag_seconds{member="b"}': "0x80",
    "replset_quarantined": "0x80",
    "replset_rollbacks_unacknowledged": "0x80",
    "replset_oplog_window_seconds": "0+60x80",
    "replset_oplog_bytes": "1000x80",
    "replset_oplog_max_bytes": "1000x80",
    "replset_disk_free_bytes": "2e9x80",
    "replset_flow_control_limited": "0x80",
    "replset_overloaded": "0x80",
    "replset_certificate_expiry_timestamp_seconds": "1e9x80",
    "replset_failed_logins_total": "0x80",
    "replset_term": "3x80",
    "replset_requests_refused_total": "0x80",
}
"""A metric of the two members a and b, one value a minute; a is the primary."""
ILL: dict[str, dict[str, str]] = {
    "ReplsetNoPrimary": {"replset_writable": "0x80"},
    "ReplsetMajorityWritesWait": {"replset_commit_point_age_seconds": "0+60x80"},
    "ReplsetMemberDown": {"up": "0x80"},
    "ReplsetMemberUnhealthy": {'replset_member_health{member="b"}': "0x80"},
    "ReplsetLag": {'replset_member_lag_seconds{member="b"}': "31x80"},
    "ReplsetQuarantined": {"replset_quarantined": "1x80"},
    "ReplsetRollbackWaits": {"replset_rollbacks_unacknowledged": "1x80"},
    "ReplsetOplogWindowShort": {"replset_oplog_window_seconds": "1800x80"},
    "ReplsetDiskFull": {"replset_disk_free_bytes": "0.9e9x80"},
    "ReplsetWritersSlowed": {"replset_flow_control_limited": "{}x80"},
    "ReplsetOverloaded": {"replset_overloaded": "1x80"},
    "ReplsetCertificateEnds": {"replset_certificate_expiry_timestamp_seconds": "600000x80"},
    "ReplsetLoginsFail": {"replset_failed_logins_total": "0+10x80"},
    "ReplsetElectionsOften": {"replset_term": "3+1x80"},
    "ReplsetRequestsRefused": {"replset_requests_refused_total": "0+10x80"},
}


def series(values: dict[str, str]) -> list[dict[str, str]]:
    rows = []
    for name, text in values.items():
        for member, leads in (("a", 1), ("b", 0)):
            labels = f'job="replset",instance="{member}:28017"'
            whole = name.replace("{", f"{{{labels},") if "{" in name else f"{name}{{{labels}}}"
            rows.append({"series": whole, "values": text.format(leads)})
    return rows


def names() -> list[str]:
    document: dict[str, Any] = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    return [rule["alert"] for group in document["groups"] for rule in group["rules"]]


def test_every_alert_is_tried() -> None:
    assert sorted(ILL) == sorted(names())


@pytest.mark.in_turns
@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here (apt install prometheus)")
def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    """PromQL's own count of alerts decides, so that their labels and texts may change."""
    tests = []
    for ill in ("", *ILL):
        queries = []
        for alert in names():
            count = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) > bool 0 or vector(0)'
            sample = {"labels": "{}", "value": int(alert == ill)}
            queries.append({"expr": count, "eval_time": "1h", "exp_samples": [sample]})
        values = HEALTHY | ILL.get(ill, {})
        tests.append({"interval": "1m", "input_series": series(values), "promql_expr_test": queries})
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
