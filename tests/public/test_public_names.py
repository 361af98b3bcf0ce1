"""Every public name is there, importing it is cheap, and the small ones do what they say."""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from typing import Any

import pytest

# ruff: noqa: SIM905 - words in a text are easier to compare with a page of documentation than a list literal

# What programs import from `monarch.actor`, but for what several hosts and the debugger bring (README says so).
ACTOR = """
    Accumulator Actor ActorError as_endpoint Channel ChannelTransport
    concurrent_endpoint config context Context current_actor_name current_rank current_size
    default_bootstrap_cmd enable_transport endpoint Endpoint Extent Future
    get_meter get_or_spawn_controller HostMesh MeshFailure Point Port PortReceiver
    ProcId ProcMesh returns_future send shutdown_context span this_host this_proc traced Uid
    unhandled_fault_hook ValueMesh
""".split()

# What they need and did not find there.
MORE = """
    ActorMesh SupervisionError EndpointProperty UnhandledFaultError bind_context proc_mesh
    local_proc_mesh register_proc_mesh_spawn_callback unregister_proc_mesh_spawn_callback
    get_active_proc_meshes DeadlockError WaitGraph wait_graph
""".split()

TOP = """
    Extent Shape NDSlice configure configured get_global_config get_runtime_config
    clear_runtime_config
""".split()

CONFIG = """
    configure configured get_global_config get_runtime_config clear_runtime_config Encoding
    parametrize_config parametrize_config_pointwise
""".split()


# Of distributed tensors: values in and out, files, data.
STATE = "replicate shard gather DataLoaders checkpoint".split()


@pytest.mark.parametrize("name", STATE)
def test_monarch_has_for_tensors(name: str) -> None:
    pytest.importorskip("torch")
    import monarch

    assert getattr(monarch, name) is not None
    assert name in monarch.__all__


def test_checkpoint_has() -> None:
    pytest.importorskip("torch")
    from monarch import checkpoint

    assert sorted(checkpoint.__all__) == ["CheckpointError", "load", "read", "save", "save_async"]
    assert issubclass(checkpoint.CheckpointError, OSError)


@pytest.mark.parametrize("name", [*ACTOR, *MORE])
def test_monarch_actor_has(name: str) -> None:
    import monarch.actor

    assert getattr(monarch.actor, name) is not None
    assert name in monarch.actor.__all__
    assert name in dir(monarch.actor)


# Older paths, and what programs import from them.
OLDER = {
    "actor_mesh": "Accumulator Actor ActorError ActorMesh Channel Endpoint Port ValueMesh current_rank endpoint send",
    "proc_mesh": "HostMesh ProcMesh get_active_proc_meshes local_proc_mesh proc_mesh this_host this_proc",
}


@pytest.mark.parametrize("module", OLDER)
def test_an_older_path_has_the_same_names_and_says_where_they_are(module: str) -> None:
    import monarch.actor

    sys.modules.pop(f"monarch.{module}", None)
    with pytest.warns(DeprecationWarning, match="import from monarch.actor"):
        found = importlib.import_module(f"monarch.{module}")
    for name in [*OLDER[module].split(), *found.__all__]:
        assert getattr(found, name) is getattr(monarch.actor, name)


def test_what_extensions_need_is_found_where_it_once_was() -> None:
    import monarch.actor
    from monarch.actor import lowlevel

    assert not set(lowlevel.__all__) & set(monarch.actor.__all__)
    for name in lowlevel.__all__:
        assert getattr(monarch.actor, name) is getattr(lowlevel, name)


def test_a_name_that_is_not_there_is_said_before_lowlevel_is_loaded() -> None:
    """In a program of its own: nothing has imported monarch.actor.lowlevel there."""
    program = "import monarch.actor\nprint(hasattr(monarch.actor, 'no_such_name'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.parametrize("module", ["monarch.actor", "monarch.actor.lowlevel"])
def test_public_functions_are_pickled_by_their_public_module(module: str) -> None:
    public = importlib.import_module(module)
    for name in public.__all__:
        found = getattr(public, name)
        if callable(found) and getattr(found, "__qualname__", "") == name:
            assert pickle.loads(pickle.dumps(found)) is found
            assert isinstance(found, type) or b"monarch._" not in pickle.dumps(found)


@pytest.mark.parametrize("name", TOP)
def test_monarch_has(name: str) -> None:
    import monarch

    assert getattr(monarch, name) is not None
    assert name in dir(monarch)


@pytest.mark.parametrize("name", CONFIG)
def test_monarch_config_has(name: str) -> None:
    import monarch.config

    assert getattr(monarch.config, name) is not None


