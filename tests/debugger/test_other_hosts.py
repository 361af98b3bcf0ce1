"""Ranks on other hosts: everything goes through the runtime."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest

from monarch._mesh.output.kept import OutputPage, OutputRequest
from monarch.admin.debugging import EDITOR, STREAM, Visit
from tests.debugger.program import FIRST_STOP
from tests.support.patience import TIMEOUT
from tests.support.tiers import full

pytestmark = full
PDB = "(Pdb) "


def test_breakpoints_editors_and_logs(afar: Any) -> None:
    pytest.importorskip("debugpy")
    afar.call("add 1")
    talk = afar.talk()
    limit = time.monotonic() + TIMEOUT
    while talk("list").count("| worker ") != 2:
        assert time.monotonic() < limit
    assert f"-> {FIRST_STOP}\n" in talk("attach worker 1", PDB)
    assert talk("p total", PDB) == f"6\n{PDB}"
    talk("detach")
    sock = afar.program.stream(STREAM, msgspec.msgpack.encode(Visit(EDITOR, mesh="pair", rank=0)))
    with sock, sock.makefile("rwb") as file:
        assert json.loads(file.readline())["pid"] == afar.pids[0]
        body = json.dumps({"seq": 1, "type": "request", "command": "initialize", "arguments": {}}).encode()
        file.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        file.flush()
        assert file.readline().startswith(b"Content-Length")
    talk("continue")
    assert afar.line() == "answer 212 212"
    answers = afar.program.ask("output", msgspec.msgpack.encode(OutputRequest("pair")), agents=True)
    told = [one for reply in answers.replies.values() for one in msgspec.msgpack.decode(reply, type=list[OutputPage])]
    assert sorted((one.rank, one.whole, one.ended) for one in told) == [(0, True, False), (1, True, False)]
    talk.close()
