"""Makes the pictures of docs/dashboard.md from a real program, train.py. What would tell of the machine is replaced.

    .venv/bin/python docs/pictures/make_pictures.py

Needs `make browser`, a minute, and the memory of 64 small processes.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from train import SLOW

HERE = Path(__file__).resolve().parent
LARGEST = 150_000  # bytes of a picture
SIZE = {"width": 1200, "height": 760}
PICTURES = {
    "overview": ("/", "light"),
    "topology": ("/topology", "light"),
    "topology-dark": ("/topology", "dark"),
    "stacks": ("/stacks", "light"),
    "sql": ("/sql", "light"),
    "hardware": ("/hardware?sort=cpu", "dark"),
    "metrics": ("/metrics", "light"),
    "logs": ("/logs", "dark"),
    "doctor": ("/doctor", "light"),
}


def anywhere(route: Any) -> None:
    """Answers for the server, as if the program ran on some machine."""
    answer = route.fetch()
    text = answer.text().replace(f"{HERE}/", "").replace(f"{HERE.parents[1]}/", "").replace(sys.executable, "python")
    text = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "node1", text)
    text = re.sub(r"unix:/[^/\"]*/[^/\"]*/[^/\"@,]*", "tcp://node1:26600", text)
    route.fulfill(response=answer, body=text)


def is_blamed(url: str, rank: int) -> bool:
    """Tells whether the dashboard's doctor says that it is this rank's fault."""
    with urllib.request.urlopen(f"{url}/api/doctor") as answer:
        return any(found["ranks"] == [rank] for found in json.load(answer)["findings"])


def main() -> None:
    from playwright.sync_api import sync_playwright

    running = subprocess.Popen([sys.executable, str(HERE / "train.py")], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    try:
        url = ""
        for line in running.stdout:
            print(line, end="")
            if line.startswith("Monarch Dashboard: "):
                url = line.removeprefix("Monarch Dashboard: ").strip()
            if line.startswith("waiting"):
                break
        deadline = time.monotonic() + 120
        while not is_blamed(url, SLOW):  # those that wait have to wait for long
            assert time.monotonic() < deadline, f"the doctor does not find out that all wait for rank {SLOW}"
            time.sleep(0.5)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
            )
            for name, (path, colours) in PICTURES.items():
                context = browser.new_context(viewport=SIZE, color_scheme=colours, reduced_motion="reduce")
                context.route("**/api/**", anywhere)
                page = context.new_page()
                page.goto(url + path)
                page.get_by_text("live ·").wait_for()
                if name == "sql":
                    page.get_by_role("button", name="Actors by latest status").click()
                    page.locator(".result td").first.wait_for()
                if name.startswith("topology"):
                    grid = page.get_by_role("application").first
                    grid.focus()
                    page.keyboard.press("f")
                    if name == "topology":
                        page.keyboard.press("Enter")
                        page.get_by_role("dialog").get_by_text("State").first.wait_for()
                page.wait_for_timeout(1500)
                target = HERE / f"dashboard-{name}.png"
                page.screenshot(path=target)
                size = target.stat().st_size
                print(f"{target.name}: {size:,} bytes")
                assert size <= LARGEST, f"{target} has more than {LARGEST:,} bytes"
                context.unroute_all(behavior="ignoreErrors")  # a look may be under way
                context.close()
            browser.close()
    finally:
        running.terminate()
        running.wait(30)


if __name__ == "__main__":
    main()
