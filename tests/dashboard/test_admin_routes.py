"""The admin API over its routes, with a program that is made up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
from starlette.applications import Starlette

from monarch.admin.references import encoded
from monarch.dashboard.routes.admin_routes import routes
from monarch.telemetry.curves import MetricCurves
from monarch.telemetry.query_process import End
from monarch.telemetry.result import QueryError, QueryRefused, QueryTimeout
from tests.support import trees
from tests.support.patience import TIMEOUT
from tests.support.trees import HOST, FakeProgram

WORKER = trees.actor("w", 0, "mesh-0<uid>")
PROC = f"mesh-0<uid>@{HOST}"


def program() -> FakeProgram:
    return FakeProgram(
        trees.agent(["uid.0"], [trees.ended("uid.1")]),
        trees.process("client", [trees.actor("root", status="client", cls="")]),
        trees.process("uid.0", [WORKER]),
    )


class Answer:
    """The answer of one request."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers = response.headers
        self.text = response.text

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.text)

    @property
    def error(self) -> tuple[int, str, str]:
        told = self.json["error"]
        return self.status, told["code"], told["message"]


class Server:
    def __init__(self, asked: FakeProgram, store: Any = None) -> None:
        self._application = Starlette(routes=routes(asked, store))

    def client(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self._application)
        return httpx.AsyncClient(transport=transport, base_url="http://here:1", timeout=TIMEOUT)

    def request(self, method: str, path: str, **options: Any) -> Answer:
        async def one() -> Answer:
            async with self.client() as client:
                return Answer(await client.request(method, path, **options))

        return asyncio.run(one())

    def get(self, path: str, **options: Any) -> Answer:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> Answer:
        return self.request("POST", path, **options)


def test_walking_from_the_root_to_an_actor() -> None:
    server = Server(program())
    node = server.get("/v1/root").json
    assert node["parent"] is None and "Root" in node["properties"]
    for kind, place in (("Host", 0), ("Proc", 1), ("Actor", 0)):
        parent = node["identity"]
        node = server.get(f"/v1/{encoded(node['children'][place])}").json
        assert kind in node["properties"]
        assert node["parent"] == parent
    assert node["identity"] == WORKER.id
    events = msgspec.json.decode(node["properties"]["Actor"]["flight_recorder"])
    assert [event["name"] for event in events] == ["created"]


def test_a_reference_may_have_its_slashes_as_they_are() -> None:
    assert Server(program()).get(f"/v1/{encoded(PROC).replace('%2F', '/')}").json["identity"] == PROC


def test_the_whole_tree_in_one_answer() -> None:
    asked = program()
    nodes = Server(asked).get("/v1/nodes").json["nodes"]
    assert [node["identity"] for node in nodes][:1] == ["root"]
    assert {WORKER.id, PROC} <= {node["identity"] for node in nodes}
    assert asked.asked == [("tree", None)]


def test_the_tree_as_text() -> None:
    answer = Server(program()).get("/v1/tree")
    assert answer.headers["content-type"].startswith("text/plain")
    assert f"http://here:1/v1/{encoded(PROC)}" in answer.text


def test_behind_a_proxy_that_ends_tls_the_urls_are_its_own() -> None:
    answer = Server(program()).get("/v1/tree", headers={"x-forwarded-proto": "https", "host": "mesh.example"})
    assert "https://mesh.example/v1/" in answer.text
    assert Server(program()).get("/v1/admin", headers={"x-forwarded-proto": "gopher"}).json["url"] == "http://here:1"


@pytest.mark.parametrize(
    ("path", "status", "code", "said"),
    [
        ("/v1/nope", 404, "not_found", "missing '@' separator between id and location"),
        ("/v1/nobody%40here", 404, "not_found", "no node 'nobody@here' is in the tree"),
        ("/v1/%zz", 400, "bad_request", "bad percent encoding"),
        ("/v1/", 400, "bad_request", "empty reference"),
        ("/v1/schema/wrong", 404, "not_found", "no schema 'wrong'"),
        ("/v1/config/root", 400, "bad_request", "is no process"),
        (f"/v1/pyspy/{encoded(f'mesh-1<uid>@{HOST}')}", 404, "not_found", "signal 9"),
    ],
)
def test_what_is_wrong_is_told_in_the_envelope(path: str, status: int, code: str, said: str) -> None:
    found = Server(program()).get(path).error
    assert found[:2] == (status, code)
    assert said in found[2]


def test_a_program_that_has_ended_and_one_that_is_silent() -> None:
    asked = program()
    asked.gone = True
    assert Server(asked).get("/v1/root").error == (503, "service_unavailable", "the program (pid 100) has ended")
    asked.gone, asked.hung = False, True
    assert Server(asked).get("/v1/root").error[:2] == (504, "gateway_timeout")


