"""THE settings of the runtime, each defined once, and the way to read them.

    from monarch.config import settings
    settings.cleanup_timeout()           # 3.0: durations are float seconds here

Programs use `monarch.config.configure` and its siblings, which take and show durations as text ("3s"). `INERT` are
settings that programs may bring with them: kept and given back, but nothing reads them.
`tests/config/test_settings.py` checks that every other one is read somewhere.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from monarch.config.encoding import Encoding
from monarch.config.kinds import (
    Choice,
    Count,
    Duration,
    EncodingName,
    Flag,
    Kind,
    OrNone,
    Share,
    TextKind,
    TransportKind,
)
from monarch.config.layers import Layers, Setting, Snapshot
from monarch.config.transport import BindSpec, ChannelTransport

T = TypeVar("T")

KIB, MIB, GIB = 2**10, 2**20, 2**30

FLAG, COUNT, POSITIVE, SHARE, TEXT = Flag(), Count(), Count(minimum=1), Share(), TextKind()
DURATION, ENCODING = Duration(), EncodingName()


class TypedSetting(Setting, Generic[T]):
    """A setting that the runtime reads, by a call. Its name is that of the module's variable that holds it."""

    __slots__ = ()

    def __call__(self) -> T:
        """Returns the value now in force; of a duration, float seconds. Cheap enough for hot paths: a dict lookup.

        ValueError at the process's first use of settings when an environment variable of one holds something unreadable.
        """
        value: T
        try:
            value = LAYERS.current[self.name]
        except KeyError:  # the first use
            value = LAYERS.get(self.name)
        return value


def seconds(default: str, env: str, doc: str) -> TypedSetting[float]:
    return TypedSetting("", DURATION, default, env, doc)


def count(default: int, env: str, doc: str, *, minimum: int = 0, maximum: int | None = None) -> TypedSetting[int]:
    return TypedSetting("", Count(minimum, maximum), default, env, doc)


def count_or_none(env: str, doc: str, *, minimum: int = 0, maximum: int | None = None) -> TypedSetting[int | None]:
    return TypedSetting("", OrNone(Count(minimum, maximum)), None, env, doc)


def flag(default: bool, env: str, doc: str) -> TypedSetting[bool]:
    return TypedSetting("", FLAG, default, env, doc)


def text(default: str, env: str, doc: str, *, choices: tuple[str, ...] = ()) -> TypedSetting[str]:
    return TypedSetting("", Choice(*choices) if choices else TEXT, default, env, doc)


def transport(default: ChannelTransport, env: str, doc: str) -> TypedSetting[BindSpec]:
    return TypedSetting("", TransportKind(), default, env, doc)


# fmt: off
# Messages and connections
default_transport = transport(ChannelTransport.Unix, "HYPERACTOR_MESH_DEFAULT_TRANSPORT",
    "What processes listen on: a ChannelTransport, a short name, or a URL.")
codec_max_frame_length = count(10 * GIB, "HYPERACTOR_CODEC_MAX_FRAME_LENGTH",
    "Largest message in bytes; a larger one fails its call and nothing is sent. 0 is no limit.")
large_argument_bytes = count(256 * MIB, "MONARCH_LARGE_ARGUMENT_BYTES",
    "Arguments of a call or spawn of this many bytes are warned of, once a process: RDMA buffers are faster. 0 is never.")
outgoing_queue_bytes = count(64 * MIB, "MONARCH_OUTGOING_QUEUE_BYTES",
    "Bytes that may wait to be written to one connection before its senders wait.", minimum=1)
segment_from = count(256 * KIB, "MONARCH_SEGMENT_FROM",
    "Messages of this many bytes or more go through shared memory within a host; 0 is never.")
segment_bytes = count_or_none("MONARCH_SEGMENT_BYTES",
    "Most bytes of shared memory for the messages a process sends; beyond it they go through sockets. None is an "
    "eighth of the machine's memory, at most 2 GiB.")
reference_bytes = count_or_none("MONARCH_REFERENCE_BYTES",
    "Most bytes that a process keeps for references (monarch.references) made in it, each counted with 1 KiB besides, and "
    "for tasks that wait in it, each counted with 4 KiB besides its arguments; more is refused. None is a quarter of the "
    "machine's memory.")
mailbox_messages = count(100_000, "MONARCH_MAILBOX_MESSAGES",
    "Messages that may wait in one actor's mailbox before its senders are told to pause.", minimum=1)
