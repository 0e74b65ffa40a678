"""What people and scripts can use is documented: command lines, options, variables, error codes. The database commands
and routes are held beside their own tests.
"""

from __future__ import annotations

import ast
import functools
import importlib
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup

from api.access import PUBLIC
from replset import terminal
from replset.cli.administer import app as replset_app
from replset.cli.start import build_parser as start_parser
from replset.cli.start_options import all_options, flag_of, variable_of
from replset.errors import ErrorCode
from replset.features.all import OPTIONS
from replset.storage.store import StoreOptions
from rollback_tools.app import app as tools_app
from rollback_tools.dump import build_parser as dump_parser
from spark.cli import app as spark_app
from tests.rig import a_set
from tests.unit.api.kit import Api
from tests.unit.cli.commands import commands_of, parameters_of

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def row_of(text: str, start: str) -> str:
    """The table row whose first cell begins with `start` in backquotes."""
    pattern = re.compile(rf"^\| `{re.escape(start)}(?=[` ]).*$", re.MULTILINE)
    match = pattern.search(text)
    assert match is not None, f"docs/cli.md has no row for `{start}`"
    return match[0]


# --- command lines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", [field.name for field in all_options(OPTIONS)] + ["config"])
def test_every_option_of_start_is_documented_with_its_variable(field: str) -> None:
    row = row_of(page("cli.md"), f"--{flag_of(field)}")
    assert f"`{variable_of(field)}`" in row


def test_start_takes_no_option_besides() -> None:
    flags = {flag for action in start_parser()._actions for flag in action.option_strings if flag.startswith("--")}
    known = {f"--{flag_of(field.name)}" for field in all_options(OPTIONS)} | {"--config", "--help"}
    assert {flag for flag in flags if not flag.startswith("--no-")} == known


PROGRAMS = {"replset": replset_app, "rollback-tools": tools_app, "oplog-spark": spark_app}
EVERYWHERE = {"oplog-spark": {"--engine", "--master", "--format", "--json"}}
"""Options of all of a program's commands, told once above their table."""


def subcommands() -> Iterator[tuple[str, Any]]:
    for program, application in PROGRAMS.items():
        for path, command in commands_of(application).items():
            if path and not getattr(command, "commands", None) and path not in {("start",), ("dump",)}:
                yield " ".join((program, *path)), command


@pytest.mark.parametrize(("name", "command"), [pytest.param(*pair, id=pair[0]) for pair in subcommands()])
def test_every_subcommand_and_its_options_are_documented(name: str, command: Any) -> None:
    row = row_of(page("cli.md"), name)
    told_above = EVERYWHERE.get(name.split()[0], set())
    for option in parameters_of(command).keys() - told_above:
        assert not option.startswith("--") or f"`{option}" in row or f"/`{option}" in row, f"{name}: {option}"


def test_every_option_of_dump_is_documented() -> None:
    text = page("cli.md")
    section = text[text.index("### `rollback-tools dump`") : text.index("## `./dev`")]
    hidden = {"--verbosity", "-h"}
    for action in dump_parser()._actions:
        for flag in action.option_strings:
            assert flag in hidden or re.search(rf"`{flag}(?=[` ])", section), flag


