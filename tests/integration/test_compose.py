"""compose/compose.yaml without containers: its services' commands as local processes make the set it promises."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from replset.cli.local_set import wait_until
from replset.client import WireClient
from replset.key_file import read_key_file
from tests.integration.conftest import next_ports

pytestmark = pytest.mark.slow

COMPOSE = Path(__file__).parents[2] / "compose"
MEMBERS = ("m1", "m2", "m3")
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")
BARE_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("REPLSET_")}


def services(variables: dict[str, str]) -> dict[str, Any]:
    """The services of the file with `${NAME:-default}` resolved, as compose does it."""

    def resolved(value: Any) -> Any:
        if isinstance(value, str):
            return VARIABLE.sub(lambda match: variables.get(match[1]) or match[2], value)
        if isinstance(value, list):
            return [resolved(item) for item in value]
        if isinstance(value, dict):
            return {name: resolved(item) for name, item in value.items()}
        return value

    document = yaml.safe_load((COMPOSE / "compose.yaml").read_text(encoding="utf-8"))
    found: dict[str, Any] = resolved(document)["services"]
    return found


def local_variables(folder: Path, ports: list[int]) -> dict[str, str]:
    """Values for a set on this machine: every service a port and a folder of its own."""
    values: dict[str, str] = {"REPLSET_KEY_FILE": str(folder / "key")}
    for name, port in zip((*MEMBERS, "m4", "arbiter"), ports, strict=True):
        prefix = f"REPLSET_{name.upper()}"
        values |= {
            f"{prefix}_HOST": "127.0.0.1",
            f"{prefix}_BIND_IP": "127.0.0.1",
            f"{prefix}_PORT": str(port),
            f"{prefix}_HTTP_PORT": str(port + 1000),
            f"{prefix}_DBPATH": str(folder / name),
        }
    return values


def command_of(service: dict[str, Any]) -> list[str]:
    """What the image runs: its entry point is `replset`, the service's command follows."""
    return [sys.executable, "-m", "replset.cli.main", *service["command"]]


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[[dict[str, Any]], subprocess.Popen[bytes]]]:
    """Start a service that stays; all are stopped at the end."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(service: dict[str, Any]) -> subprocess.Popen[bytes]:
        environment = BARE_ENVIRONMENT | {name: str(value) for name, value in service["environment"].items()}
        with (tmp_path / f"log{len(processes)}").open("wb") as log:
            processes.append(subprocess.Popen(command_of(service), stdout=log, stderr=log, env=environment))
        return processes[-1]

    yield start
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        process.kill()
        process.wait(timeout=20)


def run_once(service: dict[str, Any]) -> str:
    """A service that does one thing and ends."""
    done = subprocess.run(
        command_of(service), capture_output=True, text=True, check=False, timeout=240, env=BARE_ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def made_key(service: dict[str, Any]) -> str:
    """Run the service that makes the key file; what is in it."""
    (text,) = service["command"]
    command = [*service["entrypoint"], text.replace("$$", "$")]
    subprocess.run(command, check=True, timeout=60, env=BARE_ENVIRONMENT | service["environment"])
    path = Path(service["environment"]["KEY"])
    read_key_file(path)
    return path.read_text()


def ask(port: int, command: dict[str, object]) -> dict[str, Any]:
    with WireClient(f"127.0.0.1:{port}") as client:
        reply = client.command("admin", command)
    assert reply["ok"] == 1.0, reply
    return reply


def states(port: int) -> list[str]:
    return sorted(str(row["stateStr"]) for row in ask(port, {"replSetGetStatus": 1})["members"])


def test_the_defaults_are_containers_that_know_each_other_by_name() -> None:
    found = services({})
    for name in (*MEMBERS, "m4", "arbiter"):
        environment = found[name]["environment"]
        assert environment["REPLSET_ADVERTISE"] == name
        assert environment["REPLSET_BIND_IP"] == "0.0.0.0"
        assert environment["REPLSET_DBPATH"] == "/data"
        assert found[name]["volumes"] == [f"{name}:/data", "key:/key:ro"]
        assert environment["REPLSET_KEY_FILE"] == found["key"]["environment"]["KEY"]
        assert found[name]["depends_on"]["key"]["condition"] == "service_completed_successfully"
    assert found["init"]["command"][1:4] == ["m1:27017", "m2:27017", "m3:27017"]
    assert [name for name, service in found.items() if service.get("profiles")] == ["m4", "arbiter", "more"]


def test_the_image_runs_replset_as_a_user_that_owns_the_data() -> None:
    lines = (COMPOSE / "Dockerfile").read_text(encoding="utf-8").splitlines()
    entry = next(line for line in lines if line.startswith("ENTRYPOINT"))
    assert json.loads(entry.removeprefix("ENTRYPOINT")) == ["replset"]
    assert "USER replset" in lines


def test_every_program_of_the_project_starts_in_the_image(tmp_path: Path) -> None:
    """The image holds what COPY names: each entry point's package must be there, with what it needs installed."""
    lines = (COMPOSE / "Dockerfile").read_text(encoding="utf-8").splitlines()
    for line in (line for line in lines if line.startswith("COPY")):
        *sources, target = line.split()[1:]
        for source in (COMPOSE.parent / name for name in sources):
            if source.is_dir():
                shutil.copytree(source, tmp_path / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, tmp_path / target)
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    install = next(line for line in lines if line.startswith("RUN pip install"))
    assert ".[spark]" in install
    for program, entry in project["scripts"].items():
        module, _, function = entry.partition(":")
        code = f"import {module} as m; print(m.__file__); raise SystemExit(m.{function}(['--help']))"
        environment = BARE_ENVIRONMENT | {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
        )
        assert done.returncode == 0, f"{program}: {done.stderr}"
        assert done.stdout.startswith(str(tmp_path)), f"{program} is not in the image"


def test_the_services_as_local_processes_make_a_set(
    tmp_path: Path, up: Callable[[dict[str, Any]], subprocess.Popen[bytes]]
) -> None:
    ports = next_ports(5)
    found = services(local_variables(tmp_path, ports))
    key = made_key(found["key"])
    assert made_key(found["key"]) == key, "the key of a set that is there is kept"
    for name in MEMBERS:
        up(found[name])
    assert "initiated" in run_once(found["init"])
    wait_until(lambda: states(ports[0]) == ["PRIMARY", "SECONDARY", "SECONDARY"], 90, "a primary and two secondaries")
    assert "already" in run_once(found["init"]), "starting the services again does no harm"

    for name in ("m4", "arbiter"):
        up(found[name])
    run_once(found["more"])
    wait_until(
        lambda: states(ports[0]) == ["ARBITER", "PRIMARY", "SECONDARY", "SECONDARY", "SECONDARY"],
        120,
        "the fourth member and the arbiter",
    )
    config = ask(ports[0], {"replSetGetConfig": 1})["config"]
    assert [row["host"] for row in config["members"]] == [f"127.0.0.1:{port}" for port in ports]
    assert [row["arbiterOnly"] for row in config["members"]] == [False, False, False, False, True]
    run_once(found["more"])
