"""`monarch run`, started by srun once on every node, on a real Slurm: the script of docs/spmd.md."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from tests.lab.site import free_port, until
from tests.lab.slurm import SlurmLab
from tests.support.pages import blocks

pytestmark = pytest.mark.lab

ROOT = Path(__file__).resolve().parents[2]
# Collectives over the ranks of all nodes without torch, which every rank would have to import: a sum at rank 0.
TRAIN = """
import os, socket, sys
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    total = 0
    with socket.create_server(address) as listening:
        for _ in range(world - 1):
            connection, _ = listening.accept()
            total += int(connection.recv(10))
    print("sum of", world, "ranks:", total, flush=True)
else:
    while True:
        try:
            connection = socket.create_connection(address, 1)
            break
        except OSError:
            pass
    connection.sendall(str(rank).encode())
print("rank", rank, "on", os.environ["SLURMD_NODENAME"], os.environ["GROUP_RANK"], os.environ["LOCAL_RANK"], flush=True)
sys.exit(5 if rank == 6 and "fail" in sys.argv else 0)
"""


def script(lab: SlurmLab, folder: Path, arguments: str = "") -> Path:
    """Writes the page's script: its ports, its programs and its number of ranks are this test's, all else is the page's."""
    page = (ROOT / "docs" / "spmd.md").read_text()
    [text] = [block.text for block in blocks(page) if block.words == ["bash"] and "srun monarch run" in block.text]
    monarch = f"{shlex.quote(sys.executable)} -P -m monarch"
    wanted = [
        ("--gpus-per-node 8", "--output batch.out"),
        ("monarch secret", f"{monarch} secret"),
        ("srun monarch run", f"srun {monarch} run"),
        ("--nproc-per-node 8", "--nproc-per-node 2"),
        (":29500", f":{free_port()}"),
        ("train.py", f"train.py {arguments}"),
    ]
    for old, new in wanted:
        assert old in text, f"{old!r} is no longer in docs/spmd.md"
        text = text.replace(old, new)
    (folder / "train.py").write_text(TRAIN)
    (folder / "job.sh").write_text(text)
    return folder / "job.sh"


def ran(lab: SlurmLab, job: Path) -> tuple[str, str]:
    """Returns what the batch job has printed, and how it ended."""
    submitted = lab.run("sbatch", "--parsable", str(job)).strip()
    until(lambda: not lab.queue(), "the end of the batch job")
    said = (job.parent / "batch.out").read_text()
    shown = lab.run("scontrol", "show", "job", submitted).split()
    return said, next(word for word in shown if word.startswith("ExitCode="))


def test_commands_that_srun_starts_on_four_nodes_form_one_world(slurm_lab: SlurmLab, folder: Path) -> None:
    said, status = ran(slurm_lab, script(slurm_lab, folder))
    assert status == "ExitCode=0:0", said
    assert "sum of 8 ranks: 28" in said
    found = sorted(line.split() for line in said.splitlines() if line.startswith("rank"))
    assert [[rank, *place] for _, rank, _, _, *place in found] == [
        [str(rank), str(rank // 2), str(rank % 2)] for rank in range(8)
    ]
    # Which node leads is open: each of them has the address of the endpoint here.
    nodes = [node for _, _, _, node, *_ in found]
    assert nodes[::2] == nodes[1::2] and sorted(nodes[::2]) == ["n1", "n2", "n3", "n4"]


def test_a_rank_that_fails_gives_the_batch_job_its_status(slurm_lab: SlurmLab, folder: Path) -> None:
    said, status = ran(slurm_lab, script(slurm_lab, folder, "fail"))
    assert status == "ExitCode=5:0", said
    assert "rank 6 ended with status 5" in said
