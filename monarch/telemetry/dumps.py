"""A stack dump, as `/v1/pyspy/{proc}` gives it, as rows of the tables `pyspy_*`. Pure."""

from __future__ import annotations

import json
from typing import Any

import msgspec


class _Local(msgspec.Struct):
    name: str
    addr: int = 0
    arg: bool = False
    repr: str | None = None


class _Frame(msgspec.Struct):
    name: str
    filename: str
    module: str | None = None
    short_filename: str | None = None
    line: int = 0
    locals: list[_Local] | None = None
    is_entry: bool = False


class _Thread(msgspec.Struct):
    thread_id: int
    frames: list[_Frame]
    pid: int = 0
    thread_name: str | None = None
    os_thread_id: int | None = None
    active: bool = False
    owns_gil: bool = False


class _Dump(msgspec.Struct):
    pid: int
    stack_traces: list[_Thread]
    binary: str = ""
    capture_mode: str = "python_only"
    warnings: list[str] = []


class _Answer(msgspec.Struct):
    Ok: _Dump


def dump_rows(dump_id: str, proc_ref: str, text: str, now_us: int) -> dict[str, list[tuple[Any, ...]]]:
    """Rows by table. ValueError for what is no successful dump."""
    try:
        dump = msgspec.json.decode(text, type=_Answer).Ok
    except msgspec.MsgspecError as exc:
        raise ValueError(f"this is no stack dump: {exc}") from None
    rows: dict[str, list[tuple[Any, ...]]] = {
        "pyspy_dumps": [
            (dump_id, now_us, dump.pid, dump.binary, proc_ref, dump.capture_mode, json.dumps(dump.warnings))
        ],
        "pyspy_stack_traces": [],
        "pyspy_frames": [],
        "pyspy_local_variables": [],
    }
    for thread in dump.stack_traces:
        id = thread.thread_id % 2**64
        rows["pyspy_stack_traces"].append(
            (
                dump_id,
                thread.pid or dump.pid,
                id,
                thread.thread_name,
                thread.os_thread_id,
                thread.active,
                thread.owns_gil,
            )
        )
        for depth, frame in enumerate(thread.frames):
            rows["pyspy_frames"].append(
                (
                    dump_id,
                    id,
                    depth,
                    frame.name,
                    frame.filename,
                    frame.module,
                    frame.short_filename,
                    frame.line,
                    frame.is_entry,
                )
            )
            for local in frame.locals or ():
                rows["pyspy_local_variables"].append(
                    (dump_id, id, depth, local.name, local.addr % 2**64, local.arg, local.repr)
                )
    return rows
