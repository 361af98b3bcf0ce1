"""Routing between two processes: real loops and sockets; actors without threads, no agent."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch._errors import BackpressureTimeout, ForkedClientError, MessageTooLargeError
from monarch._runtime.hooks import Hooks
from monarch._runtime.instance import Delivery, Instance
from monarch._runtime.loop import Loop
from monarch._runtime.proc import Proc
from monarch._runtime.replies import OneReply, Target
from monarch._wire import codec, frame, message
from monarch._wire.message import (
    ERROR,
    VALUE,
    VERSION,
    Answer,
    Call,
    Failure,
    Flushed,
    Hello,
    Pause,
    ProcEnded,
    ProcReachable,
)
from monarch._wire.peer import PeerEnded
from monarch._wire.transport import unix
from monarch._wire.transport.stream import StreamConnection
from monarch._wire.transport.unix import UnixTransport
from monarch.config import settings
from tests.support.loops import in_loop
from tests.support.patience import TIMEOUT


class Behaviour:
    def describe_stop(self, reason: str) -> Failure:
        return Failure(f"stopped: {reason}", "key", "worker", [0], stopped=True)

    def describe_stale(self, overtaken: bool = False) -> Failure:
        return Failure("it was restarted", "key", "worker", [0], stopped=True)


class Heard(Hooks):
    """Events that the layer above is told, in order."""

    def __init__(self, proc: Proc) -> None:
        self.events: list[Any] = []
        self.come = threading.Event()
        proc.hooks = self

    def _hear(self, event: Any) -> None:
        self.events.append(event)
        self.come.set()

    bounced = actor_failed = process_ended = _hear


class Machine:
    """Processes of one host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.procs: list[Proc] = []
        self.errors: list[BaseException] = []

    def start(self, name: str) -> Proc:
        loop = Loop(name)
        loop.on_error = self.errors.append
        proc = Proc(f"unix:{self.folder}/{name}", loop)
        transport = UnixTransport(str(self.folder), loop, proc, proc.limits)
        transport.listen(unix.listen(f"{self.folder}/{name}"))
        proc.transport = transport
        proc.root_name = f"{name}.0"
        loop.start()
        self.procs.append(proc)
        return proc

    def pair(self) -> tuple[Proc, Proc, Instance]:
        """A client, a worker and an actor there."""
        client, worker = self.start("client"), self.start("m.0")
        worker.add_actor(instance := actor(worker))
        return client, worker, instance


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    for proc in machine.procs:
        proc.close(RuntimeError("the test is over"))
    assert machine.errors == []


def actor(proc: Proc, key: str = "key", incarnation: int = 0) -> Instance:
    instance = Instance(proc, key=key, name="worker", rank=0, view=b"", owner="client.0", incarnation=incarnation)
    instance.behaviour = Behaviour()  # type: ignore[assignment]
    return instance


def call(number: int, key: str = "key", port: int = 0, sender: str = "client.0") -> Call:
    return Call(key, sender, number, "step", port, "", 0, b"", 0)


def take(instance: Instance) -> Delivery:
    """The next message, waited for."""
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(instance.mailbox.take()), daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    assert got, "nothing came"
    assert isinstance(got[0], Delivery)
    return got[0]


def wait_reply(proc: Proc, there: Proc) -> tuple[OneReply, int]:
    entry = OneReply(Target("worker.step", [there.address], lambda address, ended: Failure(f"{address} is gone")))
    return entry, proc.ports.add(entry)


def test_a_call_and_its_answer(machine: Machine) -> None:
    client, worker, instance = machine.pair()
    entry, port = wait_reply(client, worker)
    body, buffers = codec.encode_call((bytearray(300_000), "x"), {})
    client.post(worker.address, call(1, port=port), body, buffers)
    delivery = take(instance)
    assert delivery.back == client.address and delivery.call.method == "step"
    assert codec.decode(delivery.body, delivery.buffers) == ((bytearray(300_000), "x"), {})
    worker.answer(delivery.back, Answer(port, 0, VALUE), *codec.encode_value("done"))
    assert entry.wait(TIMEOUT) and entry.value() == "done"
    assert [len(proc.processes.known()) for proc in (client, worker)] == [1, 1]
    assert "1 actors" in repr(worker) and worker.statistics()["actors"] == 1


