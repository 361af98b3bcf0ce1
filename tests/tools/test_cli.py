"""The command `monarch`: what its arguments mean, what it says, and how it ends. The worker loop is a stand-in here."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import monarch
import monarch.actor
from monarch._wire.auth import load_secret
from monarch.tools import cli

FILES = ["--ca", "ca.pem", "--certificate", "host.pem", "--private-key", "host-key.pem"]


class Loops:
    """Stands in for both worker loops: keeps how they were called, and raises `error` if there is one."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.error: BaseException | None = None

    def named(self, name: str) -> Any:
        def loop(**settings: Any) -> None:
            self.calls.append((name, settings))
            if self.error is not None:
                raise self.error

        return loop


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> Loops:
    made = Loops()
    for name in ("forever", "until_shutdown"):
        monkeypatch.setattr(monarch.actor, f"run_worker_loop_{name}", made.named(name), raising=False)
    for variable in cli.TLS.values():
        monkeypatch.delenv(variable, raising=False)
    return made


def usage_error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


# --- monarch worker


def test_the_worker_serves_its_address(loops: Loops) -> None:
    assert cli.main(["worker", "--address", "tcp://*:26600"]) == 0
    assert loops.calls == [("forever", {"address": "tcp://*:26600"})]


def test_a_lease_is_passed_on_as_it_was_written(loops: Loops) -> None:
    assert cli.main(["worker", "--address", "ipc:///tmp/w", "--lease", "4h"]) == 0
    assert loops.calls == [("forever", {"address": "ipc:///tmp/w", "lease": "4h"})]


def test_once_is_the_loop_that_returns(loops: Loops) -> None:
    assert cli.main(["worker", "--address", "ipc:///tmp/w", "--once"]) == 0
    assert loops.calls == [("until_shutdown", {"address": "ipc:///tmp/w"})]


def test_certificates_are_passed_on(loops: Loops) -> None:
    assert cli.main(["worker", "--address", "tcp://h:1", *FILES]) == 0
    expected = {"address": "tcp://h:1", "ca": "ca.pem", "certificate": "host.pem", "private_key": "host-key.pem"}
    assert loops.calls == [("forever", expected)]


