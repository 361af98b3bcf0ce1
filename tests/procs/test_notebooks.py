"""The actor API in IPython and in a real Jupyter kernel: what each cell shows is asserted cell by cell."""

from __future__ import annotations

import contextlib
import os
import re
import select
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.drawings import Drawing
from tests.support.patience import TIMEOUT
from tests.support.tiers import full

nbclient = pytest.importorskip("nbclient", reason="the notebook tests need nbclient and ipykernel")
pytest.importorskip("ipykernel", reason="the notebook tests need nbclient and ipykernel")
nbformat = pytest.importorskip("nbformat")
run_sync = pytest.importorskip("jupyter_core.utils").run_sync

pytestmark = pytest.mark.procs
ROOT = Path(__file__).resolve().parents[2]

SET_UP = """
    import os, signal, sys, threading
    from monarch._linux.thread_frames import thread_frames
    from monarch.actor import Actor, endpoint, this_host

    class Talker(Actor):
        @endpoint
        def say(self, text, err=False):
            print(text, file=sys.stderr if err else sys.stdout)
            return text
        @endpoint
        def say_when_told(self, path, text):
            open(path).read()
            print(text)
        @endpoint
        def pid(self): return os.getpid()
        @endpoint
        def fail(self): raise RuntimeError("on purpose")
        @endpoint
        def fail_when_told(self, path):
            open(path).read()
            raise RuntimeError("on purpose")

    class Sleeper(Actor):
        @endpoint
        def sleep(self): threading.Event().wait()

    procs = this_host().spawn_procs({"gpus": 2})
    talker = procs.spawn("talker", Talker)
    one = talker.slice(gpus=0)
    sleeper = procs.spawn("sleeper", Sleeper)

    def interrupt_when_blocked():
        '''Sends SIGINT, as Jupyter's button does, once the main thread waits in a get().'''
        def run():
            main = threading.main_thread().ident
            while True:
                frame = thread_frames()[main]
                while frame is not None:
                    if frame.f_code.co_qualname == "Future.get":
                        return os.kill(os.getpid(), signal.SIGINT)
                    frame = frame.f_back
                os.sched_yield()
        threading.Thread(target=run).start()
"""


class Shown:
    """The output that stands under a cell."""

    def __init__(self, outputs: list[Any]) -> None:
        self.out = _stream(outputs, "stdout")
        self.err = _stream(outputs, "stderr")
        self.html = "".join(o.data.get("text/html", "") for o in outputs if o.output_type == "execute_result")
        self.below = "".join(o.data.get("text/html", "") for o in outputs if o.output_type == "display_data")
        self.value = "".join(o.data["text/plain"] for o in outputs if o.output_type == "execute_result")
        errors = [o for o in outputs if o.output_type == "error"]
        self.error = "".join(o.ename for o in errors)
        self.trace = "".join(re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(o.traceback)) for o in errors)

    def __repr__(self) -> str:
        return f"<out {self.out!r}, err {self.err!r}, value {self.value!r}, error {self.error!r}>"


def _stream(outputs: list[Any], name: str) -> str:
    return "".join(o.text for o in outputs if o.output_type == "stream" and o.name == name)


