"""The labs themselves: what they promise to the tests that use them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import keeper
from tests.lab.site import until
from tests.lab.slurm import SlurmLab
from tests.lab.ssh import SshLab
from tests.support.patience import TIMEOUT

ROOT = Path(__file__).resolve().parents[2]


def test_a_block_in_the_hosts_file_is_put_in_once_and_taken_out_again() -> None:
    before = "127.0.0.1 localhost\n"
    one = keeper.with_block(before, "lab one", ["127.0.0.11 n1"])
    assert one == before + "# lab one begins\n127.0.0.11 n1\n# lab one ends\n"
    two = keeper.with_block(one, "lab two", ["127.0.1.11 n1"])
    assert keeper.with_block(two, "lab one", ["127.0.0.11 n1"]) != two  # moved to the end, once
    assert keeper.without_block(keeper.without_block(two, "lab one"), "lab two") == before
    assert keeper.without_block(before, "lab one") == before


@pytest.mark.lab
def test_four_nodes_are_four_names(slurm_lab: SlurmLab) -> None:
    shown = slurm_lab.run("srun", "-N4", "sh", "-c", "echo $(hostname) $(getent hosts $(hostname))")
    assert sorted(shown.split("\n")[:-1]) == [f"{node.name} {node.address} {node.name}" for node in slurm_lab.nodes]


@pytest.mark.lab
def test_a_killed_node_is_seen_as_down_and_comes_back(slurm_lab: SlurmLab) -> None:
    node = slurm_lab.nodes[1]
    node.kill_processes()
    assert node.processes() == {}
    slurm_lab.reset()
    assert slurm_lab.states()[node.name] == "idle"


@pytest.mark.lab
def test_hosts_are_reached_by_name(ssh_lab: SshLab) -> None:
    for host in ssh_lab.hosts:
        ran = subprocess.run(
            ["ssh", host.name, "hostname"], capture_output=True, text=True, timeout=TIMEOUT, check=True
        )
        assert ran.stdout.strip() == host.name
    until(lambda: ssh_lab.processes() == {}, "the ends of the sessions")


@pytest.mark.lab
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "killed"])
def test_a_lab_by_hand_leaves_nothing(slurm_lab: SlurmLab, number: signal.Signals) -> None:
    """Makes another, which stands beside the one of this session, with names and addresses of its own."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.lab", "slurm"], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as lab:
        assert lab.stdout is not None
        shown = ""
        while "until Ctrl-C" not in shown:
            line = lab.stdout.readline()
            assert line, shown
            shown += line
        configuration = Path(shown.split("SLURM_CONF=")[1].split()[0])
        env = os.environ | {"SLURM_CONF": str(configuration)}
        subprocess.run(
            ["sbatch", "-N2", "-o", "/dev/null", "--wrap", "sleep 1000"], env=env, check=True, stdout=subprocess.DEVNULL
        )
        number_of_lab = configuration.read_text().split("(127.0.")[1].split(".")[0]
        lab.send_signal(number)
        assert lab.wait(TIMEOUT) == (0 if number == signal.SIGINT else -signal.SIGKILL)
    until(lambda: not configuration.parent.exists(), "the end of the lab's folder")
    assert f"pymonarch-lab-slurm-{number_of_lab} " not in Path(keeper.HOSTS_FILE).read_text()
    assert str(configuration) not in _command_lines()


def _command_lines() -> str:
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lines.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                pass
    return "\n".join(lines)