def test_a_process_that_is_silent_and_one_that_has_ended() -> None:
    asked = program()
    asked.told = [trees.agent(["uid.0"], [trees.ended("uid.1")], state="stopped", why="stopped by signal SIGSTOP")]
    server = Server(asked)
    silent = server.get(f"/v1/{encoded(PROC)}").error
    assert silent[:2] == (504, "gateway_timeout") and "SIGSTOP" in silent[2]
    ended = server.get(f"/v1/{encoded(f'mesh-1<uid>@{HOST}')}").json["properties"]["Error"]
    assert ended["code"] == "process_ended" and "signal 9" in ended["message"]


def test_a_mistake_of_ours_is_an_internal_error() -> None:
    asked = program()

    def break_down() -> None:
        raise ZeroDivisionError("on purpose")

    asked.before = break_down
    assert Server(asked).get("/v1/root").error == (500, "internal_error", "ZeroDivisionError: on purpose")


def test_settings_of_a_process_and_of_the_process_of_an_actor() -> None:
    asked = program()
    asked.bodies["config"] = trees.settings()
    for reference in (PROC, WORKER.id):
        first, second = Server(asked).get(f"/v1/config/{encoded(reference)}").json
        assert first == {
            "name": "cleanup_timeout",
            "value": "9s",
            "default_value": "3s",
            "source": "Runtime",
            "changed_from_default": True,
            "env_var": "HYPERACTOR_CLEANUP_TIMEOUT",
            "has_effect": True,
        }
        assert (second["source"], second["changed_from_default"]) == ("Default", False)
    assert ("config", [f"{HOST}/uid.0"]) in asked.asked


def test_stacks_have_the_shape_of_py_spy() -> None:
    asked = program()
    asked.bodies["stacks"] = trees.stacks()
    found = Server(asked).get(f"/v1/pyspy/{encoded(PROC)}").json["Ok"]
    assert (found["pid"], found["capture_mode"], found["warnings"]) == (100, "python_only", [])
    (trace,) = found["stack_traces"]
    assert trace["thread_name"] == "monarch-actor-driver (trainer[3] step)"
    assert [frame["name"] for frame in trace["frames"]] == ["load", "Trainer.step"]
    assert trace["frames"][0]["locals"] == [{"name": "n", "addr": 0, "arg": False, "repr": "3"}]
    assert [frame["is_entry"] for frame in trace["frames"]] == [False, True]


def test_a_process_that_cannot_be_asked_is_a_timeout() -> None:
    assert Server(program()).get(f"/v1/pyspy/{encoded(PROC)}").error[:2] == (504, "gateway_timeout")


def test_a_flame_graph() -> None:
    asked = program()
    asked.bodies["samples"] = msgspec.msgpack.encode({"samples": {"step;load": 5}, "taken": 5})
    answer = Server(asked).post(f"/v1/pyspy_profile_svg/{encoded(PROC)}", json={"duration_s": 1})
    assert answer.headers["content-type"] == "image/svg+xml"
    assert "<svg" in answer.text and "load" in answer.text


def test_a_flame_graph_of_a_process_in_which_nothing_runs() -> None:
    asked = program()
    asked.bodies["samples"] = msgspec.msgpack.encode({"samples": {}, "taken": 9})
    answer = Server(asked).post(f"/v1/pyspy_profile_svg/{encoded(PROC)}")
    assert answer.status == 200 and "nothing ran" in answer.text


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"duration_s": 0}, "duration_s is 1 to 300"),
        ({"duration_s": 301}, "duration_s is 1 to 300"),
        ({"rate_hz": 1001}, "rate_hz is 1 to 1000"),
        ({"rate_hz": "fast"}, "the body is not what is expected"),
        ({"speed": 1}, "speed"),
    ],
)
def test_options_of_a_flame_graph_that_are_out_of_range(body: dict[str, Any], said: str) -> None:
    error = Server(program()).post(f"/v1/pyspy_profile_svg/{encoded(PROC)}", json=body).error
    assert error[:2] == (400, "bad_request") and said in error[2]


def test_native_flame_graphs_say_the_way_out() -> None:
    error = Server(program()).post(f"/v1/pyspy_profile_svg/{encoded(PROC)}", json={"native": True}).error
    assert error[:2] == (503, "service_unavailable") and "py-spy record" in error[2]


def test_bodies_that_are_no_json_or_too_large() -> None:
    server = Server(program())
    assert server.post("/v1/query", content=b"{").error[:2] == (400, "bad_request")
    assert server.post("/v1/query", content=b"\xff\xfe").error[:2] == (400, "bad_request")
    assert "at most" in server.post("/v1/query", content=b" " * (2 << 20)).error[2]


