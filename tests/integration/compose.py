"""compose/compose.yaml without containers: its services as local processes, with the same commands, environment,
health checks and order.
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
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from tests.programs import run_to_end

COMPOSE = Path(__file__).parents[2] / "compose"
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


class LocalCompose:
    """Runs services of the file. `close` stops those that stay, and says how each ended."""

    def __init__(
        self, folder: Path, variables: dict[str, str], environment: dict[str, str] | None = None, *, tls: bool = False
    ) -> None:
        """environment: that every process gets besides its own."""
        self.folder = folder
        self.services = services(variables, tls=tls)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._done: set[str] = set()
        bare = {name: value for name, value in os.environ.items() if not name.startswith(("REPLSET_", "SPARK_"))}
        path = f"{Path(sys.executable).parent}:{bare['PATH']}"
        self._environment = bare | {"PATH": path, "TMPDIR": str(folder)} | (environment or {})

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
        with self._log(name).open("ab") as log:
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
        return [*entry, *service.get("command", [])]

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
        deadline = time.monotonic() + within_s
        while not self.is_healthy(name):
            for other, process in self.running.items():
                assert process.poll() is None, f"{other} ended: {self.log(other)[-2000:]}"
            logs = {other: self.log(other)[-2000:] for other in self.running}
            assert time.monotonic() < deadline, f"{name} is not healthy: {logs}"
            time.sleep(0.2)
        assert self.running[name].poll() is None, f"{name} ended: {self.log(name)[-2000:]}"

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
        return self._log(name).read_text(encoding="utf-8", errors="replace")

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


def answers(url: str) -> bool:
    """Whether a GET is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