def test_certificates_can_come_partly_from_the_environment(loops: Loops, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_TLS_CERT", "e.pem")
    monkeypatch.setenv("MONARCH_TLS_KEY", "k.pem")
    assert cli.main(["worker", "--address", "tcp://h:1", "--ca", "ca.pem"]) == 0
    expected = {"address": "tcp://h:1", "ca": "ca.pem", "certificate": "e.pem", "private_key": "k.pem"}
    assert loops.calls == [("forever", expected)]


def test_half_of_tls_is_wrong_usage(loops: Loops, capsys: pytest.CaptureFixture[str]) -> None:
    said = usage_error(capsys, "worker", "--address", "tcp://h:1", "--ca", "ca.pem", "--certificate", "host.pem")
    assert "missing: --private-key (or MONARCH_TLS_KEY)" in said
    assert loops.calls == []


def test_trusting_everybody_is_said_in_full(loops: Loops, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["worker", "--address", "tcp://127.0.0.1:1", "--trust-all-connections"]) == 0
    assert loops.calls == [("forever", {"address": "tcp://127.0.0.1:1", "ca": "trust_all_connections"})]
    said = usage_error(capsys, "worker", "--address", "tcp://h:1", "--trust-all-connections", *FILES)
    assert "--trust-all-connections checks nobody, so it takes no --ca" in said
    said = usage_error(capsys, "worker", "--address", "tcp://h:1", "--trust-all")
    assert "unrecognized arguments: --trust-all" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["worker"], "--address"),
        (["worker", "--address"], "expected one argument"),
        (["worker", "--address", "tcp://h:1", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["serve"], "invalid choice: 'serve' (choose from"),
        (["stat"], "invalid choice: 'stat': did you mean 'status'?"),
        (["context", "creat"], "invalid choice: 'creat': did you mean 'create'?"),
        (["certs"], "DIRECTORY"),
        (["certs", "d", "--days", "0"], "'0' is not a number of days from 1 to 3650"),
        (["certs", "d", "--days", "soon"], "'soon' is not a number of days"),
        (["certs", "d", "--host", "tcp://a:1"], "'tcp://a:1' is neither a host name nor an IP address"),
    ],
)
def test_wrong_usage(loops: Loops, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert said in usage_error(capsys, *arguments)
    assert loops.calls == []


# Secrets.


def test_the_secret_file_is_the_runtimes_to_read(loops: Loops, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_SECRET_FILE", "/nowhere/s")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["worker", "--address", "tcp://h:1", "--secret-file", "s"]) == 0
    assert loops.calls == [("forever", {"address": "tcp://h:1"})]
    assert os.environ["MONARCH_SECRET_FILE"] == str(tmp_path / "s")


def test_a_secret_is_no_argument(loops: Loops, capsys: pytest.CaptureFixture[str]) -> None:
    assert "unrecognized" in usage_error(capsys, "worker", "--address", "tcp://h:1", "--secret", "x")
    assert loops.calls == []


def test_a_secret_in_a_file_is_ours_alone_from_the_beginning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = os.umask(0)
    try:
        assert cli.main(["secret", str(tmp_path / "s")]) == 0
    finally:
        os.umask(old)
    found = (tmp_path / "s").read_bytes()
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600 and len(bytes.fromhex(found.decode())) == 32
    said = capsys.readouterr().out
    assert f"export MONARCH_SECRET_FILE={tmp_path}/s" in said and found.decode().strip() not in said
    known = load_secret(None, {"MONARCH_SECRET_FILE": str(tmp_path / "s")})
    assert known is not None and known.reveal() == found.strip()

    assert cli.main(["secret", str(tmp_path / "s")]) == 1
    assert "is already there; --force replaces it" in capsys.readouterr().err
    assert (tmp_path / "s").read_bytes() == found
    assert cli.main(["secret", "--force", str(tmp_path / "s")]) == 0
    assert (tmp_path / "s").read_bytes() != found


def test_a_secret_is_printed_and_a_file_that_it_goes_to_becomes_private(tmp_path: Path) -> None:
    with open(tmp_path / "s", "wb") as file:
        file.close()
        (tmp_path / "s").chmod(0o644)
        command = f"{shlex.quote(sys.executable)} -m monarch secret"
        subprocess.run(f"{command} > {tmp_path}/s", shell=True, check=True, timeout=60)
    assert load_secret(None, {"MONARCH_SECRET_FILE": str(tmp_path / "s")}) is not None
    printed = [subprocess.run(command, shell=True, check=True, capture_output=True, timeout=60) for _ in range(2)]
    assert all(len(bytes.fromhex(one.stdout.decode())) == 32 and not one.stderr for one in printed)
    assert printed[0].stdout != printed[1].stdout


def test_who_needs_a_secret_is_told_what_makes_one(tmp_path: Path) -> None:
    (tmp_path / "empty").touch(mode=0o600)
    for environ in (
        {"MONARCH_SECRET": ""},
        {"MONARCH_SECRET_FILE": f"{tmp_path}/missing"},
        {"MONARCH_SECRET_FILE": f"{tmp_path}/empty"},
    ):
        with pytest.raises(ValueError, match="`monarch secret"):
            load_secret(None, environ)


# How it ends.


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(98, "Address already in use"), "monarch worker: [Errno 98] Address already in use\n"),
        (ValueError("no secret:\n  set MONARCH_SECRET"), "monarch worker: no secret:\n  set MONARCH_SECRET\n"),
        (RuntimeError("the link broke"), "monarch worker: RuntimeError: the link broke\n"),
        (RuntimeError(), "monarch worker: RuntimeError: no further explanation\n"),
    ],
)
def test_an_error_is_its_text(loops: Loops, capsys: pytest.CaptureFixture[str], error: Exception, text: str) -> None:
    """Without a traceback, and in its own lines: some are lists."""
    loops.error = error
    assert cli.main(["worker", "--address", "tcp://h:1"]) == 1
    assert capsys.readouterr() == ("", text)