undelivered_messages = count(10_000, "MONARCH_UNDELIVERED_MESSAGES",
    "Messages a process keeps for actors that are not there yet.")
pending_actor_delivery_timeout = seconds("30s", "HYPERACTOR_PENDING_ACTOR_DELIVERY_TIMEOUT",
    "How long such a message is kept before its sender is told that it is undeliverable.")
message_delivery_timeout = seconds("30s", "HYPERACTOR_MESSAGE_DELIVERY_TIMEOUT",
    "How long a sender waits for a receiver that takes no more, before it fails.")
message_ack_time_interval = seconds("500ms", "HYPERACTOR_MESSAGE_ACK_TIME_INTERVAL",
    "Longest time that a link between hosts holds back an acknowledgement.")
message_ack_every_n_messages = count(1000, "HYPERACTOR_MESSAGE_ACK_EVERY_N_MESSAGES",
    "Most messages that a link between hosts leaves unacknowledged.", minimum=1)
channel_reconnect_timeout = seconds("1m", "HYPERACTOR_CHANNEL_RECONNECT_TIMEOUT",
    "How long a broken connection between hosts is redialled before the host counts as dead.")
channel_tcp_keepalive_idle = seconds("1m", "HYPERACTOR_CHANNEL_TCP_KEEPALIVE_IDLE",
    "Idle time after which TCP probes a connection.")
channel_tcp_congestion = text("", "HYPERACTOR_CHANNEL_TCP_CONGESTION",
    "TCP congestion control of connections between hosts, such as bbr; empty is the system's.")
server_heartbeat_interval = seconds("1s", "HYPERACTOR_SERVER_HEARTBEAT_INTERVAL",
    "How often an idle link between hosts sends a heartbeat; after three missed ones it is dialled anew.")
tree_casts_from = count(8, "MONARCH_TREE_CASTS_FROM",
    "From this many receivers on other hosts on, a broadcast goes down a tree of hosts, not to each receiver.")
tree_calls_from = count(32, "MONARCH_TREE_CALLS_FROM",
    "The same for a call, whose answers then come up the tree; few answers are faster without it.")
max_cast_fanout = count(16, "HYPERACTOR_MESH_MAX_CAST_FANOUT",
    "Most hosts one host passes a cast on to.", minimum=1)
direct_after = count(100, "MONARCH_DIRECT_AFTER",
    "Messages between processes of two hosts after which they connect directly; 0 is never.")

# Starting, stopping, ending
host_spawn_ready_timeout = seconds("30s", "HYPERACTOR_HOST_SPAWN_READY_TIMEOUT",
    "How long a new process may take to be ready.")
stop_actor_timeout = seconds("10s", "HYPERACTOR_STOP_ACTOR_TIMEOUT",
    "How long a stopping actor waits for what it owns to stop, and for the concurrent endpoints that it cancels.")
cleanup_timeout = seconds("3s", "HYPERACTOR_CLEANUP_TIMEOUT",
    "How long an actor's __cleanup__ may take.")
process_exit_timeout = seconds("10s", "HYPERACTOR_PROCESS_EXIT_TIMEOUT",
    "How long a stopped process may take to exit before it is killed.")
mesh_terminate_timeout = seconds("10s", "HYPERACTOR_MESH_TERMINATE_TIMEOUT",
    "How long a host shutting down gives its processes before it kills them.")
mesh_orphan_timeout = seconds("1m", "HYPERACTOR_MESH_ORPHAN_TIMEOUT",
    "How long processes on other hosts outlive a client that has fallen silent.")
job_lease = seconds("4h", "MONARCH_JOB_LEASE",
    "How long the hosts of a job outlive the last program that used them; 0 for as long as they may.")
worker_lease = seconds("0s", "MONARCH_WORKER_LEASE",
    "How long a worker waits for a client, from its start or since the last one left, before it ends; 0s is for ever.")
mesh_attach_config_timeout = seconds("1m", "HYPERACTOR_MESH_ATTACH_CONFIG_TIMEOUT",
    "How long attaching to a worker may take.")
mesh_bootstrap_enable_pdeathsig = flag(True, "HYPERACTOR_MESH_BOOTSTRAP_ENABLE_PDEATHSIG",
    "Whether the kernel kills a process when its host agent dies; if not, it ends when it notices that.")
terminated_snapshot_retention = count(100, "HYPERACTOR_TERMINATED_SNAPSHOT_RETENTION",
    "Ended actors of which a process still tells those who look at it; the oldest go.")