class Notebook:
    """A kernel; `run` executes one more cell."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.kernel = client.kc

    def run(self, source: str) -> Shown:
        cell = nbformat.v4.new_code_cell(textwrap.dedent(source))
        cells = self._client.nb.cells
        cells.append(cell)
        self._client.execute_cell(cell, len(cells) - 1)
        return Shown(cell.outputs)


@contextlib.contextmanager
def kernel(folder: Path) -> Iterator[Notebook]:
    client = nbclient.NotebookClient(
        nbformat.v4.new_notebook(),
        timeout=TIMEOUT,
        kernel_name="python3",
        allow_errors=True,
        resources={},
        extra_arguments=["--log-level=ERROR"],
    )
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    with client.setup_kernel(cwd=str(folder), env=os.environ | {"PYTHONPATH": path}):
        notebook = Notebook(client)
        shown = notebook.run(SET_UP)
        assert (shown.err, shown.error) == ("", "")
        yield notebook


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    with kernel(tmp_path_factory.mktemp("notebook")) as shared:
        yield shared


def test_calls_can_be_awaited_at_the_top_level(notebook: Notebook) -> None:
    shown = notebook.run("await one.say.call_one('awaited')")
    assert (shown.value, shown.err, shown.error) == ("'awaited'", "", "")


def test_get_works_in_a_cell_and_says_nothing_about_the_event_loop(notebook: Notebook) -> None:
    shown = notebook.run("one.say.call_one('got').get()")
    assert (shown.value, shown.err, shown.error) == ("'got'", "", "")
    shown = notebook.run("one.say.call_one('got').get() + await one.say.call_one(' and awaited')")
    assert (shown.value, shown.err, shown.error) == ("'got and awaited'", "", "")


def test_output_stands_under_the_cell_that_was_running(notebook: Notebook) -> None:
    first = notebook.run("await talker.say.call('first'); await one.say.call('first aside', err=True);")
    second = notebook.run("talker.say.call('second').get(); one.say.call('second aside', err=True).get();")
    third = notebook.run("pass")
    assert (first.out, first.err, first.error) == ("first\n" * 2, "first aside\n", "")
    assert (second.out, second.err, second.error) == ("second\n" * 2, "second aside\n", "")
    assert (third.out, third.err) == ("", "")


def test_output_of_a_cell_is_complete_however_much_it_is(notebook: Notebook) -> None:
    shown = notebook.run("one.say.call('\\n'.join(map(str, range(50_000)))).get();")
    assert shown.out.split() == [str(number) for number in range(50_000)]


def test_late_output_stands_under_the_last_cell_whatever_the_kernel_was_asked_since(
    notebook: Notebook, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "go")
    cell = notebook.run(
        f"""
        waiting = one.say_when_told.call({str(tmp_path / "go")!r}, "late")
        get_ipython().kernel.get_parent()["header"]["msg_id"]
        """
    )

    async def parent_of_late_output() -> str:
        await notebook.kernel.is_complete("wai", reply=True, timeout=TIMEOUT)
        (tmp_path / "go").write_text("now")
        while True:
            message = await notebook.kernel.get_iopub_msg(timeout=TIMEOUT)
            if message["msg_type"] == "stream" and "late" in message["content"]["text"]:
                return str(message["parent_header"]["msg_id"])

    assert repr(run_sync(parent_of_late_output)()) == cell.value


def test_an_actor_class_can_be_defined_anew(notebook: Notebook) -> None:
    source = """
        class Version(Actor):
            @endpoint
            def of(self): return {number}
            @endpoint
            def only_{number}(self): return type(self) is Version
        v{number} = procs.spawn("version", Version)
    """
    for number in (1, 2):
        assert notebook.run(source.format(number=number)).error == ""
        shown = notebook.run(f"[v for _, v in v{number}.of.call().get()]")
        assert (shown.value, shown.error) == (f"[{number}, {number}]", "")
    shown = notebook.run("[v for _, v in v1.of.call().get()], [v for _, v in v1.only_1.call().get()]")
    assert (shown.value, shown.error) == ("([1, 1], [True, True])", "")
    assert notebook.run("v2.only_1").error == "AttributeError"


@pytest.mark.parametrize("aside", ["", "await one.say.call('in between')"], ids=["plain", "with await"])
def test_a_get_that_blocks_is_interrupted(notebook: Notebook, aside: str) -> None:
    shown = notebook.run(f"{aside}\ninterrupt_when_blocked()\nsleeper.sleep.call().get()")
    assert shown.error == "KeyboardInterrupt"
    shown = notebook.run("await one.say.call_one('goes on')")
    assert (shown.value, shown.error) == ("'goes on'", "")


# --- failures that nobody handles

REPORT = "RuntimeError: on purpose"
SAME = re.compile(r"The same failure on rank\(s\) [01] of doomed-\w+\n")  # the second of two equal reports
HEADING = "Unhandled monarch error on the root actor"
HOOK = """
    from monarch._mesh.failures.main_thread import faults
    import monarch.actor

    told = threading.Semaphore(0)
    def hook(failure):
        told.release()
        sys.exit(1)
    monarch.actor.unhandled_fault_hook = hook

    def wait_for_fault():
        told.acquire()
        faults.drain(30)
