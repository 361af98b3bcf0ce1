from __future__ import annotations

import ast
import asyncio
import inspect
import json
import logging
import pickle
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import monarch.config
from monarch.config import (
    BindSpec,
    ChannelTransport,
    Encoding,
    clear_runtime_config,
    configure,
    configured,
    get_global_config,
    get_runtime_config,
    parametrize_config,
    parametrize_config_pointwise,
    settings,
)
from monarch.config.layers import Layers

ALL = "All are in docs/settings.md and in monarch.get_global_config()"

# What programs may rely on; written out, so that a slip in the table shows.
DEFAULTS: dict[str, Any] = {
    "actor_spawn_max_idle": "30s",
    "channel_net_rx_buffer_full_check_interval": "5s",
    "channel_reconnect_timeout": "1m",
    "channel_tcp_congestion": "",
    "channel_tcp_keepalive_idle": "1m",
    "cleanup_timeout": "3s",
    "codec_max_frame_length": 10737418240,
    "default_encoding": Encoding.Multipart,
    "default_transport": BindSpec(ChannelTransport.Unix),
    "direct_after": 100,
    "enable_dest_actor_reordering_buffer": True,
    "enable_file_capture": False,
    "enable_log_forwarding": False,
    "stream_remote_output": True,
    "telemetry_recording": "",
    "enable_otel_metrics": True,
    "enable_otel_tracing": True,
    "enable_recorder_tracing": True,
    "enable_sqlite_tracing": False,
    "enable_unawaited_python_task_traceback": False,
    "file_log_level": "",
    "force_file_log": False,
    "forwarder_flush_timeout": "5s",
    "get_actor_state_max_idle": "30s",
    "get_proc_state_max_idle": "1m",
    "host_spawn_ready_timeout": "30s",
    "mailbox_messages": 100000,
    "max_cast_dimension_size": 16,
    "max_cast_fanout": 16,
    "max_procs": 65_536,
    "tree_casts_from": 8,
    "tree_calls_from": 32,
    "mesh_admin_addr": "127.0.0.1:1729",
    "mesh_admin_config_dump_bridge_timeout": "5s",
    "mesh_admin_max_concurrent_resolves": 2,
    "mesh_admin_pyspy_bridge_timeout": "13s",
    "mesh_admin_pyspy_client_timeout": "20s",
    "mesh_admin_pyspy_max_profile_duration": "5m",
    "mesh_admin_pyspy_timeout": "10s",
    "mesh_admin_query_child_timeout": "100ms",
    "mesh_admin_resolve_actor_timeout": "200ms",
    "mesh_admin_single_host_timeout": "3s",
    "mesh_admin_tree_timeout": "10s",
    "mesh_attach_config_timeout": "1m",
    "mesh_bootstrap_enable_pdeathsig": True,
    "mesh_orphan_timeout": "1m",
    "job_lease": "4h",
    "large_argument_bytes": 268435456,
    "worker_lease": "0s",
    "mesh_proc_spawn_max_idle": "30s",
    "mesh_terminate_concurrency": 16,
    "mesh_terminate_timeout": "10s",
    "message_ack_every_n_messages": 1000,
    "message_ack_time_interval": "500ms",
    "message_delivery_timeout": "30s",
    "message_latency_sampling_rate": 0.01,
    "message_ttl_default": 64,
    "monarch_log_suffix": "",
    "otel_metric_export_interval": "1s",
    "outgoing_queue_bytes": 67108864,
    "pending_actor_delivery_timeout": "30s",
    "prefix_with_rank": True,
    "preload": "auto",
    "proc_launcher_kind": "",
    "proc_stop_max_idle": "30s",
    "process_exit_timeout": "10s",
    "process_memory_metric_interval": "5m",
    "pyspy_bin": "",
    "rdma_allow_plain_bytes": False,
    "rdma_allow_tcp_fallback": True,
    "rdma_cq_busy_poll_window": None,
    "rdma_cq_poller_per_device": True,
    "rdma_disable_ibverbs": False,
    "rdma_nixl": False,
    "rdma_host_odp": False,
    "rdma_ib_gid_index": None,
    "rdma_ib_pkey_index": 0,
    "rdma_ib_relaxed_ordering": True,
    "rdma_ib_retry_count": 7,
    "rdma_ib_service_level": 0,
    "rdma_ib_timeout": 20,
    "rdma_ib_traffic_class": 0,
    "rdma_ibverbs_target": "",
    "rdma_max_chunk_size_mb": 64,
    "rdma_max_nics_per_buffer": None,
    "rdma_min_stripe_size_kb": 512,
    "rdma_peer_device_affinity": "",
    "rdma_qp_init_timeout": "30s",
    "rdma_qps_per_cq": 64,
    "rdma_qps_per_peer": 4,
    "rdma_runtime_worker_threads": 4,
    "rdma_tcp_fallback_parallelism": 1,
    "read_log_buffer": 100,
    "runtime_dir": "",
    "scuba_log_enter_exit": False,
    "sequencer_max_locked_keys": 128,
    "server_heartbeat_interval": "1s",
    "show_internal_frames": False,
    "slow_handler_after": "1m",
    "suspect_after": "10s",
    "suspect_timeout": "5m",
    "deadlock_after": "1s",
    "log_dir": "",
    "log_file_bytes": 67108864,
    "debug_exception_timeout": "10m",
    "debug_on_exception": False,
    "restart_argument_bytes": 67108864,
    "record": "",
    "record_folder": "",
    "record_bytes": 1073741824,
    "reference_bytes": None,
    "segment_bytes": None,
    "segment_from": 262144,
    "show_progress": True,
    "small_write_threshold": 256,
    "split_max_buffer_age": "50ms",
    "split_max_buffer_size": 5,
    "stack_signal": 50,
    "stop_actor_timeout": "10s",
    "stop_grace_period": "10s",
    "supervision_watchdog_timeout": "2m",
    "share_threads": True,
    "share_devices": True,
    "switch_interval": "1ms",
    "waiters_read": "auto",
    "tail_log_lines": 20,
    "terminated_snapshot_retention": 100,
    "tokio_worker_threads": None,
    "undelivered_messages": 10000,
    "use_direct_spawn": False,
}

