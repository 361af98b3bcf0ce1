"""The places where the package opens, makes, loads, imports or runs something by a name: what a stranger might have put
under that name would be taken, written through or run.

A place is `file: function: call`. What the source itself names of the kernel (/proc, /sys, a number, os.devnull) is no place,
and neither is a descriptor that monarch/_linux/private_files.py has just opened, an entry of a folder that is open already
(dir_fd), or a program that is this interpreter or is named in the source.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ELSEWHERE = ("_linux/private_files.py", "_linux/procfs.py")  # where it is decided, and what names nothing but /proc

CALLS = {
    "": {"open", "exec", "eval", "__import__"},
    "builtins": {"open", "exec", "eval"},
    "os": {
        "open",
        "truncate",
        "fdopen",
        "mkdir",
        "makedirs",
        "mkfifo",
        "symlink",
        "link",
        "rename",
        "replace",
        "chmod",
        "chown",
        "system",
        "popen",
        "execv",
        "execve",
        "execvp",
        "execvpe",
        "posix_spawn",
        "posix_spawnp",
    },
    "subprocess": {"run", "Popen", "call", "check_call", "check_output", "getoutput"},
    "io": {"open", "open_code", "FileIO"},
    "codecs": {"open"},
    "pickle": {"load", "loads", "Unpickler"},
    "cloudpickle": {"load", "loads"},
    "marshal": {"load", "loads"},
    "dill": {"load", "loads"},
    "joblib": {"load", "dump"},
    "torch": {"load", "save"},
    "torch.jit": {"load"},
    "safetensors.torch": {"load_file", "save_file"},
    "yaml": {"load"},
    "runpy": {"run_path", "run_module"},
    "importlib": {"import_module", "reload"},
    "importlib.util": {"spec_from_file_location"},
    "importlib.machinery": {"SourceFileLoader", "SourcelessFileLoader", "ExtensionFileLoader", "PathFinder"},
    "zipimport": {"zipimporter"},
    "pkgutil": {"get_data"},
    "site": {"addsitedir"},
    "ctypes": {"CDLL", "PyDLL"},
    "ctypes.cdll": {"LoadLibrary"},
    "sqlite3": {"connect"},
    "shelve": {"open"},
    "tarfile": {"open"},
    "zipfile": {"ZipFile"},
    "gzip": {"open"},
    "bz2": {"open"},
    "lzma": {"open"},
    "dbm": {"open"},
    "numpy": {"load", "fromfile", "memmap", "loadtxt", "genfromtxt", "save", "savez", "savez_compressed", "savetxt"},
    "numpy.lib.format": {"open_memmap"},
    "pandas": {"read_pickle", "read_csv", "read_json", "read_parquet"},
    "pyarrow.parquet": {"read_table", "write_table"},
    "duckdb": {"connect"},
    "linecache": {"getline", "getlines"},
    "logging": {"FileHandler"},
    "logging.config": {"fileConfig"},
    "logging.handlers": {"RotatingFileHandler", "TimedRotatingFileHandler", "WatchedFileHandler"},
    "shutil": {"copy", "copy2", "copyfile", "copytree", "move", "rmtree", "unpack_archive", "make_archive"},
}
METHODS = {"read_text", "read_bytes", "write_text", "write_bytes", "read_history_file", "write_history_file"}
METHODS |= {"load_cert_chain", "load_verify_locations", "touch", "mkdir", "symlink_to", "hardlink_to"}
KERNEL = ("/proc/", "/sys/", "/dev/null")
# They look up a plain name where modules and libraries are, not in the working directory.
FIND = {"__import__", "importlib.import_module", "runpy.run_module", "ctypes.CDLL", "ctypes.PyDLL"}
MODES = set("rwaxbt+")


# Why a name is taken as it is. This table only shrinks: what is converted goes from it.
PLACES: dict[str, tuple[str, ...]] = {
    "/proc, /sys and /dev: the kernel's": (
        "_devices/cards.py: _amd_card: .read_text",
        "_devices/cards.py: _made_by: .read_text",
        "_devices/cards.py: _nvidia_cards: .read_text",
        "_devices/measures.py: _read: open",
        "_devices/vendors.py: _mapped: open",
        "_linux/loopback_peer.py: _user_by_table: open",
        "_mesh/agent/oom.py: _open_log: os.open",
        "_mesh/agent/oom.py: _read: open",
        "_mesh/inspection/host_usage.py: _memory_of_group: open",
        "_mesh/start/launch.py: bound_to: open",
        "_mesh/start/threads.py: _read: open",
        "rdma/backends/ibverbs/devices.py: _capable: .read_text",
        "_linux/processors.py: _text: .read_text",
        "rdma/backends/ibverbs/sysfs.py: _text: .read_text",
        "rdma/backends/owner_view.py: let_peers_read: open",
        "remotemount/fuse_process.py: obstacle: os.open",
    ),
    "a descriptor that this process was given, or has opened before": (
        "_mesh/process/child.py: main: open",
        "_mesh/workspace/receiver.py: Receiver._read: open",
        "_wire/transport/tls.py: context: .load_cert_chain",
        "_wire/transport/tls.py: context: .load_verify_locations",
        "job/slurm/slurm_commands.py: run_detached: open",
        "job/ssh/job.py: LoginJob._start: open",
        "remotemount/gather_pull.py: Pull._begins_equal: open",
        "remotemount/gather_pull.py: _noted: open",
        "tensor/worker/checkpoint.py: _writer.new_file: open",
    ),
    "bytes that came over an authenticated connection, or were made in this process": (
        "tensor/remote/checkpoint.py: _saved: torch.save",
        "tensor/worker/checkpoint.py: _Data.value: torch.save",
        "_wire/unpickling.py: loads: pickle.loads",
        "job/job_trait.py: job_loads: pickle.loads",
        "tensor/failures.py: _original: pickle.loads",
        "tensor/signature.py: runner: eval",
        "tensor/worker/checkpoint.py: _unpickled: torch.load",
        "tensor/worker/executor.py: _pickled: pickle.loads",
        "tensor/worker/recorded.py: RecordedSegment.prepare: exec",
    ),
    "bytes of a file that private_files has opened": (
        "tensor/worker/checkpoint.py: _Into.load_bytes: torch.load",
        "job/cache.py: read: pickle.loads",
        "replay/replaying.py: _Replay._prepared: pickle.loads",
    ),
    "a module of this package or of what is installed, found as every import is": (
        "__init__.py: __getattr__: importlib.import_module",
        "_devices/vendors.py: _version_file: importlib.util.spec_from_file_location",
        "_older_paths/_alias_modules.py: names_of.get: importlib.import_module",
        "actor/__init__.py: __getattr__: importlib.import_module",
        "job/schedulers.py: job_of: importlib.import_module",
        "rdma/backends/nixl/nixl_agent.py: _module: importlib.import_module",
        "tensor/__init__.py: __getattr__: importlib.import_module",
        "tools/completers.py: within: importlib.import_module",
    ),
    "a module that the program itself has imported, named over an authenticated connection": (
        "_mesh/workspace/reload.py: Reloader.reload: importlib.reload",
        "_mesh/start/forkserver.py: _become: importlib.import_module",
        "_mesh/start/forkserver.py: _import: importlib.import_module",
        "_wire/unpickling.py: _subimport: importlib.import_module",
        "_wire/unpickling.py: import_packages: importlib.import_module",
        "tensor/functions.py: Named.resolve: importlib.import_module",
    ),
    "a library or a file of a module that this process has loaded": (
        "_devices/cards.py: _nvml_uuids: ctypes.CDLL",
        "_devices/vendors.py: _driver: ctypes.CDLL",
        "_devices/vendors.py: _hsa_dma_buf: ctypes.CDLL",
        "_mesh/start/threads.py: _setters_of_openblas: ctypes.CDLL",
        "_mesh/workspace/reload.py: _imports: open",
        "dashboard/routes/page_routes.py: _file: .read_bytes",
        "replay/environment.py: sources: open",
    ),
    "in the folder of a run or helper, 0700, which private_files has made or checked": (
        "_linux/locked_folder.py: remove: shutil.rmtree",
        "_mesh/start/run_directory.py: _make: os.mkdir",
        "_mesh/start/run_directory.py: remove_with_run: os.makedirs",
        "_mesh/start/run_directory.py: remove_with_run: os.symlink",
        "job/process.py: ProcessJob._cancel: shutil.rmtree",
        "job/ssh/job.py: LoginJob._cancel: shutil.rmtree",
        "_mesh/inspection/fault_signal.py: Signalled.__init__: open",
        "_mesh/inspection/fault_signal.py: Signalled.dump: open",
        "_mesh/inspection/fault_signal.py: Signalled.dump: os.truncate",
        "_mesh/inspection/fault_signal.py: listen: os.open",
        "_mesh/inspection/fault_signal.py: pid_of: open",
        "_mesh/start/run_directory.py: _lock_of_dead: os.open",
        "debugger/prompt.py: Prompt._line_editor: .write_history_file",
        "replay/actor_recorder.py: RecordingWriter.__init__: os.open",
    ),
    "below a folder that is walked by descriptors, without a link": (
        "_mesh/workspace/confined_folder.py: ConfinedFolder.__init__: os.open",
    ),
    "a database that store.own_file or dashboard_server.check_own has looked at, in a folder where nobody else writes": (
        "telemetry/keeper_process.py: KeeperProcess.open: duckdb.connect",
    ),
    "lines of the source of code that the job runs, which are shown": (
        "_mesh/failures/stacks.py: formatted: linecache.getline",
        "debugger/sources.py: FetchedSources.provide: linecache.getlines",
        "debugger/sources.py: find: linecache.getlines",
        "tensor/controller/issued.py: CommandStacks.frames: linecache.getline",
    ),
    "a new file or folder with a name that nobody can know before, for this user alone": (
        "_mesh/inspection/torch_profile.py: take: open",
        "_mesh/inspection/torch_profile.py: take: tempfile.mkstemp",
        "dashboard/pages/profiles.py: TraceFiles._run: os.open",
        "dashboard/pages/profiles.py: TraceFiles._run: tempfile.TemporaryDirectory",
        "job/local.py: LocalJob._create: os.open",
        "job/local.py: LocalJob._create: tempfile.mkdtemp",
        "job/process.py: ProcessJob._start: open",
        "job/process.py: ProcessJob._submit: tempfile.mkdtemp",
        "job/ssh/job.py: LoginJob._start: os.open",
        "job/ssh/job.py: LoginJob._submit: tempfile.mkdtemp",
        "job/torchrun/once_a_node.py: _OwnWorker.__init__: tempfile.TemporaryFile",
        "remotemount/fuse_process.py: FuseProcess.__init__: tempfile.TemporaryFile",
        "remotemount/mirror.py: _look: os.open",
        "remotemount/source.py: MountSource._look: os.open",
        "tensor/remote/profiling.py: begin.write: open",
        "tensor/remote/profiling.py: begin.write: tempfile.TemporaryDirectory",
        "tensor/simulator/simulator.py: Simulator.display: .read_text",
        "tensor/simulator/simulator.py: Simulator.display: tempfile.TemporaryDirectory",
    ),
    "the name of the temporary folder only, which is checked when something is made there": (
        "_mesh/start/run_directory.py: base_directory: tempfile.gettempdir",
        "job/torchrun/run.py: HostProbe.temporary: tempfile.gettempdir",
        "replay/selection.py: default_folder: tempfile.gettempdir",
    ),
    "what the user names to be run: he asks for it, as with python FILE": (
        "_mesh/agent/host_agent.py: HostAgent._execute: subprocess.Popen",
        "job/commands/command_actor.py: CommandActor._start_child: subprocess.Popen",
        "job/slurm/batch.py: main: subprocess.Popen",
        "job/slurm/batch.py: main: subprocess.run",
        "job/modules.py: load: importlib.import_module",
        "replay/replaying.py: _Replay._other_class: importlib.import_module",
        "replay/replaying.py: _open: open",
        "spmd/main_program.py: run_main: runpy.run_module",
        "spmd/main_program.py: run_main: runpy.run_path",
        "tools/verbs/exec_verb.py: command_of: open",
    ),
    "in a folder that private_files has made or checked just before": (
        "_mesh/output/rank_files.py: RankFile.write: os.replace",
        "_mesh/start/run_directory.py: _remove_outside: shutil.rmtree",
        "job/contexts.py: _keep_plain_file: os.replace",
        "job/contexts.py: remove: shutil.rmtree",
        "job/contexts.py: use: .symlink_to",
        "job/contexts.py: use: os.replace",
        "remotemount/fuse_process.py: _make_folder: os.mkdir",
        "remotemount/mirror_host.py: MirrorHost.lock: os.mkdir",
        "trace/local_sink.py: execution_folder: os.replace",
        "trace/local_sink.py: execution_folder: os.symlink",
    ),
    "a folder that the user names: what is written into it goes through private_files, or is the scheduler's": (
        "job/slurm/job.py: SlurmJob._request: .mkdir",
        "tensor/remote/memory_history.py: dump: os.makedirs",
        "tensor/remote/profiling.py: begin.write: os.makedirs",
        "tensor/worker/checkpoint.py: _write: os.makedirs",
    ),
    "this interpreter, behind the words of a launch": (
        "job/process.py: ProcessJob._start: subprocess.Popen",
        "job/ray/ray_host.py: RayHost.__init__: subprocess.Popen",
        "job/worker_launch.py: start_beside: subprocess.Popen",
    ),
    "a program of the system that the PATH has, which is the user's own": (
        "_mesh/inspection/agent_stacks.py: _dump: subprocess.Popen",
        "job/slurm/slurm_commands.py: _run: subprocess.Popen",
        "job/slurm/slurm_commands.py: run_detached: subprocess.Popen",
        "job/ssh/job.py: _popen: subprocess.Popen",
        "remotemount/fuse_process.py: clear_stale: subprocess.run",
        "remotemount/fuse_program.py: FuseProgram._unmount: subprocess.run",
        "tensor/simulator/simulator.py: Simulator.display: subprocess.run",
    ),
    "a plugin that a kubeconfig names, which private_files has opened": (
        "job/kubernetes/kube_config.py: run_plugin: subprocess.run",
    ),
    "a file that the user names to be read as data: nothing in it is run": (
        "_mesh/workspace/conda.py: _is_script: open",
        "_mesh/workspace/conda.py: _noted: open",
        "_mesh/workspace/sender.py: SourceFolder.open: open",
        "admin/screen/sources.py: HttpSource.__init__: .load_cert_chain",
        "debugger/prompt.py: Prompt._line_editor: .read_history_file",
        "remotemount/gather_host.py: GatherHost._open: os.open",
        "remotemount/source.py: MountSource._block: open",
        "replay/replaying.py: _Replay._source: .read_text",
        "tensor/simulator/ir.py: IRGraph.import_timing: .read_text",
        "tools/verbs/query_verb.py: statement: open",
    ),
}


def places(package: Path) -> set[str]:
    """Returns all that there are."""
    found = set()
    for path in sorted(package.rglob("*.py")):
        name = str(path.relative_to(package))
        if name not in ELSEWHERE:
            found |= {f"{name}: {place}" for place in places_in(path.read_text())}
    return found


def places_in(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    names = _imported(tree)

    def walk(node: ast.AST, inside: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            scoped = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            within = f"{inside}.{child.name}".strip(".") if scoped else inside  # type: ignore[attr-defined]
            if isinstance(child, ast.Call) and (call := _called(child, names)):
                yield f"{inside or 'module'}: {call}"
            yield from walk(child, within)

    yield from walk(tree, "")


def _imported(tree: ast.AST) -> dict[str, str]:
    """Returns what the names that are imported mean."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def _called(call: ast.Call, names: dict[str, str]) -> str:
    """Returns what is called, if that goes by a name that somebody might have taken."""
    dotted = _dotted(call.func, names)
    module, _, name = dotted.rpartition(".")
    known = module == "tempfile" or name in CALLS.get(module, ())
    if isinstance(call.func, ast.Attribute) and not known:
        if call.func.attr in METHODS:
            return f".{call.func.attr}"
        if call.func.attr == "open" and (_has_mode(call) or _is_path(call.func.value, names)):
            return ".open"
    if not known or any(keyword.arg in ("dir_fd", "dst_dir_fd") for keyword in call.keywords):
        return ""
    first = call.args[0] if call.args else None
    if isinstance(first, ast.Constant) and isinstance(first.value, str) and dotted in FIND and "/" not in first.value:
        return ""
    return "" if first is not None and _is_safe(first, names) else dotted


