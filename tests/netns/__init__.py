"""Network namespaces as hosts: real network stacks with addresses of their own, on one machine."""
