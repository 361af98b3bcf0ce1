"""A Slurm of four nodes on this machine: slurmctld, a slurmd a node, and a munged with a key that is thrown away.

    with SlurmLab() as lab:
        subprocess.run(["sbatch", "-N2", ...], env=lab.env)

Not there: accounts and QOS, limits of memory and devices, a file system for each node.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Sequence
from types import TracebackType

from tests.lab import site
from tests.lab.machine import Machine
from tests.lab.site import LabError, Site, find, free_port, until

NODES = 4
PARTITION = "lab"
DOWN_PARTITION = "down"  # takes jobs and never starts them

PROGRAMS = {
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "sbatch": "slurm-wlm",
    "munged": "munge",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}

_CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={controller}({controller_address})
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={munge}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,batch_sched_delay=0,bf_interval=2
SwitchType=switch/none
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=15
InactiveLimit=0
KillWait=5
MinJobAge=60
Waittime=0
{nodes}
PartitionName={partition} Nodes={names} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
PartitionName={half} Nodes={half_names} MaxTime=INFINITE State=UP OverSubscribe=NO
PartitionName={down} Nodes={names} MaxTime=INFINITE State=DOWN
"""


def why_not() -> str | None:
    return site.why_not(PROGRAMS)


class SlurmLab:
    """Up when made. `env` is the environment in which sbatch and the others reach it."""

    partition = PARTITION
    half_partition = "half"  # the last two nodes only
    down_partition = DOWN_PARTITION

    def __init__(self, nodes: int = NODES) -> None:
        self.site = Site("slurm")
        try:
            self._build(nodes)
        except BaseException:
            self.site.close()
            raise

    def _build(self, nodes: int) -> None:
        folder = self.site.folder
        self._controller = self.site.machine("slurmctl", 10)
        # n1 is 127.0.0.11, n16 is 127.0.0.116.
        self.nodes: list[Machine] = [
            self.site.machine(f"n{number}", int(f"1{number}")) for number in range(1, nodes + 1)
        ]
        self.site.publish()
        self._munge = str(folder / "munge.sock")
        names = ",".join(node.name for node in self.nodes)
        lines = [
            f"NodeName={node.name} NodeHostname={node.name} NodeAddr={node.address} Port={free_port()} "
            "CPUs=4 RealMemory=1000 State=UNKNOWN"
            for node in self.nodes
        ]
        configuration = folder / "slurm.conf"
        configuration.write_text(
            _CONFIGURATION.format(
                controller=self._controller.name,
                controller_address=self._controller.address,
                controller_port=free_port(),
                munge=self._munge,
                folder=folder,
                nodes="\n".join(lines),
                names=names,
                half_names=",".join(node.name for node in self.nodes[len(self.nodes) // 2 :]),
                partition=self.partition,
                half=self.half_partition,
                down=self.down_partition,
            )
        )
        # Slurm's own plugin for control groups is not used, and must not look for them; how that is said has changed.
        words = "CgroupPlugin=disabled" if _release() >= (23, 11) else "CgroupAutomount=no"
        (folder / "cgroup.conf").write_text(f"{words}\n")
        self.variables = {"SLURM_CONF": str(configuration)}
        """What to add to an environment, so that Slurm's commands find this Slurm."""
        self._start_munge()
        self._controller.start("slurmctld", [_program("slurmctld"), "-D", "-i", "-f", str(configuration)], self.env)
        for node in self.nodes:
            self.start_node(node)
        try:
            until(lambda: set(self.states().values()) == {"idle"}, f"{nodes} idle nodes")
        except LabError as error:
            raise LabError(f"{error}\n{self.logs()}") from None

    @property
    def env(self) -> dict[str, str]:
        """This process's environment, with what leads to this Slurm and without what an outer one has set."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        return kept | self.variables

    def logs(self, lines: int = 20) -> str:
        """The last lines of each daemon's log."""
        ends = []
        for log in sorted(self.site.folder.glob("*.log")):
            ends += [f"--- {log.name}", *log.read_text(errors="replace").splitlines()[-lines:]]
        return "\n".join(ends)

    def _start_munge(self) -> None:
        folder = self.site.folder
        key = folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        command = [_program("munged"), "--foreground", "--force", f"--key-file={key}", f"--socket={self._munge}"]
        command += [
            f"--pid-file={folder}/munged.pid",
            f"--log-file={folder}/munged.log",
            f"--seed-file={folder}/munged.seed",
        ]
        self._controller.start("munged", command, self.env)
        until(lambda: os.path.exists(self._munge), f"munged's socket, see {self._controller.log('munged')}")

    # --- nodes

    def start_node(self, node: Machine) -> None:
        command = [_program("slurmd"), "-D", "-N", node.name, "-f", self.variables["SLURM_CONF"]]
        node.start("slurmd", command, self.env)

    def node(self, name: str) -> Machine:
        return next(node for node in self.nodes if node.name == name)

    def states(self) -> dict[str, str]:
        """Returns the state of each node, as sinfo says it: "idle", "alloc", "down*"."""
        shown = self.run("sinfo", "-h", "-N", "-p", self.partition, "-o", "%N %t").split()
        return dict(zip(shown[::2], shown[1::2], strict=True))

    def processes(self) -> dict[str, list[str]]:
        """Returns what jobs have running on the nodes, left-overs included: command lines by node."""
        found = {
            node.name: [line for line in node.processes().values() if not line.startswith(_program("slurmd"))]
            for node in self.nodes
        }
        return {name: lines for name, lines in found.items() if lines}

    # --- jobs

    def run(self, *command: str, check: bool = True) -> str:
        """Returns what a command of Slurm's prints."""
        ran = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=site.SECONDS, check=False)
        if check and ran.returncode:
            raise LabError(f"{' '.join(command)}: {ran.stderr.strip()}")
        return ran.stdout

    def queue(self, only: Sequence[str] = ()) -> list[str]:
        """The jobs that are waiting or running, by id."""
        chosen = ["-j", ",".join(only)] if only else []
        return self.run("squeue", "-h", "-o", "%A", *chosen, check=False).split()

    def reset(self) -> None:
        """Puts it back as it was when it was made: no jobs, no processes of theirs, four idle nodes."""
        if self.queue():
            self.run("scancel", *self.queue(), check=False)
            until(lambda: not self.queue(), "an empty queue")
        until(lambda: not self.processes(), "nodes without processes of jobs")
        for node in self.nodes:
            if not node.processes():
                self.start_node(node)
        for name, state in self.states().items():
            if state.startswith(("down", "drain", "drng")):
                self.run("scontrol", "update", f"nodename={name}", "state=resume", check=False)
        until(lambda: set(self.states().values()) == {"idle"}, "idle nodes")

    def close(self) -> None:
        self.site.close()

    def __enter__(self) -> SlurmLab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _release() -> tuple[int, ...]:
    """Returns (22, 5, 8), of "slurm-wlm 22.05.8"."""
    told = subprocess.run([_program("slurmctld"), "-V"], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, told.split()[-1].split(".")))


def _program(name: str) -> str:
    found = find(name)
    assert found is not None, name
    return found