def _is_path(node: ast.expr, names: dict[str, str]) -> bool:
    """True for what is plainly a path, whose `open` needs no word of how."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Div)
    return isinstance(node, ast.Call) and _dotted(node.func, names) in ("Path", "pathlib.Path")


def _has_mode(call: ast.Call) -> bool:
    """True for an `open` that is told how, as that of a path is, and not what."""
    first = call.args[0] if call.args else None
    if any(keyword.arg in ("mode", "encoding", "buffering") for keyword in call.keywords):
        return True
    return isinstance(first, ast.Constant) and isinstance(first.value, str) and set(first.value) <= MODES


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    match node:
        case ast.Name(id=name):
            return names.get(name, name)
        case ast.Attribute(value=value, attr=attr):
            owner = _dotted(value, names)
            return f"{owner}.{attr}" if owner else ""
    return ""


def _is_safe(node: ast.expr, names: dict[str, str]) -> bool:
    match node:
        case ast.Constant(value=str(text)):
            return text.startswith(KERNEL)
        case ast.Constant():
            return True
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
            return text.startswith((*KERNEL, "monarch."))
        case ast.Call(func=func):
            return _dotted(func, names).startswith("monarch._linux.private_files.")
        case ast.List(elts=[ast.Constant(value=str()), *_]):  # of a program
            return True
        case ast.List(elts=[ast.Attribute() as program, *_]):
            return _dotted(program, names) == "sys.executable"
    return _dotted(node, names) in ("os.devnull", "sys.executable")
