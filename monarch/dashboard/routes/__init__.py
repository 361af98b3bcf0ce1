"""The routes that the process beside a program serves: telemetry's, the admin API's, and those of the dashboard's pages."""
