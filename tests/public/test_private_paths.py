"""Paths inside of the package, from which libraries import: the same objects as the public ones."""

from __future__ import annotations

import asyncio
import contextvars
import copyreg
import importlib
import logging
import pickle
import pkgutil
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import monarch.actor
from monarch._older_paths import _alias_modules, _alias_table
from monarch._older_paths._private_names import FlattenedBytes, _context, flatten, unflatten
from monarch.actor import Actor, Extent, context, endpoint, this_host
from monarch.testing import InProcessCluster
from monarch.tools import exit_codes
from monarch.tools.cli import get_parser
from tests.support.tiers import full

MODULES = sorted(_alias_modules.modules())
REFUSED = [(module, name) for module, names in _alias_table.REFUSED.items() for name in names]


@pytest.mark.parametrize("module", MODULES)
def test_names_are_the_public_objects(module: str) -> None:
    made = importlib.import_module(module)
    for name, (home, real) in _alias_modules.homes(module).items():
        assert getattr(made, name) is getattr(importlib.import_module(home), real), name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        made.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("module", "name", "private"),
    [
        ("monarch.mesh_controller", "Instance", "monarch._src.actor.actor_mesh"),
        ("monarch.tools.cli", "load_current_job", "monarch._src.tools.commands"),
        ("monarch.tools.cli", "shell_on_job", "monarch._src.tools.commands"),
    ],
)
def test_public_modules_have_what_is_looked_for_there(module: str, name: str, private: str) -> None:
    assert getattr(importlib.import_module(module), name) is getattr(importlib.import_module(private), name)


@pytest.mark.parametrize(("module", "name"), REFUSED)
def test_what_is_not_there_says_what_takes_its_place(module: str, name: str) -> None:
    importlib.import_module("monarch._src")
    with pytest.raises(ImportError, match=f"monarch.{module}.{name} is not there: .{{20}}"):
        exec(f"from monarch.{module} import {name}", {})


def test_what_takes_the_place_of_a_name_is_there() -> None:
    verbs = get_parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    for module, name in REFUSED:
        sentence = _alias_table.REFUSED[module][name]
        commands, names = re.findall(r"`monarch ([a-z]+)", sentence), re.findall(r"monarch\.[\w.]*\w", sentence)
        assert commands or names, name
        assert set(commands) <= set(verbs or ()), name
        for dotted in names:
            pkgutil.resolve_name(dotted)


def test_contexts_of_jobs_by_the_names_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = importlib.import_module("monarch._src.tools.commands")
    commands.context_create("one")
    commands.context_create("two")
    commands.context_use("one")
    assert commands.context_ls() == 0
    assert capsys.readouterr().out == "* one\n  two\n"
    commands.context_rm("two")
    commands.context_ls()
    assert capsys.readouterr().out == "* one\n"
    assert commands.apply_job() == commands.apply_job("nothing.there") == exit_codes.NOT_FOUND
    assert "monarch apply: " in capsys.readouterr().err


def test_a_debugger_by_the_name_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    commands = importlib.import_module("monarch._src.tools.commands")
    with socket.socket() as taken:  # and not listened at
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert commands.debug("127.0.0.1", port) != 0
    assert f"monarch debug: no debugger listens on 127.0.0.1:{port}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["world_mesh", "python_local_mesh", "tensorboard", "parallel.pipelining", "tools.colors"]
)
def test_modules_that_have_gone_say_what_takes_their_place(name: str) -> None:
    with pytest.raises(ImportError, match=f"monarch.{name} is .* use "):
        importlib.import_module(f"monarch.{name}")


def test_all_of_a_module_can_be_imported() -> None:
    found: dict[str, Any] = {}
    exec("from monarch._src.actor.shape import *", found)
    assert found["Slice"] is found["NDSlice"] is monarch.actor.NDSlice


def test_a_pickle_made_under_either_path_loads() -> None:
    """Loads, by the name that another implementation gives a class, this one's."""
    assert pickle.loads(b"cmonarch._src.actor.actor_mesh\nActorError\n.") is monarch.actor.ActorError
    from monarch._src.actor.shape import Extent as Same

    assert pickle.loads(pickle.dumps(Same(["a"], [2]))) == Extent(["a"], [2])


