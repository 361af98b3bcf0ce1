"""--json of verbs that need no processes, and of whatever fails: one document a line, as docs/reference/json.md has it."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import monarch.actor
from monarch._errors import NotFoundError, SupervisionError
from monarch.job.commands.printer import LinePrinter
from monarch.telemetry.curves import MetricCurves
from monarch.tools import cli, documents, exit_codes, json_output
from monarch.tools.verbs import exec_verb, metrics_verb, query_verb, run_verb
from tests.support import command_line_page, json_lines, json_page

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, in which and for which nothing runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("monarch.admin.programs.running_programs", list)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("MONARCH_PROGRAM", "MONARCH_JOB"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


class Told:
    """Runs a command, and returns its documents; `err` is what it said besides."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.err = ""

    def __call__(self, *words: str, status: int = 0) -> Any:
        try:
            ended = cli.main(words)
        except SystemExit as exc:
            ended = int(str(exc.code))
        out, self.err = self._capsys.readouterr()
        assert ended == status, (out, self.err)
        return json_lines.read(out, status)


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    return Told(capsys)


# --- what every verb promises


def test_the_page_is_what_the_documents_are() -> None:
    assert json_page.PAGE.read_text() == json_page.page(), "python -m tests.support.json_page"


def parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [parser, *(one for action in inner for choice in action.choices.values() for one in parsers(choice))]


def test_every_verb_has_json_and_a_document() -> None:
    every = parsers(cli.get_parser())[1:]
    assert len(every) > 20
    assert [one.prog for one in every if "--json" not in one._option_string_actions] == []
    verbs = {name.split()[1] for name, _, _ in command_line_page.verbs(cli.get_parser()) if " " in name}
    documented = {re.split("[./]", schema)[1] for schema in documents.all_documents()}
    assert documented == verbs - {"shell"} | {"error"}


def test_a_json_schema_can_be_had() -> None:
    program = [sys.executable, "-m", "monarch.tools.documents"]
    done = subprocess.run(program, capture_output=True, timeout=60, check=True)
    found = msgspec.json.decode(done.stdout)
    assert set(found["discriminator"]["mapping"]) == set(documents.all_documents())


def test_the_guide_has_the_table_of_exit_statuses() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (.*) \|$", (DOCS / "cli.md").read_text(), re.MULTILINE)
    assert {int(number): (word, text) for number, word, text in rows} == exit_codes.MEANINGS


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("x"), 1),
        (NotFoundError("x"), 66),
        (FileNotFoundError("x"), 66),
        (ModuleNotFoundError("x"), 66),
        (ConnectionRefusedError("x"), 69),
        (SupervisionError("x"), 69),
        (TimeoutError("x"), 75),
        (PermissionError("x"), 77),
        (KeyboardInterrupt(), 130),
    ],
)
def test_what_an_exception_means(error: BaseException, status: int) -> None:
    assert exit_codes.of(error) == status


# --- verbs


def test_a_secret(told: Told, folder: Path) -> None:
    [made] = told("secret", "--json", "s")
    assert made == documents.NewSecret(file=f"{folder}/s", secret=None)
    [made] = told("secret", "--json")
    assert re.fullmatch("[0-9a-f]{64}", made.secret) and made.file is None
    [failed] = told("secret", "--json", "s", status=1)
    assert (failed.verb, failed.kind, failed.type) == ("secret", "failed", "FileExistsError")
    assert failed.message.startswith("s is already there") and failed.message in told.err


def test_a_secret_goes_into_a_file_of_ours_alone(folder: Path) -> None:
    with open(folder / "s", "wb") as file:
        os.fchmod(file.fileno(), 0o644)
        command = [sys.executable, "-m", "monarch", "secret", "--json"]
        subprocess.run(command, stdout=file, timeout=60, check=True)
    assert (folder / "s").stat().st_mode & 0o777 == 0o600
    json_lines.read((folder / "s").read_text(), 0)