def test_what_needs_telemetry_says_so_without_it() -> None:
    server = Server(program())
    for path, body in (("/v1/query", {"sql": "SELECT 1"}), (f"/v1/pyspy_dump/{encoded(PROC)}", {})):
        error = server.post(path, json=body).error
        assert error[:2] == (404, "not_found")
        assert error[2].startswith("dashboard not configured (no telemetry_url provided)")


class Store:
    """Answers any SQL but `wrong`, keeps what is dumped."""

    def __init__(self) -> None:
        self.dumps: list[tuple[str, str, str]] = []

    @contextmanager
    def stream(self, sql: str, **options: Any) -> Iterator[Any]:
        if sql == "wrong":
            raise QueryError("there is no such table")
        if sql == "endless":
            raise QueryTimeout("it took longer than 30 s")
        if sql == "one too many":
            raise QueryRefused("too many queries run and wait already: ask again later")
        if sql == "broken":
            raise OSError("no space is left")
        parts = [b'[{"n":1,"big":9223372036854775808}]', b"[]"]
        yield SimpleNamespace(columns=["n", "big"], parts=lambda: iter(parts), end=End())

    def missing_hosts(self) -> list[str]:
        return ["two"]

    def store_pyspy_dump(self, dump_id: str, proc: str, text: str) -> None:
        self.dumps.append((dump_id, proc, text))


def test_sql_goes_to_the_telemetry() -> None:
    server = Server(program(), Store())
    answer = server.post("/v1/query", json={"sql": "SELECT 1"}).json
    assert (answer["rows"], answer["missing_hosts"]) == ([{"n": 1, "big": 2**63}], ["two"])
    assert server.post("/v1/query", json={"sql": "wrong"}).error == (400, "bad_request", "there is no such table")
    assert server.post("/v1/query", json={"sql": "endless"}).error[:2] == (504, "gateway_timeout")
    refused = server.post("/v1/query", json={"sql": "one too many"})
    assert refused.error == (503, "service_unavailable", "too many queries run and wait already: ask again later")
    assert int(refused.headers["retry-after"]) > 0
    assert server.post("/v1/query", json={"sql": "broken"}).error[:2] == (500, "proxy_error")


def test_stacks_are_stored_with_the_telemetry() -> None:
    asked, store = program(), Store()
    asked.bodies["stacks"] = trees.stacks()
    answer = Server(asked, store).post(f"/v1/pyspy_dump/{encoded(PROC)}").json
    ((dump_id, proc, text),) = store.dumps
    assert answer == {"dump_id": dump_id}
    assert (proc, msgspec.json.decode(text)["Ok"]["pid"]) == (PROC, 100)


def test_schemas_guide_and_openapi() -> None:
    server = Server(program())
    for path, name in (
        ("/v1/schema", "node_payload"),
        ("/v1/schema/admin", "admin_info"),
        ("/v1/schema/error", "error"),
    ):
        assert server.get(path).json["$id"] == f"https://monarch.meta.com/schemas/v1/{name}"
    openapi = server.get("/v1/openapi.json").json
    assert (openapi["openapi"], openapi["info"]["title"]) == ("3.1.0", "Monarch Mesh Admin API")
    assert "NodePayload" in openapi["components"]["schemas"]
    guide = server.get("/SKILL.md")
    assert guide.headers["content-type"].startswith("text/markdown")
    assert "curl http://here:1/v1/root" in guide.text and "{base}" not in guide.text


def test_everything_that_openapi_names_is_there() -> None:
    server = Server(program())
    for path, methods in server.get("/v1/openapi.json").json["paths"].items():
        for method in methods:
            answer = server.request(method.upper(), path.replace("{reference}", encoded(WORKER.id)))
            assert answer.status != 405 and "no node" not in answer.text, path


def test_readers_who_come_together_cost_the_program_one_question() -> None:
    asked = program()
    goes_on = threading.Event()
    asked.before = lambda: goes_on.wait(TIMEOUT)
    server = Server(asked)

    async def many() -> list[int]:
        async with server.client() as client:
            requests = [asyncio.create_task(client.get("/v1/nodes")) for _ in range(64)]
            for _ in range(1000):  # all of them have come as far as they can
                await asyncio.sleep(0)
            goes_on.set()
            return [(await request).status_code for request in requests]

    assert asyncio.run(many()) == [200] * 64
    assert asked.asked == [("tree", None)]


def test_the_curves_of_what_the_program_logs() -> None:
    status, code, said = Server(program()).get("/v1/metrics").error
    assert (status, code) == (404, "not_found") and "it calls monarch.metrics.keep()" in said
    curves = MetricCurves()
    curves.add("trainers", "loss", 3, 0.5, 1, 0.0)
    (told,) = Server(program(), SimpleNamespace(curves=curves, runs="")).get("/v1/metrics").json["curves"]
    assert (told["mesh"], told["name"], told["steps"], told["mean"]) == ("trainers", "loss", [3], [0.5])
