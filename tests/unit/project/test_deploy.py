"""deploy/: the configuration file has every setting, the manifests and the unit are what their programs understand.

The configuration file is made from the options of `replset start`: `REWRITE_CONFIG=1 pytest THIS_FILE` writes it anew.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import textwrap
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

from replset.cli.start_options import FLAGS, about, all_options, flag_of, resolve_options, variable_of
from replset.config import parse_host
from replset.features.all import OPTIONS

DEPLOY = Path(__file__).parents[3] / "deploy"
CONFIG = DEPLOY / "replset.yaml"
MANIFESTS = DEPLOY / "kubernetes/replset.yaml"
UNIT = DEPLOY / "replset.service"
GIVEN = {"repl_set": "rs0", "dbpath": "/var/lib/replset"}
HEAD = """\
# Every setting of `replset start --config FILE`, with its default. A flag or a variable of the same name wins over it.
# docs/cli.md describes them. This file is made from the program's own options.
"""


def rendered() -> str:
    """The configuration file: what must be given is given, everything else is a comment."""
    parts = [HEAD]
    for field in all_options(OPTIONS):
        text = textwrap.fill(f"{about(field).help} [{variable_of(field.name)}]", 110, break_on_hyphens=False)
        parts.append("\n" + textwrap.indent(text, "# ") + "\n")
        parts.append(f"{'' if field.name in GIVEN else '#'}{flag_of(field.name)}: {example(field.name)}\n")
    return "".join(parts)


def example(name: str) -> str:
    """What stands behind the option: its default, or what kind of thing it takes."""
    option = next(field for field in all_options(OPTIONS) if field.name == name)
    default, metavar = GIVEN.get(name, option.default), about(option).metavar
    if default is None or default == ():
        return f"[{metavar}]" if default == () else metavar
    if isinstance(default, float):
        return f"{default:g}"
    return str(default).lower() if isinstance(default, bool) else str(default)


def test_the_configuration_file_has_every_setting_with_its_default() -> None:
    if os.environ.get("REWRITE_CONFIG"):
        CONFIG.write_text(rendered(), encoding="utf-8")
    assert CONFIG.read_text(encoding="utf-8") == rendered(), f"REWRITE_CONFIG=1 pytest {__file__} writes it anew"


def test_what_the_configuration_file_shows_is_what_holds_without_it(tmp_path: Path) -> None:
    """Each default that is a comment is read, and changes nothing."""
    file = tmp_path / "replset.yaml"
    kinds = {flag_of(field.name) for field in all_options(OPTIONS) if field.default in (None, ())}
    lines = [line.removeprefix("#") for line in rendered().splitlines() if line and not line.startswith("# ")]
    file.write_text("\n".join(line for line in lines if line.partition(":")[0] not in kinds), encoding="utf-8")
    assert resolve_options({"config": str(file)}, {}, OPTIONS) == resolve_options(GIVEN, {}, OPTIONS)
    assert set(FLAGS) == set(GIVEN), "what must be given"


def test_the_file_is_the_one_that_the_unit_starts_with(tmp_path: Path) -> None:
    assert resolve_options({"config": str(CONFIG)}, {}, OPTIONS) == resolve_options(GIVEN, {}, OPTIONS)


# --- systemd ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    program = tmp_path / "replset"
    program.touch(mode=0o755)
    unit = tmp_path / "replset.service"
    unit.write_text(
        UNIT.read_text(encoding="utf-8").replace("/opt/replset/bin/replset", str(program)), encoding="utf-8"
    )
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Failed to initialize manager" in done.stderr:
        pytest.skip(f"systemd-analyze does not work here: {done.stderr.strip()}")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_keeps_what_the_file_needs() -> None:
    text = UNIT.read_text(encoding="utf-8")
    assert f"StateDirectory={Path(GIVEN['dbpath']).name}\n" in text
    assert "start --config /etc/replset/replset.yaml\n" in text
    assert "RestartPreventExitStatus=2\n" in text, "what is refused once is refused again"


# --- Kubernetes -------------------------------------------------------------------------------------------------------


def manifests() -> dict[str, Any]:
    return {row["kind"]: row for row in yaml.safe_load_all(MANIFESTS.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("version", ["1.29", "1.33"])
def test_kubernetes_understands_the_manifests(version: str) -> None:
    """Strictly: a field that its schema does not know is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        validate = pytest.importorskip("kubernetes_validate")
        for row in manifests().values():
            validate.validate(row, version, strict=True)
        with pytest.raises(validate.ValidationError):
            validate.validate({**manifests()["StatefulSet"], "replica": 3}, version, strict=True)


def test_each_pod_starts_with_options_that_the_others_expect() -> None:
    found = manifests()
    spec = found["StatefulSet"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    ports = {row["name"]: row["containerPort"] for row in container["ports"]}
    hosts = set()
    for number in range(spec["replicas"]):
        environment = {row["name"]: row.get("value", f"replset-{number}") for row in container["env"]}
        assert set(environment) - {"POD_NAME"} <= {variable_of(field.name) for field in all_options(OPTIONS)}
        values = {name: text.replace("$(POD_NAME)", environment["POD_NAME"]) for name, text in environment.items()}
        options = resolve_options({}, values, OPTIONS)
        assert options.host == f"{spec['serviceName']}-{number}.{found['Service']['metadata']['name']}:{ports['wire']}"
        assert options.http_address.endswith(f":{ports['http']}")
        assert len(options.expected) == spec["replicas"]
        hosts.add(parse_host(options.host))
    assert hosts == set(options.expected)
    assert resolve_options({"advertise": "replset-3.replset"}, values, OPTIONS).expected == options.expected, (
        "one more pod"
    )
    mounts = {row["mountPath"] for row in container["volumeMounts"]}
    assert {options.dbpath.parent, options.key_file and options.key_file.parent} <= {Path(mount) for mount in mounts}


def merged(base: Any, patch: Any) -> Any:
    """A strategic merge as kubectl does it: maps by their fields, lists of named things by `name` or `mountPath`."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return {**base, **{name: merged(base.get(name), value) for name, value in patch.items()}}
    if not isinstance(base, list) or not isinstance(patch, list):
        return patch
    key = "mountPath" if "mountPath" in patch[0] else "name"
    rows = {row[key]: row for row in base}
    return list({**rows, **{row[key]: merged(rows.get(row[key]), row) for row in patch}}.values())


def test_the_patch_for_tls_gives_each_pod_its_certificate() -> None:
    patch = yaml.safe_load((MANIFESTS.parent / "tls.yaml").read_text(encoding="utf-8"))
    found = merged(manifests()["StatefulSet"], patch)
    pod = found["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    environment = {row["name"]: row.get("value", "").replace("$(POD_NAME)", "m1") for row in container["env"]}
    options = resolve_options({}, environment, OPTIONS)
    assert (options.tls_mode, options.http_url.partition(":")[0]) == ("prefer", "https"), "one pod after the other"
    mounts = {row["mountPath"]: row["name"] for row in container["volumeMounts"]}
    volumes = {row["name"] for row in pod["volumes"]} | {"data"}
    assert set(mounts.values()) <= volumes
    assert {str(path.parent) for path in (options.tls_cert, options.tls_key, options.tls_ca) if path} == {"/tls"}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"].keys() == {"path", "port", "httpHeaders", "scheme"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("kubernetes_validate").validate(found, "1.33", strict=True)


def test_what_selects_the_pods_is_what_they_have() -> None:
    found = manifests()
    labels = found["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert found["Service"]["spec"]["selector"] == labels
    assert found["Service"]["spec"]["publishNotReadyAddresses"], "members look for each other before they are ready"
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