def test_importing_the_package_finds_none_of_it() -> None:
    program = (
        "import sys, monarch, monarch.actor; print([n for n in sys.modules if '_older_paths' in n or '_src' in n])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_older_function_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    utils = importlib.import_module("monarch.utils")
    given = []

    async def sets(*values: Any) -> None:
        given.append(values)

    monkeypatch.setattr(utils, "setup_torch_elastic_env_async", sets)
    with pytest.warns(DeprecationWarning, match="call monarch.spmd.setup_torch_elastic_env"):
        asyncio.run(utils.setup_env_for_distributed("procs", "here", 1))
    assert given == [("procs", "here", 1)]


def test_the_text_that_a_pod_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    text = importlib.import_module("monarch._src.job.kubernetes")._WORKER_BOOTSTRAP_SCRIPT
    loops: list[str] = []
    monkeypatch.setattr(monarch.actor, "run_worker_loop_forever", lambda *, address: loops.append(address))
    monkeypatch.delenv("MONARCH_PORT", raising=False)
    exec(text, {})
    monkeypatch.setenv("MONARCH_PORT", "1234")
    exec(text, {})
    assert loops == ["tcp://*:26600", "tcp://*:1234"]


def test_a_handler_that_the_trace_does_not_need(caplog: pytest.LogCaptureFixture) -> None:
    handler = importlib.import_module("monarch._src.actor.telemetry").TracingForwarder()
    logger = logging.getLogger("forwarded")
    logger.addHandler(handler)
    logger.warning("heard once")
    logger.removeHandler(handler)
    (record,) = caplog.records
    assert record.getMessage().endswith("heard once")  # "[actor=<root>] " is before it where a client runs


# --- objects without some of their parts


class Reduced:
    def __init__(self, number: int) -> None:
        self.number = number


def test_parts_are_taken_out_and_put_back() -> None:
    twice = Reduced(1)
    taken, data = flatten({"a": twice, "b": (twice, 2, lambda: 3)}, lambda part: isinstance(part, Reduced))
    assert taken == [twice]
    other = Reduced(2)
    found = unflatten(data, iter([other]))
    assert found["a"] is found["b"][0] is other and found["b"][2]() == 3
    with pytest.raises(IndexError):
        unflatten(data, [])


def test_what_is_left_is_read_as_from_a_file() -> None:
    data = flatten([1, Reduced(2)], lambda part: isinstance(part, Reduced))[1]
    frozen = data.freeze()
    assert len(frozen) == len(data) and unflatten(frozen, [3]) == [1, 3] and len(frozen) == 0
    assert unflatten(data.freeze().read(), [4]) == [1, 4]
    buffer = FlattenedBytes()
    assert buffer.write(b"ab") == 2 and buffer.freeze().readline() == b"ab"


def test_the_whole_may_be_taken() -> None:
    taken, data = flatten("all", lambda part: True)
    assert taken == ["all"] and unflatten(memoryview(data), [7]) == 7


def test_types_are_reduced_as_copyreg_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(copyreg.dispatch_table, Reduced, lambda one: (Reduced, (one.number + 1,)))
    assert unflatten(flatten(Reduced(1), lambda part: False)[1], []).number == 2


# --- handles and contexts


class Caller(Actor):
    """An actor whose endpoint has a name like Python's own."""

    @endpoint
    def __monarch_call__(self, number: int) -> int:
        return number + 1

    @endpoint
    def context_is_its_own(self) -> bool:
        return _context.get() is context()


@pytest.fixture
def mesh() -> Any:
    with InProcessCluster():
        yield this_host().spawn_procs({"gpus": 2}).spawn("a", Caller)


def test_an_endpoint_may_have_any_name(mesh: Any) -> None:
    assert list(mesh.__monarch_call__.call(1).get().values()) == [2, 2]
    assert not hasattr(mesh, "__monarch_other__")
    assert Caller.__monarch_call__._method.__name__ == "__monarch_call__"


def test_handles_keep_what_libraries_give_them(mesh: Any) -> None:
    procs = this_host().spawn_procs({"gpus": 1})
    mesh._proc_mesh = procs
    assert mesh._proc_mesh is procs
    procs._gpu_ids = [3]
    assert procs._gpu_ids == [3] and {procs: 1}[procs] == 1
    sent = pickle.loads(pickle.dumps(mesh))
    assert sent._proc_mesh != procs


def test_the_context_in_the_form_of_a_variable(mesh: Any) -> None:
    assert _context.get(None) is context()
    assert all(found for _, found in mesh.context_is_its_own.call().get().items())
    client = context()
    assert contextvars.copy_context().run(_context.get) is client
    token = _context.set(client)
    assert context() is client
    _context.reset(token)


def test_the_client_is_called_client(mesh: Any) -> None:
    assert context().actor_instance.actor_id.actor_name == "client"


@full
def test_processes_start_by_a_wrapped_command_on_local_hosts() -> None:
    program = """
import os, sys
from monarch._src.actor.host_mesh import BootstrapCommand, create_local_host_mesh, default_bootstrap_cmd
from monarch.actor import Actor, Extent, endpoint

class Tells(Actor):
    @endpoint
    def variable(self):
        return os.environ["PLACE"]

if __name__ == "__main__":
    hosts = create_local_host_mesh(Extent(["row", "column"], [1, 2]))
    print(hosts.sizes)
    words = [sys.executable, "-m", "monarch._src.actor.bootstrap_main"]
    command = lambda point: BootstrapCommand("/usr/bin/env", None, [f"PLACE={point.rank}", *words], {})
    procs = hosts.flatten("hosts").spawn_procs({"gpus": 1}, bootstrap_command=command)
    print(list(procs.spawn("t", Tells).variable.call().get().values()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines() == ["{'row': 1, 'column': 2}", "['0', '1']"], done.stderr
