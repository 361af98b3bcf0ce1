"""Small names that launch scripts import."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from monarch.spmd import addresses
from monarch.tools import commands, debug_env
from monarch.tools.config import Config
from monarch.tools.config.environment import CondaEnvironment
from monarch.tools.mesh_spec import JobState, MeshSpec, ServerSpec, mesh_spec_from_str
from monarch.tools.network import AddrType, get_ipaddr, get_sockaddr
from monarch.tools.utils import MONARCH_HOME, conda
from tests.support.tiers import full


def resolver(*known: str) -> Any:
    def getaddrinfo(host: str, port: object, family: int, kind: int) -> list[Any]:
        found = []
        for address in known:
            its = socket.AF_INET6 if ":" in address else socket.AF_INET
            if family in (socket.AF_UNSPEC, its):
                found.append((its, kind, 6, "", (address, port)))
        if not found:
            raise socket.gaierror(-2, "Name or service not known")
        return found

    return getaddrinfo


def test_ipv6_is_preferred_and_link_local_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses.socket, "getaddrinfo", resolver("10.0.0.7", "fe80::1%eth0", "fd00::7"))
    assert get_ipaddr("node", 80) == "fd00::7"
    assert get_sockaddr("node", 80) == "[fd00::7]:80"
    assert get_sockaddr("node", 80, AddrType.IPv4) == "10.0.0.7:80"
    monkeypatch.setattr(addresses.socket, "getaddrinfo", resolver("10.0.0.7", "fe80::1"))
    assert get_ipaddr("node", 80) == "10.0.0.7"
    with pytest.raises(RuntimeError, match="node has no address that other hosts can dial"):
        get_ipaddr("node", 80, AddrType.IPv6)
    monkeypatch.setattr(addresses.socket, "getaddrinfo", resolver())
    with pytest.raises(RuntimeError, match="not known: node"):
        get_ipaddr("node", 80)


def test_ipv4_is_asked_for_where_ipv6_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def getaddrinfo(host: str, port: object, family: int, kind: int) -> list[Any]:
        asked.append(family)
        return resolver("10.0.0.7")(host, port, family, kind)  # type: ignore[no-any-return]

    monkeypatch.setattr(addresses.socket, "getaddrinfo", getaddrinfo)
    assert get_ipaddr("node") == "10.0.0.7" and asked == [socket.AF_INET6, socket.AF_INET]


def test_folders_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MONARCH_HOME", str(tmp_path / "home"))
    assert MONARCH_HOME() == tmp_path / "home"
    folder = MONARCH_HOME("cache", "one")
    assert folder == tmp_path / "home" / "cache" / "one" and folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv("MONARCH_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert MONARCH_HOME("x") == tmp_path / ".monarch" / "x"


def test_the_conda_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    assert conda.active_env_dir() is None and conda.active_env_name() is None
    environment = CondaEnvironment()
    with pytest.raises(AssertionError, match="no conda environment is active"):
        _ = environment.conda_prefix
    monkeypatch.setenv("CONDA_PREFIX", "/opt/conda/envs/rl")
    assert (environment.conda_prefix, conda.active_env_name()) == ("/opt/conda/envs/rl", "rl")
    assert CondaEnvironment("/given").conda_prefix == "/given"


def test_meshes_of_older_launch_scripts() -> None:
    mesh = mesh_spec_from_str("trainers:4:gpu.large")
    assert (mesh.name, mesh.num_hosts, mesh.host_type) == ("trainers", 4, "gpu.large")
    mesh = MeshSpec("t", 2, hostnames=["a", "b"])
    assert mesh.server_addrs() == ["tcp://a:26600", "tcp://b:26600"]
    assert mesh.server_addrs("tls", 7) == ["tls://a:7", "tls://b:7"]
    server = ServerSpec("s", "slurm", JobState.RUNNING, [mesh])
    assert server.is_running and server.get_mesh_spec("t") is mesh
    with pytest.raises(ValueError, match=r"Mesh 'x' not found in job: s. Available: t"):
        server.get_mesh_spec("x")


@pytest.mark.parametrize("text", ["", "a", "a:b", "a:0:c", "a:-1:c", ":1:c", "a:1:", "a:1:b:c"])
def test_what_is_no_mesh(text: str) -> None:
    with pytest.raises(ValueError, match=r"trainers:4:gpu.large|1 or more"):
        mesh_spec_from_str(text)


def test_the_debugger_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOST", "PORT", "PROTOCOL"):
        monkeypatch.delenv(f"MONARCH_DEBUG_SERVER_{name}", raising=False)
    found = (
        debug_env.get_debug_server_host(), debug_env.get_debug_server_port(), debug_env.get_debug_server_protocol()
    )  # fmt: skip
    assert found == ("localhost", 27000, "tcp")
    monkeypatch.setenv("MONARCH_DEBUG_SERVER_PORT", "70000")
    with pytest.raises(ValueError, match="is a port from 0 to 65535, got '70000'"):
        debug_env.get_debug_server_port()


def test_servers_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    appdef = ServerSpec("s", "process", meshes=[MeshSpec("a", 2), MeshSpec("b", 1)])
    assert commands.create(Config(appdef=appdef, dryrun=True), "s") == "process:///s"
    assert commands.info("process:///s") is None and list(tmp_path.iterdir()) == []
    commands.kill("process:///s")
    with pytest.raises(ValueError, match="has no roles"):
        commands.create(Config())
    with pytest.raises(ValueError, match="'lsf' is not a scheduler that is known"):
        commands.create(Config("lsf", appdef=appdef))
    with pytest.raises(ValueError, match="SCHEDULER:///NAME, got 's'"):
        commands.info("s")


@full
@pytest.mark.procs
def test_a_server_of_an_older_launch_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = Config(appdef=ServerSpec("s", "process", meshes=[MeshSpec("a", 2), MeshSpec("b", 1)]))
    try:
        found = asyncio.run(commands.get_or_create("s", config, 0.05))
        assert found.is_running and [(mesh.name, mesh.num_hosts) for mesh in found.meshes] == [("a", 2), ("b", 1)]
        assert asyncio.run(commands.get_or_create("s", config)) == found
    finally:
        commands.kill("process:///s")
    assert commands.info("process:///s") is None
