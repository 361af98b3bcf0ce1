"""Shows examples/stuck.py, four ranks that hang, to all that diagnose, and writes what each says into docs/observability.md.

    .venv/bin/python docs/pictures/a_hang.py

Needs tmux and `make browser`, and a minute. It ends with an error when one of them does not say the same sentence.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(sys.executable).with_name("monarch")
PAGE = ROOT / "docs/observability.md"
BEGIN, END = "<!-- what every tool says: docs/pictures/a_hang.py -->\n", "<!-- until here -->\n"
SENTENCE = "ranks 0-2 wait in all_reduce #3 of group default_pg; rank 3 has not entered it"
PROGRAM = """
from stuck import RANKS, Trainer
from monarch.actor import setup_torch_distributed, this_host, wait_graph

procs = this_host().spawn_procs({"gpus": RANKS}, name="workers")
setup_torch_distributed(procs, "gloo").get()
training = procs.spawn("trainers", Trainer).train.call(10)
try:
    training.get(timeout=15)
except TimeoutError as error:
    print(f"TimeoutError: {error}", end="\\0", flush=True)
print(wait_graph().get(), end="\\0", flush=True)
training.get()
"""


def monarch(*args: str) -> str:
    command = [str(COMMAND), *args]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout  # the doctor found something: 1


def on_terminal(pid: int) -> str:
    """Returns the screen of `monarch tui` on a terminal of 120 columns and 40 rows, once it says the sentence."""
    name = f"a-hang-{pid}"
    command = f"{COMMAND} tui --pid {pid}"
    subprocess.run(["tmux", "new-session", "-d", "-s", name, "-x", "120", "-y", "40", command], check=True)
    try:
        return until(
            lambda: (
                subprocess.run(
                    ["tmux", "capture-pane", "-p", "-t", name], capture_output=True, text=True, check=False
                ).stdout
            )
        )
    finally:
        subprocess.run(["tmux", "kill-session", "-t", name], check=False)


def in_browser(pid: int) -> str:
    """Returns the text of the dashboard's first page."""
    from playwright.sync_api import sync_playwright

    url = monarch("dashboard", "--pid", str(pid), "--port", "0").split()[-1]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1200, "height": 760})
        page.goto(url)
        return until(lambda: page.inner_text("main"))


def until(shown: Callable[[], str]) -> str:
    """Returns what is shown once it has the sentence; after two minutes as it is."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        text = shown()
        if says(text):
            return text
        time.sleep(0.5)
    return text


def says(text: str) -> bool:
    return SENTENCE in " ".join(re.sub("[│┃▸]", " ", text).split())


def around(text: str, lines: int = 2) -> str:
    """Returns the lines with the sentence, and the ones before and after them."""
    found = [line.rstrip() for line in text.splitlines() if line.strip()]
    at = next(
        i for i in range(len(found)) if says(" ".join(found[i : i + 3])) and not says(" ".join(found[i + 1 : i + 4]))
    )
    return "\n".join(found[max(0, at - 1) : at + lines])


def main() -> None:
    command = [sys.executable, "-c", PROGRAM]
    environment = {"PYTHONPATH": f"{ROOT / 'examples'}:{ROOT}", "PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert running.stdout is not None
    try:
        said = ""
        while said.count("\0") < 2:
            said += running.stdout.read(1)
        pid, texts = (
            running.pid,
            dict(zip(["the exception after a timeout", "`wait_graph()`"], said.split("\0"), strict=False)),
        )
        for verb in ("doctor", "status", "stacks"):
            texts[f"`monarch {verb}`"] = monarch(verb, "--pid", str(pid))
        texts["`monarch tui` (120 columns, 40 rows)"] = on_terminal(pid)
        texts["the dashboard's first page"] = in_browser(pid)
    finally:
        running.kill()
        running.wait(30)
    silent = [tool for tool, text in texts.items() if not says(text)]
    for tool in silent:
        print(f"--- {tool} says:\n{texts[tool]}")
    told = "".join(
        f"\n{tool[0].upper()}{tool[1:]}:\n\n```text\n{around(text)}\n```\n"
        for tool, text in texts.items()
        if tool not in silent
    )
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{told}\n{END}{rest.partition(END)[2]}")
    assert not silent, f"these do not say so: {', '.join(silent)}"


if __name__ == "__main__":
    main()