# Processes
max_procs = count(65_536, "MONARCH_MAX_PROCS",
    "Most processes that one spawn_procs may ask for: more are refused at the call.", minimum=1)
runtime_dir = text("", "MONARCH_RUNTIME_DIR",
    "Folder of the sockets; empty is XDG_RUNTIME_DIR or else the temporary folder.")
preload = text("auto", "MONARCH_PRELOAD",
    "Modules that new processes have imported already: auto (those that the client has imported), none, or names with "
    "commas.")
share_threads = flag(True, "MONARCH_SHARE_THREADS",
    "Whether processes get OMP_NUM_THREADS, their share of the host's processors, where nothing sets it.")
share_devices = flag(True, "MONARCH_SHARE_DEVICES",
    "Whether processes use the GPU of their place on the host, and meshes of one host different GPUs.")
switch_interval = seconds("1ms", "MONARCH_SWITCH_INTERVAL",
    "Python's thread switch interval in processes; 0s leaves it as it is.")
waiters_read = text("auto", "MONARCH_WAITERS_READ",
    "Whether a thread that waits reads what comes, in place of the I/O thread: auto (when one waits again and again), "
    "never, or always (for tests).", choices=("auto", "never", "always"))
slow_handler_after = seconds("1m", "MONARCH_SLOW_HANDLER_AFTER",
    "How long an endpoint may run before its stack is logged, once; 0s is never.")
stack_signal = count(50, "MONARCH_STACK_SIGNAL",
    "Signal at which a process that cannot answer writes its stacks for its host agent; 0 is none.", maximum=64)
suspect_after = seconds("10s", "MONARCH_SUSPECT_AFTER",
    "How long a process may be silent before it is suspected; a stopped one (SIGSTOP) is suspected at once.")
suspect_timeout = seconds("5m", "MONARCH_SUSPECT_TIMEOUT",
    "How long a process may be suspected before it is killed and counts as failed; 0s is for ever.")
show_internal_frames = flag(False, "MONARCH_SHOW_INTERNAL_FRAMES",
    "Whether remote tracebacks show the frames of this package as well.")
deadlock_after = seconds("1s", "MONARCH_DEADLOCK_AFTER",
    "How long actors may wait for each other in a circle before DeadlockError ends it; 0s is for ever.")
restart_argument_bytes = count(64 * MIB, "MONARCH_RESTART_ARGUMENT_BYTES",
    "Most bytes of encoded constructor arguments that a mesh's owner keeps for restarts.")
debug_on_exception = flag(False, "MONARCH_DEBUG_ON_EXCEPTION",
    "Whether an endpoint that raises stops there first, for `monarch debug`.")
debug_exception_timeout = seconds("10m", "MONARCH_DEBUG_EXCEPTION_TIMEOUT",
    "How long an endpoint that has stopped because it raised waits for somebody to attach, before it fails as usual.")

# Output
enable_log_forwarding = flag(False, "HYPERACTOR_MESH_ENABLE_LOG_FORWARDING",
    "Whether processes' output can be streamed to the client; on by itself in IPython and Jupyter.")
stream_remote_output = flag(True, "MONARCH_STREAM_REMOTE_OUTPUT",
    "Whether the client prints the output of processes on other hosts, each line with host and rank; otherwise it "
    "stays with their workers.")
enable_file_capture = flag(False, "HYPERACTOR_MESH_ENABLE_FILE_CAPTURE",
    "Whether the output of each process is also written to a file on its host.")
log_dir = text("", "MONARCH_LOG_DIR",
    "Folder of those files on each host, MESH-ID/RANK.log in it; empty is ~/.local/state/monarch/logs.")
log_file_bytes = count(64 * MIB, "MONARCH_LOG_FILE_BYTES",
    "Size at which such a file becomes RANK.log.1, in place of the one before, and another begins.", minimum=1)
tail_log_lines = count(20, "HYPERACTOR_MESH_TAIL_LOG_LINES",
    "Last lines of a process's stderr shown when it fails; 0 is none.")
prefix_with_rank = flag(True, "HYPERACTOR_PREFIX_WITH_RANK",
    "Whether streamed lines begin with [rank].")
show_progress = flag(True, "MONARCH_SHOW_PROGRESS",
    "Whether `map`, jobs that wait for their machines, mounts, checkpoints, updates of services, cells of notebooks and "
    "`monarch.progress` say how far they are, on stderr.")

