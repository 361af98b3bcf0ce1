"""RDMA devices move the bytes, by libibverbs."""