def test_every_chore_is_documented() -> None:
    chores = re.findall(r"^  (\w+)\) ", (ROOT / "dev").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(chores) >= 6
    for chore in chores:
        row_of(page("cli.md"), f"./dev {chore}")


# --- error codes --------------------------------------------------------------------------------------------------


def test_every_error_code_is_documented_under_its_name() -> None:
    documented: dict[int, str] = {}
    for numbers, name in re.findall(r"^\| ([\d, ]+) \| (\w*) ?\|", page("errors.md"), re.MULTILINE):
        documented |= {int(number): name for number in numbers.split(", ")}
    sent = {code for code in ErrorCode if code not in OF_OTHER_SERVERS}
    assert sent <= documented.keys()
    for code, name in documented.items():
        assert name in ("", ErrorCode(code).code_name)


OF_OTHER_SERVERS = {
    ErrorCode.HOST_NOT_FOUND,
    ErrorCode.USER_NOT_FOUND,
    ErrorCode.NO_REPLICATION_ENABLED,
    ErrorCode.NETWORK_TIMEOUT,
    ErrorCode.OPERATION_FAILED,
    ErrorCode.WRITE_CONFLICT,
    ErrorCode.READ_CONCERN_MAJORITY_NOT_AVAILABLE,
    ErrorCode.SOCKET_EXCEPTION,
    ErrorCode.INTERRUPTED_AT_SHUTDOWN,
    ErrorCode.INTERRUPTED,
    ErrorCode.INTERRUPTED_BY_STATE_CHANGE,
    ErrorCode.LOCK_TIMEOUT,
    ErrorCode.STALE_SHARD_VERSION,
    ErrorCode.STALE_EPOCH,
    ErrorCode.RETRY_CHANGE_STREAM,
    ErrorCode.PREPARED_TRANSACTION_IN_PROGRESS,
    ErrorCode.STALE_CONFIG,
}
"""Codes that only other servers or a command line of ours give; our clients and the HTTP status table know them."""


def test_what_to_do_is_told_of_codes_and_messages_that_exist() -> None:
    section = page("errors.md").split("\n## What to do\n")[1].split("\n## ")[0]
    codes, lines = section.split("### A member that does not start")
    for numbers in re.findall(r"^\| (\d[\d, ]*)", codes, re.MULTILINE):
        assert {int(number) for number in numbers.split(", ")} <= set(ErrorCode)
    source = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "replset").rglob("*.py")))
    messages = re.findall(r"^\| `([^`]+)` \|", lines, re.MULTILINE)
    assert len(messages) > 5
    assert [message for message in messages if message not in source] == []


@pytest.mark.parametrize("top", ["replset", "api", "rollback_tools", "spark"])
def test_error_codes_have_names_in_the_source(top: str) -> None:
    for path in sorted((ROOT / top).rglob("*.py")):
        bare = re.search(r"\b(code=|code = |Refused\(|code [!=]= )\d", path.read_text(encoding="utf-8"))
        assert bare is None, f"{path}: {bare}"


# --- the pages themselves -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))], ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_a_test_runs_every_console_block() -> None:
    """A block in `console` is run word for word; what needs a person, root or the web stands in `bash`."""
    folders = [ROOT / "tests/integration", ROOT / "tests/spark"]
    tests = "".join(path.read_text(encoding="utf-8") for folder in folders for path in folder.glob("test_*.py"))
    with_commands = {path.name for path in DOCS.glob("*.md") if "```console\n" in page(path.name)}
    assert len(with_commands) > 5
    assert {name for name in with_commands if f'"{name}"' not in tests} == set()


