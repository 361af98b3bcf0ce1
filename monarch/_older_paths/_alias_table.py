"""The table of paths inside of the package that libraries import from, and of what they find there.

Module -> where its names are defined -> the names. `real:alias` where the path has another name for it.
"""

from __future__ import annotations

ALIASES: dict[str, dict[str, str]] = {
    "_rust_bindings.monarch_hyperactor.actor": {
        "monarch.actor": "Port",
    },
    "_rust_bindings.monarch_hyperactor.buffers": {
        "monarch._older_paths._private_names": "FlattenedBytes:Buffer FrozenBuffer",
    },
    "_rust_bindings.monarch_hyperactor.channel": {
        "monarch.actor": "ChannelTransport",
        "monarch.config.transport": "BindSpec",
    },
    "_rust_bindings.monarch_hyperactor.config": {
        "monarch.config": "clear_runtime_config configure configured Encoding get_global_config get_runtime_config",
    },
    "_rust_bindings.monarch_hyperactor.context": {
        "monarch._mesh.process.context": "ActorInstance:Instance",
        "monarch.actor": "Context",
    },
    "_rust_bindings.monarch_hyperactor.handle": {
        "monarch.actor": "WouldBlockRuntime",
    },
    "_rust_bindings.monarch_hyperactor.host_mesh": {
        "monarch.actor": "BootstrapCommand",
    },
    "_rust_bindings.monarch_hyperactor.mailbox": {
        "monarch.actor": "Port:OncePortRef Port:PortRef UndeliverableMessageEnvelope",
    },
    "_rust_bindings.monarch_hyperactor.proc": {
        "monarch.actor": "ActorAddr ActorAddr:ActorId ProcId Uid",
    },
    "_rust_bindings.monarch_hyperactor.pytokio": {
        "monarch.actor": "WouldBlockRuntime",
    },
    "_rust_bindings.monarch_hyperactor.shape": {
        "monarch": "Extent NDSlice:Slice Shape",
        "monarch._shape.region": "Region",
        "monarch.actor": "Point",
    },
    "_rust_bindings.monarch_hyperactor.supervision": {
        "monarch.actor": "MeshFailure SupervisionError",
    },
    "_rust_bindings.monarch_hyperactor.value_mesh": {
        "monarch.actor": "ValueMesh",
    },
    "_src.actor": {
        "monarch": "configure",
    },
    "_src.actor.actor_mesh": {
        "monarch": "NDSlice Shape",
        "monarch._mesh.process.context": "ActorInstance:HyInstance ActorInstance:Instance",
        "monarch._older_paths._private_names": "_context",
        "monarch.actor": (
            "Accumulator Actor ActorAddr ActorError ActorMesh as_endpoint attach Channel ChannelTransport Context "
            "context current_actor_name current_rank current_size enable_transport Endpoint Future MeshFailure "
            "Point Point:HyPoint Port Port:OncePortRef Port:PortRef PortReceiver RankedPortReceiver "
            "returns_future send shutdown_context ValueMesh"
        ),
    },
    "_src.actor.bootstrap": {
        "monarch": "Extent",
        "monarch.actor": (
            "attach_to_workers Future HostMesh run_worker_loop_forever run_worker_loop_until_shutdown "
            "start_worker_loop_forever"
        ),
    },
    "_src.actor.bootstrap_main": {
        "monarch._older_paths.bootstrap_main": "invoke_main main",
    },
    "_src.actor.code_sync.auto_reload": {
        "monarch.actor": "Actor endpoint",
    },
    "_src.actor.concurrent": {
        "monarch.actor": "ActorError concurrent_endpoint context endpoint span",
    },
    "_src.actor.debugger.breakpoint": {
        "monarch.actor": "context debug_controller",
    },
    "_src.actor.debugger.debug_controller": {
        "monarch.actor": "Actor concurrent_endpoint debug_controller endpoint get_or_spawn_controller",
    },
    "_src.actor.debugger.pdb_wrapper": {
        "monarch.actor": "ActorAddr",
    },
    "_src.actor.endpoint": {
        "monarch": "Extent",
        "monarch.actor": "concurrent_endpoint endpoint Endpoint EndpointProperty Future NotAnEndpoint",
    },
    "_src.actor.future": {
        "monarch.actor": "Future",
    },
    "_src.actor.host_mesh": {
        "monarch": "Extent NDSlice Shape",
        "monarch._older_paths._private_names": "create_local_host_mesh",
        "monarch.actor": (
            "BootstrapCommand context default_bootstrap_cmd Future HostMesh Point ProcMesh returns_future "
            "this_host this_proc"
        ),
    },
    "_src.actor.logging": {
        "monarch.actor": "context",
    },
    "_src.actor.mock": {
        "monarch.tensor.simulator": "patch_tensor_engine",
        "monarch.testing": "patch_actor",
    },
    "_src.actor.pickle": {
        "monarch._older_paths._private_names": "flatten unflatten",
    },
    "_src.actor.proc_launcher": {
        "monarch.actor": "Actor endpoint Port",
    },
    "_src.actor.proc_mesh": {
        "monarch": "NDSlice:Slice Shape",
        "monarch._mesh.meshes.system_actors": "SetupActor",
        "monarch._mesh.process.context": "ActorInstance:HyInstance",
        "monarch.actor": (
            "Actor context endpoint Future get_active_proc_meshes get_or_spawn_controller MeshFailure ProcMesh "
            "register_proc_mesh_spawn_callback returns_future unregister_proc_mesh_spawn_callback"
        ),
    },
    "_src.actor.returns_future": {
        "monarch.actor": "Future returns_future",
    },
    "_src.actor.shape": {
        "monarch": "Extent NDSlice NDSlice:Slice Shape",
        "monarch.actor": "MeshTrait",
    },
    "_src.actor.source_loader": {
        "monarch.actor": "Actor endpoint get_or_spawn_controller",
    },
    "_src.actor.supervision": {
        "monarch.actor": "MeshFailure SupervisionError unhandled_fault_hook",
    },
    "_src.actor.telemetry": {
        "monarch._older_paths._private_names": "TracingForwarder",
        "monarch.actor": "ActorAddr get_meter span traced",
    },
    "_src.gather_mount.gather_mount": {
        "monarch.actor": "Actor context endpoint HostMesh this_proc",
        "monarch.gather_mount": "gather_mount",
    },
    "_src.job._process_worker": {
        "monarch.actor": "run_worker_loop_forever",
    },
    "_src.job.host_mesh": {
        "monarch.actor": "attach_to_workers HostMesh",
        "monarch.job": "hosts_from_config new_service_proc_id service_proc_addr",
    },
    "_src.job.job": {
        "monarch.actor": (
            "Actor attach attach_to_workers Context context current_rank enable_transport endpoint Future "
            "HostMesh Port ProcId this_host"
        ),
        "monarch.job": (
            "exec_command job_load job_loads JobTrait load_current_job LocalJob MeshAdminConfig service_proc_addr "
            "set_current_job TelemetryConfig"
        ),
    },
    "_src.job.job_components": {
        "monarch.actor": "HostMesh",
        "monarch.job": "MeshAdminConfig TelemetryConfig",
    },
    "_src.job.job_sidecar": {
        "monarch": "get_runtime_config",
        "monarch.actor": "attach enable_transport HostMesh",
    },
    "_src.job.job_state": {
        "monarch.actor": "HostMesh",
        "monarch.job": "JobState",
    },
    "_src.job.kubernetes": {
        "monarch._older_paths._private_names": "_WORKER_BOOTSTRAP_SCRIPT",
        "monarch.job.kubernetes": "KubernetesJob",
    },
    "_src.job.mount_config": {
        "monarch.actor": "HostMesh",
    },
    "_src.job.port_forward": {
        "monarch.actor": "Actor ActorError Channel current_rank endpoint Point Port PortReceiver ProcMesh",
        "monarch.job": "PortForwarder",
    },
    "_src.job.process": {
        "monarch.actor": "attach_to_workers Future ProcId",
        "monarch.job": "JobTrait ProcessJob service_proc_addr",
    },
    "_src.job.service_identity": {
        "monarch.actor": "ProcId Uid",
        "monarch.job": (
            "deserialize_service_proc_ids new_service_proc_id ranked_service_proc_id_from_env "
            "serialize_service_proc_ids service_proc_addr service_proc_addrs"
        ),
    },
    "_src.job.shell": {
        "monarch.actor": "Actor Channel context endpoint HostMesh Port PortReceiver",
        "monarch.job": "shell",
    },
    "_src.job.slurm": {
        "monarch.actor": "attach_to_workers ChannelTransport ProcId",
        "monarch.job": "JobTrait serialize_service_proc_ids service_proc_addrs SlurmJob",
    },
    "_src.job.spmd": {
        "monarch.job.spmd": "serve SPMDJob",
    },
    "_src.job.telemetry_actor": {
        "monarch.actor": "Actor current_rank endpoint HostMesh MeshFailure ProcMesh",
    },
    "_src.job.telemetry_config": {
        "monarch.actor": "context HostMesh shutdown_context",
        "monarch.job": "TelemetryConfig",
    },
    "_src.rdma.rdma": {
        "monarch.actor": "context Future ProcMesh",
        "monarch.rdma": (
            "get_rdma_backend is_ibverbs_available is_rdma_available RDMAAction RDMABuffer "
            "RDMAReadTransferWarning RDMATcpFallbackWarning RDMAWriteTransferWarning"
        ),
    },
    "_src.spmd": {
        "monarch.actor": "ProcMesh",
        "monarch.spmd": "setup_torch_elastic_env setup_torch_elastic_env_async SPMDActor",
        "monarch.tools.network": "AddrType",
    },
    "_src.spmd._worker_entry": {
        "monarch.actor": "run_worker_loop_forever",
    },
    "_src.spmd.actor": {
        "monarch.actor": "Actor current_rank current_size endpoint",
        "monarch.spmd": "SPMDActor",
        "monarch.tools.network": "AddrType get_ipaddr",
    },
    "_src.spmd.host_mesh": {
        "monarch._older_paths._private_names": "host_mesh_from_store",
        "monarch.actor": "enable_transport ProcId",
        "monarch.job": "new_service_proc_id service_proc_addr",
    },
    "_src.tools.commands": {
        "monarch.job": "load_current_job",
        "monarch.job.contexts": "create:context_create remove:context_rm use:context_use",
        "monarch.tools.verbs.shell_verb": "shell_on_job",
        "monarch.tools.commands": "apply_job context_ls create debug get_or_create info kill server_ready",
    },
}

