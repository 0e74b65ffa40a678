"""compose/ without containers: its services as local processes make the set that it promises, and its images hold what
they need.
"""

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
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from replset.client import TLS_CA_VARIABLE, WireClient
from replset.errors import HostUnreachableError
from replset.key_file import read_key_file
from replset.local_set import wait_until
from tests.certificates import Authority
from tests.integration.conftest import next_ports
from tests.programs import run_to_end
from tests.spark.cluster import SHORT_LIVED

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
MEMBERS = ("m1", "m2", "m3")
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")
ENTRY_POINTS = {"prom/prometheus": ["prometheus"]}
"""What images that are not ours run in front of a service's command."""


def services(variables: dict[str, str], *, tls: bool = False) -> dict[str, Any]:
    """The services of the file with `${NAME:-default}` resolved, as compose does it. tls: and of tls.yaml over it."""

    def resolved(value: Any) -> Any:
        if isinstance(value, str):
            return VARIABLE.sub(lambda match: variables.get(match[1]) or match[2], value).replace("$$", "$")
        if isinstance(value, list):
            return [resolved(item) for item in value]
        if isinstance(value, dict):
            return {name: resolved(item) for name, item in value.items()}
        return value

    document = yaml.safe_load((COMPOSE / "compose.yaml").read_text(encoding="utf-8"))
    found: dict[str, Any] = resolved(document)["services"]
    over = resolved(yaml.safe_load((COMPOSE / "tls.yaml").read_text(encoding="utf-8")))["services"] if tls else {}
    for name, service in over.items():
        known = found[name]
        for part in ("environment", "healthcheck"):
            known[part] = {**known[part], **service[part]}
        known["volumes"] = [*known["volumes"], *service["volumes"]]
    return found