"""


@pytest.fixture
def doomed(notebook: Notebook) -> Notebook:
    """`doomed` fails when told; `wait_for_fault()` waits until that has been dealt with."""
    notebook.run(HOOK)
    assert notebook.run('doomed = procs.spawn("doomed", Talker)').error == ""
    return notebook


def goes_on(notebook: Notebook) -> None:
    """The kernel lives, sync and async cells work, and nothing is left over."""
    for source in ("one.say.call_one('goes on').get();", "await one.say.call_one('goes on');"):
        shown = notebook.run(source)
        assert (shown.out, shown.err, shown.error) == ("goes on\n", "", "")


@pytest.mark.parametrize(
    "source",
    [
        "sleeper.sleep.call().get()",
        "threading.Event().wait()",
        "await sleeper.sleep.call()",
        "await asyncio.sleep(60)",
        "await asyncio.gather(asyncio.sleep(60), sleeper.sleep.call())",
        "await asyncio.create_task(asyncio.sleep(60))",
        "await asyncio.sleep(0); sleeper.sleep.call().get()",
        "async with asyncio.TaskGroup() as group: group.create_task(asyncio.sleep(60))",
        "async with asyncio.timeout(60): await asyncio.sleep(60)",
    ],
)
def test_a_failure_ends_the_cell_and_not_the_kernel(doomed: Notebook, source: str) -> None:
    shown = doomed.run(
        f"""
        import asyncio
        try:
            doomed.slice(gpus=0).fail.broadcast()
            {source}
        finally:
            print("finally ran")
        """
    )
    assert shown.error == "UnhandledFaultError" and shown.out == "finally ran\n"
    assert shown.trace.count(REPORT) == 1 and HEADING not in shown.err
    goes_on(doomed)


def test_an_error_shows_the_line_of_the_cell_that_raised(notebook: Notebook) -> None:
    defined = notebook.run(
        """
        class Broken(Actor):
            @endpoint
            def step(self):
                return 1 / int("0")
        """
    )
    assert defined.error == ""
    shown = notebook.run("procs.spawn('broken', Broken).slice(gpus=0).step.call_one().get()")
    assert shown.error == "ActorError" and shown.trace.count('return 1 / int("0")') == 1


def test_a_failure_that_the_cell_catches_is_shown_on_stderr(doomed: Notebook) -> None:
    for source in ("threading.Event().wait()", "await asyncio.sleep(60)"):
        shown = doomed.run(
            f"""
            import asyncio
            doomed = procs.spawn("doomed", Talker)
            try:
                if {"await" in source}:  # once the cell is suspended
                    asyncio.get_running_loop().call_soon(doomed.slice(gpus=0).fail.broadcast)
                else:
                    doomed.slice(gpus=0).fail.broadcast()
                {source}
            except BaseException as exc:
                print(type(exc).__name__)
            """
        )
        assert shown.out == ("CancelledError\n" if "await" in source else "UnhandledFaultError\n")
        assert shown.error == "" and shown.err.count(HEADING) == 1 and shown.err.count(REPORT) == 1
        goes_on(doomed)


def test_of_two_failures_at_once_one_ends_the_cell_and_both_are_shown(doomed: Notebook) -> None:
    for source in ("threading.Event().wait()", "await asyncio.sleep(60)"):
        shown = doomed.run(
            f"""
            import asyncio
            doomed = procs.spawn("doomed", Talker)
            try:
                doomed.fail.broadcast()
                {source}
            finally:
                wait_for_fault()
                wait_for_fault()
                print("finally ran")
            """
        )
        assert shown.error == "UnhandledFaultError" and shown.out == "finally ran\n"
        assert shown.trace.count(REPORT) == 1 and SAME.fullmatch(shown.err)
        goes_on(doomed)


def test_a_failure_while_the_traceback_of_another_is_made_is_shown_beside_it(doomed: Notebook) -> None:
    for source in ("threading.Event().wait()", "await asyncio.sleep(60)"):
        doomed.run(
            """
            doomed = procs.spawn("doomed", Talker)
            tracebacks = get_ipython().InteractiveTB
            def structured_traceback(*args, before=type(tracebacks).structured_traceback, **kwargs):
                del tracebacks.structured_traceback
                wait_for_fault()
                doomed.slice(gpus=1).fail.broadcast()
                wait_for_fault()
                return before(tracebacks, *args, **kwargs)
            tracebacks.structured_traceback = structured_traceback
            """
        )
        shown = doomed.run(f"import asyncio; doomed.slice(gpus=0).fail.broadcast()\n{source}")
        assert shown.error == "UnhandledFaultError"
        assert shown.trace.count(REPORT) == 1 and SAME.fullmatch(shown.err)
        goes_on(doomed)


def test_a_failure_between_two_cells_is_shown_and_interrupts_nobody(doomed: Notebook, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    cell = doomed.run(
        f"""
        doomed.slice(gpus=0).fail_when_told.broadcast({str(tmp_path / "go")!r})
        get_ipython().kernel.get_parent()["header"]["msg_id"]
        """
    )

    async def parent_of_report() -> str:
        (tmp_path / "go").write_text("now")
        while True:
            message = await doomed.kernel.get_iopub_msg(timeout=TIMEOUT)
            if message["msg_type"] == "stream" and HEADING in message["content"]["text"]:
                assert message["content"]["text"].count(REPORT) == 1
                return str(message["parent_header"]["msg_id"])

    assert repr(run_sync(parent_of_report)()) == cell.value
    goes_on(doomed)


def test_ctrl_c_after_a_failure_is_ctrl_c(doomed: Notebook) -> None:
    shown = doomed.run("doomed.slice(gpus=0).fail.broadcast()\nthreading.Event().wait()")
    assert shown.error == "UnhandledFaultError"
    shown = doomed.run("interrupt_when_blocked()\nsleeper.sleep.call().get()")
    assert (shown.error, shown.err) == ("KeyboardInterrupt", "")
    goes_on(doomed)


def test_streaming_says_which_process_wrote_a_line(notebook: Notebook) -> None:
    notebook.run("await procs.logging_option(stream_to_client=True)")
    shown = notebook.run("one.say.call('streamed').get();")
    assert shown.error == "" and shown.out.endswith("] [0] streamed\n")
    assert shown.out.startswith("[")
    shown = notebook.run("await procs.logging_option(stream_to_client=True, aggregate_window_sec=600)")
    shown = notebook.run("talker.say.call('folded').get();")
    assert "[2 similar log lines]" in shown.out and "folded" in shown.out
    notebook.run("await procs.logging_option()")
    assert notebook.run("one.say.call('plain').get();").out == "plain\n"


def test_the_processes_end_with_the_kernel(tmp_path: Path) -> None:
    with kernel(tmp_path) as own:
        pid = int(own.run("one.pid.call_one().get()").value)
        process = os.pidfd_open(pid)
    try:
        assert select.select([process], [], [], TIMEOUT)[0]
    finally:
        os.close(process)


@full
def test_in_plain_ipython_a_cell_ends_with_all_its_output(scripts: Any) -> None:
    done = scripts.run(
        """
        from IPython.core.interactiveshell import InteractiveShell

        shell = InteractiveShell.instance()
        shell.run_cell('''
        from monarch.actor import Actor, endpoint, this_host
        class Talker(Actor):
            @endpoint
            def say(self, text): print(text)
        talker = this_host().spawn_procs().spawn("talker", Talker)
        _ = await talker.say.call("first")
        ''')
        print("end of the first cell", flush=True)
        shell.run_cell('_ = talker.say.call("second").get()')
        print("end of the second cell", flush=True)
        """,
        env={"IPYTHONDIR": "ipython"},
    )
    assert done.stdout.splitlines() == ["first", "end of the first cell", "second", "end of the second cell"]


@full
def test_in_plain_ipython_a_failure_ends_the_cell(scripts: Any) -> None:
    done = scripts.run(
        """
        from IPython.core.interactiveshell import InteractiveShell

        shell = InteractiveShell.instance()
        shell.colors = "nocolor"
        shell.run_cell('''
        import asyncio, time
        from monarch.actor import Actor, endpoint, this_host
        class A(Actor):
            @endpoint
            def fail(self): raise RuntimeError("on purpose")
        procs = this_host().spawn_procs()
        ''')
        for source in (
            "time.sleep(60)",
            "await asyncio.sleep(60)",
            "asyncio.run(asyncio.sleep(60))",
            "await asyncio.sleep(0); time.sleep(60)",
        ):
            result = shell.run_cell(f"procs.spawn('a', A).fail.broadcast()\\n{source}")
            assert "on purpose" in str(result.error_in_exec)
            print(type(result.error_in_exec).__name__)
            assert shell.run_cell("await asyncio.sleep(0); 1").result == 1
        """,
        env={"IPYTHONDIR": "ipython"},
    )
    assert done.stdout.splitlines().count("UnhandledFaultError") == 4
    assert done.stdout.count("RuntimeError: on purpose") == 4 and HEADING not in done.stderr


@full
def test_cells_show_meshes_values_futures_and_failures_as_drawings(notebook: Notebook) -> None:
    mesh = notebook.run("await talker.pid.call()\ntalker")
    assert [text for text, _ in Drawing(mesh.html).squares] == ["0", "1"]
    assert mesh.value.startswith("ActorMesh(class=")
    assert [title for _, title in Drawing(notebook.run("procs.slice(gpus=1)").html).squares] == ["rank 1: running"]
    assert "this machine" in Drawing(notebook.run("this_host()").html).text
    values = notebook.run("await talker.say.call('<script>')")
    assert Drawing(values.html).squares == [("'<script>'", "gpus=0"), ("'<script>'", "gpus=1")]
    waiting = notebook.run("waiting = sleeper.sleep.call(); waiting")
    assert "pending for" in Drawing(waiting.html).text and "rank(s) 0-1" in Drawing(waiting.html).text
    failed = notebook.run("one.fail.call_one().exception()")
    assert "root cause: RuntimeError: on purpose" in Drawing(failed.html).text


@full
def test_a_cell_shows_whom_it_waits_for(tmp_path: Path) -> None:
    path = tmp_path / "door"
    os.mkfifo(path)
    with kernel(tmp_path) as notebook:
        notebook.run(f"""
            import monarch._mesh.process.cell_waits as waits
            os.environ.pop("PYTEST_CURRENT_TEST", None), os.environ.pop("CI", None)
            waits.PATIENCE = waits.AGAIN = 0.01
            pages, show = [], waits.NotebookOutput.show

            def show_and_open(output, page):
                show(output, page)
                if not pages:  # the rank waits for it
                    open({str(path)!r}, "w").close()
                pages.append(page)

            waits.NotebookOutput.show = show_and_open
        """)
        shown = notebook.run(f"await one.say_when_told.call_one({str(path)!r}, 'told')")
        assert (shown.out, shown.err, shown.error) == ("told\n", "", "")
        assert Drawing(shown.below).text.startswith("waited ") and "for talker.say_when_told()" in shown.below
        first = notebook.run("pages[0]").value
        assert "talker.say_when_told(): pending for " in first
        assert notebook.run("await talker.say.call('short')").error == ""
