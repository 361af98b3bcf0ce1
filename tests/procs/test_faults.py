"""A failure nobody handles reaches the main thread, whatever kind of program it is and wherever it waits.

What it does to cells of notebooks is in test_notebooks.py.
"""

from __future__ import annotations

import os
import select
import signal
import textwrap
from typing import Any

import pytest

from tests.support.patience import TIMEOUT
from tests.support.tiers import first_of, full

pytestmark = pytest.mark.procs
HEADING = "Unhandled monarch error on the root actor"
SAME = "\nThe same failure on rank(s) "
ERROR = "monarch._errors.UnhandledFaultError: "

PRELUDE = """
    import asyncio, atexit, ctypes, os, queue, select, signal, sys, threading, time
    import monarch.actor
    from monarch._linux.thread_frames import thread_frames
    from monarch.actor import Actor, Channel, UnhandledFaultError, endpoint, this_host
    from monarch._mesh.failures.main_thread import faults

    class A(Actor):
        @endpoint
        def fail(self, text="nobody looks after me"): raise ValueError(text)
        @endpoint
        def alive(self): return "alive"

    class Hook:
        '''The hook; `told` counts what it has seen.'''
        told = threading.Semaphore(0)
        def __call__(self, failure):
            self.told.release()
            sys.exit(1)
        def wait(self):
            '''Until one more failure has been asked about, shown, and brought to the main thread.'''
            self.told.acquire()
            faults.drain(30)

    hook = monarch.actor.unhandled_fault_hook = Hook()

    def spawn():
        return this_host().spawn_procs({"gpus": 2}).spawn("a", A)

    def once_asleep(act):
        '''Calls act() on another thread once the main thread is below a function named wait, and sleeps in the kernel.'''
        main = threading.main_thread()
        def asleep():
            frame = thread_frames()[main.ident]
            while frame is not None and frame.f_code.co_name != "wait":
                frame = frame.f_back
            with open(f"/proc/self/task/{main.native_id}/stat") as file:
                return frame is not None and file.read().rpartition(")")[2].split()[0] == "S"
        def run():
            while not asleep():
                os.sched_yield()
            act()
        threading.Thread(target=run, daemon=True).start()
"""


@pytest.fixture
def programs(scripts: Any) -> Any:
    """`run(source)`: PRELUDE and then `source`, to its end."""

    class Programs:
        def run(self, source: str, *args: str, **options: Any) -> Any:
            return scripts.run(self.source(source), *args, check=False, **options)

        def start(self, source: str, **options: Any) -> Any:
            return scripts.start(self.source(source), **options)

        def source(self, source: str) -> str:
            return textwrap.dedent(PRELUDE) + textwrap.dedent(source)

    return Programs()


def ended_by_fault(done: Any, *lines: str) -> None:
    """The program printed `lines` and ended by the one fault, which explains itself."""
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines() == list(lines), done.stderr
    assert done.stderr.count(HEADING) == 1
    assert done.stderr.count(ERROR) == 1
    assert done.stderr.count("\nTraceback (most recent call last)") == 1
    assert done.stderr.count("ValueError: nobody looks after me\n") == 2  # in the report and in the exception's text
    assert "never retrieved" not in done.stderr
    assert "Exception ignored" not in done.stderr


def ended_well(done: Any, *lines: str) -> None:
    assert (done.returncode, done.stdout.splitlines()) == (0, list(lines)), done.stderr


# --- a plain script


SCRIPT = """
    a = spawn()
    atexit.register(print, "atexit ran", flush=True)
    {prepare}
    def wait():
        {wait}

    once_asleep(a.slice(gpus=0).fail.broadcast)
    try:
        wait()
    except Exception:
        print("wrongly caught", flush=True)
    finally:
        print("finally ran", flush=True)
"""


