"""Errors of a device after which its process cannot use it any more.

A kernel that fails (a device-side assert, an illegal address) leaves its process's context on the device unusable: every
later call gives the same error, and only a new process gets a new context. Kernels run behind the calls that launch them,
so the error is met by some later operation. Other errors (no memory, a launch that is not possible) pass.
"""

from __future__ import annotations

import torch


def is_poisoned(error: BaseException) -> bool:
    """True if `error` came from the device, and that refuses everything from here on. Asks the device, and does not
    wait for it."""
    if not _of_a_device(error):
        return False
    try:
        torch.accelerator.current_stream().query()  # whether it is done, or else how it failed
    except Exception:
        return True
    return False


def _of_a_device(error: BaseException) -> bool:
    """torch.AcceleratorError since torch 2.8; before it, and from some places still, a RuntimeError with the words of
    C10_CUDA_CHECK."""
    if isinstance(error, torch.OutOfMemoryError):
        return False
    kind = getattr(torch, "AcceleratorError", None)
    if kind is not None and isinstance(error, kind):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in ("CUDA error", "HIP error"))


def device_here() -> str:
    """The device of this thread, as reports name it."""
    try:
        return f"{torch.accelerator.current_accelerator()}:{torch.accelerator.current_device_index()}"
    except Exception:  # it refuses everything
        return "the device"


def report(error: BaseException, command: str, rank: int, host: str, device: str) -> str:
    """Returns the error for the program."""
    cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return (
        f"{device} of rank {rank} on {host} has failed at or before {command}: {cause}. A device tells of errors late: "
        f"that operation failed, or one issued before it on this rank. Its process cannot use the device any more, so "
        f"nothing else was run there, and this tensor engine ends. To find the operation, run again with "
        f'spawn_procs(env={{"CUDA_LAUNCH_BLOCKING": "1"}}) (AMD_SERIALIZE_KERNEL=3 with ROCm), where each is waited for. '
        f"To go on: procs.restart().get(), activate the mesh again, and make the tensors anew"
    )


def advice(command: str) -> str:
    """Returns what to add to the traceback of an operation that failed; "" for most."""
    if "_scaled_dot_product_" in command:
        return (
            "\nThe program's torch chose this kernel of scaled_dot_product_attention, by the device of its own process; "
            "these may have another one, which cannot run it. torch.nn.attention.sdpa_kernel(...) around the call, in the "
            "program, chooses one that all have (SDPBackend.MATH works everywhere)"
        )
    return ""