def test_what_a_block_of_python_imports_of_the_product_is_there() -> None:
    found = 0
    for path in (ROOT / "README.md", *DOCS.glob("*.md")):
        for block in re.findall(r"^```python\n(.*?)^```$", path.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "replset":
                    # In the checkout the folder of Spark's jobs is beside the product (setup.py).
                    module = importlib.import_module(node.module.replace("replset.spark", "spark"))
                    missing = [name.name for name in node.names if not hasattr(module, name.name)]
                    assert missing == [], f"{path.name}: {node.module} has no {missing}"
                    found += 1
    assert found


def test_the_readme_runs_what_the_first_set_runs() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```console\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL):
        for command in re.split(r"^(?=\$ )", block, flags=re.MULTILINE):
            assert command in page("first-set.md"), command


# --- MongoDB's behaviour ------------------------------------------------------------------------------------------

ROW = r"(?:Ro\d+|[A-Z]\d+)"


def rows_cited() -> dict[str, str]:
    """Row -> a place that cites it as "map E5", "map H2, H3" or "map C3 to C6"."""
    found: dict[str, str] = {}
    for top in ("replset", "api", "rollback_tools", "spark"):
        for path in sorted((ROOT / top).rglob("*.py")):
            for citation in re.findall(rf"\bmap ({ROW}(?:(?:,| to| and|) {ROW})*)", path.read_text(encoding="utf-8")):
                for row in rows_in(citation):
                    found[row] = path.name
    return found


def rows_in(text: str) -> Iterator[str]:
    """Every row named in `text`; "C3 to C6" names four."""
    for first, last in re.findall(rf"({ROW})(?: to ({ROW}))?", text):
        letters = first.rstrip("0123456789")
        end = int((last or first).removeprefix(letters))
        for number in range(int(first.removeprefix(letters)), end + 1):
            yield f"{letters}{number}"


def test_every_cited_row_of_the_behaviour_map_is_on_the_page() -> None:
    text = page("mongodb-behaviour.md")
    documented = {row for cell in re.findall(rf"^\| ({ROW}[^|]*) \|", text, re.MULTILINE) for row in rows_in(cell)}
    documented |= set(re.findall(rf"^## ({ROW}) ", text, re.MULTILINE))
    cited = rows_cited()
    assert len(cited) > 40
    assert {row: place for row, place in cited.items() if row not in documented} == {}


# --- the reading order ----------------------------------------------------------------------------------------------


def reading_order() -> list[tuple[str, str]]:
    """Files and functions of the reading order, and of the table of rules behind it."""
    text = page("architecture.md")
    section = text[text.index("## Reading order") : text.index("## Spark")]
    rows = re.findall(r"^\| `([^`]+\.py)` \| (.*?) \|", section, re.MULTILINE)
    return [(path, name) for path, names in rows for name in re.findall(r"`([^`]+)`", names)]


@pytest.mark.parametrize(("path", "name"), reading_order())
def test_the_reading_order_and_the_rules_name_functions_that_are_there(path: str, name: str) -> None:
    body: list[ast.stmt] = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    for part in name.split("."):
        found = [node for node in body if getattr(node, "name", None) == part]
        assert found, f"{path} has no {name}"
        body = found[0].body


# --- commands that no test runs -----------------------------------------------------------------------------------

NOT_RUN = {
    "archive.md": "needs an object store",
    "backup.md": "needs an object store; test_restore_history.py runs it on a folder",
    "change-streams.md": "curl -N never ends; test_change_streams.py reads the same stream",
    "cli.md": "a set at the moment of a fault; test_status.py and test_plans.py make it",
    "consumers.md": "needs readers that go on; test_consumers.py has them",
    "deploy.md": "needs machines of these names, a Kubernetes cluster, Docker, or root",
    "first-set.md": "installs from the web",
    "follower.md": "needs two sites; test_follower.py has them",
    "http.md": "needs a rollback, and a fourth member; test_restore_over_http.py has them",
    "rollback.md": "needs a member in quarantine; test_rollbacks.py makes one",
    "security.md": "needs an address beyond loopback, a terminal for passwords, mongosh; logins.md is run",
    "spark.md": "needs machines of these names; test_mongod.py reads a set by its addresses",
    "what-if.md": "a set on fixed ports; test_operators.py asks for the forecast and then kills the primary",
    "spark-at-scale.md": "needs an object store",
}
"""Pages with commands in `bash`, and why these are not run. What they call of ours is checked below all the same."""


def bash_commands() -> Iterator[tuple[str, str]]:
    """(page, command) of each line in a block in `bash`. Where some begin with `$`, the others are what is printed."""
    for path in sorted(DOCS.glob("*.md")):
        for block in re.findall(r"^```bash\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            lines = block.replace("\\\n", " ").splitlines()
            marked = [line[2:] for line in lines if line.startswith(("$ ", "# "))]
            for line in marked or lines:
                yield path.name, line


def calls_of(line: str) -> Iterator[list[str]]:
    """The words of each call of a program of ours in the line."""
    words: list[str] = []
    for word in [*shlex.split(line.replace("…", "x"), comments=True), ";"]:
        if word in (";", "|", "&&", "||", "&", ">", "2>", "--", ")"):
            if words and words[0].rpartition("/")[2] in ("replset", "rollback-tools", "oplog-spark"):
                yield [words[0].rpartition("/")[2], *words[1:]]
            words = []
        elif words or "=" not in word.partition(" ")[0]:
            words.append(word)


@functools.cache
def commands(program: str) -> dict[tuple[str, ...], Any]:
    """As `commands_of`, with the options of the connection, as the program itself adds them."""
    found = commands_of(PROGRAMS[program])
    terminal._add_connection_options(found[()], terminal._connection_parameters())
    return found


def parse_as_the_program_does(program: str, *words: str) -> None:
    """Raise what the program would say of the command line."""
    if words[:1] == ("start",):
        start_parser().parse_args(words[1:])
        return
    command = commands(program)[()]
    context = command.make_context(program, list(words))
    while isinstance(command, TyperGroup):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert name is not None
        context = command.make_context(name, rest, parent=context)


CALLS = [(page, call) for page, line in bash_commands() for call in calls_of(line)]


@pytest.mark.parametrize(("where", "call"), [pytest.param(*pair, id=" ".join((pair[0], *pair[1]))) for pair in CALLS])
def test_a_command_that_no_test_runs_is_one_that_its_program_takes(
    where: str, call: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ})  # options of the connection are kept there
    parse_as_the_program_does(*call)


def test_what_is_not_run_has_its_reason() -> None:
    assert len(CALLS) > 20
    assert {page for page, _ in bash_commands()} == NOT_RUN.keys()


SPAN = re.compile(r"`((?:replset|rollback-tools|oplog-spark) [a-z][^`\n|]*)`")
SPANS = [
    pytest.param(span.split(), id=f"{path.name} {span}")
    for path in sorted(DOCS.glob("*.md"))
    for span in dict.fromkeys(SPAN.findall(path.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize("words", SPANS)
def test_a_command_in_the_text_is_there_with_its_options(words: list[str]) -> None:
    """It may be a part of one: what follows the subcommand's name need not be complete."""
    words = [word.rstrip("….,:;)") for word in words]
    if words[1] == "start":
        known = {flag for action in start_parser()._actions for flag in action.option_strings}
    else:
        found = commands(words[0])
        path = tuple(words[1:3]) if tuple(words[1:3]) in found else tuple(words[1:2])
        assert path in found
        parameters = [*found[()].params, *found[path].params]
        known = {flag for one in parameters for flag in (*one.opts, *one.secondary_opts)}
    given = {word.partition("=")[0] for word in words if word.startswith("--") and len(word) > 2}
    assert given <= known


# --- the log ------------------------------------------------------------------------------------------------------


def test_the_parts_that_log_are_on_the_page_by_their_names() -> None:
    """A file that moves must not take the name in the log with it."""
    files = [*(ROOT / "replset").rglob("*.py"), *(ROOT / "api").rglob("*.py")]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    told = page("logs.md").partition("The parts are ")[2].partition(".")[0]
    assert set(re.findall(r"`(\w+)`", told)) == set(re.findall(r'getLogger\("replset\.([\w.]+)"\)', text))


# --- what pages name in the source --------------------------------------------------------------------------------


def source_files() -> list[Path]:
    tops = ("replset", "api", "rollback_tools", "spark", "tests", "tools")
    return [path for top in tops for path in (ROOT / top).rglob("*.py")]


def test_every_file_that_a_page_names_is_there() -> None:
    files = {"/" + path.relative_to(ROOT).as_posix() for path in source_files()}
    pages = [*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    named = {(path.name, name) for path in pages for name in re.findall(r"`([\w/]+\.py)`", path.read_text("utf-8"))}
    whole = {(path.name, name) for path in pages for name in re.findall(r"`(\S+)`:\n```", path.read_text("utf-8"))}
    examples = {("CONTRIBUTING.md", "fields.py"), *whole}
    assert [(where, name) for where, name in named - examples if not any(f.endswith("/" + name) for f in files)] == []


def test_every_name_in_the_last_column_of_the_behaviour_page_is_in_the_product() -> None:
    words = {word for path in source_files() for word in re.findall(r"\w+", path.read_text("utf-8"))}
    rows = [line.rstrip(" |").split("|")[-1] for line in page("mongodb-behaviour.md").splitlines() if line[:1] == "|"]
    named = {
        word for cell in rows for code in re.findall(r"`([^`]+)`", cell) for word in re.findall(r"[A-Za-z_]\w+", code)
    }
    assert len(named) > 100
    assert named - words == set()


# --- what pages say of the product ----------------------------------------------------------------------------------


def test_what_comes_without_a_login_is_what_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    (sentence,) = re.findall(r"Without `Authorization` come (.*)\.", page("security.md"))
    named = set(re.findall(r"`(?:POST )?(/[^`]*)`", sentence))
    assert named | {"/", "/favicon.ico"} == PUBLIC, "and the files of the page"
    with a_set() as rig:
        api = Api(rig, monkeypatch)
        for path in sorted(named - {"/v1/login"}):
            assert api.get(path).status_code != 404, path


def test_what_stays_in_memory_after_load_is_what_the_page_says() -> None:
    (sizes,) = re.findall(r"What stays after load.*cache \((\d+) MiB\).*entries \((\d+) MiB\)", page("security.md"))
    options = StoreOptions()
    assert [int(size) << 20 for size in sizes] == [options.cache_bytes, options.tail_bytes]


def test_nobody_is_told_to_install_the_product_by_its_name() -> None:
    """No package index has it."""
    texts = [*DOCS.glob("*.md"), ROOT / "README.md", *(path for path in source_files() if path != Path(__file__))]
    by_name = re.compile(r"""pip install ['"]?replset\b""")
    assert [path.name for path in texts if by_name.search(path.read_text("utf-8"))] == []
