"""A process beside a program that keeps what the program records and answers over HTTP, so that questions never take the
program's time. `monarch.telemetry.start()`, `monarch.admin.start()` and jobs start it."""
