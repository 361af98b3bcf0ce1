"""The mesh layer of one process: what it spawned, what it runs, the client, the child."""
