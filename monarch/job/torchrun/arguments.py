"""The arguments of torchrun, with torchrun's names, short forms, variables (PET_NNODES, ...) and defaults. Pure; torch is not
needed."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from monarch._text import bracketed
from monarch.config import settings
from monarch.config.units import parse_duration
from monarch.job.commands.command_plan import PYTHON
from monarch.job.torchrun import meeting
from monarch.job.torchrun.meeting import MeetingPlace
from monarch.job.torchrun.numa_binding import MODES

# For commands that are started once on every node, to find each other. Where a job has the hosts they mean nothing.
OF_MEETINGS = ("rdzv_backend", "rdzv_endpoint", "rdzv_conf", "local_addr", "node_rank")
# For agents of torchrun, to watch their workers.
WITHOUT_MEANING = ("monitor_interval", "start_method")
NOT_THERE = ("logs_specs",)
_RUN_PATH = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


class RankStreams(msgspec.Struct, frozen=True):
    """Streams that are meant, by local rank: 0 none, 1 stdout, 2 stderr, 3 both."""

    default: int
    ranks: dict[int, int]

    def of(self, local_rank: int, stream: int) -> bool:
        return bool(self.ranks.get(local_rank, self.default) & stream)

    @property
    def any(self) -> bool:
        return bool(self.default) or any(self.ranks.values())


class TorchrunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that were given. `nodes`: least and most hosts, None for as many as there are; `per_node`: a number, or
    auto, cpu, gpu; `command`: what each rank executes, PYTHON for the interpreter; `filters`: words of stdout and of stderr
    whose lines are duplicated; `numa_binding`: which processors each rank gets, "" for all; `meeting`: where commands that
    are started on every node meet, None for a single one; `suspect_timeout`: seconds that a rank may be stopped, 0 for ever;
    `lonely_endpoint`: where they would, with more than one; `unused`: given and without meaning, `unused_with_job`: where a
    job has the hosts."""

    nodes: tuple[int, int] | None
    per_node: str
    command: list[str]
    name: str
    run_id: str | None
    role: str
    max_restarts: int
    log_dir: str | None
    redirects: RankStreams
    tee: RankStreams
    filters: tuple[list[str], list[str]]
    shown: frozenset[int] | None
    virtual_local_rank: bool
    numa_binding: str
    event_log_handler: str
    master_addr: str | None
    master_port: int | None
    signals: list[int]
    grace: float
    suspect_timeout: float
    meeting: MeetingPlace | None
    lonely_endpoint: str
    unused: list[str]
    unused_with_job: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """torchrun's arguments; those of the script come behind its name."""

    def add(*names: str, **settings: Any) -> None:
        dest = parser.add_argument(*names, **settings).dest
        for name in names:
            if "-" in name[2:]:  # torchrun's other spelling, which help need not repeat
                hidden = {**settings, "dest": dest, "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
                parser.add_argument(f"--{name[2:].replace('-', '_')}", **hidden)

    add("--nnodes", metavar="N|MIN:MAX", help="how many hosts (default: one here, all hosts of a job)")
    add("--nproc-per-node", metavar="N|auto|gpu|cpu", help="how many ranks on each (default: 1)")
    add("--max-restarts", type=int, metavar="N", help="how often all ranks begin anew when one failed (default: 0)")
    add("--role", help="what the ranks are called in prefixes and ROLE_NAME (default: default)")
    add("-m", "--module", action="store_true", help="the script is a module, as in python -m")
    add("--no-python", action="store_true", help="the script is a program of its own")
    add("--run-path", action="store_true", help="run the script with runpy.run_path")
    add("--log-dir", metavar="DIR", help="where --redirects and --tee write, on each host (default: a new folder)")
    add(
        "-r",
        "--redirects",
        metavar="WHICH",
        help="into files only: 0 none, 1 stdout, 2 stderr, 3 both; or 0:1,1:3 by local rank",
    )
    add("-t", "--tee", metavar="WHICH", help="into files and, with a prefix, here; as --redirects")
    add("--local-ranks-filter", metavar="0,1", help="show only what these local ranks print")
    add("--master-addr", metavar="HOST", help="MASTER_ADDR (default: the address of the first host)")
    add("--master-port", type=int, metavar="PORT", help="MASTER_PORT (default: a free one; with --master-addr 29500)")
    add("--rdzv-id", metavar="ID", help="the name of this run (default: a new one)")
    add(
        "--signals-to-handle",
        metavar="NAMES",
        help="signals that are passed on (default: SIGTERM,SIGINT,SIGHUP,SIGQUIT)",
    )
    add("--shutdown-timeout", type=float, metavar="SECONDS", help="between SIGTERM and SIGKILL (default: 30)")
    parser.add_argument(
        "--suspect-timeout",
        metavar="TIME",
        help="a rank that is stopped (SIGSTOP) for so long is killed and has failed; 0s: never (default: the setting, 5m)",
    )
    add("--standalone", action="store_true", help="one host")
    add("--rdzv-endpoint", metavar="HOST:PORT", help="where commands that are started once on every node meet")
    add("--node-rank", metavar="N", help="which node this is, of commands that meet (default: as they come)")
    for name in (*OF_MEETINGS, *WITHOUT_MEANING, *NOT_THERE):
        if name in ("rdzv_endpoint", "node_rank"):
            continue
        parser.add_argument(f"--{name.replace('_', '-')}", f"--{name}", help=argparse.SUPPRESS)
    add("--virtual-local-rank", action="store_true", help="each rank sees its own device alone, and LOCAL_RANK is 0")
    add(
        "--numa-binding",
        metavar="MODE",
        help=f"bind each rank to processors near its device: {', '.join(MODES)}",
    )
    add("--event-log-handler", metavar="NAME", help="show events of the run, as JSON: console, null (default: null)")
    for stream in ("stdout", "stderr"):
        add(
            f"--duplicate-{stream}-filters",
            metavar="WORD,WORD",
            help=f"lines of --tee with one of these also go into filtered_{stream}.log (a comma of a word: ,,)",
        )
    parser.add_argument("training_script", metavar="SCRIPT", help="what every rank runs")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER, metavar="ARG", help="its arguments")