def test_a_message_to_oneself_takes_no_socket_and_a_copy_of_the_memory(machine: Machine) -> None:
    client = machine.start("client")
    client.add_actor(instance := actor(client))
    memory = bytearray(b"a" * 9000)
    body, buffers = codec.encode_call((memory,), {})
    client.post(client.address, call(1), body, buffers)
    memory[:] = bytes(9000)
    ((arrived,), _) = codec.decode(take(instance).body, [bytearray(b"a" * 9000)] * len(buffers))
    assert arrived == b"a" * 9000 and client.processes.known() == []


def test_messages_for_an_actor_that_is_not_there_yet_wait_for_it(machine: Machine) -> None:
    client, worker = machine.start("client"), machine.start("m.0")
    for number in (1, 2, 3):
        client.post(worker.address, call(number))
    probe, port = wait_reply(client, worker)
    worker.receivers[Flushed] = lambda connection, msg, frame: worker.answer(
        connection.remote, Answer(port, 0, VALUE), codec.encode_value(None)[0], ()
    )
    client.post(worker.address, Flushed(3))  # behind the three
    assert probe.wait(TIMEOUT)
    assert worker.statistics()["undelivered"] == 3
    worker.add_actor(instance := actor(worker))
    assert [take(instance).call.seq for _ in range(3)] == [1, 2, 3]
    assert worker.statistics()["undelivered"] == 0


@pytest.mark.parametrize("port_given", [True, False])
def test_who_calls_an_actor_that_ended_is_told_why(machine: Machine, port_given: bool) -> None:
    client, worker, instance = machine.pair()
    worker.actor_ended(instance, Failure("it raised", mesh_name="worker"))
    entry, port = wait_reply(client, worker)
    heard = Heard(client)
    client.post(worker.address, call(1, port=port if port_given else 0))
    if port_given:
        assert entry.wait(TIMEOUT)
        with pytest.raises(RuntimeError, match=r"Endpoint call worker\.step\(\) failed, it raised"):
            entry.value()
    else:
        assert heard.come.wait(TIMEOUT)
        assert (heard.events[0].sender, heard.events[0].error) == ("client.0", "it raised")
    end = worker.table.end_of("key")
    assert end is not None and end.report == "it raised" and worker.table.end_of("never here") is None


def test_too_many_messages_for_unknown_actors_are_refused(machine: Machine) -> None:
    client, worker = machine.start("client"), machine.start("m.0")
    settings.LAYERS.set_runtime({**settings.LAYERS.runtime(), "undelivered_messages": 2})
    for number in (1, 2):
        client.post(worker.address, call(number, key="elsewhere"))
    entry, port = wait_reply(client, worker)
    client.post(worker.address, call(3, key="elsewhere", port=port))
    assert entry.wait(TIMEOUT)
    with pytest.raises(RuntimeError, match="no actor elsewhere is here and 2 messages already wait"):
        entry.value()


def refuse(client: Proc, worker: Proc, *numbers: int) -> None:
    """Messages for an actor that is not there; each is refused at once."""
    settings.LAYERS.set_runtime({**settings.LAYERS.runtime(), "undelivered_messages": 0})
    for number in numbers:
        entry, port = wait_reply(client, worker)
        client.post(worker.address, call(number, port=port))
        assert entry.wait(TIMEOUT)


def test_an_actor_that_comes_after_all_does_not_wait_for_what_was_refused(machine: Machine) -> None:
    client, worker = machine.start("client"), machine.start("m.0")
    refuse(client, worker, 1, 2)
    worker.add_actor(instance := actor(worker))
    client.post(worker.address, call(3))
    client.post(worker.address, call(4))
    assert [take(instance).call.seq, take(instance).call.seq] == [3, 4]


def test_what_continues_an_older_stream_is_not_for_whoever_comes(machine: Machine) -> None:
    """It was meant for an actor of the process before this one."""
    client, worker = machine.start("client"), machine.start("m.0")
    refuse(client, worker, 7)
    instance = actor(worker, incarnation=1)
    worker.add_actor(instance)
    entry, port = wait_reply(client, worker)
    told = threading.Event()
    on_restarted = client._on_restarted
    client._on_restarted = lambda remote, msg: (on_restarted(remote, msg), told.set())  # type: ignore[method-assign,func-returns-value,assignment]
    client.post(worker.address, call(8, port=port))
    assert entry.wait(TIMEOUT) and told.wait(TIMEOUT)
    with pytest.raises(RuntimeError, match="it was restarted"):
        entry.value()
    assert client.incarnations.of("key", 0, worker.address) == 1