def stages() -> dict[str, list[str]]:
    """The lines of the Dockerfile by stage; a line that goes on is one."""
    found: dict[str, list[str]] = {}
    for line in (COMPOSE / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        if line.startswith("FROM"):
            found[line.split()[-1]] = []
        elif line and not line.startswith("#"):
            list(found.values())[-1].append(line)
    return found


def last(target: str, instruction: str) -> str:
    """What the stage `target` says last with this instruction."""
    return next(line for line in reversed(stages()[target]) if line.startswith(instruction)).removeprefix(instruction)


class LocalServices:
    """The services of the file as local processes, with the same commands, environment, health checks and order.

    They have free ports of this machine, and their files in `folder`. `close` stops those that stay.
    """

    def __init__(self, folder: Path, *, auth: bool = False, tls: bool = False) -> None:
        self.ports = dict(zip((*MEMBERS, "m4", "arbiter"), next_ports(5), strict=True))
        self.others = next_ports(8)
        spark, spark_ui, prometheus, *haproxy = map(str, self.others)
        values = {
            "REPLSET_KEY_FILE": str(folder / "key"),
            "REPLSET_AUTH": str(auth).lower(),
            "REPLSET_TLS_FOLDER": str(folder),
            "REPLSET_SPARK_HOST": "127.0.0.1",
            "REPLSET_SPARK_PORT": spark,
            "REPLSET_SPARK_UI_PORT": spark_ui,
            "REPLSET_PROMETHEUS_ADDRESS": f"127.0.0.1:{prometheus}",
            "REPLSET_PROMETHEUS_CONFIG": str(folder / "monitoring/prometheus.yaml"),
            "REPLSET_PROMETHEUS_DATA": str(folder / "prometheus"),
            "REPLSET_HAPROXY_CONFIG": str(COMPOSE / "haproxy.cfg"),
            "REPLSET_HAPROXY_BIND_IP": "127.0.0.1",
        }
        names = ("PRIMARY", "SECONDARY", "PRIMARY_HTTP", "SECONDARY_HTTP", "READY")
        values |= {f"REPLSET_HAPROXY_{name}_PORT": port for name, port in zip(names, haproxy, strict=True)}
        for name, port in self.ports.items():
            prefix = f"REPLSET_{name.upper()}"
            values |= {
                f"{prefix}_HOST": "127.0.0.1",
                f"{prefix}_BIND_IP": "127.0.0.1",
                f"{prefix}_PORT": str(port),
                f"{prefix}_HTTP_PORT": str(port + 1000),
                f"{prefix}_DBPATH": str(folder / name),
            }
        self.folder, self.services = folder, services(values, tls=tls)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._done: set[str] = set()
        bare = {name: value for name, value in os.environ.items() if not name.startswith(("REPLSET_", "SPARK_"))}
        self._environment = bare | {
            **{"PATH": f"{Path(sys.executable).parent}:{bare['PATH']}", "TMPDIR": str(folder)},
            **{"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_WORKER_WEBUI_PORT": "0", "JDK_JAVA_OPTIONS": SHORT_LIVED},
        }

    def up(self, name: str) -> str:
        """Start a service, after those it depends on. One that does not restart runs to its end; what it said."""
        service = self.services[name]
        wanted = service.get("depends_on", {})
        for other in wanted:
            if other not in self.running and other not in self._done:
                self.up(other)
        for other, rule in wanted.items():
            if rule["condition"] == "service_healthy":
                self.wait_healthy(other)
        if "restart" not in service:
            self._done.add(name)
            return self.run(name)
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                self.command(service), stdout=log, stderr=log, env=self.environment(service), start_new_session=True
            )
        return ""

    def run(self, name: str, *arguments: str) -> str:
        """Run a service to its end, with other arguments where some are given."""
        service = self.services[name]
        command = self.command({**service, "command": list(arguments)} if arguments else service)
        done = run_to_end(command, environment=self.environment(service), bare=True)
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
        return done.stdout

    def command(self, service: dict[str, Any]) -> list[str]:
        """The entry point of the service, of its image's stage or of a known image, and its command."""
        if "entrypoint" in service:
            entry: list[str] = service["entrypoint"]
        elif "build" in service:
            entry = json.loads(last(service["build"]["target"], "ENTRYPOINT"))
        else:
            entry = ENTRY_POINTS.get(service["image"].partition(":")[0], [])
        # What is installed has the package in replset, this checkout beside it (setup.py).
        return [*entry, *(part.replace("-m replset.spark.", "-m spark.") for part in service.get("command", []))]

    def environment(self, service: dict[str, Any]) -> dict[str, str]:
        return self._environment | {name: str(value) for name, value in service.get("environment", {}).items()}

    def is_healthy(self, name: str) -> bool:
        """Run the health check of a service once."""
        service = self.services[name]
        kind, *command = service["healthcheck"]["test"]
        assert kind == "CMD", kind
        if command[0] == "wget" and shutil.which("wget") is None:
            return answers(command[-1])
        done = subprocess.run(command, env=self.environment(service), capture_output=True, check=False)
        return done.returncode == 0

    def wait_healthy(self, name: str, within_s: float = 90) -> None:
        def is_healthy() -> bool:
            for other, process in self.running.items():
                assert process.poll() is None, f"{other} ended: {self.log(other)[-2000:]}"
            return self.is_healthy(name)

        wait_until(is_healthy, within_s, f"{name} to be healthy", every_s=0.2)

    def stop(self, name: str) -> int:
        """Stop a service as compose does; its exit status, which is -9 when it was killed in the end."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGTERM)
        grace = float(str(self.services[name].get("stop_grace_period", "10s")).removesuffix("s"))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=grace)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait(timeout=20)

    def close(self) -> None:
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        for name in list(self.running):
            self.stop(name)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def begin(self) -> None:
        for name in MEMBERS:
            self.up(name)
        for name in MEMBERS:
            self.wait_healthy(name)

    def ask(self, name: str, command: dict[str, object]) -> dict[str, Any]:
        return ask(self.ports[name], command)

    def states(self) -> list[str]:
        return sorted(str(row["stateStr"]) for row in self.ask("m2", {"replSetGetStatus": 1})["members"])

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports['m1'] + 1000}/metrics", timeout=10) as answer:
            return str(answer.read().decode())


def answers(url: str) -> bool:
    """Whether a GET is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def ask(port: int, command: dict[str, object]) -> dict[str, Any]:
    with WireClient(f"127.0.0.1:{port}") as client:
        reply = client.command("admin", command)
    assert reply["ok"] == 1.0, reply
    return reply


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServices]:
    """The three members, which have made their set by themselves."""
    local = LocalServices(tmp_path_factory.mktemp("compose"))
    try:
        local.begin()
        yield local
    finally:
        local.close()