# Every variable with a text that is not the default's, and what it then reads.
ENVIRONMENT = {
    "HYPERACTOR_MESH_DEFAULT_TRANSPORT": (
        "default_transport",
        "tcp",
        BindSpec(ChannelTransport.TcpWithHostname),
    ),
    "HYPERACTOR_CODEC_MAX_FRAME_LENGTH": ("codec_max_frame_length", "77", 77),
    "HYPERACTOR_MESSAGE_DELIVERY_TIMEOUT": ("message_delivery_timeout", "77s", "1m 17s"),
    "HYPERACTOR_MESH_ENABLE_LOG_FORWARDING": ("enable_log_forwarding", "true", True),
    "HYPERACTOR_MESH_TAIL_LOG_LINES": ("tail_log_lines", "7", 7),
    "HYPERACTOR_PREFIX_WITH_RANK": ("prefix_with_rank", "0", False),
    "HYPERACTOR_MESSAGE_LATENCY_SAMPLING_RATE": ("message_latency_sampling_rate", "0.5", 0.5),
    "HYPERACTOR_REMOTE_STOP_GRACE_PERIOD": ("stop_grace_period", "7s", "7s"),
    "HYPERACTOR_MESH_PROC_SPAWN_MAX_IDLE": ("mesh_proc_spawn_max_idle", "7s", "7s"),
    "HYPERACTOR_MESH_ACTOR_SPAWN_MAX_IDLE": ("actor_spawn_max_idle", "7s", "7s"),
    "MONARCH_MAX_PROCS": ("max_procs", "7", 7),
    "MONARCH_HYPERACTOR_SMALL_WRITE_THRESHOLD": ("small_write_threshold", "7", 7),
    "MONARCH_TOKIO_WORKER_THREADS": ("tokio_worker_threads", "7", 7),
    "MONARCH_FILE_LOG": ("file_log_level", "debug", "debug"),
    "MONARCH_RDMA_MAX_NICS_PER_BUFFER": ("rdma_max_nics_per_buffer", "7", 7),
    "MONARCH_RDMA_IB_GID_INDEX": ("rdma_ib_gid_index", "3", 3),
    "MONARCH_RDMA_ALLOW_PLAIN_BYTES": ("rdma_allow_plain_bytes", "1", True),
    "PYSPY_BIN": ("pyspy_bin", "/opt/py-spy", "/opt/py-spy"),
    "MONARCH_TELEMETRY_RECORDING": ("telemetry_recording", "on", "on"),
    "ENABLE_OTEL_METRICS": ("enable_otel_metrics", "no", False),
    "MONARCH_STACK_SIGNAL": ("stack_signal", "7", 7),
    "MONARCH_OUTGOING_QUEUE_BYTES": ("outgoing_queue_bytes", "7", 7),
    "MONARCH_DIRECT_AFTER": ("direct_after", "0", 0),
    "MONARCH_MAILBOX_MESSAGES": ("mailbox_messages", "7", 7),
    "MONARCH_UNDELIVERED_MESSAGES": ("undelivered_messages", "7", 7),
    "MONARCH_RUNTIME_DIR": ("runtime_dir", "/run/x", "/run/x"),
    "MONARCH_PRELOAD": ("preload", "none", "none"),
    "MONARCH_SHARE_THREADS": ("share_threads", "0", False),
    "MONARCH_SHARE_DEVICES": ("share_devices", "0", False),
    "MONARCH_WAITERS_READ": ("waiters_read", "never", "never"),
    "MONARCH_SWITCH_INTERVAL": ("switch_interval", "2ms", "2ms"),
    "MONARCH_SHOW_INTERNAL_FRAMES": ("show_internal_frames", "true", True),
    "MONARCH_SLOW_HANDLER_AFTER": ("slow_handler_after", "2m", "2m"),
    "MONARCH_STREAM_REMOTE_OUTPUT": ("stream_remote_output", "0", False),
    "MONARCH_SUSPECT_AFTER": ("suspect_after", "2s", "2s"),
    "MONARCH_SUSPECT_TIMEOUT": ("suspect_timeout", "2m", "2m"),
    "MONARCH_WORKER_LEASE": ("worker_lease", "4h", "4h"),
    "MONARCH_DEADLOCK_AFTER": ("deadlock_after", "0s", "0s"),
    "MONARCH_DEBUG_EXCEPTION_TIMEOUT": ("debug_exception_timeout", "30s", "30s"),
    "MONARCH_SHOW_PROGRESS": ("show_progress", "0", False),
    "MONARCH_LOG_DIR": ("log_dir", "/var/tmp/logs", "/var/tmp/logs"),
    "MONARCH_LOG_FILE_BYTES": ("log_file_bytes", "1000", 1000),
    "MONARCH_DEBUG_ON_EXCEPTION": ("debug_on_exception", "1", True),
    "MONARCH_TREE_CASTS_FROM": ("tree_casts_from", "7", 7),
    "MONARCH_TREE_CALLS_FROM": ("tree_calls_from", "7", 7),
    "MONARCH_RESTART_ARGUMENT_BYTES": ("restart_argument_bytes", "7", 7),
    "MONARCH_RECORD": ("record", "trainers[3]", "trainers[3]"),
    "MONARCH_RECORD_FOLDER": ("record_folder", "/tmp/r", "/tmp/r"),
    "MONARCH_RECORD_BYTES": ("record_bytes", "7", 7),
    "MONARCH_REFERENCE_BYTES": ("reference_bytes", "7", 7),
    "MONARCH_SEGMENT_BYTES": ("segment_bytes", "7", 7),
    "MONARCH_SEGMENT_FROM": ("segment_from", "7", 7),
}