def test_certificates(told: Told, folder: Path) -> None:
    pytest.importorskip("cryptography")
    [made] = told("certs", "--json", "c", "--host", "node1", "--days", "3")
    assert (made.ca, made.days) == (f"{folder}/c/ca.pem", 3) and "node1" in made.names
    assert Path(made.private_key).is_file()


def test_a_worker_tells_its_end(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monarch.actor, "run_worker_loop_forever", lambda **_: print("noise"), raising=False)
    assert told("worker", "--json", "--address", "tcp://h:1") == [documents.WorkerEnded(address="tcp://h:1")]
    assert told.err == "noise\n"


def test_contexts(told: Told) -> None:
    assert told("context", "ls", "--json") == [documents.ContextList(active="default", contexts=[])]
    assert told("context", "--json", "create", "a") == [documents.ContextList(active="a", contexts=["a"])]
    [listed] = told("context", "use", "b", "--json")
    assert (listed.active, listed.contexts) == ("b", ["a", "b"])
    [listed] = told("context", "rm", "--json", "b")
    assert (listed.active, listed.contexts) == ("default", ["a", "default"])
    [failed] = told("context", "rm", "--json", "b", status=66)
    assert failed.kind == "not_found"


def test_a_script_for_the_shell(told: Told) -> None:
    pytest.importorskip("argcomplete")
    [found] = told("completion", "--json", "bash")
    assert found.shell == "bash" and "monarch" in found.script


ROWS = [{"a": 1, "b": None}, {"a": 2, "c": [1.5]}]


class Client:
    """Stands in for telemetry that answers."""

    url = "http://x"

    def query(self, sql: str, timeout: float) -> dict[str, Any]:
        return {"rows": ROWS, "missing_hosts": ["n2"]}

    def metrics(self, match: str, mesh: str | None) -> dict[str, Any]:
        curves = MetricCurves()
        curves.add(mesh or "m", match or "loss", 3, 0.5, 0, 10.0)
        curves.add(mesh or "m", match or "loss", 4, float("nan"), 0, 11.0)
        return {"curves": msgspec.to_builtins(curves.told()), "left_out": 2}


def test_rows_of_a_query(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_verb, "client_of", lambda pid: Client())
    [found] = told("query", "--json", "SELECT")
    assert (found.columns, found.rows) == (["a", "b", "c"], ROWS)
    assert (found.missing_hosts, found.truncated) == (["n2"], False)


def test_curves_of_what_is_logged(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_verb, "client_of", lambda pid: Client())
    [found] = told("metrics", "--json", "--mesh", "trainers")
    ((run),) = found.runs
    assert (run.name, found.left_out, run.curves[0].mesh, run.curves[0].mean) == ("", 2, "trainers", [0.5, None])


def test_what_processes_write(capsys: pytest.CaptureFixture[str]) -> None:
    printer = exec_verb.lines_of("trainers", [{"hosts": 0}, {"hosts": 1}])
    with json_output.only_json():
        for data in (b"one\ntw", b"\xff\xe2\x80\xaeo\r\n\nlast"):
            printer.write(1, 2, data)
        printer.end(1, 7)
    found = json_lines_of(capsys)
    assert [one.text for one in found[:-1]] == ["one", "tw\ufffd\u202eo", "", "last"]
    assert found[0] == documents.ExecOutput(mesh="trainers", rank=1, place={"hosts": 1}, stream="stderr", text="one")
    assert found[-1] == documents.ExecProcess(mesh="trainers", rank=1, place={"hosts": 1}, status=7)
    ranks = run_verb.lines_of(2)
    assert isinstance(ranks, LinePrinter)
    with json_output.only_json():
        ranks.write(0, 1, b"50%\r100%\n")
        ranks.end(0, 0)
    assert [getattr(one, "text", one) for one in json_lines_of(capsys)] == [
        "50%", "100%", documents.RunRank(rank=0, status=0)
    ]  # fmt: skip


