"""Export by environment, to a receiver that speaks OTLP over HTTP."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.support.scripts import Scripts
from tests.support.tiers import full

pytestmark = [pytest.mark.procs, full]

PROGRAM = """
import logging
from monarch.actor import Actor, endpoint, get_meter, this_host

class Worker(Actor):
    @endpoint
    def work(self):
        import time
        from opentelemetry import metrics
        from opentelemetry.sdk.metrics import MeterProvider
        while not isinstance(metrics.get_meter_provider(), MeterProvider):
            time.sleep(0.01)  # it is set up while the process starts
        get_meter().create_counter("jobs.done", "1", "jobs").add(3, {"kind": "a"})
        get_meter().create_gauge("level").set(0.5)
        logging.getLogger("my.program").warning("worked hard")

if __name__ == "__main__":
    procs = this_host().spawn_procs({"gpus": 1}, name="trainers")
    procs.spawn("worker", Worker).work.call().get()
    procs.stop().get()
"""


class Receiver(ThreadingHTTPServer):
    """Keeps what comes, by path."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.came: dict[str, list[bytes]] = {}
        self.headers: list[str | None] = []


class Answering(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.came.setdefault(self.path, []).append(body)
        self.server.headers.append(self.headers.get("x-team"))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_metrics_and_logs_of_all_processes_leave_by_otlp(scripts: Scripts, receiver: Receiver) -> None:
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.server_port}",
        "OTEL_EXPORTER_OTLP_HEADERS": "x-team=blue",
        "OTEL_SERVICE_NAME": "my-training",
    }
    scripts.run(PROGRAM, env=env)
    metrics, services = {}, set()
    for body in receiver.came["/v1/metrics"]:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            services |= {a.value.string_value for a in resource.resource.attributes if a.key == "service.name"}
            for scope in resource.scope_metrics:
                metrics.update({metric.name: (scope.scope.name, metric) for metric in scope.metrics})
    assert services == {"my-training"}
    name, jobs = metrics["jobs.done"]
    assert (name, jobs.sum.data_points[0].as_int) == ("monarch", 3)
    assert metrics["level"][1].gauge.data_points[0].as_double == 0.5
    texts = [
        record.body.string_value
        for body in receiver.came["/v1/logs"]
        for resource in ExportLogsServiceRequest.FromString(body).resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]
    assert any("worked hard" in text for text in texts)
    assert set(receiver.headers) == {"blue"}


def test_a_receiver_that_is_not_there_harms_nothing(scripts: Scripts) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    scripts.run(PROGRAM, env=env)


def test_without_the_sdk_that_is_said_once_and_the_program_goes_on(scripts: Scripts) -> None:
    program = """
    import sys
    sys.modules["opentelemetry.sdk"] = None
    from monarch.actor import this_host
    this_host().spawn_procs({"gpus": 1}).initialized.get()
    import threading
    for thread in threading.enumerate():
        if thread.name == "monarch-otel":
            thread.join()
    """
    done = scripts.run(program, env={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"})
    assert done.stderr.count("pip install 'pymonarch[otel]'") == 1