def in_a_process(program: str, **environ: str) -> Any:
    """Returns what `program` prints as JSON in a fresh process whose environment is `environ` alone."""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(done.stdout)


# The table.


def test_every_setting_has_its_default() -> None:
    shown = in_a_process(
        "import json; from monarch.config import get_global_config; "
        "print(json.dumps({name: repr(value) for name, value in get_global_config().items()}))"
    )
    assert shown == {name: repr(value) for name, value in DEFAULTS.items()}


def test_every_setting_is_read_from_its_variable() -> None:
    shown = in_a_process(
        "import json; from monarch.config import get_global_config; "
        "print(json.dumps({name: repr(value) for name, value in get_global_config().items()}))",
        **{variable: text for variable, (_, text, _) in ENVIRONMENT.items()},
    )
    expected = DEFAULTS | {name: value for name, _, value in ENVIRONMENT.values()}
    assert shown == {name: repr(value) for name, value in expected.items()}


def test_rows_are_unique_and_documented() -> None:
    counts = Counter(row.name for row in settings.TABLE) + Counter(row.env for row in settings.TABLE if row.env)
    assert [name for name, count in counts.items() if count > 1] == []
    for row in settings.TABLE:
        assert row.inert or row.doc.endswith("."), row.name
        assert "\n" not in row.doc, row.name
        assert row.env is None or re.fullmatch("[A-Z_]+", row.env), row.name