def test_who_was_refused_is_told_of_those_that_come_later(machine: Machine) -> None:
    client, worker, instance = machine.pair()
    worker.actor_ended(instance, Failure("it raised"))
    assert worker.table.senders_to("key") == []
    refuse(client, worker, 4)
    assert worker.table.senders_to("key") == [client.address] and worker.table.senders_to("other") == []


def test_the_owner_of_a_failed_actor_is_told(machine: Machine) -> None:
    client, worker = machine.start("client"), machine.start("m.0")
    instance = actor(worker)
    instance.owner_proc = client.address
    worker.add_actor(instance)
    heard = Heard(client)
    worker.actor_ended(instance, Failure("it raised"))
    assert heard.come.wait(TIMEOUT)
    assert (heard.events[0].owner, heard.events[0].failure.report) == ("client.0", "it raised")


def test_the_end_of_a_process_is_told_once_to_everybody(machine: Machine) -> None:
    client, worker = machine.start("client"), machine.start("m.0")
    entry, port = wait_reply(client, worker)
    client.post(worker.address, call(1, port=port))
    heard = Heard(client)
    ended = ProcEnded(worker.address, 1, -9, False, [])
    in_loop(client.loop, lambda: [client.on_process_ended(ended), client.on_process_ended(ended)])
    assert heard.events == [ended]
    assert entry.wait(TIMEOUT)
    with pytest.raises(RuntimeError, match="is gone"):
        entry.value()
    with pytest.raises(PeerEnded):
        client.post(worker.address, call(2))
    client.answer(worker.address, Answer(1, 0, VALUE), b"", ())  # nobody is there to read it: no error