def json_lines_of(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    """Lines of a command that has not ended."""
    out = capsys.readouterr().out
    assert out.isascii()  # a terminal obeys none of it
    return [msgspec.json.decode(line, type=documents.any_document()) for line in out.splitlines()]


# --- what cannot be done


@pytest.mark.parametrize(
    ("words", "status", "kind", "said"),
    [
        (["exec", "--json", "true"], 66, "not_found", "no job is set in context 'default'"),
        (["apply", "--json", "nothing.job"], 66, "not_found", "No module named 'nothing'"),
        (["apply", "--json", "job"], 1, "failed", "a job is named as MODULE.ATTRIBUTE"),
        (["run", "--json", "--job", "nope", "x.py"], 66, "not_found", "is neither MODULE.ATTRIBUTE nor a job"),
        (["kill", "--json"], 66, "not_found", "no job runs in context 'default'"),
        (["status", "--json"], 66, "not_found", "no program of yours that uses monarch runs"),
        (["logs", "--json"], 66, "not_found", "no job runs in context 'default'"),
        (["logs", "--json", "--rank", "x"], 1, "failed", "expected ranks such as"),
        (["doctor", "--json"], 66, "not_found", "no program of yours that uses monarch runs"),
        (["stacks", "--json", "--pid", "1"], 66, "not_found", "no program of yours that uses monarch runs"),
        (["profile", "--json", "--flame", "1s"], 66, "not_found", "no program of yours"),
        (["dashboard", "--json"], 66, "not_found", "no program of yours"),
        (["tui", "--json", "--once"], 66, "not_found", "no program of yours"),
        (["debug", "--json", "list"], 66, "not_found", "no program of yours"),
        (["query", "--json", "SELECT 1"], 66, "not_found", "no active job was found in this context"),
        (["metrics", "--json"], 66, "not_found", "no active job was found in this context"),
        (["metrics", "--json", "none"], 66, "not_found", "there is no run"),
        (["replay", "--json", "none.monarchrec"], 66, "not_found", "No such file"),
        (["exec", "--json", "--nonsense", "true"], 2, "usage", "unrecognized arguments: --nonsense"),
        (["stat", "--json"], 2, "usage", "did you mean 'status'?"),
        (["worker", "--json"], 2, "usage", "--address"),
        (["worker", "--json", "--address", "tcp://h:1", "--ca", "x"], 2, "usage", "TLS takes all of"),
        (["shell", "--json"], 2, "usage", "a shell talks to people"),
        (["debug", "--json"], 2, "usage", "the prompt talks to people"),
        (["debug", "--json", "attach", "a", "1"], 2, "usage", "the prompt talks to people"),
        (["debug", "--json", "attach", "a", "1", "--on-exception"], 2, "usage", "the prompt talks to people"),
        (["tui", "--json"], 2, "usage", "the screen talks to people"),
        (["replay", "--json", "--pdb", "x"], 2, "usage", "talk to people"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_why_not(told: Told, words: list[str], status: int, kind: str, said: str) -> None:
    [failed] = told(*words, status=status)
    assert isinstance(failed, documents.CommandFailed)
    assert (failed.verb, failed.kind) == (words[0], kind)
    assert said in failed.message and said in " ".join(told.err.split())


def test_an_interrupt_is_a_document(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(monarch.actor, "run_worker_loop_forever", interrupted, raising=False)
    [failed] = told("worker", "--json", "--address", "tcp://h:1", status=130)
    assert failed.kind == "interrupted"


def test_what_else_is_printed_goes_to_stderr(folder: Path) -> None:
    """Also what a process prints that has the descriptor."""
    (folder / "loud.py").write_text("import os\nprint('loud')\nos.system('echo louder')\n")
    command = [sys.executable, "-m", "monarch", "apply", "--json", "loud.job"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    [failed] = json_lines.read(done.stdout, done.returncode)
    assert failed.type == "AttributeError" and done.stderr.startswith("loud\nlouder\n")


def test_words_of_the_command_are_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """--json behind the command is not ours."""
    assert cli.main(["exec", "ls", "--json"]) == 66
    assert capsys.readouterr().out == ""