# --- the file ---------------------------------------------------------------------------------------------------------


def test_the_defaults_are_containers_that_know_each_other_by_name() -> None:
    """And Prometheus asks them."""
    found = services({})
    for name in (*MEMBERS, "m4", "arbiter"):
        environment = found[name]["environment"]
        assert (environment["REPLSET_ADVERTISE"], environment["REPLSET_BIND_IP"]) == (name, "0.0.0.0")
        assert found[name]["volumes"] == [f"{name}:{environment['REPLSET_DBPATH']}", "key:/key:ro"]
        assert environment["REPLSET_KEY_FILE"] == found["key"]["environment"]["KEY"]
        expected = environment.get("REPLSET_EXPECT_MEMBERS")
        assert expected == ("m1:27017,m2:27017,m3:27017" if name in MEMBERS else None)
    assert {name for name in found if "profiles" not in found[name]} == {"key", *MEMBERS}
    ports = [port for service in found.values() for port in service.get("ports", [])]
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == [], "open to the network"
    config = yaml.safe_load((COMPOSE / "monitoring/prometheus.yaml").read_text(encoding="utf-8"))
    targets = [f"{name}:{found[name]['environment']['REPLSET_HTTP_PORT']}" for name in MEMBERS]
    assert config["scrape_configs"][0]["static_configs"] == [{"targets": targets}]


def test_the_file_is_what_compose_understands() -> None:
    pytest.importorskip("check_jsonschema")  # has the schema of Compose's specification
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    files = [str(COMPOSE / name) for name in ("compose.yaml", "tls.yaml")]
    done = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


# --- the image --------------------------------------------------------------------------------------------------------


def copied() -> list[tuple[Path, str]]:
    """What the first stage copies: a path of the project, its name in the image."""
    found = []
    for line in (line for line in stages()["build"] if line.startswith("COPY")):
        *sources, target = line.split()[1:]
        found += [(ROOT / source, source if target == "./" else target) for source in sources]
    return found


