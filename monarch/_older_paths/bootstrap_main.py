"""`python -m monarch.bootstrap_main`: what a process command of older programs runs."""

from __future__ import annotations

from monarch._mesh.process.child import main

__all__ = ["invoke_main", "main"]


def invoke_main() -> None:
    """Becomes a process of a mesh, and ends with it; see BootstrapCommand."""
    main()


if __name__ == "__main__":
    main()
