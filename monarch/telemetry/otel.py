"""OpenTelemetry's providers in a process, where the environment asks for an exporter and the program has set up none.

OTEL_EXPORTER_OTLP_ENDPOINT is enough: metrics of `get_meter()` and what is logged leave each process by OTLP over HTTP. The
exporters read the other OTEL_* variables themselves. Loaded in each process by `_mesh.process.exporting`.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

from monarch._runtime import log_tap
from monarch.config import settings

SCOPE = "monarch"
_INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"  # milliseconds
_SECOND = 1000.0
_OWN = ("opentelemetry", "urllib3", "requests")  # loggers of the exporters themselves

# Python's levels as OpenTelemetry numbers severities.
_SEVERITIES = ((logging.CRITICAL, 21), (logging.ERROR, 17), (logging.WARNING, 13), (logging.INFO, 9), (0, 5))


def set_up(process: str) -> None:
    """Sets up what is not set up yet. `process` is this one's name for people. ImportError without the SDK."""
    from opentelemetry import _logs, metrics
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource

    resource = Resource.create(
        {
            "service.name": os.environ.get("OTEL_SERVICE_NAME") or SCOPE,
            "host.name": socket.gethostname(),
            "process.pid": os.getpid(),
            "service.instance.id": process,
        }
    )
    if not isinstance(_logs.get_logger_provider(), LoggerProvider):
        provider = LoggerProvider(resource)
        provider.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
        _logs.set_logger_provider(provider)
        log_tap.add(LogExporter(provider.get_logger(SCOPE)))
    if settings.enable_otel_metrics() and not isinstance(metrics.get_meter_provider(), MeterProvider):
        interval = None if os.environ.get(_INTERVAL) else _SECOND
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(), export_interval_millis=interval)
        metrics.set_meter_provider(MeterProvider([reader], resource))


class LogExporter:
    """Passes log records on, from INFO on."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __call__(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.INFO or record.name.startswith(_OWN):
            return
        from opentelemetry._logs import SeverityNumber

        number = next(number for level, number in _SEVERITIES if record.levelno >= level)
        self._backend.emit(
            timestamp=int(record.created * 1e9),
            severity_number=SeverityNumber(number),
            severity_text=record.levelname,
            body=log_tap.text_of(record),
            attributes={
                "logger.name": record.name,
                "code.file.path": record.pathname,
                "code.line.number": record.lineno,
                "thread.name": record.threadName or "",
            },
        )
