"""THE table of settings, one row each, and the runtime's way to read them.

    from monarch.config import settings
    settings.get("cleanup_timeout")      # 3.0: durations are float seconds here

Programs use `monarch.config.configure` and its siblings, which take and show durations as text ("3s"). Rows
made by `_inert` are settings that programs may bring with them: kept and given back, but nothing reads them.
`tests/config/test_settings.py` checks that every other row is read somewhere.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, overload

from monarch.config.encoding import Encoding
from monarch.config.kinds import Choice, Count, Duration, EncodingName, Flag, Kind, OrNone, Share, Text, Transport
from monarch.config.layers import Layers, Setting, Snapshot
from monarch.config.transport import BindSpec, ChannelTransport

if TYPE_CHECKING:
    from monarch.config.names import CountName, FlagName, OptionalCountName, SecondsName, TextName, TransportName

KIB, MIB, GIB = 2**10, 2**20, 2**30

FLAG, COUNT, POSITIVE, SHARE, TEXT = Flag(), Count(), Count(minimum=1), Share(), Text()
SIGNAL = Count(maximum=64)
DURATION, ENCODING, TRANSPORT = Duration(), EncodingName(), Transport()


def _inert(name: str, kind: Kind, default: Any, env: str | None, doc: str) -> Setting:
    return Setting(name, kind, default, env, f"{doc} No effect: nothing reads it.", inert=True)


# fmt: off
TABLE: tuple[Setting, ...] = (
    # Messages and connections
    Setting("default_transport", TRANSPORT, ChannelTransport.Unix, "HYPERACTOR_MESH_DEFAULT_TRANSPORT",
            "What processes listen on: a ChannelTransport, a short name, or a URL."),
    Setting("codec_max_frame_length", COUNT, 10 * GIB, "HYPERACTOR_CODEC_MAX_FRAME_LENGTH",
            "Largest message in bytes; a larger one fails its call and nothing is sent. 0 is no limit."),
    Setting("outgoing_queue_bytes", POSITIVE, 64 * MIB, "MONARCH_OUTGOING_QUEUE_BYTES",
            "Bytes that may wait to be written to one connection before its senders wait."),
    Setting("segment_from", COUNT, 256 * KIB, "MONARCH_SEGMENT_FROM",
            "Messages of this many bytes or more go through shared memory within a host; 0 is never."),
    Setting("segment_bytes", OrNone(COUNT), None, "MONARCH_SEGMENT_BYTES",
            "Most bytes of shared memory for the messages a process sends; beyond it they go through sockets. "
            "None is an eighth of the machine's memory, at most 2 GiB."),
    Setting("mailbox_messages", POSITIVE, 100_000, "MONARCH_MAILBOX_MESSAGES",
            "Messages that may wait in one actor's mailbox before its senders are told to pause."),
    Setting("undelivered_messages", COUNT, 10_000, "MONARCH_UNDELIVERED_MESSAGES",
            "Messages a process keeps for actors that are not there yet."),
    Setting("pending_actor_delivery_timeout", DURATION, "30s", "HYPERACTOR_PENDING_ACTOR_DELIVERY_TIMEOUT",
            "How long such a message is kept before its sender is told that it is undeliverable."),
    Setting("message_delivery_timeout", DURATION, "30s", "HYPERACTOR_MESSAGE_DELIVERY_TIMEOUT",
            "How long a sender waits for a receiver that takes no more, before it fails."),
    Setting("message_ack_time_interval", DURATION, "500ms", "HYPERACTOR_MESSAGE_ACK_TIME_INTERVAL",
            "Longest time that a link between hosts holds back an acknowledgement."),
    Setting("message_ack_every_n_messages", POSITIVE, 1000, "HYPERACTOR_MESSAGE_ACK_EVERY_N_MESSAGES",
            "Most messages that a link between hosts leaves unacknowledged."),
    Setting("channel_reconnect_timeout", DURATION, "1m", "HYPERACTOR_CHANNEL_RECONNECT_TIMEOUT",
            "How long a broken connection between hosts is redialled before the host counts as dead."),
    Setting("channel_tcp_keepalive_idle", DURATION, "1m", "HYPERACTOR_CHANNEL_TCP_KEEPALIVE_IDLE",
            "Idle time after which TCP probes a connection."),
    Setting("channel_tcp_congestion", TEXT, "", "HYPERACTOR_CHANNEL_TCP_CONGESTION",
            "TCP congestion control of connections between hosts, such as bbr; empty is the system's."),
    Setting("server_heartbeat_interval", DURATION, "1s", "HYPERACTOR_SERVER_HEARTBEAT_INTERVAL",
            "How often an idle link between hosts sends a heartbeat; after three missed ones it is dialled anew."),
    Setting("tree_casts_from", COUNT, 8, "MONARCH_TREE_CASTS_FROM",
            "From this many receivers on other hosts on, a broadcast goes down a tree of hosts, not to each receiver."),
    Setting("tree_calls_from", COUNT, 32, "MONARCH_TREE_CALLS_FROM",
            "The same for a call, whose answers then come up the tree; few answers are faster without it."),
    Setting("max_cast_fanout", POSITIVE, 16, "HYPERACTOR_MESH_MAX_CAST_FANOUT",
            "Most hosts one host passes a cast on to."),
    Setting("direct_after", COUNT, 100, "MONARCH_DIRECT_AFTER",
            "Messages between processes of two hosts after which they connect directly; 0 is never."),
    _inert("channel_net_rx_buffer_full_check_interval", DURATION, "5s",
           "HYPERACTOR_CHANNEL_NET_RX_BUFFER_FULL_CHECK_INTERVAL", "Check interval of full receive buffers."),
    _inert("message_ttl_default", COUNT, 64, "HYPERACTOR_MESSAGE_TTL_DEFAULT", "Hops a message may take."),
    _inert("split_max_buffer_size", COUNT, 5, "HYPERACTOR_SPLIT_MAX_BUFFER_SIZE",
           "Messages sent as one batch."),
    _inert("split_max_buffer_age", DURATION, "50ms", "HYPERACTOR_SPLIT_MAX_BUFFER_AGE",
           "Age limit of a batch."),
    _inert("default_encoding", ENCODING, Encoding.Multipart, "HYPERACTOR_DEFAULT_ENCODING",
           "Encoding of bodies."),
    _inert("forwarder_flush_timeout", DURATION, "5s", "HYPERACTOR_FORWARDER_FLUSH_TIMEOUT",
           "Time to flush forwarded messages."),
    _inert("enable_dest_actor_reordering_buffer", FLAG, True,
           "HYPERACTOR_ENABLE_DEST_ACTOR_REORDERING_BUFFER", "Reorder at the receiver (always done)."),
    _inert("sequencer_max_locked_keys", COUNT, 128, "HYPERACTOR_SEQUENCER_MAX_LOCKED_KEYS",
           "Sequencer locks."),
    _inert("message_latency_sampling_rate", SHARE, 0.01, "HYPERACTOR_MESSAGE_LATENCY_SAMPLING_RATE",
           "Share of messages timed."),
    _inert("small_write_threshold", COUNT, 256, "MONARCH_HYPERACTOR_SMALL_WRITE_THRESHOLD",
           "Bytes below which parts are copied together."),
    _inert("max_cast_dimension_size", COUNT, 16, "HYPERACTOR_MESH_MAX_CAST_DIMENSION_SIZE",
           "Dimension size above which a cast is split."),

    # Starting, stopping, ending
    Setting("host_spawn_ready_timeout", DURATION, "30s", "HYPERACTOR_HOST_SPAWN_READY_TIMEOUT",
            "How long a new process may take to be ready."),
    _inert("mesh_proc_spawn_max_idle", DURATION, "30s", "HYPERACTOR_MESH_PROC_SPAWN_MAX_IDLE",
           "How long to wait for a further process to be ready; host_spawn_ready_timeout bounds each."),
    _inert("actor_spawn_max_idle", DURATION, "30s", "HYPERACTOR_MESH_ACTOR_SPAWN_MAX_IDLE",
           "How long to wait for a further actor to be ready."),
    Setting("stop_actor_timeout", DURATION, "10s", "HYPERACTOR_STOP_ACTOR_TIMEOUT",
            "How long a stopping actor waits for what it owns to stop, and for the concurrent endpoints that it cancels."),
    Setting("cleanup_timeout", DURATION, "3s", "HYPERACTOR_CLEANUP_TIMEOUT",
            "How long an actor's __cleanup__ may take."),
    Setting("process_exit_timeout", DURATION, "10s", "HYPERACTOR_PROCESS_EXIT_TIMEOUT",
            "How long a stopped process may take to exit before it is killed."),
    _inert("proc_stop_max_idle", DURATION, "30s", "HYPERACTOR_MESH_PROC_STOP_MAX_IDLE",
           "How long to wait for a further process to end; process_exit_timeout bounds each."),
    Setting("mesh_terminate_timeout", DURATION, "10s", "HYPERACTOR_MESH_TERMINATE_TIMEOUT",
            "How long a host shutting down gives its processes before it kills them."),
    _inert("stop_grace_period", DURATION, "10s", "HYPERACTOR_REMOTE_STOP_GRACE_PERIOD",
           "How long a worker told to stop may take; see mesh_terminate_timeout."),
    Setting("mesh_orphan_timeout", DURATION, "1m", "HYPERACTOR_MESH_ORPHAN_TIMEOUT",
            "How long processes on other hosts outlive a client that has fallen silent."),
    Setting("job_lease", DURATION, "4h", "MONARCH_JOB_LEASE",
            "How long the hosts of a job outlive the last program that used them; 0 for as long as they may."),
    Setting("worker_lease", DURATION, "0s", "MONARCH_WORKER_LEASE",
            "How long a worker waits for a client, from its start or since the last one left, before it ends; 0s is for "
            "ever."),
    Setting("mesh_attach_config_timeout", DURATION, "1m", "HYPERACTOR_MESH_ATTACH_CONFIG_TIMEOUT",
            "How long attaching to a worker may take."),
    Setting("mesh_bootstrap_enable_pdeathsig", FLAG, True, "HYPERACTOR_MESH_BOOTSTRAP_ENABLE_PDEATHSIG",
            "Whether the kernel kills a process when its host agent dies; if not, it ends when it notices that."),
    _inert("get_actor_state_max_idle", DURATION, "30s", "HYPERACTOR_MESH_GET_ACTOR_STATE_MAX_IDLE",
           "Idle limit of queries for actor states."),
    _inert("get_proc_state_max_idle", DURATION, "1m", "HYPERACTOR_MESH_GET_PROC_STATE_MAX_IDLE",
           "Idle limit of queries for process states."),
    _inert("supervision_watchdog_timeout", DURATION, "2m", "HYPERACTOR_MESH_SUPERVISION_WATCHDOG_TIMEOUT",
           "Limit of a silent supervisor (ends are pushed, not polled)."),
    _inert("mesh_terminate_concurrency", COUNT, 16, "HYPERACTOR_MESH_TERMINATE_CONCURRENCY",
           "Processes terminated at once."),
    Setting("terminated_snapshot_retention", COUNT, 100, "HYPERACTOR_TERMINATED_SNAPSHOT_RETENTION",
            "Ended actors of which a process still tells those who look at it; the oldest go."),
    _inert("use_direct_spawn", FLAG, False, "HYPERACTOR_MESH_USE_DIRECT_SPAWN", "Another way to spawn."),
    _inert("proc_launcher_kind", TEXT, "", "HYPERACTOR_MESH_PROC_LAUNCHER_KIND",
           "How processes are launched."),

    # Processes
    Setting("max_procs", POSITIVE, 65_536, "MONARCH_MAX_PROCS",
            "Most processes that one spawn_procs may ask for: more are refused at the call."),
    Setting("runtime_dir", TEXT, "", "MONARCH_RUNTIME_DIR",
            "Folder of the sockets; empty is XDG_RUNTIME_DIR or else the temporary folder."),
    Setting("preload", TEXT, "auto", "MONARCH_PRELOAD",
            "Modules that new processes have imported already: auto (those that the client has imported), none, or "
            "names with commas."),
    Setting("share_threads", FLAG, True, "MONARCH_SHARE_THREADS",
            "Whether processes get OMP_NUM_THREADS, their share of the host's processors, where nothing sets it."),
    Setting("share_devices", FLAG, True, "MONARCH_SHARE_DEVICES",
            "Whether processes use the GPU of their place on the host, and meshes of one host different GPUs."),
    Setting("switch_interval", DURATION, "1ms", "MONARCH_SWITCH_INTERVAL",
            "Python's thread switch interval in processes; 0s leaves it as it is."),
    Setting("waiters_read", Choice("auto", "never", "always"), "auto", "MONARCH_WAITERS_READ",
            "Whether a thread that waits reads what comes, in place of the I/O thread: auto (when one waits again and "
            "again), never, or always (for tests)."),
    Setting("slow_handler_after", DURATION, "1m", "MONARCH_SLOW_HANDLER_AFTER",
            "How long an endpoint may run before its stack is logged, once; 0s is never."),
    Setting("stack_signal", SIGNAL, 50, "MONARCH_STACK_SIGNAL",
            "Signal at which a process that cannot answer writes its stacks for its host agent; 0 is none."),
    Setting("suspect_after", DURATION, "10s", "MONARCH_SUSPECT_AFTER",
            "How long a process may be silent before it is suspected; a stopped one (SIGSTOP) is suspected at once."),
    Setting("suspect_timeout", DURATION, "5m", "MONARCH_SUSPECT_TIMEOUT",
            "How long a process may be suspected before it is killed and counts as failed; 0s is for ever."),
    Setting("show_internal_frames", FLAG, False, "MONARCH_SHOW_INTERNAL_FRAMES",
            "Whether remote tracebacks show the frames of this package as well."),
    Setting("deadlock_after", DURATION, "1s", "MONARCH_DEADLOCK_AFTER",
            "How long actors may wait for each other in a circle before DeadlockError ends it; 0s is for ever."),
    Setting("restart_argument_bytes", COUNT, 64 * MIB, "MONARCH_RESTART_ARGUMENT_BYTES",
            "Most bytes of encoded constructor arguments that a mesh's owner keeps for restarts."),
    Setting("debug_on_exception", FLAG, False, "MONARCH_DEBUG_ON_EXCEPTION",
            "Whether an endpoint that raises stops there first, for `monarch debug`."),
    Setting("debug_exception_timeout", DURATION, "10m", "MONARCH_DEBUG_EXCEPTION_TIMEOUT",
            "How long an endpoint that has stopped because it raised waits for somebody to attach, before it fails as "
            "usual."),
    _inert("tokio_worker_threads", OrNone(POSITIVE), None, "MONARCH_TOKIO_WORKER_THREADS", "I/O threads."),
    _inert("enable_unawaited_python_task_traceback", FLAG, False, None, "Trace tasks nobody awaited."),

    # Output
    Setting("enable_log_forwarding", FLAG, False, "HYPERACTOR_MESH_ENABLE_LOG_FORWARDING",
            "Whether processes' output can be streamed to the client; on by itself in IPython and Jupyter."),
    Setting("stream_remote_output", FLAG, True, "MONARCH_STREAM_REMOTE_OUTPUT",
            "Whether the client prints the output of processes on other hosts, each line with host and rank; otherwise it "
            "stays with their workers."),
    Setting("enable_file_capture", FLAG, False, "HYPERACTOR_MESH_ENABLE_FILE_CAPTURE",
            "Whether the output of each process is also written to a file on its host."),
    Setting("log_dir", TEXT, "", "MONARCH_LOG_DIR",
            "Folder of those files on each host, MESH-ID/RANK.log in it; empty is ~/.local/state/monarch/logs."),
    Setting("log_file_bytes", POSITIVE, 64 * MIB, "MONARCH_LOG_FILE_BYTES",
            "Size at which such a file becomes RANK.log.1, in place of the one before, and another begins."),
    Setting("tail_log_lines", COUNT, 20, "HYPERACTOR_MESH_TAIL_LOG_LINES",
            "Last lines of a process's stderr shown when it fails; 0 is none."),
    Setting("prefix_with_rank", FLAG, True, "HYPERACTOR_PREFIX_WITH_RANK",
            "Whether streamed lines begin with [rank]."),
    _inert("force_file_log", FLAG, False, "HYPERACTOR_FORCE_FILE_LOG", "Write internal logs to a file."),
    _inert("read_log_buffer", COUNT, 100, "HYPERACTOR_READ_LOG_BUFFER",
           "Lines buffered while reading output."),
    _inert("file_log_level", TEXT, "", "MONARCH_FILE_LOG", "Level of the internal log file."),
    _inert("monarch_log_suffix", TEXT, "", "MONARCH_LOG_SUFFIX", "Suffix of the internal log file."),

    # Administration
    Setting("mesh_admin_addr", TEXT, "127.0.0.1:1729", "HYPERACTOR_MESH_ADMIN_ADDR",
            "Where the admin server listens, host:port; a port that is taken is replaced. Beyond this machine it asks for "
            "the token of the URL that is printed."),
    Setting("mesh_admin_single_host_timeout", DURATION, "3s", "HYPERACTOR_MESH_ADMIN_SINGLE_HOST_TIMEOUT",
            "How long processes and hosts may take to answer for the tree before it is shown without them."),
    _inert("mesh_admin_tree_timeout", DURATION, "10s", "HYPERACTOR_MESH_ADMIN_TREE_TIMEOUT",
           "How long the admin's view of the whole tree may take."),
    Setting("mesh_admin_pyspy_timeout", DURATION, "10s", "HYPERACTOR_MESH_ADMIN_PYSPY_TIMEOUT",
            "How long a process may take to tell its stacks."),
    _inert("mesh_admin_pyspy_max_profile_duration", DURATION, "5m",
           "HYPERACTOR_MESH_ADMIN_PYSPY_MAX_PROFILE_DURATION", "Longest profile that may be asked for."),
    Setting("pyspy_bin", TEXT, "", "PYSPY_BIN",
            "The py-spy program; empty is the one on PATH."),
    _inert("mesh_admin_query_child_timeout", DURATION, "100ms", "HYPERACTOR_MESH_ADMIN_QUERY_CHILD_TIMEOUT",
           "Limit of a query to one child."),
    _inert("mesh_admin_resolve_actor_timeout", DURATION, "200ms",
           "HYPERACTOR_MESH_ADMIN_RESOLVE_ACTOR_TIMEOUT",
           "Limit of resolving an actor."),
    _inert("mesh_admin_max_concurrent_resolves", COUNT, 2, "HYPERACTOR_MESH_ADMIN_MAX_CONCURRENT_RESOLVES",
           "Actors resolved at once."),
    Setting("mesh_admin_config_dump_bridge_timeout", DURATION, "5s",
            "HYPERACTOR_MESH_ADMIN_CONFIG_DUMP_BRIDGE_TIMEOUT", "How long a process may take to tell its settings."),
    _inert("mesh_admin_pyspy_bridge_timeout", DURATION, "13s", "HYPERACTOR_MESH_ADMIN_PYSPY_BRIDGE_TIMEOUT",
           "Limit of a stack dump, as the server counts."),
    _inert("mesh_admin_pyspy_client_timeout", DURATION, "20s", "HYPERACTOR_MESH_ADMIN_PYSPY_CLIENT_TIMEOUT",
           "Limit of a stack dump, as the caller counts."),

    # Telemetry
    Setting("telemetry_recording", TEXT, "", "MONARCH_TELEMETRY_RECORDING",
            "What processes record; monarch.telemetry.start() sets it. Words separated by commas: `on`, and `system` for the "
            "runtime's own actors as well."),
    Setting("enable_otel_metrics", FLAG, True, "ENABLE_OTEL_METRICS",
            "Whether metrics go to OpenTelemetry if its exporter is set up."),
    Setting("enable_otel_tracing", FLAG, True, "ENABLE_OTEL_TRACING",
            "Whether traces go to OpenTelemetry if its exporter is set up."),
    _inert("process_memory_metric_interval", DURATION, "5m", "HYPERACTOR_PROCESS_MEMORY_METRIC_INTERVAL",
           "How often a process records its memory."),
    _inert("otel_metric_export_interval", DURATION, "1s", "OTEL_METRIC_EXPORT_INTERVAL",
           "Export interval; OpenTelemetry reads the variable itself, in milliseconds."),
    _inert("enable_recorder_tracing", FLAG, True, "ENABLE_RECORDER_TRACING", "Record traces in memory."),
    _inert("enable_sqlite_tracing", FLAG, False, "ENABLE_SQLITE_TRACING", "Record traces in SQLite."),
    _inert("scuba_log_enter_exit", FLAG, False, "SCUBA_LOG_ENTER_EXIT", "Log entering and leaving spans."),

    # Record and replay
    Setting("record", TEXT, "", "MONARCH_RECORD",
            "Actors whose messages are recorded for `monarch replay`: names of meshes or classes, separated by commas, "
            "with ranks or without (trainers, Trainer, trainers[3], trainers[0-7], all); asked when they are spawned."),
    Setting("record_folder", TEXT, "", "MONARCH_RECORD_FOLDER",
            "Where recordings are written, on the host of each actor; empty is a folder of this user alone under the "
            "temporary one."),
    Setting("record_bytes", COUNT, 1024 * MIB, "MONARCH_RECORD_BYTES",
            "Most bytes of one recording; at the bound it stops, and says so."),

    # Bulk data
    Setting("rdma_allow_tcp_fallback", FLAG, True, "MONARCH_RDMA_ALLOW_TCP_FALLBACK",
            "Whether transfers may go over TCP if no faster path works."),
    Setting("rdma_disable_ibverbs", FLAG, False, "MONARCH_RDMA_DISABLE_IBVERBS",
            "Whether RDMA devices are not to be used."),
    Setting("rdma_nixl", FLAG, False, "MONARCH_RDMA_NIXL",
            "Whether transfers may go over NIXL. Its UCX opens ports that do not ask for the job's secret."),
    Setting("rdma_max_chunk_size_mb", COUNT, 64, "MONARCH_RDMA_MAX_CHUNK_SIZE_MB",
            "MiB sent at a time over TCP."),
    Setting("rdma_tcp_fallback_parallelism", POSITIVE, 1, "MONARCH_RDMA_TCP_FALLBACK_PARALLELISM",
            "TCP connections that a transfer is spread over; 1 (the default) means four from 8 MiB on."),
    Setting("rdma_ibverbs_target", TEXT, "", "MONARCH_RDMA_IBVERBS_TARGET",
            "Which device: cpu:<numa node>, gpu:<ordinal> or nic:<name>; empty is the nearest."),
    Setting("rdma_peer_device_affinity", TEXT, "", "MONARCH_RDMA_PEER_DEVICE_AFFINITY",
            "Which devices may pair: any, match_name or groups:a,b|c,d; empty is any."),
    Setting("rdma_qp_init_timeout", DURATION, "30s", "MONARCH_RDMA_QP_INIT_TIMEOUT",
            "How long two devices may take to connect."),
    Setting("rdma_allow_plain_bytes", FLAG, False, "MONARCH_RDMA_ALLOW_PLAIN_BYTES",
            "Whether RDMA devices may move bytes of a job that uses TLS: they do not encrypt."),
    Setting("rdma_ib_gid_index", OrNone(Count(maximum=255)), None, "MONARCH_RDMA_IB_GID_INDEX",
            "Which entry of each port's GID table is used; None is one in the subnet of the other side's."),
    Setting("rdma_ib_pkey_index", Count(maximum=65535), 0, "MONARCH_RDMA_IB_PKEY_INDEX",
            "Which entry of each port's partition table is used."),
    Setting("rdma_ib_traffic_class", Count(maximum=255), 0, "MONARCH_RDMA_IB_TRAFFIC_CLASS",
            "Traffic class of RDMA packets; on RoCE v2 the DSCP is its upper six bits."),
    Setting("rdma_ib_service_level", Count(maximum=15), 0, "MONARCH_RDMA_IB_SERVICE_LEVEL",
            "InfiniBand service level of RDMA packets."),
    Setting("rdma_ib_timeout", Count(minimum=1, maximum=31), 20, "MONARCH_RDMA_IB_TIMEOUT",
            "A packet that is not acknowledged in 4.096 us x 2^this is sent again; 20 is 4.3 s."),
    Setting("rdma_ib_retry_count", Count(maximum=7), 7, "MONARCH_RDMA_IB_RETRY_COUNT",
            "How often it is sent again before the connection has failed."),
    Setting("rdma_ib_relaxed_ordering", FLAG, True, "MONARCH_RDMA_IB_RELAXED_ORDERING",
            "Whether devices may write the bytes of one transfer in any order; faster on some machines."),
    Setting("rdma_max_nics_per_buffer", OrNone(POSITIVE), None, "MONARCH_RDMA_MAX_NICS_PER_BUFFER",
            "Most devices a buffer is registered on; None is all."),
    Setting("rdma_min_stripe_size_kb", COUNT, 512, "MONARCH_RDMA_MIN_STRIPE_SIZE_KB",
            "Least KiB for each device when a transfer is spread over several."),
    _inert("rdma_cq_busy_poll_window", OrNone(DURATION), None, "MONARCH_RDMA_CQ_BUSY_POLL_WINDOW",
           "How long completions are polled busily."),
    _inert("rdma_qps_per_cq", COUNT, 64, "MONARCH_RDMA_QPS_PER_CQ",
           "Queue pairs sharing a completion queue."),
    _inert("rdma_qps_per_peer", COUNT, 4, "MONARCH_RDMA_QPS_PER_PEER", "Queue pairs a peer."),
    _inert("rdma_cq_poller_per_device", FLAG, True, "MONARCH_RDMA_CQ_POLLER_PER_DEVICE",
           "A poller each device."),
    _inert("rdma_host_odp", FLAG, False, "MONARCH_RDMA_HOST_ODP", "On-demand paging of host memory."),
    _inert("rdma_runtime_worker_threads", COUNT, 4, "MONARCH_RDMA_RUNTIME_WORKER_THREADS",
           "Threads of RDMA."),
)
# fmt: on

LAYERS = Layers(TABLE, os.environ)


@overload
def get(name: SecondsName) -> float: ...
@overload
def get(name: CountName) -> int: ...
@overload
def get(name: OptionalCountName) -> int | None: ...
@overload
def get(name: FlagName) -> bool: ...
@overload
def get(name: TextName) -> str: ...
@overload
def get(name: TransportName) -> BindSpec: ...
def get(name: str) -> Any:
    """The value now in force; a duration is float seconds. A dict lookup: cheap enough for hot paths.

    ValueError for an unknown name, and at the process's first use of settings when an environment variable of
    one holds something unreadable.
    """
    return LAYERS.get(name)


def snapshot() -> Snapshot:
    """What a child process must be told to see these settings: a dict of dicts of str, for any codec."""
    return LAYERS.snapshot()


def told(snapshot: Mapping[str, Mapping[str, str]], name: str) -> Any:
    """The value that a setting has in the process that gave `snapshot`, whatever it is here. A duration is float seconds."""
    return LAYERS.told(snapshot, name)


def restore(snapshot: Mapping[str, Mapping[str, str]]) -> None:
    """In a child: take over what `snapshot` gave, and read this process's environment again.

    What was set by `configure` where the snapshot was taken hides the child's environment; what stood in the
    environment there is hidden by it. The child's own `configure` hides both. ``{}`` forgets what was taken
    over. ValueError for a setting unknown here.
    """
    LAYERS.restore(snapshot)