def test_ctrl_c_is_130(loops: Loops, capsys: pytest.CaptureFixture[str]) -> None:
    loops.error = KeyboardInterrupt()
    assert cli.main(["worker", "--address", "tcp://h:1"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_loop_that_exits_says_its_own_code(loops: Loops) -> None:
    loops.error = SystemExit(0)
    with pytest.raises(SystemExit) as ended:
        cli.main(["worker", "--address", "tcp://h:1"])
    assert ended.value.code == 0


# --- monarch certs


def test_certs_makes_them_and_says_how_to_use_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cryptography", reason="needs the package cryptography")
    folder = tmp_path / "job"
    assert cli.main(["certs", str(folder), "--host", "node7.cluster", "--host", "10.0.0.7", "--days", "3"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "valid for 3 days" in out
    assert "The certificate is for: node7.cluster, 10.0.0.7, " in out
    assert f'ca="{folder}/ca.pem", certificate="{folder}/host.pem", private_key="{folder}/host-key.pem"' in out
    assert f"export MONARCH_TLS_CA={folder}/ca.pem\n" in out
    assert f"export MONARCH_TLS_CERT={folder}/host.pem\n" in out
    assert f"export MONARCH_TLS_KEY={folder}/host-key.pem\n" in out
    assert "PRIVATE KEY" not in out

    before = (folder / "ca.pem").read_bytes()
    assert cli.main(["certs", str(folder)]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"monarch certs: already there: {folder}/ca-key.pem, ")
    assert err.count("\n") == 1
    assert (folder / "ca.pem").read_bytes() == before
    assert cli.main(["certs", str(folder), "--force"]) == 0
    assert (folder / "ca.pem").read_bytes() != before


def test_certs_without_cryptography(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert cli.main(["certs", str(tmp_path / "job")]) == 66
    line = "monarch certs: making certificates needs the package cryptography: pip install 'pymonarch[tls]'\n"
    assert capsys.readouterr() == ("", line)


# --- The program around it.


@pytest.mark.parametrize("arguments", [["--help"], ["worker", "--help"], ["certs", "--help"]])
def test_help_shows_examples(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "\nexamples:\n  " in out
    assert "monarch certs ./job-certs" in out or "monarch worker --address ipc://" in out


def example_commands(text: str) -> list[list[str]]:
    """The arguments of `monarch` in the examples of a help text, as a shell would give them."""
    found = []
    for line in text.partition("examples:")[2].replace("\\\n", " ").splitlines():
        if not line.startswith("  ") or "monarch " not in line:
            continue
        ends = [match.start() for match in re.finditer(r"\s{2,}", line.strip())]
        command = next((line.strip()[:end] for end in ends if quoted_whole(line.strip()[:end])), line.strip())
        lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = [*lexer]
        words = words[words.index("monarch") + 1 :]
        operators = (place for place, word in enumerate(words) if set(word) <= set("();<>|&"))
        found.append(words[: next(operators, len(words))])
    return found


def quoted_whole(text: str) -> bool:
    try:
        shlex.split(text)
    except ValueError:
        return False
    return True


def test_every_verb_has_examples_that_it_takes() -> None:
    parser = cli.get_parser()
    (verbs,) = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for verb, of_verb in verbs.items():
        commands = example_commands(of_verb.epilog or "")
        assert any(words[:1] == [verb] for words in commands), f"monarch {verb} --help has no example"
        for words in commands:
            assert parser.parse_args(words), words


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "monarch", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


def test_the_module_is_the_command() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"pymonarch {monarch.__version__}\n", "")


def test_a_dashboard_of_a_scheduler_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["dashboard", "mast"]) == 1
    assert "none of the scheduler 'mast': give no name, or --pid" in capsys.readouterr().err


def test_programs_read_what_the_parser_found() -> None:
    parse = cli.get_parser().parse_args
    assert parse(["apply", "package.module"]).module_path == "package.module"
    assert parse(["context", "use", "other"]).name == "other"
    given = parse(["exec", "--per-host", "gpus=2", "--", "true"])
    assert (given.run_all, given.per_host) == (False, "gpus=2")
    assert parse(["exec", "--all", "--", "true"]).run_all is True
    with pytest.raises(SystemExit):
        parse(["exec", "--all", "--mesh", "one", "--", "true"])


def test_a_shell_is_opened_by_a_name_that_programs_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(cli, "shell_on_job", lambda **words: given.update(words) or 7)
    assert cli.main(["shell"]) == 7
    assert given == {"mesh_name": None, "point_str": None, "env": [], "workdir": None, "kill": False}


def test_help_loads_no_runtime() -> None:
    program = "import sys, monarch.tools.cli as c; c.get_parser().format_help(); print('monarch.actor' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


def test_a_reader_that_left_is_no_traceback(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="needs the package cryptography")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [sys.executable, "-m", "monarch", "certs", str(tmp_path / "job")]
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")