def options(given: argparse.Namespace, environment: Mapping[str, str]) -> TorchrunOptions:
    """ValueError, in words for the command line, for what does not fit."""

    def value(name: str, default: Any, kind: Any = str) -> Any:
        found = getattr(given, name)
        if found is None or found is False:
            text = environment.get(f"PET_{name.upper()}")
            if text is None:
                return default
            found = text in ("1", "true", "True") if kind is bool else _number(name, text, kind)
        return found

    for name in NOT_THERE:
        if value(name, None):
            raise ValueError(f"{_option(name)} is not there in monarch run: leave it out")
    numa_binding = value("numa_binding", "")
    if numa_binding and numa_binding not in MODES:
        raise ValueError(f"--numa-binding is one of {', '.join(MODES)}; got {numa_binding!r}")
    restarts = value("max_restarts", 0, int)
    if restarts < 0:
        raise ValueError(f"--max-restarts is 0 or more, got {restarts}")
    grace = value("shutdown_timeout", float(environment.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", 30)), float)
    shown = value("local_ranks_filter", "")
    address = value("master_addr", None)
    nnodes = value("nnodes", None)
    hosts = (1, 1) if value("standalone", False, bool) else None if nnodes is None else nodes(nnodes)
    script, arguments = given.training_script, list(given.training_script_args)
    module, no_python = value("module", False, bool), value("no_python", False, bool)
    if module and no_python:
        raise ValueError("--module and --no-python exclude each other: a module is run by Python")
    return TorchrunOptions(
        nodes=hosts,
        per_node=per_node(value("nproc_per_node", "1")),
        command=command(script, arguments, module, no_python, value("run_path", False, bool)),
        name=script,
        run_id=value("rdzv_id", None),
        role=value("role", "default"),
        max_restarts=restarts,
        log_dir=value("log_dir", None),
        redirects=streams(value("redirects", "0")),
        tee=streams(value("tee", "0")),
        filters=(words(value("duplicate_stdout_filters", "")), words(value("duplicate_stderr_filters", ""))),
        virtual_local_rank=value("virtual_local_rank", False, bool),
        numa_binding=numa_binding,
        event_log_handler=value("event_log_handler", "null"),
        shown=frozenset(_number("local_ranks_filter", part, int) for part in shown.split(",")) if shown else None,
        master_addr=address,
        master_port=value("master_port", 29500 if address else None, int),
        signals=signals(value("signals_to_handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT")),
        grace=grace,
        suspect_timeout=_duration("suspect_timeout", value("suspect_timeout", "")),
        meeting=_meeting(value, hosts),
        lonely_endpoint=_lonely(value("rdzv_endpoint", ""), hosts, value("standalone", False, bool)),
        unused=[_option(name) for name in WITHOUT_MEANING if getattr(given, name) is not None],
        unused_with_job=[_option(name) for name in OF_MEETINGS if getattr(given, name) is not None],
    )


def _meeting(value: Any, hosts: tuple[int, int] | None) -> MeetingPlace | None:
    """Returns where the commands of all nodes meet: at --rdzv-endpoint, else at --master-addr and --master-port as
    torchrun's of a static rendezvous do."""
    endpoint = value("rdzv_endpoint", "")
    master = value("master_addr", "")
    rank = value("node_rank", None)
    if hosts is None or hosts[1] == 1:
        if rank not in (None, "0"):
            raise ValueError(
                f"--node-rank {rank} is one of several nodes, and --nnodes says one: give --nnodes, and --rdzv-endpoint "
                f"HOST:PORT where the commands meet"
            )
        return None
    if not endpoint and master:
        endpoint = f"{bracketed(master)}:{value('master_port', 29500, int)}"
    if not endpoint:
        if rank is not None or value("rdzv_backend", None) is not None:
            raise ValueError(
                f"--nnodes {hosts[1]}: commands that are started once on every node meet at --rdzv-endpoint HOST:PORT, and "
                f"none is given; where a job has the hosts, name it with --job and start monarch run once"
            )
        return None
    return meeting.place(endpoint, value("rdzv_backend", "c10d"), value("rdzv_conf", ""), rank, value("local_addr", ""))


def _lonely(endpoint: str, hosts: tuple[int, int] | None, standalone: bool) -> str:
    """Returns the endpoint at which a command that is the only one was told to meet others; "" for this machine's own."""
    alone = hosts is None or hosts[1] == 1
    here = endpoint.startswith(("localhost", "127.", "[::1]", ":")) or endpoint.endswith(":0")
    return endpoint if alone and not standalone and not here else ""


def check_starts(options: TorchrunOptions, environment: Mapping[str, str], with_job: bool) -> None:
    """ValueError when srun has started this command several times, and each would run the whole: as many copies, of which
    none knows of the others."""
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks == "1" or "SLURM_PROCID" not in environment:
        return
    if with_job:
        raise ValueError(
            f"srun starts this command {tasks} times, and each would run on all hosts of the job: start it once, without "
            f"srun or with srun --nodes 1 --ntasks 1"
        )
    if options.meeting is None and options.nodes is not None and options.nodes[1] > 1:
        raise ValueError(
            f"srun starts this command {tasks} times, and each would run {options.nodes[1]} nodes of its own: say where "
            f"they meet, --rdzv-backend c10d --rdzv-endpoint HOST:PORT, with one command a node (srun --ntasks-per-node 1)"
        )
    if options.lonely_endpoint:
        raise ValueError(
            f"srun starts this command {tasks} times with --rdzv-endpoint {options.lonely_endpoint}, and without --nnodes "
            f"each would run alone: say --nnodes {tasks}"
        )


def nodes(text: str) -> tuple[int, int]:
    """`2` or `1:4`, as least and most."""
    parts = text.split(":")
    if not all(part.isdecimal() for part in parts) or len(parts) > 2:
        raise ValueError(f"--nnodes is a number or MIN:MAX, got {text!r}")
    least, most = int(parts[0]), int(parts[-1])
    if not 1 <= least <= most:
        raise ValueError(f"--nnodes: 1 <= MIN <= MAX, got {text!r}")
    return least, most


def per_node(text: str) -> str:
    """A number, or what is counted on the hosts."""
    if text in ("auto", "cpu", "gpu") or (text.isdecimal() and int(text) > 0):
        return text
    raise ValueError(f"--nproc-per-node is a number, auto, cpu or gpu; got {text!r}")


def streams(text: str) -> RankStreams:
    """`3`, or `0:1,1:3`: of each local rank."""
    if text.isdecimal() and int(text) <= 3:
        return RankStreams(int(text), {})
    found = {}
    for part in text.split(","):
        rank, colon, which = part.partition(":")
        if not (colon and rank.isdecimal() and which.isdecimal() and int(which) <= 3):
            raise ValueError(
                f"{text!r} says no streams: 0 none, 1 stdout, 2 stderr, 3 both, or LOCAL_RANK:WHICH,..., as in 0:1,1:3"
            )
        found[int(rank)] = int(which)
    return RankStreams(0, found)


def words(text: str) -> list[str]:
    """Reads `a,b`, where two commas are one of a word."""
    return [word.replace("\0", ",") for word in text.replace(",,", "\0").split(",") if word]


def signals(text: str) -> list[int]:
    """Reads signals by name, `SIGTERM,SIGUSR1`."""
    found = []
    for name in filter(None, (part.strip() for part in text.split(","))):
        try:
            found.append(int(signal.Signals[name]))
        except KeyError:
            raise ValueError(f"--signals-to-handle: {name!r} is not the name of a signal") from None
    return found


def command(script: str, arguments: Sequence[str], module: bool, no_python: bool, run_path: bool) -> list[str]:
    """Returns the words that each rank executes."""
    if run_path:
        return [PYTHON, "-u", "-c", _RUN_PATH, script, *arguments]
    if no_python:
        return [script, *arguments]
    return [PYTHON, "-u", *(["-m"] if module else []), script, *arguments]


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _duration(name: str, text: str) -> float:
    """Returns seconds; where there is no text, those of the setting of this name."""
    try:
        return parse_duration(text, "s") if text else float(getattr(settings, name)())
    except ValueError as exc:
        raise ValueError(f"{_option(name)} is a time such as 30s, 5m or 0s: {exc}") from None


def _number(name: str, text: str, kind: Any) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{_option(name)} is a number, got {text!r}") from None