# Administration
mesh_admin_addr = text("127.0.0.1:1729", "HYPERACTOR_MESH_ADMIN_ADDR",
    "Where the admin server listens, host:port; a port that is taken is replaced. Beyond this machine it asks for the "
    "token of the URL that is printed.")
mesh_admin_single_host_timeout = seconds("3s", "HYPERACTOR_MESH_ADMIN_SINGLE_HOST_TIMEOUT",
    "How long processes and hosts may take to answer for the tree before it is shown without them.")
mesh_admin_pyspy_timeout = seconds("10s", "HYPERACTOR_MESH_ADMIN_PYSPY_TIMEOUT",
    "How long a process may take to tell its stacks.")
pyspy_bin = text("", "PYSPY_BIN",
    "The py-spy program; empty is the one on PATH.")
mesh_admin_config_dump_bridge_timeout = seconds("5s", "HYPERACTOR_MESH_ADMIN_CONFIG_DUMP_BRIDGE_TIMEOUT",
    "How long a process may take to tell its settings.")

# Telemetry
telemetry_recording = text("", "MONARCH_TELEMETRY_RECORDING",
    "What processes record; monarch.telemetry.start() sets it. Words separated by commas: `on`, and `system` for the "
    "runtime's own actors as well.")
enable_otel_metrics = flag(True, "ENABLE_OTEL_METRICS",
    "Whether metrics go to OpenTelemetry if its exporter is set up.")
enable_otel_tracing = flag(True, "ENABLE_OTEL_TRACING",
    "Whether traces go to OpenTelemetry if its exporter is set up.")

# Record and replay
record = text("", "MONARCH_RECORD",
    "Actors whose messages are recorded for `monarch replay`: names of meshes or classes, separated by commas, with "
    "ranks or without (trainers, Trainer, trainers[3], trainers[0-7], all); asked when they are spawned.")
record_folder = text("", "MONARCH_RECORD_FOLDER",
    "Where recordings are written, on the host of each actor; empty is a folder of this user alone under the "
    "temporary one.")
record_bytes = count(1024 * MIB, "MONARCH_RECORD_BYTES",
    "Most bytes of one recording; at the bound it stops, and says so.")

# Bulk data
rdma_allow_tcp_fallback = flag(True, "MONARCH_RDMA_ALLOW_TCP_FALLBACK",
    "Whether transfers may go over TCP if no faster path works.")
rdma_disable_ibverbs = flag(False, "MONARCH_RDMA_DISABLE_IBVERBS",
    "Whether RDMA devices are not to be used.")
rdma_nixl = flag(False, "MONARCH_RDMA_NIXL",
    "Whether transfers may go over NIXL. Its UCX opens ports that do not ask for the job's secret.")
rdma_max_chunk_size_mb = count(64, "MONARCH_RDMA_MAX_CHUNK_SIZE_MB",
    "MiB sent at a time over TCP.")
rdma_tcp_fallback_parallelism = count(1, "MONARCH_RDMA_TCP_FALLBACK_PARALLELISM",
    "TCP connections that a transfer is spread over; 1 (the default) means four from 8 MiB on.", minimum=1)
rdma_ibverbs_target = text("", "MONARCH_RDMA_IBVERBS_TARGET",
    "Which device: cpu:<numa node>, gpu:<ordinal> or nic:<name>; empty is the nearest.")
rdma_peer_device_affinity = text("", "MONARCH_RDMA_PEER_DEVICE_AFFINITY",
    "Which devices may pair: any, match_name or groups:a,b|c,d; empty is any.")
rdma_qp_init_timeout = seconds("30s", "MONARCH_RDMA_QP_INIT_TIMEOUT",
    "How long two devices may take to connect.")
rdma_allow_plain_bytes = flag(False, "MONARCH_RDMA_ALLOW_PLAIN_BYTES",
    "Whether RDMA devices may move bytes of a job that uses TLS: they do not encrypt.")
rdma_ib_gid_index = count_or_none("MONARCH_RDMA_IB_GID_INDEX",
    "Which entry of each port's GID table is used; None is one in the subnet of the other side's.", maximum=255)
rdma_ib_pkey_index = count(0, "MONARCH_RDMA_IB_PKEY_INDEX",
    "Which entry of each port's partition table is used.", maximum=65535)
rdma_ib_traffic_class = count(0, "MONARCH_RDMA_IB_TRAFFIC_CLASS",
    "Traffic class of RDMA packets; on RoCE v2 the DSCP is its upper six bits.", maximum=255)