def test_every_setting_is_read_somewhere_or_marked_inert() -> None:
    package = Path(monarch.config.__file__).parents[1]
    named = {
        node.attr
        for file in package.rglob("*.py")
        if file.parent != package / "config" and "settings." in (source := file.read_text())
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "settings"
    }
    assert [row.name for row in settings.TABLE if row.inert is (row.name in named)] == []
    assert all(getattr(settings, row.name) is row for row in settings.TABLE if not row.inert)


def test_the_package_exports_what_it_lists() -> None:
    for name in monarch.config.__all__:
        assert getattr(monarch.config, name) is not None


# configure and its siblings.


@pytest.mark.parametrize(
    ("name", "given", "read"),
    [
        ("stop_actor_timeout", "300s", "5m"),
        ("stop_actor_timeout", "1h30m", "1h 30m"),
        ("tail_log_lines", 7, 7),
        ("prefix_with_rank", False, False),
        ("message_latency_sampling_rate", 1, 1.0),
        ("mesh_admin_addr", "[::1]:80", "[::1]:80"),
        ("mesh_admin_addr", "[::]:1729", "[::]:1729"),
        ("default_encoding", Encoding.Json, Encoding.Json),
        ("default_transport", ChannelTransport.TcpWithHostname, BindSpec(ChannelTransport.TcpWithHostname)),
        ("default_transport", "tcp://127.0.0.1:8080", BindSpec("tcp://127.0.0.1:8080")),
        ("rdma_max_nics_per_buffer", 2, 2),
        ("rdma_max_nics_per_buffer", None, None),
        ("sequencer_max_locked_keys", 7, 7),
    ],
)
def test_a_setting_reads_back(name: str, given: Any, read: Any) -> None:
    configure(**{name: given})
    assert get_global_config()[name] == read
    assert get_runtime_config()[name] == read


@pytest.mark.parametrize(
    ("values", "error", "text"),
    [
        ({"nope": 1}, ValueError, f"invalid configuration key: `nope`. {ALL}"),
        (
            {"remote_alloc_bootstrap_addr": "x"},
            ValueError,
            f"invalid configuration key: `remote_alloc_bootstrap_addr`. {ALL}",
        ),
        (
            {"cleanup_timout": "1s"},
            ValueError,
            f"invalid configuration key: `cleanup_timout`; did you mean `cleanup_timeout`? {ALL}",
        ),
        (
            {"stop_actor_timeout": 3},
            TypeError,
            'invalid value `3` for configuration key `stop_actor_timeout` (expected a duration such as "30s", got int)',
        ),
        (
            {"stop_actor_timeout": "3"},
            TypeError,
            "invalid value `'3'` for configuration key `stop_actor_timeout` (Invalid duration format '3': "
            '3 has no unit, write for example 3s or 3ms. Examples: "30s", "1m 30s", "500ms")',
        ),
        (
            {"prefix_with_rank": 1},
            TypeError,
            "invalid value `1` for configuration key `prefix_with_rank` (expected True or False, got int)",
        ),
        (
            {"tail_log_lines": "1"},
            TypeError,
            "invalid value `'1'` for configuration key `tail_log_lines` (expected an int, got str)",
        ),
        (
            {"tail_log_lines": -1},
            ValueError,
            "invalid value `-1` for configuration key `tail_log_lines` (expected an int of at least 0)",
        ),
        (
            {"rdma_max_nics_per_buffer": 0},
            ValueError,
            "invalid value `0` for configuration key `rdma_max_nics_per_buffer` (expected an int of at least 1)",
        ),
        (
            {"message_latency_sampling_rate": "x"},
            TypeError,
            "invalid value `'x'` for configuration key `message_latency_sampling_rate` (expected a float, got str)",
        ),
        (
            {"pyspy_bin": 3},
            TypeError,
            "invalid value `3` for configuration key `pyspy_bin` (expected a str, got int)",
        ),
        (
            {"default_encoding": "Json"},
            TypeError,
            "invalid value `'Json'` for configuration key `default_encoding` "
            "(expected a member of monarch.config.Encoding, got str)",
        ),
        (
            {"default_transport": 3},
            TypeError,
            "invalid value `3` for configuration key `default_transport` "
            "(expected ChannelTransport enum, BindSpec, or str, got 3 (int))",
        ),
        (
            {"default_transport": "tcp://h"},
            ValueError,
            "invalid value `'tcp://h'` for configuration key `default_transport` "
            "(invalid str for BindSpec 'tcp://h': "
            "expected host:port after the scheme (an IPv6 host in brackets))",
        ),
    ],
)
def test_a_wrong_setting_is_refused_and_nothing_is_set(
    values: dict[str, Any], error: type[Exception], text: str
) -> None:
    before = get_global_config()
    with pytest.raises(error) as caught:
        configure(cleanup_timeout="9s", **values)
    assert type(caught.value) is error
    assert str(caught.value) == text
    assert get_global_config() == before
    with pytest.raises(error), configured(cleanup_timeout="9s", **values):
        raise AssertionError("the block must not run")
    assert get_global_config() == before