@pytest.mark.parametrize(
    ("prepare", "wait"),
    first_of(
        [
            ("port, receiver = Channel.open()", "receiver.recv().get(timeout=300)"),
            ("", "time.sleep(30)"),
            ("r, w = os.pipe()", "os.read(r, 1)"),
            ("r, w = os.pipe()", "select.select([r], [], [], 30)"),
            ("lock = threading.Lock(); lock.acquire()", "lock.acquire()"),
            ("lock = threading.Lock(); lock.acquire()", "lock.acquire(timeout=30)"),
            ("condition = threading.Condition(); condition.acquire()", "condition.wait()"),
            ("", "queue.Queue().get()"),
            ("", "queue.SimpleQueue().get()"),
            ("thread = threading.Thread(target=time.sleep, args=(60,), daemon=True); thread.start()", "thread.join()"),
            ("r, w = os.pipe(); os.dup2(r, 0)", "input()"),
            ("", "while True: pass"),
        ],
    ),
    ids=[
        "our get",
        "sleep",
        "read",
        "select",
        "lock",
        "lock with a timeout",
        "condition",
        "queue",
        "simple queue",
        "join",
        "input",
        "busy",
    ],
)
def test_in_a_script_that_waits(programs: Any, prepare: str, wait: str) -> None:
    source = SCRIPT.format(prepare=prepare, wait=wait)
    if wait.startswith("while"):  # never asleep
        source = source.replace("once_asleep(a.slice(gpus=0).fail.broadcast)", "a.slice(gpus=0).fail.broadcast()")
    ended_by_fault(programs.run(source), "finally ran", "atexit ran")


@full
def test_in_native_code_that_no_signal_interrupts_it_is_heard_of_afterwards(programs: Any) -> None:
    done = programs.run(
        """
        a = spawn()
        mutex = ctypes.create_string_buffer(64)
        libc = ctypes.CDLL(None)
        libc.pthread_mutex_lock(mutex)

        def wait():
            assert libc.pthread_mutex_lock(mutex) == 0  # the C library sleeps until it has it

        def fail():
            a.slice(gpus=0).fail.broadcast()
            hook.told.acquire()
            faults.drain(1)  # it is not settled before this ends
            libc.pthread_mutex_unlock(mutex)

        once_asleep(fail)
        try:
            wait()
            time.sleep(30)
        finally:
            print("finally ran", flush=True)
        """
    )
    ended_by_fault(done, "finally ran")


@pytest.mark.parametrize("module", first_of(["", "import readline"]), ids=["plain", "readline"])
def test_in_input_at_a_terminal(programs: Any, module: str) -> None:
    master, slave = os.openpty()
    try:
        process = programs.start(SCRIPT.format(prepare=module, wait="input()"), stdin=slave, stdout=slave)
        _, err = process.communicate(timeout=TIMEOUT)
        out = b""
        while select.select([master], [], [], 0)[0]:
            out += os.read(master, 4096)
    finally:
        os.close(master)
        os.close(slave)
    assert process.returncode == 1
    assert b"finally ran\r\natexit ran\r\n" in out
    assert err.count(HEADING) == 1 and err.count(ERROR) == 1


@full
def test_where_an_exception_would_be_lost_it_waits(programs: Any) -> None:
    done = programs.run(
        """
        class D:
            def __del__(self):
                a.slice(gpus=0).fail.broadcast()
                hook.told.acquire()
                faults.drain(1)  # it is not settled before this ends
                print("del ended", flush=True)

        a = spawn()
        d = D()
        try:
            del d
            time.sleep(30)
        finally:
            print("finally ran", flush=True)
        """
    )
    ended_by_fault(done, "del ended", "finally ran")