_SHELL = "run the command instead, as in `monarch "

# Parts of another implementation's messages, of which there is nothing here, and what is done instead.
_MESSAGE = (
    "send with monarch.actor.send(actor.method, args, kwargs, port), and take answers from Channel.open()'s receiver"
)
_PARTS = (
    "messages are pickled by themselves; monarch._src.actor.pickle.flatten and unflatten take objects out of a pickle "
    "and put them back"
)
_PORT = "send the monarch.actor.Port itself: it may be an argument or a part of one, and leads to its receiver"

# Module -> name -> why it is not there.
REFUSED: dict[str, dict[str, str]] = {
    "_rust_bindings.monarch_extension.mesh_admin_tui": {"run": _SHELL + "tui`"},
    "_rust_bindings.monarch_extension.tensor_worker": {
        "Ref": "send the monarch.Tensor itself: it may be an argument of a remote function"
    },
    "_rust_bindings.monarch_extension.trace": {"export_profile": _SHELL + "profile`"},
    "_rust_bindings.monarch_hyperactor.actor": {
        **dict.fromkeys(("MethodSpecifier", "PythonMessage", "PythonMessageKind"), _MESSAGE),
        "UnflattenArg": _PARTS,
    },
    "_rust_bindings.monarch_hyperactor.alloc": dict.fromkeys(
        ("Alloc", "AllocConstraints", "AllocSpec"),
        "allocators have gone: hosts come from monarch.job, or from this_host(), and give their processes by spawn_procs()",
    ),
    "_rust_bindings.monarch_hyperactor.mailbox": {"Mailbox": _MESSAGE, "PortId": _PORT},
    "_rust_bindings.monarch_hyperactor.pickle": dict.fromkeys(("PendingMessage", "PicklingState"), _PARTS),
    "_rust_bindings.monarch_hyperactor.pytokio": dict.fromkeys(
        ("PythonTask", "Shared"),
        "here asyncio runs what is asynchronous: write a coroutine, or return a monarch.actor.Future",
    ),
    "_rust_bindings.monarch_hyperactor.selection": {
        "Selection": "slice the mesh, as in mesh.slice(gpus=0), or say monarch.actor.send(..., selection='choose')"
    },
    "_src.actor.actor_mesh": {
        **dict.fromkeys(("MethodSpecifier", "PythonMessageKind"), _MESSAGE),
        **dict.fromkeys(("PendingMessage", "PicklingState"), _PARTS),
    },
    "_src.actor.proc_mesh": {"MethodSpecifier": _MESSAGE},
    "_src.actor.tensor_engine_shim": {"PicklingState": _PARTS},
    "_src.job.telemetry_actor": {"PortId": _PORT},
    "_src.tools.commands": {
        "exec_on_job": _SHELL + "exec`, or monarch.job.exec_command",
        "kill_and_confirm": "call monarch.tools.commands.kill: it gives the hosts back before it returns",
        "torchx_runner": "servers are jobs here, without torchx: make one of monarch.job, as SlurmJob, and ask it",
    },
}
