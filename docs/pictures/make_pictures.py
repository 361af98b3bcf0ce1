"""Makes the pictures of docs/dashboard.md from a real program: 64 ranks, of which 17 is slow and 42 is killed.

    python docs/pictures/make_pictures.py

Needs `make browser`, half a minute, and the memory of 64 small processes. The program is below, under `program`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
RANKS, SLOW, KILLED = {"hosts": 8, "gpus": 8}, 17, 42
LARGEST = 150_000  # bytes of a picture
SIZE = {"width": 1280, "height": 800}
PICTURES = {
    "overview": ("/", "light"),
    "topology": ("/topology", "light"),
    "topology-dark": ("/topology", "dark"),
    "stacks": ("/stacks", "light"),
    "sql": ("/sql", "light"),
    "hardware": ("/hardware", "dark"),
}


def program() -> None:
    import os
    import signal

    import monarch.dashboard
    from monarch.actor import Actor, current_rank, endpoint, this_host

    class Loader(Actor):
        @endpoint
        def next_batch(self) -> int:
            time.sleep(0.01)
            return 1

    class Trainer(Actor):
        def __init__(self, loaders: Loader) -> None:
            self.loaders = loaders

        @endpoint
        def step(self, number: int) -> None:
            self.loaders.next_batch.choose().get()
            self.read_data() if current_rank().rank == SLOW else self.compute()
            if number == 25 and current_rank().rank == KILLED:
                os.kill(os.getpid(), signal.SIGKILL)

        def compute(self) -> None:
            time.sleep(0.5)

        def read_data(self) -> None:
            time.sleep(1.4)

        @endpoint
        def all_reduce(self) -> None:
            self.read_data() if current_rank().rank == SLOW else self.wait_for_the_others()

        def wait_for_the_others(self) -> None:
            time.sleep(600)

    monarch.dashboard.start(port=0)
    procs = this_host().spawn_procs(RANKS, name="workers")
    trainers = procs.spawn("trainers", Trainer, procs.slice(gpus=0).spawn("loaders", Loader))
    try:
        for number in range(26):
            trainers.step.call(number).get()
    except Exception as error:
        print(f"{type(error).__name__}: {error}".splitlines()[0], flush=True)
    alive = [trainers.flatten("rank").slice(rank=slice(0, KILLED)), trainers.flatten("rank").slice(rank=slice(KILLED + 1, 64))]
    waiting = [part.all_reduce.call() for part in alive]
    print("waiting", flush=True)
    time.sleep(600)
    del waiting


def main() -> None:
    from playwright.sync_api import sync_playwright

    running = subprocess.Popen([sys.executable, __file__, "program"], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    try:
        url = ""
        for line in running.stdout:
            print(line, end="")
            if line.startswith("Monarch Dashboard: "):
                url = line.removeprefix("Monarch Dashboard: ").strip()
            if line.startswith("waiting"):
                break
        deadline = time.monotonic() + 60
        while b'"failed":' not in urllib.request.urlopen(f"{url}/api/summary").read() and time.monotonic() < deadline:
            time.sleep(0.5)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
            for name, (path, colours) in PICTURES.items():
                context = browser.new_context(viewport=SIZE, color_scheme=colours, reduced_motion="reduce")
                page = context.new_page()
                page.goto(url + path)
                page.get_by_text("live ·").wait_for()
                if name == "sql":
                    page.get_by_role("button", name="Who sends to whom").click()
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
                context.close()
            browser.close()
    finally:
        running.terminate()
        running.wait(30)


if __name__ == "__main__":
    program() if sys.argv[1:] == ["program"] else main()