def test_word_of_a_host_that_ended_costs_the_same_however_many_are_known(machine: Machine) -> None:
    """Words of ended hosts may come by the thousand; counted are the functions that one runs on the I/O thread."""
    client = machine.start("client")

    def calls_for(host: str, *, known: bool) -> int:
        if known:
            client.processes.peer(f"{host}/m.0")
        calls = 0

        def count(_frame: object, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        def end() -> None:
            sys.setprofile(count)
            try:
                client.host_ended(host, "the cable was cut")
            finally:
                sys.setprofile(None)

        in_loop(client.loop, end)
        return calls

    few = [calls_for(f"tcp://10.1.0.{number}:1", known=known) for number, known in enumerate((True, False))]
    for number in range(2000):
        client.processes.peer(f"tcp://10.2.{number >> 8}.{number & 255}:1/m.0")
    many = [calls_for(f"tcp://10.3.0.{number}:1", known=known) for number, known in enumerate((True, False))]
    assert few[0] > few[1] > 0
    assert many[0] < few[0] + 10 and many[1] < few[1] + 10


def test_a_message_over_the_limit_is_not_sent_and_harms_nobody(machine: Machine) -> None:
    client, worker = machine.start("client"), machine.start("m.0")
    client.frame_limit = 1000
    with pytest.raises(MessageTooLargeError, match="has 2000 bytes and the limit is 1000"):
        client.post(worker.address, call(1), bytes(2000))
    with pytest.raises(MessageTooLargeError):
        client.check_size(b"", [memoryview(bytes(1001))])
    client.check_size(bytes(500), [memoryview(bytes(500))])
    worker.add_actor(instance := actor(worker))
    client.post(worker.address, call(1))
    assert take(instance).call.seq == 1


# --- more than an actor takes


def test_a_full_mailbox_makes_remote_senders_wait_until_half_of_it_is_handled(machine: Machine) -> None:
    client, worker = machine.start("client"), machine.start("m.0")
    instance = actor(worker)
    instance.high_water = 10
    worker.add_actor(instance)
    paused = threading.Event()
    set_pause = client.receivers[Pause]
    client.receivers[Pause] = lambda *pause: (set_pause(*pause), paused.set())  # type: ignore[func-returns-value,assignment]
    for number in range(1, 12):
        client.post(worker.address, call(number))
    assert paused.wait(TIMEOUT)
    assert client.backpressure.must_wait(worker.address, "key") and not client.backpressure.must_wait(
        worker.address, "another"
    )
    settings.LAYERS.set_runtime({**settings.LAYERS.runtime(), "message_delivery_timeout": 0.001})
    with pytest.raises(BackpressureTimeout, match=r"actor key at unix:.* mailbox_messages.* within 0\.001 s"):
        client.backpressure.wait_room(worker.address, "key")
    settings.LAYERS.set_runtime({**settings.LAYERS.runtime(), "message_delivery_timeout": TIMEOUT})
    instance.mailbox.drain()
    instance.resume_senders()
    client.backpressure.wait_room(worker.address, "key")
    assert not client.backpressure.must_wait(worker.address, "key")


def test_senders_are_not_left_waiting_for_an_actor_that_was_faster_than_its_pause(machine: Machine) -> None:
    """It took everything between the look at its mailbox and the pause: nobody else will resume them."""
    worker = machine.start("m.0")
    instance = actor(worker)
    instance.high_water = 10
    pauses: list[bool] = []

    def pause(address: str, key: str, on: bool) -> None:
        pauses.append(on)
        instance.mailbox.drain()

    worker.pause_sender = pause  # type: ignore[method-assign]
    for number in range(1, 12):
        delivery = Delivery(call(number), b"", (), "unix:/elsewhere/client")
        in_loop(worker.loop, lambda delivery=delivery: instance.deliver(delivery))  # type: ignore[misc]
    assert pauses == [True, False] and instance.paused_senders == set()


def test_a_request_to_stop_answers_what_waits_and_refuses_what_follows(machine: Machine) -> None:
    client, worker, instance = machine.pair()
    entries = [wait_reply(client, worker) for _ in range(3)]
    for number, (_, port) in enumerate(entries[:2], 1):
        client.post(worker.address, call(number, port=port))
    assert take(instance).call.seq == 1  # under way: it will be answered by its own end
    instance.request_stop("enough")
    instance.request_stop("really")
    client.post(worker.address, call(3, port=entries[2][1]))
    for entry, _ in entries[1:]:
        assert entry.wait(TIMEOUT)
        with pytest.raises(RuntimeError, match="stopped"):
            entry.value()
    assert not entries[0][0].ready
    assert len(instance.mailbox.control) == 1


# --- out of memory


def test_a_message_that_the_receiver_has_no_memory_for(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    client, worker = machine.start("client"), machine.start("m.0")

    def scarce(size: int) -> bytearray:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(frame, "allocate", scarce)
    entry, port = wait_reply(client, worker)
    client.post(worker.address, call(1, port=port), bytes(1 << 20))
    peer = client.processes.peer(worker.address)

    def agent_says_that_it_lives() -> None:
        if peer.asking:
            client.on_proc_reachable(ProcReachable(worker.address))

    while not entry.ready:  # what the socket did not take as a whole is sent once more
        in_loop(client.loop, agent_says_that_it_lives)
    why = r"broke while the call was under way \(it said: no memory for a frame of 1048576 bytes"
    with pytest.raises(RuntimeError, match=why):
        entry.value()
    assert client.processes._reasons == {}


# --- out of descriptors


def test_a_call_while_there_are_no_descriptors_is_sent_when_there_are(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, worker, instance = machine.pair()
    real, tried = unix.dial, threading.Semaphore(0)
    missing = [
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.ENFILE, ""),
        BlockingIOError(errno.EAGAIN, ""),
    ]

    def scarce(path: str, wait: bool = True) -> socket.socket:
        tried.release()
        if missing:
            raise missing.pop(0)
        return real(path, wait)

    monkeypatch.setattr(unix, "dial", scarce)
    for number in range(1, 4):
        client.post(worker.address, call(number))
    assert [take(instance).call.seq for _ in range(3)] == [1, 2, 3]


def test_a_full_queue_of_connections_blocks_nobody(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process there is stopped, say: whoever dials it would wait in the kernel, its I/O thread too."""
    monkeypatch.setattr(unix, "_BACKLOG", 0)
    client = machine.start("client")
    with unix.listen(f"{machine.folder}/m.0") as listening, unix.dial(f"{machine.folder}/m.0"):
        with pytest.raises(BlockingIOError):
            unix.dial(f"{machine.folder}/m.0", wait=False)
        in_loop(client.loop, lambda: client.post(f"unix:{machine.folder}/m.0", call(1)))
        assert client.processes.peer(f"unix:{machine.folder}/m.0").queued
        assert listening.fileno() >= 0


# --- strangers and the end


def test_another_version_is_refused_with_the_reason(machine: Machine) -> None:
    worker = machine.start("m.0")
    with unix.dial(f"{machine.folder}/m.0") as sock:
        sock.settimeout(TIMEOUT)
        sock.sendall(b"".join(frame.encode(message.encode(Hello(VERSION + 1, "unix:/h/x", 1)))))  # type: ignore[arg-type]
        decoder = frame.Decoder()
        frames = decoder.received(sock.recv_into(decoder.get_buffer()))
        bye = message.decode(frames[0].head)
        assert isinstance(bye, message.Bye)
        assert f"version {VERSION + 1} meets version {VERSION}" in bye.reason
        assert sock.recv(1) == b""
    assert worker.processes.known() == []


def test_who_does_not_say_hello_is_let_go(machine: Machine) -> None:
    machine.start("m.0")
    with unix.dial(f"{machine.folder}/m.0") as sock:
        sock.settimeout(TIMEOUT)
        sock.sendall(b"".join(frame.encode(message.encode(ProcReachable("x")))))  # type: ignore[arg-type]
        assert sock.recv(1) == b""


def test_closing_answers_who_waits_and_refuses_who_comes(machine: Machine) -> None:
    client, worker = machine.start("client"), machine.start("m.0")
    entry, port = wait_reply(client, worker)
    client.post(worker.address, call(1, port=port))
    client.close(error := RuntimeError("this process's client was shut down"))
    client.close(RuntimeError("again"))
    with pytest.raises(RuntimeError, match="was shut down"):
        entry.value()
    with pytest.raises(RuntimeError) as caught:
        client.post(f"unix:{machine.folder}/another", call(1))
    assert caught.value is error


def test_closing_lets_go_of_who_has_not_said_hello(machine: Machine) -> None:
    worker = machine.start("m.0")
    with unix.dial(f"{machine.folder}/m.0") as sock:
        sock.settimeout(TIMEOUT)
        in_loop(worker.loop, worker.transport.look)  # type: ignore[union-attr]
        worker.close(RuntimeError("this process is ending"))
        assert sock.recv(1) == b""


def test_what_comes_while_another_thread_closes_is_let_go(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.start("m.0")
    connect = UnixTransport.connect

    def closed_meanwhile(transport: UnixTransport, accepted: socket.socket, remote: str) -> StreamConnection:
        transport.close()
        return connect(transport, accepted, remote)

    monkeypatch.setattr(UnixTransport, "connect", closed_meanwhile)
    with unix.dial(f"{machine.folder}/m.0") as sock:
        sock.settimeout(TIMEOUT)
        assert sock.recv(1) == b""


def test_what_an_endpoint_raises_after_its_process_closed_is_not_its_own_failure(machine: Machine) -> None:
    client, worker, instance = machine.pair()
    entry, port = wait_reply(client, worker)
    client.post(worker.address, call(1, port=port))
    delivery = take(instance)
    worker.closed = RuntimeError("this process is ending")  # its connections are still there
    worker.reply(delivery, ERROR, *codec.encode_value(worker.closed))
    worker.closed = None
    worker.close(RuntimeError("this process is ending"))
    in_loop(client.loop, lambda: client.on_process_ended(ProcEnded(worker.address, 1, 0, True, [], "")))
    with pytest.raises(RuntimeError, match="is gone"):
        entry.wait(TIMEOUT)
        entry.value()


def test_a_forked_child_lets_go_of_the_links_and_says_so(machine: Machine) -> None:
    client, worker, instance = machine.pair()
    client.post(worker.address, call(1))
    take(instance)
    child = Proc(client.address, Loop("a copy"))
    descriptors = child.loop.descriptors()
    child.forked()
    assert isinstance(child.closed, ForkedClientError) and f"pid {os.getpid()}" in str(child.closed)
    for descriptor in descriptors:
        with pytest.raises(OSError):
            os.fstat(descriptor)
    with pytest.raises(ForkedClientError):
        child.post(worker.address, call(1))