def test_a_change_without_effect_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "LAYERS", Layers(settings.TABLE, {}))
    with caplog.at_level(logging.WARNING, "monarch"):
        configure(cleanup_timeout="9s", tokio_worker_threads=3, split_max_buffer_age="1s", stop_grace_period="10s")
        configure(tokio_worker_threads=4)
    said = [record.getMessage().removeprefix("[actor=<root>] ") for record in caplog.records]  # a client may be running
    assert said == [
        "monarch.configure: nothing reads `tokio_worker_threads`, `split_max_buffer_age`, so the new value has no effect"
    ]


def test_a_huge_value_makes_a_short_message() -> None:
    with pytest.raises(TypeError) as caught:
        configure(tail_log_lines="x" * 10_000)
    assert len(str(caught.value)) < 200


def test_configured_yields_all_settings_and_restores_them() -> None:
    configure(tail_log_lines=1)
    before = get_global_config()
    with configured(tail_log_lines=2, cleanup_timeout="9s") as merged:
        assert merged == before | {"tail_log_lines": 2, "cleanup_timeout": "9s"} == get_global_config()
        configure(prefix_with_rank=False)
        with configured(tail_log_lines=3):
            assert settings.tail_log_lines() == 3
        assert settings.tail_log_lines() == 2
    assert get_global_config() == before


def test_configured_restores_when_the_block_raises() -> None:
    with pytest.raises(KeyError), configured(tail_log_lines=2):
        raise KeyError
    assert settings.tail_log_lines() == 20


def test_clearing_forgets_what_was_set() -> None:
    before = get_global_config()
    configure(tail_log_lines=2, cleanup_timeout="9s")
    clear_runtime_config()
    assert get_global_config() == before


def test_both_dicts_have_every_key_and_are_the_callers_own() -> None:
    for read in (get_global_config, get_runtime_config):
        shown = read()
        assert set(shown) == set(DEFAULTS)
        shown.clear()
        assert set(read()) == set(DEFAULTS)


# The runtime's side.


def test_the_runtime_reads_seconds_and_plain_values() -> None:
    configure(cleanup_timeout="1m 30s", runtime_dir="/run/x")
    assert settings.cleanup_timeout() == 90.0
    assert settings.runtime_dir() == settings.get("runtime_dir") == "/run/x"
    assert settings.default_transport() == BindSpec("unix")
    with pytest.raises(ValueError, match="invalid configuration key: `nope`"):
        settings.get("nope")


def test_a_child_process_takes_over_the_clients_settings() -> None:
    configure(cleanup_timeout="90s", default_transport="tcp://h:1", default_encoding=Encoding.Json, preload="none")
    snapshot = settings.snapshot()
    assert pickle.loads(pickle.dumps(snapshot)) == snapshot == json.loads(json.dumps(snapshot))
    child = in_a_process(
        "import json; from monarch.config import get_global_config, settings; "
        f"settings.restore({snapshot!r}); "
        "print(json.dumps({name: repr(value) for name, value in get_global_config().items()}))",
        HYPERACTOR_CLEANUP_TIMEOUT="7s",
    )
    assert child == {name: repr(value) for name, value in get_global_config().items()}


def test_importing_the_settings_loads_only_the_standard_library() -> None:
    loaded = in_a_process(
        "import sys; before = set(sys.modules); import monarch.config, json; "
        "print(json.dumps(sorted({name.partition('.')[0] for name in set(sys.modules) - before})))"
    )
    assert set(loaded) - set(sys.stdlib_module_names) == {"monarch"}


# The decorators.


