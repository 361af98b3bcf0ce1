"""The agent that acts for a host: starts its processes, tells of their ends, carries frames to other hosts."""