rdma_ib_service_level = count(0, "MONARCH_RDMA_IB_SERVICE_LEVEL",
    "InfiniBand service level of RDMA packets.", maximum=15)
rdma_ib_timeout = count(20, "MONARCH_RDMA_IB_TIMEOUT",
    "A packet that is not acknowledged in 4.096 us x 2^this is sent again; 20 is 4.3 s.", minimum=1, maximum=31)
rdma_ib_retry_count = count(7, "MONARCH_RDMA_IB_RETRY_COUNT",
    "How often it is sent again before the connection has failed.", maximum=7)
rdma_ib_relaxed_ordering = flag(True, "MONARCH_RDMA_IB_RELAXED_ORDERING",
    "Whether devices may write the bytes of one transfer in any order; faster on some machines.")
rdma_max_nics_per_buffer = count_or_none("MONARCH_RDMA_MAX_NICS_PER_BUFFER",
    "Most devices a buffer is registered on; None is all.", minimum=1)
rdma_min_stripe_size_kb = count(512, "MONARCH_RDMA_MIN_STRIPE_SIZE_KB",
    "Least KiB for each device when a transfer is spread over several.")

# Accepted, without effect
INERT: dict[str, tuple[Kind, Any, str | None]] = {
    "channel_net_rx_buffer_full_check_interval": (DURATION, "5s", "HYPERACTOR_CHANNEL_NET_RX_BUFFER_FULL_CHECK_INTERVAL"),
    "message_ttl_default": (COUNT, 64, "HYPERACTOR_MESSAGE_TTL_DEFAULT"),
    "split_max_buffer_size": (COUNT, 5, "HYPERACTOR_SPLIT_MAX_BUFFER_SIZE"),
    "split_max_buffer_age": (DURATION, "50ms", "HYPERACTOR_SPLIT_MAX_BUFFER_AGE"),
    "default_encoding": (ENCODING, Encoding.Multipart, "HYPERACTOR_DEFAULT_ENCODING"),
    "forwarder_flush_timeout": (DURATION, "5s", "HYPERACTOR_FORWARDER_FLUSH_TIMEOUT"),
    "enable_dest_actor_reordering_buffer": (FLAG, True, "HYPERACTOR_ENABLE_DEST_ACTOR_REORDERING_BUFFER"),
    "sequencer_max_locked_keys": (COUNT, 128, "HYPERACTOR_SEQUENCER_MAX_LOCKED_KEYS"),
    "message_latency_sampling_rate": (SHARE, 0.01, "HYPERACTOR_MESSAGE_LATENCY_SAMPLING_RATE"),
    "small_write_threshold": (COUNT, 256, "MONARCH_HYPERACTOR_SMALL_WRITE_THRESHOLD"),
    "max_cast_dimension_size": (COUNT, 16, "HYPERACTOR_MESH_MAX_CAST_DIMENSION_SIZE"),
    "mesh_proc_spawn_max_idle": (DURATION, "30s", "HYPERACTOR_MESH_PROC_SPAWN_MAX_IDLE"),
    "actor_spawn_max_idle": (DURATION, "30s", "HYPERACTOR_MESH_ACTOR_SPAWN_MAX_IDLE"),
    "proc_stop_max_idle": (DURATION, "30s", "HYPERACTOR_MESH_PROC_STOP_MAX_IDLE"),
    "stop_grace_period": (DURATION, "10s", "HYPERACTOR_REMOTE_STOP_GRACE_PERIOD"),
    "get_actor_state_max_idle": (DURATION, "30s", "HYPERACTOR_MESH_GET_ACTOR_STATE_MAX_IDLE"),
    "get_proc_state_max_idle": (DURATION, "1m", "HYPERACTOR_MESH_GET_PROC_STATE_MAX_IDLE"),
    "supervision_watchdog_timeout": (DURATION, "2m", "HYPERACTOR_MESH_SUPERVISION_WATCHDOG_TIMEOUT"),
    "mesh_terminate_concurrency": (COUNT, 16, "HYPERACTOR_MESH_TERMINATE_CONCURRENCY"),
    "use_direct_spawn": (FLAG, False, "HYPERACTOR_MESH_USE_DIRECT_SPAWN"),
    "proc_launcher_kind": (TEXT, "", "HYPERACTOR_MESH_PROC_LAUNCHER_KIND"),
    "tokio_worker_threads": (OrNone(POSITIVE), None, "MONARCH_TOKIO_WORKER_THREADS"),
    "enable_unawaited_python_task_traceback": (FLAG, False, None),
    "force_file_log": (FLAG, False, "HYPERACTOR_FORCE_FILE_LOG"),
    "read_log_buffer": (COUNT, 100, "HYPERACTOR_READ_LOG_BUFFER"),
    "file_log_level": (TEXT, "", "MONARCH_FILE_LOG"),
    "monarch_log_suffix": (TEXT, "", "MONARCH_LOG_SUFFIX"),
    "mesh_admin_tree_timeout": (DURATION, "10s", "HYPERACTOR_MESH_ADMIN_TREE_TIMEOUT"),
    "mesh_admin_pyspy_max_profile_duration": (DURATION, "5m", "HYPERACTOR_MESH_ADMIN_PYSPY_MAX_PROFILE_DURATION"),
    "mesh_admin_query_child_timeout": (DURATION, "100ms", "HYPERACTOR_MESH_ADMIN_QUERY_CHILD_TIMEOUT"),
    "mesh_admin_resolve_actor_timeout": (DURATION, "200ms", "HYPERACTOR_MESH_ADMIN_RESOLVE_ACTOR_TIMEOUT"),
    "mesh_admin_max_concurrent_resolves": (COUNT, 2, "HYPERACTOR_MESH_ADMIN_MAX_CONCURRENT_RESOLVES"),
    "mesh_admin_pyspy_bridge_timeout": (DURATION, "13s", "HYPERACTOR_MESH_ADMIN_PYSPY_BRIDGE_TIMEOUT"),
    "mesh_admin_pyspy_client_timeout": (DURATION, "20s", "HYPERACTOR_MESH_ADMIN_PYSPY_CLIENT_TIMEOUT"),
    "process_memory_metric_interval": (DURATION, "5m", "HYPERACTOR_PROCESS_MEMORY_METRIC_INTERVAL"),
    "otel_metric_export_interval": (DURATION, "1s", "OTEL_METRIC_EXPORT_INTERVAL"),
    "enable_recorder_tracing": (FLAG, True, "ENABLE_RECORDER_TRACING"),
    "enable_sqlite_tracing": (FLAG, False, "ENABLE_SQLITE_TRACING"),
    "scuba_log_enter_exit": (FLAG, False, "SCUBA_LOG_ENTER_EXIT"),
    "rdma_cq_busy_poll_window": (OrNone(DURATION), None, "MONARCH_RDMA_CQ_BUSY_POLL_WINDOW"),
    "rdma_qps_per_cq": (COUNT, 64, "MONARCH_RDMA_QPS_PER_CQ"),
    "rdma_qps_per_peer": (COUNT, 4, "MONARCH_RDMA_QPS_PER_PEER"),
    "rdma_cq_poller_per_device": (FLAG, True, "MONARCH_RDMA_CQ_POLLER_PER_DEVICE"),
    "rdma_host_odp": (FLAG, False, "MONARCH_RDMA_HOST_ODP"),
    "rdma_runtime_worker_threads": (COUNT, 4, "MONARCH_RDMA_RUNTIME_WORKER_THREADS"),
}
# fmt: on


