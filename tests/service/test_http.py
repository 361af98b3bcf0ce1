"""Services over HTTP in memory: a real port on loopback, in front of replicas in this process."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from monarch._errors import ActorError, SupervisionError
from monarch._http.answering import BadRequest
from monarch.actor import Actor, NDSlice, Shape, ValueMesh, endpoint, this_host
from monarch.service import (
    ReplicaLostError,
    ServiceError,
    ServiceOverloaded,
    ServiceRoutes,
    ServiceTimeoutError,
    ServiceUnavailableError,
    serve,
    serve_http,
)
from monarch.service.http_routes import _called, encoded, told
from monarch.testing import InProcessCluster, Local


class Echo(Actor):
    """Answers what it is asked; `gate` holds it up."""

    def __init__(self, gate: Local[threading.Event], entered: Local[threading.Semaphore]) -> None:
        self.gate, self.entered, self.version = gate, entered, 0

    @endpoint
    def say(self, text: str, times: int = 1) -> str:
        if text == "bad":
            raise ValueError("a bad text")
        return text * times

    @endpoint
    def wait(self) -> str:
        self.entered.value.release()
        self.gate.value.wait()
        return "waited"

    @endpoint
    def odd(self) -> object:
        return object()

    @endpoint
    def count(self, most: int) -> Iterator[int]:
        for number in range(most):
            if number == 13:
                raise ValueError("thirteen")
            yield number

    @endpoint
    def load(self, version: int) -> None:
        self.version = version


class Front:
    """A service with a front, and a client."""

    def __init__(self, **options: Any) -> None:
        self.gate, self.entered = threading.Event(), threading.Semaphore(0)
        self.service = serve(this_host(), Echo, Local(self.gate), Local(self.entered), **options)
        self.front = serve_http(self.service, ["say", "wait", "odd", "count"], port=0, routes=own_routes)
        self.url = self.front.url().get()
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post(path, json=body, headers=named)

    def open(self, path: str, body: Any) -> socket.socket:
        """A client that may go away before its answer is there."""
        port = int(self.url.rpartition(":")[2])
        client = socket.create_connection(("127.0.0.1", port))
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
        )
        client.sendall(head.encode() + b"\r\n\r\n" + data)
        return client

    def status(self) -> Any:
        return self.service.status().get()

    def close(self) -> None:
        self.gate.set()
        self.client.close()
        self.front.shutdown(0).get()
        self.service.shutdown(0).get()


def own_routes(front: ServiceRoutes) -> list[Any]:
    async def shout(request: Any) -> Any:
        body = await front.body(request)
        answer = await front.ask(request, front.service.say, body["text"].upper())
        return front.json({"shouted": answer.value})

    return [front.post("/v1/shout", shout)]


@pytest.fixture
def front(cluster: InProcessCluster) -> Iterator[Front]:
    made = Front()
    yield made
    made.close()


def until(true: Any) -> None:
    while not true():
        pass


def test_endpoints_answer_json(front: Front) -> None:
    assert front.post("/say", {"text": "ab", "times": 2}).json() == {"result": "abab", "version": 0, "replica": 0}
    assert front.post("/v1/shout", {"text": "ab"}).json() == {"shouted": "AB"}
    assert front.post("/say", {"text": "ab"}, session_id="s").json()["moves"] == 0
    front.service.update("load", 3).get()
    assert front.post("/say", {"text": "ab"}).json()["version"] == 1
    health = front.client.get("/health")
    assert (health.status_code, health.json()["replicas"]) == (200, 1)


WRONG: list[tuple[str, Any, dict[str, str], int, str]] = [
    ("/say", {"text": "bad"}, {}, 500, "ValueError: a bad text"),
    ("/say", {}, {}, 400, "echo.say(text, times=1): missing a required argument: 'text'"),
    ("/say", {"text": "a", "self": 1}, {}, 400, "multiple values"),
    ("/say", {"text": "a", "shown": 1}, {}, 400, "unexpected keyword argument 'shown'"),
    ("/count", {"most": 1, "shown": 1}, {}, 400, "unexpected keyword argument 'shown'"),
    ("/say", [1], {}, 400, "the body is not what is expected"),
    ("/say", {"text": "a" * (1 << 20)}, {}, 400, "a request has at most 1,048,576 bytes"),
    ("/say", {"text": "a"}, {"request_timeout": "soon"}, 400, "a number of seconds, 300 at most, not 'soon'"),
    ("/say", {"text": "a"}, {"session_id": "a" * 129}, 400, "at most 128 characters"),
    ("/odd", {}, {}, 500, "the answer has a object, which has no form in JSON"),
    ("/load", {"version": 1}, {}, 404, "there is nothing at this path"),
    ("/say", {"text": "a"}, {"origin": "http://elsewhere"}, 403, "only pages of this server may"),
    ("/say", {"text": "a"}, {"host": "elsewhere"}, 403, "ask for it as localhost"),
]


def test_what_is_wrong_is_told(front: Front) -> None:
    for path, body, headers, status, text in WRONG:
        answer = front.post(path, body, **headers)
        assert (answer.status_code, text in answer.json()["error"]) == (status, True), (path, body, answer.text)


def test_arguments_that_are_nested_deeper_than_pickling_goes_are_the_mistake_of_the_client() -> None:
    def call() -> None:
        raise RecursionError

    with pytest.raises(BadRequest, match="nested too deep"):
        _called(call, (), {})


def test_streams_are_events(front: Front) -> None:
    answer = front.post("/count", {"most": 3})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *values, last = [event for event in answer.text.split("\n\n") if event]
    assert values == [f'data: {{"value":{number}}}' for number in range(3)]
    assert last == 'event: end\ndata: {"values":3,"version":0,"replica":0}'
    assert front.post("/count", {"most": 0}).text.startswith("event: end")
    failed = front.post("/count", {"most": 20}).text
    assert failed.endswith('event: error\ndata: {"error":"ValueError: thirteen"}\n\n')


def test_a_full_service_says_when_to_come_again(cluster: InProcessCluster) -> None:
    front = Front(queue=0)
    running = front.open("/wait", {})
    front.entered.acquire()
    answer = front.post("/say", {"text": "a"})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert "the service 'echo' is full" in answer.json()["error"]
    running.close()
    front.close()


def test_a_client_that_leaves_cancels_its_request(front: Front) -> None:
    running = front.open("/wait", {})
    front.entered.acquire()
    waiting, stream = front.open("/say", {"text": "a"}), front.open("/count", {"most": 1 << 40})
    until(lambda: front.status().outstanding == 3)
    for client in (running, waiting, stream):
        client.close()
    until(lambda: front.status().cancelled == 3)
    assert front.status().outstanding == 0
    front.gate.set()
    assert front.post("/say", {"text": "a"}).status_code == 200

    reading = front.open("/count", {"most": 12})
    assert b"200 OK" in reading.recv(100)
    reading.close()
    assert front.post("/say", {"text": "a"}).status_code == 200  # the replica is free again


def test_shutdown_answers_what_is_there_and_no_more(front: Front) -> None:
    kept = front.open("/wait", {})
    front.entered.acquire()
    assert front.post("/count", {"most": 0}, request_timeout="0.001").status_code == 504
    ending = front.front.shutdown()
    ended = threading.Thread(target=ending.get)
    ended.start()
    until(lambda: refused(front))
    assert ended.is_alive()
    front.gate.set()
    answer = b""
    with kept:
        while part := kept.recv(1 << 16):
            answer += part
    assert b'"result":"waited"' in answer
    ended.join()
    with pytest.raises(httpx.TransportError):
        httpx.get(front.url + "/health")


def test_the_end_waits_for_what_runs_also_when_there_was_nothing_to_do_before() -> None:
    async def scenario() -> None:
        options = SimpleNamespace(timeout=1.0)
        front: Any = ServiceRoutes(SimpleNamespace(_options=options))  # type: ignore[arg-type]
        gate, sent = asyncio.Event(), []

        async def handled(request: Any) -> Any:
            await gate.wait()
            return front.json({})

        async def send(message: Any) -> None:
            sent.append(message)

        async def ask() -> None:
            response = await front.get("/", handled).endpoint(None)
            await response({"type": "http"}, None, send)

        gate.set()
        await ask()
        gate.clear()
        asking = asyncio.create_task(ask())
        await asyncio.sleep(0)
        draining = asyncio.create_task(front.drain(60))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not draining.done()
        gate.set()
        await draining
        await asking
        assert len(sent) == 4  # a head and a body each

    asyncio.run(scenario())


def refused(front: Front) -> bool:
    """True once the connection that is open is told that the server goes."""
    try:
        answer = front.client.get("/health")
    except httpx.TransportError:
        return True
    if answer.status_code != 503:
        return False
    assert "shutting down" in answer.json()["error"] and int(answer.headers["retry-after"]) > 0
    return True


def test_other_machines_need_the_token(cluster: InProcessCluster) -> None:
    token = "0123456789abcdef"
    with (
        serve(this_host(), Echo, Local(threading.Event()), Local(threading.Semaphore())) as service,
        serve_http(service, ["say"], host="0.0.0.0", port=0, token=token) as front,
    ):
        where, _, given = front.url().get().partition("/?token=")
        assert given == token
        url = f"http://127.0.0.1:{where.rpartition(':')[2]}/say"
        with httpx.Client(trust_env=False, timeout=60) as client:
            for header, status in (("", 401), ("Bearer 0123456789abcdee", 401), (f"Bearer {token}", 200)):
                answer = client.post(url, json={"text": "a"}, headers={"authorization": header} if header else {})
                assert answer.status_code == status


def test_a_port_that_is_taken_is_an_error(cluster: InProcessCluster) -> None:
    with (
        serve(this_host(), Echo, Local(threading.Event()), Local(threading.Semaphore())) as service,
        socket.create_server(("127.0.0.1", 0)) as taken,
        serve_http(service, ["say"], port=taken.getsockname()[1]) as front,
        pytest.raises(ActorError, match=r"port \d+ is taken: choose another one, or 0 for any that is free"),
    ):
        front.url().get()


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (ServiceOverloaded("full", 2.2), 429, "full"),
        (ServiceUnavailableError("none left"), 503, "none left"),
        (SupervisionError("the router\ndied"), 503, "the router"),
        (ServiceTimeoutError("late"), 504, "late"),
        (ReplicaLostError("it died", 1), 502, "it died"),
        (ServiceError("cancelled"), 500, "ServiceError: cancelled"),
        (OSError("no file caf\udce9"), 500, "OSError: no file caf\\udce9"),  # as names of files may be
    ],
)
def test_each_error_has_its_status(error: Exception, status: int, text: str) -> None:
    found = told(error)
    assert found[:2] == (status, text)
    assert (found[2] or {}).get("Retry-After") == {429: "3", 503: "2"}.get(status)


def test_the_answers_of_a_group_are_a_list() -> None:
    class Array:
        def tolist(self) -> list[int]:
            return [1, 2]

    assert (
        encoded({"a": Array(), "b": ValueMesh(Shape(["gpus"], NDSlice.new_row_major([2])), ["x", "y"])})
        == b'{"a":[1,2],"b":["x","y"]}'
    )


def test_fronts_that_cannot_be_are_refused(cluster: InProcessCluster) -> None:
    with serve(this_host(), Echo, Local(threading.Event()), Local(threading.Semaphore())) as service:
        for arguments, options, error, text in REFUSED:
            with pytest.raises(error, match=text):
                serve_http(service, *arguments, **options)


REFUSED: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    ((), {}, ValueError, r'needs what it is to serve: endpoints, such as \["generate"\]'),
    (("say",), {}, TypeError, r"endpoints is a list of names, such as \['say'\]"),
    ((["sya"],), {}, AttributeError, "has no endpoint 'sya'; it has count, load"),
    ((["say"],), {"timeout": 0}, ValueError, "timeout, in seconds, is above 0, got 0"),
    ((["say"],), {"port": "80"}, TypeError, "port is a whole number, got '80'"),
    ((["say"],), {"port": 70000}, ValueError, "port is a number from 0"),
    ((["say"],), {"certificate": "a.pem"}, ValueError, "two files that belong together"),
    ((["say"],), {"token": "a" * 30}, ValueError, "127.0.0.1 lets in this user alone, and asks for none"),
    ((["say"],), {"host": "0.0.0.0", "token": "short"}, ValueError, "16 characters or more"),
]