@pytest.mark.parametrize("module", ["monarch", "monarch.actor", "monarch.config"])
def test_every_name_a_module_lists_can_be_had(module: str) -> None:
    found = importlib.import_module(module)
    names = list(found.__all__)
    assert len(names) == len(set(names))
    for name in names:
        getattr(found, name)


def test_a_name_in_two_places_is_one_object() -> None:
    import monarch
    import monarch.actor
    import monarch.actor.concurrent
    import monarch.config

    assert monarch.Extent is monarch.actor.Extent
    assert monarch.configure is monarch.config.configure
    assert monarch.actor.concurrent.concurrent_endpoint is monarch.actor.concurrent_endpoint


@pytest.mark.parametrize("module", ["monarch", "monarch.actor"])
def test_an_unknown_name_is_an_attribute_error(module: str) -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = importlib.import_module(module).no_such_name


def test_star_import_works() -> None:
    found: dict[str, Any] = {}
    exec("from monarch.actor import *", found)
    assert {"Actor", "endpoint", "this_host"} <= set(found)


@pytest.mark.parametrize("module", ["monarch", "monarch.actor", "monarch.config"])
def test_importing_loads_neither_torch_nor_numpy_and_starts_nothing(module: str) -> None:
    code = (
        f"import sys, threading, {module}\n"
        "loaded = [name for name in ('torch', 'numpy', 'IPython') if name in sys.modules]\n"
        "print(loaded, threading.active_count())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[] 1" and done.stderr == ""


def test_the_errors_are_what_programs_catch() -> None:
    from monarch.actor import ActorError, SupervisionError, UnhandledFaultError

    assert issubclass(ActorError, Exception) and not issubclass(ActorError, RuntimeError)
    assert issubclass(SupervisionError, RuntimeError)
    assert issubclass(UnhandledFaultError, KeyboardInterrupt)


def test_an_actor_error_can_be_made_by_hand() -> None:
    from monarch.actor import ActorError

    error = ActorError(ValueError("inside"), "what failed")
    assert isinstance(error.exception, ValueError) and error.message == "what failed"
    assert str(error).startswith("what failed\n ") and "ValueError: inside" in str(error)
    assert ActorError(ValueError()).message == "A remote actor call has failed."


def test_the_switch_for_log_prefixes_is_on() -> None:
    from monarch.actor import config

    assert config.prefix_python_logs_with_actor is True


def test_the_default_fault_hook_ends_the_program() -> None:
    code = (
        "import monarch.actor\n"
        "try:\n    monarch.actor.unhandled_fault_hook(None)\n"
        "except SystemExit as exc:\n    print(exc.code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "1"


def test_the_transports() -> None:
    from monarch.actor import ChannelTransport

    for name in (
        "Unix",
        "TcpWithLocalhost",
        "TcpWithHostname",
        "MetaTlsWithHostname",
        "MetaTlsWithIpV6",
        "Tls",
        "Local",
    ):
        member = getattr(ChannelTransport, name)
        assert pickle.loads(pickle.dumps(member)) == member
    assert ChannelTransport.Unix != ChannelTransport.Local


def test_an_unknown_transport_is_refused() -> None:
    from monarch.actor import enable_transport

    with pytest.raises(ValueError, match="invalid str for BindSpec"):
        enable_transport("pigeons")


def test_a_uid_is_read_back_from_its_text() -> None:
    from monarch.actor import Uid

    for uid in (Uid.anonymous(), Uid.instance("trainer"), Uid.instance()):
        assert Uid.from_string(str(uid)) == uid and hash(Uid.from_string(str(uid))) == hash(uid)
        assert uid.is_instance and not uid.is_singleton
    assert Uid.instance("trainer").label == "trainer" and str(Uid.instance("trainer")).startswith("trainer<")
    assert Uid.instance("a") != Uid.instance("a")
    assert Uid.from_string("registry").is_singleton


def test_a_proc_id_has_a_uid() -> None:
    from monarch.actor import ProcId, Uid

    uid = Uid.instance("worker")
    proc_id = ProcId(uid)
    assert proc_id.uid == uid and proc_id.label == "worker"
    assert ProcId.from_string(str(proc_id)) == proc_id


@pytest.mark.parametrize("text", ["", "label<", "a<b>c", "<>"])
def test_a_bad_uid_is_a_value_error(text: str) -> None:
    from monarch.actor import Uid

    with pytest.raises(ValueError):
        Uid.from_string(text)


def test_telemetry_names_work_without_a_backend() -> None:
    import asyncio

    from monarch.actor import get_meter, span, traced

    with span("a step"):
        pass

    @traced
    def plain(n: int) -> int:
        """Doubles."""
        return 2 * n

    @traced(name="named")
    async def waits(n: int) -> int:
        return 3 * n

    assert plain(2) == 4 and plain.__name__ == "plain" and plain.__doc__ == "Doubles."
    assert asyncio.run(waits(2)) == 6 and waits.__name__ == "waits"
    meter = get_meter()
    meter.create_counter("calls").add(1, {"rank": 0})
    meter.create_up_down_counter("waiting").add(-1)
    meter.create_histogram("seconds").record(0.5)


def test_configured_holds_for_its_block_only() -> None:
    from monarch.config import configured, get_global_config

    before = get_global_config()["tail_log_lines"]
    with configured(tail_log_lines=before + 7) as merged:
        assert merged["tail_log_lines"] == before + 7 == get_global_config()["tail_log_lines"]
    assert get_global_config()["tail_log_lines"] == before


@pytest.mark.parametrize(
    ("settings", "kind", "text"),
    [
        ({"no_such_key": 1}, ValueError, "invalid configuration key: `no_such_key`"),
        ({"tail_log_lines": "many"}, TypeError, "tail_log_lines"),
        ({"enable_log_forwarding": 1}, TypeError, "enable_log_forwarding"),
        ({"cleanup_timeout": "soon"}, TypeError, "Invalid duration format"),
        ({"cleanup_timeout": 3}, TypeError, "cleanup_timeout"),
        ({"default_transport": 3}, TypeError, "default_transport"),
        ({"default_transport": "pigeons"}, ValueError, "pigeons"),
    ],
)
def test_a_wrong_setting_is_refused(settings: dict[str, Any], kind: type[Exception], text: str) -> None:
    from monarch.config import configure

    with pytest.raises(kind, match=text):
        configure(**settings)


@pytest.mark.parametrize(
    ("given", "kept"), [("300s", "5m"), ("90s", "1m 30s"), ("1h30m", "1h 30m"), ("250ms", "250ms")]
)
def test_durations_are_normalised(given: str, kept: str) -> None:
    from monarch.config import configured

    with configured(cleanup_timeout=given) as merged:
        assert merged["cleanup_timeout"] == kept


def test_runtime_settings_can_be_cleared() -> None:
    code = (
        "import monarch\n"
        "default = monarch.get_global_config()['tail_log_lines']\n"
        "monarch.configure(tail_log_lines=default + 1)\n"
        "assert monarch.get_runtime_config()['tail_log_lines'] == default + 1\n"
        "monarch.clear_runtime_config()\n"
        "assert monarch.get_global_config()['tail_log_lines'] == default\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_environment_sets_defaults() -> None:
    code = "import monarch; print(monarch.get_global_config()['tail_log_lines'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=os.environ | {"HYPERACTOR_MESH_TAIL_LOG_LINES": "42"},
    )
    assert done.stdout.strip() == "42"


def test_shapes_from_the_top() -> None:
    from monarch import Extent, NDSlice, Shape

    dense = NDSlice(offset=0, sizes=[2, 3], strides=[3, 1])
    assert Shape(["a", "b"], dense).extent == Extent(["a", "b"], [2, 3])
    assert list(dense) == list(range(6))


PUBLIC = ["monarch", "monarch.actor", "monarch.config", "monarch.rdma", "monarch.testing", "monarch.tensor"]


@pytest.mark.parametrize("module", PUBLIC)
def test_dir_shows_public_names_and_nothing_else(module: str) -> None:
    if module == "monarch.tensor":
        pytest.importorskip("torch")
    found = importlib.import_module(module)
    assert dir(found) == sorted(found.__all__)


JOBS = "KubernetesJob LocalJob ProcessJob RayJob SSHJob SkyPilotJob SlurmJob".split()


@pytest.mark.parametrize("name", JOBS)
def test_every_kind_of_job_is_imported_from_one_place(name: str) -> None:
    if name == "KubernetesJob":
        pytest.importorskip("kubernetes")
    assert getattr(importlib.import_module("monarch.job"), name).__name__ == name


def test_a_kind_of_job_whose_package_is_not_installed_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from monarch import job

    monkeypatch.setitem(sys.modules, "kubernetes", None)
    monkeypatch.delitem(sys.modules, "monarch.job.kubernetes", raising=False)
    monkeypatch.delitem(vars(job), "KubernetesJob", raising=False)
    with pytest.raises(RuntimeError, match=r"please install kubernetes.*pip install 'pymonarch\[kubernetes\]'"):
        from monarch.job import KubernetesJob  # noqa: F401
    exec("from monarch.job import *", {})  # asks for none of them
