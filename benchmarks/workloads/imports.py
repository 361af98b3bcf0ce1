"""How long an import takes: fresh interpreters, one after another, bare and importing in turn."""

from __future__ import annotations

import subprocess
import sys

from _workload import Params, Samples, main, seconds

STATEMENTS = {
    "floor": "pass",
    "ours": "import monarch.actor",
    "torchmonarch": "import monarch.actor",
    "ray": "import ray",
}
INSIDE = "import time; start = time.perf_counter(); {}; print(time.perf_counter() - start)"
HEAVY = "import sys; {}; print(*(m for m in ('torch', 'numpy') if m in sys.modules))"


def imports(params: Params) -> Samples:
    """Samples "process", an interpreter's whole life around the import, and "inside", the import alone."""
    statement = STATEMENTS[params["contender"]]
    whole = [sys.executable, "-c", statement]
    for _ in range(params["warmup"]):  # writes the bytecode caches and fills the page cache
        subprocess.run(whole, check=True)
    process: list[float] = []
    inside: list[float] = []
    for _ in range(params["count"]):
        process.append(seconds(lambda: subprocess.run(whole, check=True)))
        inside.append(float(_said(INSIDE.format(statement))))
    heavy = _said(HEAVY.format(statement)).split()
    if heavy and params["contender"] == "ours":
        raise RuntimeError(f"Error: {statement} loads {', '.join(heavy)}")
    if statement == "pass":
        return {"process": process}  # nothing is imported: no figure for the import alone
    return {"process": process, "inside": inside}


def _said(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main({"imports": imports})
