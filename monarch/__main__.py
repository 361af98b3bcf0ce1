"""`python -m monarch`: the command `monarch`, where its script is not on the PATH."""

from __future__ import annotations

import sys

from monarch.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