def test_the_build_sees_what_it_copies_and_nothing_else() -> None:
    lines = (COMPOSE / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == {str(path.relative_to(ROOT)) for path, _ in copied()}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel that the image builds, from exactly what it copies, and nothing else of the project."""
    folder = tmp_path_factory.mktemp("image")
    source, target = folder / "src", folder / "installed"
    source.mkdir()
    for path, name in copied():
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, source / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    subprocess.run([*pip, *build], check=True, env={**os.environ, "REPLSET_COMMIT": COMMIT})
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True)
    return target


@pytest.mark.in_turns(together="the image")
def test_the_image_holds_every_file_of_the_packages(installed: Path) -> None:
    """A page, a script or a template that is not listed as package data would be missing only there."""
    for package in ("replset", "api", "rollback_tools", "spark"):
        for path in (ROOT / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                name = Path("replset") / path.relative_to(ROOT / "replset" if package == "replset" else ROOT)
                assert (installed / name).is_file(), f"{path.relative_to(ROOT)}: [tool.setuptools]"


@pytest.mark.in_turns(together="the image")
def test_the_image_knows_its_commit(installed: Path) -> None:
    assert (installed / "replset" / "commit.txt").read_text() == COMMIT + "\n"


@pytest.mark.in_turns(together="the image")
def test_every_program_of_the_project_starts_in_the_image(installed: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bare = {name: value for name, value in os.environ.items() if not name.startswith("REPLSET_")}
    for program, entry in project["scripts"].items():
        module = entry.partition(":")[0]
        module = module if module.startswith("replset.") else f"replset.{module}"
        environment = bare | {"PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}
        where = f"import {module} as module; print(module.__file__)"
        for command in ([installed / "bin" / program, "--help"], [sys.executable, "-c", where]):
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=installed, env=environment)
            assert done.returncode == 0, f"{program}: {done.stderr}"
        assert done.stdout.startswith(str(installed)), f"{program} is not in the image"


# --- the services -----------------------------------------------------------------------------------------------------


def test_the_members_make_their_set_by_themselves_and_starting_again_changes_nothing(made: LocalServices) -> None:
    key = Path(made.services["key"]["environment"]["KEY"])
    read_key_file(key)
    text = key.read_text()
    wait_until(
        lambda: made.states() == ["PRIMARY", "SECONDARY", "SECONDARY"], 30, "each to know that all are in service"
    )
    config = made.ask("m1", {"replSetGetConfig": 1})["config"]
    assert [row["host"] for row in config["members"]] == [f"127.0.0.1:{made.ports[name]}" for name in MEMBERS]

    made.run("key")
    assert key.read_text() == text, "the key of a set that is there is kept"
    assert made.stop("m1") == 0, "a member stops cleanly, within its time"
    made.up("m1")
    made.wait_healthy("m1")
    now = made.ask("m1", {"replSetGetConfig": 1})["config"]
    assert now["settings"]["replicaSetId"] == config["settings"]["replicaSetId"]


@pytest.mark.in_turns
def test_they_do_so_with_tls_where_everybody_must_log_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is logged in yet: neither the members nor the health checks need a user."""
    ca = Authority(tmp_path)
    for name in MEMBERS:
        ca.issue(name=name)
    monkeypatch.setenv(TLS_CA_VARIABLE, str(ca.ca))
    local = LocalServices(tmp_path, auth=True, tls=True)
    try:
        local.begin()
        with pytest.raises(AssertionError, match="requires authentication"):
            local.ask("m1", {"listDatabases": 1})
    finally:
        local.close()


def test_the_probes_of_kubernetes_are_answered(made: LocalServices) -> None:
    manifests = yaml.safe_load_all((ROOT / "deploy/kubernetes/replset.yaml").read_text(encoding="utf-8"))
    pods = next(row for row in manifests if row["kind"] == "StatefulSet")["spec"]["template"]["spec"]
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        get = pods["containers"][0][kind]["httpGet"]
        headers = {"Host": "10.0.0.7"} | {row["name"]: row["value"] for row in get["httpHeaders"]}
        url = f"http://127.0.0.1:{made.ports['m1'] + 1000}{get['path']}"
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            assert answer.status == 200


def test_alerts_and_dashboard_use_metrics_that_members_have(made: LocalServices) -> None:
    with WireClient(f"127.0.0.1:{made.ports['m1']}") as client:
        assert not client.command("shop", {"nonesuch": 1})["ok"], "a failure has labels of its own"
    text = made.metrics()
    known = {line.split("{")[0].split()[0] for line in text.splitlines() if not line.startswith("#")}
    families = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    dashboard = json.loads((COMPOSE / "monitoring/grafana/dashboards/replset.json").read_text(encoding="utf-8"))
    sources = yaml.safe_load((COMPOSE / "monitoring/grafana/datasources/prometheus.yaml").read_text(encoding="utf-8"))
    alerts = yaml.safe_load((COMPOSE / "monitoring/alerts.yaml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    queries = [rule["expr"] for rule in alerts]
    for panel in dashboard["panels"]:
        assert panel["datasource"]["uid"] == sources["datasources"][0]["uid"]
        queries += [target["expr"] for target in panel["targets"]]
        legends = {label for target in panel["targets"] for label in re.findall(r"{{(\w+)}}", target["legendFormat"])}
        assert legends <= {*re.findall(r'(\w+)="', text), "instance"}, panel["title"]
    used = {name for query in queries for name in re.findall(r"\breplset_\w+", query)}
    assert len(used) > 12
    assert used <= known | families | {"replset_certificate_expiry_timestamp_seconds"}  # only with TLS


@pytest.mark.in_turns
def test_a_fourth_member_and_an_arbiter_join(made: LocalServices) -> None:
    made.up("more")
    for name in ("m4", "arbiter"):
        made.wait_healthy(name)
    wait_until(
        lambda: made.states() == ["ARBITER", "PRIMARY", "SECONDARY", "SECONDARY", "SECONDARY"],
        120,
        "the fourth member and the arbiter",
    )
    config = made.ask("m1", {"replSetGetConfig": 1})["config"]
    assert [row["host"] for row in config["members"]] == [f"127.0.0.1:{port}" for port in made.ports.values()]
    assert [row["arbiterOnly"] for row in config["members"]] == [False, False, False, False, True]
    assert "already" in made.run("more"), "starting the services again does no harm"


@pytest.mark.in_turns
@pytest.mark.skipif(shutil.which("haproxy") is None, reason="no haproxy here (apt install haproxy)")
def test_haproxy_leads_to_the_primary_and_follows_it(made: LocalServices) -> None:
    made.up("haproxy")
    made.wait_healthy("haproxy")
    write, read, http, read_http, _ = made.others[3:]
    first = ask(write, {"hello": 1})
    assert first["isWritablePrimary"]
    wait_until(lambda: answers(f"http://localhost:{read_http}/secondary"), 30, "the secondaries over HTTP")
    assert ask(read, {"hello": 1})["secondary"]
    assert answers(f"http://localhost:{http}/primary")
    with contextlib.suppress(
        HostUnreachableError
    ):  # HAProxy ends connections to who leads no more, perhaps before the answer
        ask(write, {"replSetStepDown": 60})

    def is_new() -> bool:
        try:
            reply = ask(write, {"hello": 1})
        except Exception:
            return False
        return bool(reply["isWritablePrimary"]) and reply["me"] != first["me"]

    wait_until(is_new, 60, "the port to lead to the new primary")
    assert made.stop("haproxy") in (0, 143)


@pytest.mark.in_turns
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus here (apt install prometheus)")
def test_prometheus_reads_all_members_and_no_alert_fires(made: LocalServices) -> None:
    folder = made.folder / "monitoring"
    shutil.copytree(COMPOSE / "monitoring", folder)
    config = folder / "prometheus.yaml"
    text = config.read_text(encoding="utf-8").replace("5s", "1s")
    for name in MEMBERS:
        text = text.replace(f"{name}:28017", f"127.0.0.1:{made.ports[name] + 1000}")
    config.write_text(text, encoding="utf-8")
    made.up("prometheus")
    made.wait_healthy("prometheus")

    def api(what: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{made.others[2]}/api/v1/{what}", timeout=5) as answer:
            return json.loads(answer.read())["data"]

    def is_scraped() -> bool:
        targets = api("targets")["activeTargets"]
        return len(targets) == 3 and all(target["health"] == "up" for target in targets)

    wait_until(is_scraped, 30, "all members to be read")

    def are_evaluated() -> bool:
        return all(rule["health"] == "ok" for group in api("rules")["groups"] for rule in group["rules"])

    wait_until(are_evaluated, 30, "every alert to be evaluated")
    firing = [alert["labels"]["alertname"] for alert in api("alerts")["alerts"] if alert["state"] == "firing"]
    assert firing == []


@pytest.mark.night("Spark in a container of its own; tests/spark compares the oplogs of live members")
def test_spark_compares_the_members(made: LocalServices) -> None:
    """A standalone master and two workers, each a JVM; the executors read the members over HTTP."""
    said = made.up("oplog-spark")
    assert "same" in said
    for name in ("spark-worker-1", "spark-worker-2"):
        wait_until(lambda name=name: "Successfully registered with master" in made.log(name), 30, name)  # type: ignore[misc]
    for name in ("spark-worker-2", "spark-worker-1", "spark-master"):
        made.stop(name)