@parametrize_config(tail_log_lines={3, 1}, prefix_with_rank=[True, False])
def test_each_combination_is_in_force_in_its_test(request: pytest.FixtureRequest) -> None:
    shown = get_global_config()
    name = f"tail_log_lines={shown['tail_log_lines']},prefix_with_rank={shown['prefix_with_rank']}"
    assert request.node.name.endswith(f"[{name}]")


@parametrize_config_pointwise(tail_log_lines=[1, 2], cleanup_timeout=["1s", "2s"])
@pytest.mark.parametrize("factor", [10, 20])
def test_each_point_is_in_force_in_its_test(factor: int) -> None:
    assert settings.tail_log_lines() == settings.cleanup_timeout()
    assert factor in (10, 20)


class TestMethods:
    @parametrize_config(tail_log_lines=[7])
    def test_a_method_can_be_decorated(self, tmp_path: object) -> None:
        assert tmp_path
        assert settings.tail_log_lines() == 7


def nothing() -> None: ...


def cases(test: Any) -> list[dict[str, Any]]:
    [mark] = test.pytestmark
    return list(mark.args[1])


def test_combinations_are_a_cross_product_in_a_settled_order() -> None:
    test = parametrize_config(tail_log_lines={2, 1}, read_log_buffer=[9, 8])(nothing)
    assert cases(test) == [
        {"tail_log_lines": lines, "read_log_buffer": buffer} for lines, buffer in [(1, 9), (1, 8), (2, 9), (2, 8)]
    ]


def test_points_go_through_the_lists_together() -> None:
    test = parametrize_config_pointwise(tail_log_lines=[2, 1], read_log_buffer=[9, 8])(nothing)
    assert cases(test) == [
        {"tail_log_lines": 2, "read_log_buffer": 9},
        {"tail_log_lines": 1, "read_log_buffer": 8},
    ]


def test_a_decorated_coroutine_stays_one_and_runs_under_its_settings() -> None:
    async def lines(**others: int) -> tuple[int, dict[str, int]]:
        await asyncio.sleep(0)
        return settings.tail_log_lines(), others

    decorated = parametrize_config(tail_log_lines=[5])(lines)
    assert inspect.iscoroutinefunction(decorated)
    assert list(inspect.signature(decorated).parameters) == ["config_tail_log_lines", "others"]
    [case] = cases(decorated)
    assert asyncio.run(decorated(config_tail_log_lines=case, more=1)) == (5, {"more": 1})
    assert settings.tail_log_lines() == 20


@pytest.mark.parametrize(
    ("decorator", "values", "error", "text"),
    [
        (
            parametrize_config,
            {},
            ValueError,
            "parametrize_config: give at least one setting, for example parametrize_config(tail_log_lines=[0, 5])",
        ),
        (
            parametrize_config_pointwise,
            {},
            ValueError,
            "parametrize_config_pointwise: give at least one setting, for example "
            "parametrize_config_pointwise(tail_log_lines=[0, 5])",
        ),
        (
            parametrize_config,
            {"tail_log_lines": set()},
            ValueError,
            "parametrize_config: tail_log_lines has no values",
        ),
        (
            parametrize_config_pointwise,
            {"tail_log_lines": []},
            ValueError,
            "parametrize_config_pointwise: tail_log_lines has no values",
        ),
        (
            parametrize_config_pointwise,
            {"tail_log_lines": [1], "read_log_buffer": [1, 2]},
            ValueError,
            "parametrize_config_pointwise: the lists must be equally long, but tail_log_lines has 1, "
            "read_log_buffer has 2",
        ),
        (
            parametrize_config,
            {"cleanup_timeout": "1s"},
            TypeError,
            "parametrize_config: cleanup_timeout must be a set or list of values, got '1s'",
        ),
        (
            parametrize_config,
            {"tail_log_lines": 1},
            TypeError,
            "parametrize_config: tail_log_lines must be a set or list of values, got 1",
        ),
        (parametrize_config, {"nope": [1]}, ValueError, f"invalid configuration key: `nope`. {ALL}"),
        (
            parametrize_config_pointwise,
            {"tail_log_lines": ["x"]},
            TypeError,
            "invalid value `'x'` for configuration key `tail_log_lines` (expected an int, got str)",
        ),
    ],
)
def test_a_wrong_decoration_is_refused_at_once(
    decorator: Any, values: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        decorator(**values)(lambda: None)
    assert str(caught.value) == text
