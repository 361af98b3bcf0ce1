"""`python -m monarch._mesh.bootstrap` runs a child process: the command that programs may wrap in a BootstrapCommand."""

from __future__ import annotations

from monarch._mesh.process.child import main

if __name__ == "__main__":
    main()