def _table() -> tuple[Setting, ...]:
    read = {name: value for name, value in globals().items() if isinstance(value, TypedSetting)}
    for name, setting in read.items():
        setting.name = name
    return (*read.values(), *(Setting(name, *row, inert=True) for name, row in INERT.items()))


TABLE = _table()
LAYERS = Layers(TABLE, os.environ)


def get(name: str) -> Any:
    """Returns the value now in force of the setting that is called `name`. ValueError for an unknown name."""
    return LAYERS.get(name)


def snapshot() -> Snapshot:
    """Returns what a child process must be told to see these settings: a dict of dicts of str, for any codec."""
    return LAYERS.snapshot()


def told(snapshot: Mapping[str, Mapping[str, str]], setting: TypedSetting[T]) -> T:
    """Returns the value that `setting` has in the process that gave `snapshot`, whatever it is here."""
    value: T = LAYERS.told(snapshot, setting.name)
    return value


def restore(snapshot: Mapping[str, Mapping[str, str]]) -> None:
    """Takes over, in a child, what `snapshot` gave, and reads this process's environment again.

    What was set by `configure` where the snapshot was taken hides the child's environment; what stood in the
    environment there is hidden by it. The child's own `configure` hides both. ``{}`` forgets what was taken
    over. ValueError for a setting unknown here.
    """
    LAYERS.restore(snapshot)