@full
def test_after_the_last_line_while_threads_run(programs: Any) -> None:
    done = programs.run(
        """
        a = spawn()
        atexit.register(print, "atexit ran", flush=True)
        threading.Thread(target=time.sleep, args=(60,)).start()

        a.slice(gpus=0).fail.broadcast()
        """
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout == "atexit ran\n"
    assert done.stderr.count(HEADING) == 1 and done.stderr.count(ERROR) == 1


@full
def test_at_exit_it_is_only_reported(programs: Any) -> None:
    done = programs.run(
        """
        a = spawn()

        @atexit.register
        def late():
            a.slice(gpus=0).fail.broadcast()
            hook.wait()
            print("atexit went on", flush=True)
        """
    )
    ended_well(done, "atexit went on")
    assert done.stderr.count(HEADING) == 1 and "UnhandledFaultError" not in done.stderr


FAULT = """
    import sys, threading, time
    from monarch.actor import Actor, endpoint, this_host

    class A(Actor):
        @endpoint
        def fail(self): raise ValueError("nobody looks after me")

    def main():
        this_host().spawn_procs().spawn("a", A).fail.broadcast()
        time.sleep(30)
"""
IN_MAIN = "if __name__ == '__main__': main()"
IN_THREAD = "if __name__ == '__main__': thread = threading.Thread(target=main); thread.start(); thread.join()"


@pytest.mark.parametrize("how", first_of(["file", "-c", "-m", "stdin"]))
@pytest.mark.parametrize("end", first_of([IN_MAIN, IN_THREAD]), ids=["main thread", "thread"])
def test_the_status_is_1_however_the_program_runs(scripts: Any, how: str, end: str) -> None:
    source = textwrap.dedent(FAULT) + end
    (scripts.folder / "program.py").write_text(source)
    told = {"file": ["program.py"], "-c": ["-c", source], "-m": ["-m", "program"], "stdin": ["-"]}[how]
    done = scripts.run(
        f"""
        import subprocess, sys
        done = subprocess.run([sys.executable, *{told!r}], input={source!r} if {how!r} == "stdin" else None, text=True)
        print("status", done.returncode)
        """
    )
    assert done.stdout == "status 1\n", done.stderr
    assert done.stderr.count(HEADING) == 1


@full
def test_the_last_line_says_what_would_have_handled_it(programs: Any) -> None:
    done = programs.run("spawn().slice(gpus=0).fail.broadcast(); time.sleep(30)")
    last = done.stderr.splitlines()[-1]
    for way in (
        "except SupervisionError",
        "unhandled_fault_hook",
        "__supervise__",
        "RestartPolicy",
        "docs/reliability.md",
    ):
        assert way in last
    assert done.returncode == 1


# --- a client started in another thread


@full
def test_with_a_client_of_another_thread(programs: Any) -> None:
    done = programs.run(
        """
        def work():
            a = spawn()
            once_asleep(a.slice(gpus=0).fail.broadcast)

        def wait():
            threading.Event().wait()

        threading.Thread(target=work).start()
        try:
            wait()
        finally:
            print("finally ran", flush=True)
        """
    )
    ended_by_fault(done, "finally ran")


@full
def test_with_everything_in_another_thread_it_is_a_keyboard_interrupt_behind_its_report(scripts: Any) -> None:
    done = scripts.run(
        f"""
        import sys, threading

        def work():
            namespace = {{"__name__": "__main__"}}
            exec({textwrap.dedent(PRELUDE)!r}, namespace)
            a = namespace["spawn"]()
            namespace["once_asleep"](a.fail.broadcast)  # two of them

        def wait():
            threading.Event().wait()

        threading.Thread(target=work).start()
        try:
            wait()
        finally:
            print(sys.exc_info()[0].__name__, flush=True)
        """,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout == "KeyboardInterrupt\n"
    assert HEADING in done.stderr and "ValueError: nobody looks after me" in done.stderr
    assert done.stderr.count("\nTraceback (most recent call last)") == 1


# --- asyncio


ASYNC = """
    import selectors

    def wait_for_events(self, timeout=None, select=selectors.EpollSelector.select):
        def wait():  # who is suspended is on no stack: the loop itself is asleep
            return select(self, timeout)
        return wait()

    selectors.EpollSelector.select = wait_for_events

    class Resource:
        async def __aenter__(self): return self
        async def __aexit__(self, *exc):
            await asyncio.sleep(0)
            print("async with ended", flush=True)

    async def other():
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            print("other task ended", flush=True)

    async def wait():
        {wait}

    async def main():
        a = client or spawn()
        await a.alive.call()
        port, receiver = Channel.open()
        task = asyncio.create_task(other())
        await asyncio.sleep(0)
        main.receiver = receiver
        try:
            async with Resource():
                once_asleep(a.slice(gpus=0).fail.broadcast)
                {call}
        finally:
            await asyncio.sleep(0)
            print("finally ran in", type(sys.exc_info()[1]).__name__, flush=True)

    atexit.register(print, "atexit ran", flush=True)
    client = {client}
    {run}
"""
WAITS = {
    "our future": ("await main.receiver.recv()", "await wait()"),
    "sleep": ("await asyncio.sleep(60)", "await wait()"),
    "gather": ("await asyncio.sleep(60)", "await asyncio.gather(wait(), wait())"),
    "a task group": (
        "await asyncio.sleep(60)",
        "async with asyncio.TaskGroup() as group: group.create_task(wait())",
    ),
    "a blocking get": ("main.receiver.recv().get(timeout=300)", "await wait()"),
    "a blocking task": ("time.sleep(60)", "await asyncio.create_task(wait())"),
}


def in_asyncio(programs: Any, where: str, *, client: str = "spawn()", run: str = "asyncio.run(main())") -> Any:
    wait, call = WAITS[where]
    return programs.run(ASYNC.format(wait=wait, call=call, client=client, run=run))


def ended_in_asyncio(done: Any, where: str) -> None:
    name = "UnhandledFaultError" if where == "a blocking get" else "CancelledError"
    assert sorted(done.stdout.splitlines()) == sorted(
        ["async with ended", f"finally ran in {name}", "other task ended", "atexit ran"]
    ), done.stderr
    ended_by_fault(done, *done.stdout.splitlines())


@pytest.mark.parametrize("where", first_of(WAITS))
def test_under_asyncio_run_with_a_client_from_before(programs: Any, where: str) -> None:
    ended_in_asyncio(in_asyncio(programs, where), where)


@full
@pytest.mark.parametrize("where", first_of(WAITS))
def test_under_asyncio_run_with_a_client_started_there(programs: Any, where: str) -> None:
    ended_in_asyncio(in_asyncio(programs, where, client="None"), where)


@full
def test_asyncio_run_raises_it_to_who_called_it(programs: Any) -> None:
    run = """
    try:
        asyncio.run(main())
    except UnhandledFaultError as exc:
        assert "nobody looks after me" in str(exc)
        assert spawn().alive.call().get(timeout=300).values() == ["alive"] * 2
        print("and the client goes on", flush=True)
    """
    done = in_asyncio(programs, "sleep", run=run.strip())
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["and the client goes on", "atexit ran"]


@full
@pytest.mark.parametrize(
    "run", ["loop.run_until_complete(asyncio.sleep(60))", "loop.run_forever()"], ids=["until complete", "for ever"]
)
def test_in_a_loop_of_the_program_s_own(programs: Any, run: str) -> None:
    done = programs.run(
        f"""
        a = spawn()
        loop = asyncio.new_event_loop()
        loop.call_soon(a.slice(gpus=0).fail.broadcast)
        try:
            {run}
        except UnhandledFaultError as exc:
            assert "nobody looks after me" in str(exc)
        loop.run_until_complete(asyncio.sleep(0))
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        print("closed")
        """
    )
    ended_well(done, "closed")


@full
def test_ctrl_c_is_asyncio_s_as_it_is_without_a_client(programs: Any) -> None:
    done = programs.run(
        """
        a = spawn()

        async def main():
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await a.alive.call()
                print("cancelled")
                raise

        try:
            asyncio.run(main())
        except KeyboardInterrupt as exc:
            print(type(exc).__name__)
        """
    )
    ended_well(done, "cancelled", "KeyboardInterrupt")


# --- programs with a handler of SIGINT


def test_a_handler_of_the_program_is_called_once_instead(programs: Any) -> None:
    done = programs.run(
        """
        a = spawn()
        called = threading.Event()

        def handler(number, frame):
            assert number == signal.SIGINT and frame is not None
            print("handler called", flush=True)
            called.set()

        signal.signal(signal.SIGINT, handler)
        a.fail.broadcast()  # two of them
        assert called.wait(30)
        hook.wait()
        hook.wait()
        assert signal.getsignal(signal.SIGINT) is handler
        """
    )
    ended_well(done, "handler called")
    assert done.stderr.count(HEADING) == done.stderr.count(SAME) == 1  # the second report is a line


@full
def test_a_handler_of_the_program_s_loop_is_called_instead(programs: Any) -> None:
    done = programs.run(
        """
        async def main():
            a = spawn()
            stop = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
            a.slice(gpus=0).fail.broadcast()
            await stop.wait()
            print("stopped", flush=True)

        asyncio.run(main())
        """
    )
    ended_well(done, "stopped")
    assert done.stderr.count(HEADING) == 1


@full
def test_sigwait_returns(programs: Any) -> None:
    done = programs.run(
        """
        def wait():
            return signal.sigwait({signal.SIGINT, signal.SIGTERM})

        a = spawn()
        once_asleep(a.slice(gpus=0).fail.broadcast)
        print(wait().name)
        """
    )
    ended_well(done, "SIGINT")
    assert done.stderr.count(HEADING) == 1


@full
@pytest.mark.parametrize("how", ["SIG_IGN", "SIG_DFL"])
def test_no_handler_is_no_reason_to_go_on(programs: Any, how: str) -> None:
    done = programs.run(
        f"""
        signal.signal(signal.SIGINT, signal.{how})
        a = spawn()
        try:
            a.slice(gpus=0).fail.broadcast()
            time.sleep(30)
        finally:
            print("finally ran", flush=True)
        """
    )
    ended_by_fault(done, "finally ran")


@full
def test_a_program_s_handler_of_our_signal_stays(programs: Any) -> None:
    done = programs.run(
        """
        def handler(number, frame):
            print("urgent", flush=True)

        signal.signal(signal.SIGURG, handler)
        a = spawn()
        try:
            a.slice(gpus=0).fail.broadcast()
            time.sleep(30)
        except KeyboardInterrupt as exc:
            print(type(exc).__name__)
        signal.raise_signal(signal.SIGURG)
        """
    )
    ended_well(done, "KeyboardInterrupt", "urgent")
    assert done.stderr.count(HEADING) == 1


# --- several faults, and Ctrl-C


def test_of_several_faults_one_is_raised_and_all_are_reported(programs: Any) -> None:
    done = programs.run(
        """
        a = spawn()
        atexit.register(print, "atexit ran", flush=True)
        try:
            a.slice(gpus=0).fail.broadcast("the first")
            time.sleep(30)
        finally:
            hook.wait()
            a.slice(gpus=1).fail.broadcast("the second")
            hook.wait()
            print("finally ran", flush=True)
        """
    )
    assert done.returncode == 1
    assert done.stdout.splitlines() == ["finally ran", "atexit ran"]
    assert done.stderr.count(HEADING) == 2 and done.stderr.count(ERROR) == 1
    assert done.stderr.count("\nTraceback (most recent call last)") == 1
    assert done.stderr.count("ValueError: the first\n") == 2
    assert done.stderr.count("ValueError: the second\n") == 1
    assert done.stderr.index("ValueError: the second\n") < done.stderr.index(ERROR)


@full
def test_faults_at_the_same_time(programs: Any) -> None:
    done = programs.run(
        """
        procs = this_host().spawn_procs({"gpus": 2})
        meshes = [procs.spawn(f"a{number}", A) for number in range(10)]
        try:
            for mesh in meshes:
                mesh.fail.broadcast()
            time.sleep(30)
        finally:
            for _ in range(20):
                hook.wait()
            print("finally ran", flush=True)
        """
    )
    assert done.returncode == 1
    assert done.stdout == "finally ran\n"
    # The second report of a mesh may be a line.
    assert done.stderr.count(HEADING) + done.stderr.count(SAME) == 20 and done.stderr.count(ERROR) == 1
    assert done.stderr.count("\nTraceback (most recent call last)") == 1


@full
def test_while_the_traceback_is_printed_another_is_only_reported(programs: Any) -> None:
    done = programs.run(
        """
        a = spawn()
        before = sys.excepthook

        def excepthook(*exc):
            hook.wait()
            a.slice(gpus=1).fail.broadcast("the second")
            hook.wait()
            before(*exc)

        sys.excepthook = excepthook
        a.slice(gpus=0).fail.broadcast("the first")
        time.sleep(30)
        """
    )
    assert done.returncode == 1
    assert done.stderr.count(HEADING) == 2 and done.stderr.count(ERROR) == 1
    assert "Error in sys.excepthook" not in done.stderr
    assert done.stderr.count("\nTraceback (most recent call last)") == 1


@full
def test_a_fault_after_one_that_was_handled_is_raised_again(programs: Any) -> None:
    done = programs.run(
        """
        for number in range(3):
            a = spawn()
            try:
                a.slice(gpus=0).fail.broadcast(f"number {number}")
                time.sleep(30)
            except UnhandledFaultError as exc:
                assert f"ValueError: number {number}" in str(exc)
                print("handled", number)
        assert a.slice(gpus=1).alive.call_one().get(timeout=300) == "alive"
        """
    )
    ended_well(done, "handled 0", "handled 1", "handled 2")
    assert done.stderr.count(HEADING) == 3 and "Traceback (most recent call last)" not in done.stderr


CTRL_C = """
    def ctrl_c():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(30)
        except KeyboardInterrupt as exc:
            print(type(exc).__name__)
"""


def test_ctrl_c_is_a_keyboard_interrupt_before_and_after(programs: Any) -> None:
    done = programs.run(
        textwrap.dedent(CTRL_C)
        + textwrap.dedent(
            """
            a = spawn()
            ctrl_c()
            try:
                a.slice(gpus=0).fail.broadcast()
                time.sleep(30)
            except UnhandledFaultError:
                ctrl_c()
                a.slice(gpus=1).fail.broadcast()
                hook.wait()  # of the first
                hook.wait()  # of the second, which is not raised
                ctrl_c()
            ctrl_c()
            """
        )
    )
    ended_well(done, *["KeyboardInterrupt"] * 4)
    assert done.stderr.count(HEADING) == done.stderr.count(SAME) == 1  # the second report is a line


@full
def test_ctrl_c_ends_the_program_as_ever(programs: Any) -> None:
    done = programs.run("spawn(); os.kill(os.getpid(), signal.SIGINT); time.sleep(30)")
    assert done.returncode == -signal.SIGINT
    assert done.stderr.rstrip().endswith("\nKeyboardInterrupt")


# --- the hook


@pytest.mark.parametrize(
    ("hook", "said"),
    first_of(
        [
            ("sys.exit(7)", ""),
            ("raise RuntimeError('the hook failed')", "RuntimeError: the hook failed"),
            ("raise KeyboardInterrupt", "unhandled_fault_hook raised:"),
        ]
    ),
    ids=["exits", "raises", "interrupts"],
)
def test_a_hook_that_raises_has_not_taken_it(programs: Any, hook: str, said: str) -> None:
    done = programs.run(
        f"""
        def hook(failure):
            {hook}

        a = spawn()
        monarch.actor.unhandled_fault_hook = hook
        try:
            a.slice(gpus=0).fail.broadcast()
            time.sleep(30)
        finally:
            print("finally ran", flush=True)
        """
    )
    assert done.returncode == 1
    assert done.stdout == "finally ran\n"
    assert done.stderr.count(HEADING) == 1 and done.stderr.count(ERROR) == 1
    assert said in done.stderr


@full
def test_the_hook_is_looked_up_when_it_is_needed_and_may_use_actors(programs: Any) -> None:
    done = programs.run(
        """
        del monarch.actor.unhandled_fault_hook
        a = spawn()
        seen = queue.SimpleQueue()

        def hook(failure):
            assert threading.current_thread() is not threading.main_thread()
            seen.put((failure, a.slice(gpus=1).alive.call_one().get(timeout=300)))

        monarch.actor.unhandled_fault_hook = hook
        a.slice(gpus=0).fail.broadcast()
        failure, alive = seen.get(timeout=300)
        assert "nobody looks after me" in failure.report() and alive == "alive"
        assert a.slice(gpus=1).alive.call_one().get(timeout=300) == "alive"
        print("went on")
        """
    )
    ended_well(done, "went on")
    assert done.stderr == ""


@full
def test_hooks_are_called_one_after_the_other(programs: Any) -> None:
    done = programs.run(
        """
        inside = threading.Lock()
        seen = queue.SimpleQueue()

        def hook(failure):
            assert inside.acquire(blocking=False)
            a.slice(gpus=0).alive.call_one().get(timeout=300)
            inside.release()
            seen.put(failure)

        monarch.actor.unhandled_fault_hook = hook
        procs = this_host().spawn_procs()
        a = this_host().spawn_procs({"gpus": 1}).spawn("a", A)
        for number in range(5):
            procs.spawn(f"b{number}", A).fail.broadcast()
        for number in range(5):
            seen.get(timeout=300)
        """
    )
    ended_well(done)
    assert done.stderr == ""


# --- who else runs the main thread


@full
@pytest.mark.parametrize("method", first_of(["fork", "spawn"]))
def test_in_a_child_of_multiprocessing(programs: Any, method: str) -> None:
    done = programs.run(
        f"""
        import multiprocessing

        def child():
            a = spawn()
            try:
                a.slice(gpus=0).fail.broadcast()
                time.sleep(30)
            finally:
                print("finally ran", flush=True)

        if __name__ == "__main__":
            process = multiprocessing.get_context({method!r}).Process(target=child)
            process.start()
            process.join(30)
            print(process.exitcode)
        """
    )
    ended_well(done, "finally ran", "1")
    assert done.stderr.count(HEADING) == 1 and done.stderr.count(ERROR) == 1


@full
@pytest.mark.parametrize("wait", ["time.sleep(30)", "asyncio.run(asyncio.sleep(30))"])
def test_files_are_written_to_their_end(programs: Any, scripts: Any, wait: str) -> None:
    done = programs.run(
        f"""
        a = spawn()
        file = open("written", "w")
        file.write("to its end")
        a.slice(gpus=0).fail.broadcast()
        {wait}
        """
    )
    assert done.returncode == 1
    assert (scripts.folder / "written").read_text() == "to its end"


@full
def test_under_pytest(programs: Any, scripts: Any) -> None:
    test = programs.source(
        """
        def test_one():
            a = spawn()
            a.fail.broadcast()  # two of them
            time.sleep(30)

        def test_two():
            raise AssertionError("the second test ran")
        """
    )
    (scripts.folder / "test_it.py").write_text(test)
    done = scripts.run(
        "import sys, pytest; sys.exit(pytest.main(['-p', 'no:cacheprovider', 'test_it.py']))", check=False
    )
    assert done.returncode == pytest.ExitCode.INTERRUPTED, done.stdout + done.stderr
    assert f"! {ERROR}" in done.stdout and "no tests ran" in done.stdout
    assert "ValueError: nobody looks after me" in done.stdout
    assert "the second test ran" not in done.stdout
    assert "Traceback (most recent call last)" not in done.stderr
