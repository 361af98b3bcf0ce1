"""Stacks and profiles in the shapes of py-spy, made of what processes tell of themselves. Pure.

Processes tell their Python frames without py-spy and without ptrace; what that cannot know is null or false: who holds the
GIL, and frames of native code.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from monarch._mesh.inspection.stack_records import ProcessStacks, StackFrame, ThreadStack, decode_process

LONGEST, FASTEST = 300, 1000  # seconds and samples a second of a profile


class ProfileWanted(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A request to /v1/pyspy_profile_svg. ValueError by `check` for what is out of range."""

    duration_s: float = 5
    rate_hz: float = 100
    native: bool = False
    threads: bool = False
    nonblocking: bool = True

    def check(self) -> None:
        if not 1 <= self.duration_s <= LONGEST:
            raise ValueError(f"duration_s is 1 to {LONGEST} seconds, got {self.duration_s:g}")
        if not 1 <= self.rate_hz <= FASTEST:
            raise ValueError(f"rate_hz is 1 to {FASTEST} samples a second, got {self.rate_hz:g}")


def result(body: bytes, warnings: list[str]) -> dict[str, Any]:
    """`body`: the answer to question "stacks"."""
    return _ok(decode_process(body), "python_only", warnings)


def native_result(body: bytes, address: str) -> dict[str, Any]:
    """`body`: the answer of a host agent to question "native_stacks"."""
    told = msgspec.msgpack.decode(body)
    stacks, silent = (told["stacks"], told["silent"]) if isinstance(told, dict) else (told[0], told[1])
    for row in stacks:
        process = msgspec.convert(row, ProcessStacks)
        if process.address == address:
            return _ok(process, "native", [])
    why = silent.get(address, "it was not looked at")
    if "py-spy" in why and ("not" in why or "install" in why):
        return {"BinaryNotFound": {"searched": [why]}}
    return {"Failed": {"pid": 0, "binary": "py-spy", "exit_code": None, "stderr": why}}


def why_not_native(answered: dict[str, Any]) -> str:
    found = answered.get("BinaryNotFound", {}).get("searched") or [answered.get("Failed", {}).get("stderr", "")]
    return f"native frames are not to be had ({found[0]}); fell back to Python frames"


def _ok(process: ProcessStacks, mode: str, warnings: list[str]) -> dict[str, Any]:
    return {
        "Ok": {
            "pid": process.pid,
            "binary": "py-spy" if mode == "native" else "monarch",
            "capture_mode": mode,
            "stack_traces": [_trace(process.pid, thread) for thread in process.threads],
            "warnings": [*warnings, *([process.why] if process.why else [])],
        }
    }


def _trace(pid: int, thread: ThreadStack) -> dict[str, Any]:
    return {
        "pid": pid,
        "thread_id": thread.native_id,
        "thread_name": _thread_name(thread),
        "os_thread_id": thread.native_id or None,
        "active": not thread.idle and thread.state != "S",
        "owns_gil": False,
        # py-spy shows the innermost frame first.
        "frames": [_frame(frame, depth == 0) for depth, frame in enumerate(thread.frames)][::-1],
    }


def _thread_name(thread: ThreadStack) -> str:
    doing = f" {thread.endpoint}" if thread.endpoint else ""
    who = f" ({thread.actor}[{thread.rank}]{doing})" if thread.actor else ""
    return f"{thread.thread}{who}" + (f" task {thread.task}" if thread.task else "")


def _frame(frame: StackFrame, is_entry: bool) -> dict[str, Any]:
    return {
        "name": frame.function,
        "filename": frame.file,
        "module": None,
        "short_filename": os.path.basename(frame.file),
        "line": frame.line,
        "locals": [{"name": name, "addr": 0, "arg": False, "repr": value} for name, value in frame.locals.items()]
        or None,
        "is_entry": is_entry,
    }
