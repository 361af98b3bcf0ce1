"""The names `settings.get` takes, by the type it gives back: every setting that is not inert.

A checker thus knows the type of `settings.get("cleanup_timeout")` and catches a misspelt name. A test holds
these lists equal to the table's.
"""

from __future__ import annotations

from typing import Literal

SecondsName = Literal[
    "pending_actor_delivery_timeout",
    "message_delivery_timeout",
    "message_ack_time_interval",
    "channel_reconnect_timeout",
    "channel_tcp_keepalive_idle",
    "server_heartbeat_interval",
    "host_spawn_ready_timeout",
    "stop_actor_timeout",
    "cleanup_timeout",
    "process_exit_timeout",
    "mesh_terminate_timeout",
    "mesh_orphan_timeout",
    "worker_lease",
    "mesh_attach_config_timeout",
    "job_lease",
    "switch_interval",
    "slow_handler_after",
    "suspect_after",
    "suspect_timeout",
    "deadlock_after",
    "debug_exception_timeout",
    "rdma_qp_init_timeout",
    "mesh_admin_single_host_timeout",
    "mesh_admin_pyspy_timeout",
    "mesh_admin_config_dump_bridge_timeout",
]

CountName = Literal[
    "codec_max_frame_length",
    "outgoing_queue_bytes",
    "segment_from",
    "mailbox_messages",
    "undelivered_messages",
    "message_ack_every_n_messages",
    "max_cast_fanout",
    "max_procs",
    "tree_casts_from",
    "tree_calls_from",
    "direct_after",
    "restart_argument_bytes",
    "stack_signal",
    "record_bytes",
    "tail_log_lines",
    "log_file_bytes",
    "terminated_snapshot_retention",
    "rdma_max_chunk_size_mb",
    "rdma_tcp_fallback_parallelism",
    "rdma_min_stripe_size_kb",
    "rdma_ib_pkey_index",
    "rdma_ib_traffic_class",
    "rdma_ib_service_level",
    "rdma_ib_timeout",
    "rdma_ib_retry_count",
]

OptionalCountName = Literal["segment_bytes", "rdma_max_nics_per_buffer", "rdma_ib_gid_index"]

FlagName = Literal[
    "mesh_bootstrap_enable_pdeathsig",
    "share_threads",
    "share_devices",
    "enable_log_forwarding",
    "enable_file_capture",
    "stream_remote_output",
    "prefix_with_rank",
    "show_internal_frames",
    "debug_on_exception",
    "enable_otel_metrics",
    "enable_otel_tracing",
    "rdma_allow_tcp_fallback",
    "rdma_disable_ibverbs",
    "rdma_nixl",
    "rdma_allow_plain_bytes",
    "rdma_ib_relaxed_ordering",
]

TextName = Literal[
    "channel_tcp_congestion",
    "runtime_dir",
    "log_dir",
    "mesh_admin_addr",
    "preload",
    "pyspy_bin",
    "record",
    "record_folder",
    "rdma_ibverbs_target",
    "rdma_peer_device_affinity",
    "waiters_read",
    "telemetry_recording",
]

TransportName = Literal["default_transport",]
