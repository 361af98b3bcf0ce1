"""The path that programs written for other versions import telemetry from."""
