"""Tests that what is sent to another program of this machine works there, and what that program makes of it ends with it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.tiers import first_of

pytestmark = pytest.mark.procs

PROGRAM = """
    import multiprocessing, os, signal, sys
    import monarch.actor
    from monarch.actor import Actor, Channel, SupervisionError, endpoint, this_host

    monarch.actor.unhandled_fault_hook = lambda failure: None  # here and in the other program

    class Counter(Actor):
        def __init__(self, ended=None):
            self.count, self.ended = 0, ended
        @endpoint
        def add(self, n):
            self.count += n
            return self.count
        @endpoint
        def die(self):
            os._exit(3)
        def __cleanup__(self, exc):
            if self.ended is not None:
                self.ended.send(self.count)

    def other(how, procs, counters, ended, queue):
        assert counters.add.call(5).get(300).values() == [6, 6]
        mine = procs.spawn("mine", Counter, ended)
        assert mine.add.call(1).get(300).values() == [1, 1]
        assert mine.slice(gpus=1).add.call_one(1).get(300) == 2
        if how == "death":
            try:
                counters.slice(gpus=0).die.call_one().get(300)
            except SupervisionError as exc:
                queue.put("exited with non-zero code 3" in str(exc))
        queue.put("done")
        if how == "kill":
            signal.pause()

    if __name__ == "__main__":
        how = sys.argv[1]
        ended, receiver = Channel.open()
        procs = this_host().spawn_procs({"gpus": 2})
        counters = procs.spawn("counters", Counter)
        counters.add.call(1).get(300)
        spawning = multiprocessing.get_context("spawn")
        queue = spawning.SimpleQueue()
        program = spawning.Process(target=other, args=(how, procs, counters, ended, queue))
        program.start()
        while (said := queue.get()) != "done":
            print(said)
        if how == "kill":
            program.kill()
        program.join(30)
        if how != "death":
            print(sorted(receiver.recv().get(300) for _ in range(2)))
            print(counters.add.call(1).get(300).values())
"""


ALIVE = "[1, 2]\n[7, 7]\n"


@pytest.mark.parametrize(("how", "said"), first_of([("exit", ALIVE), ("kill", ALIVE), ("death", "True\n")]))
def test_a_mesh_in_another_program(scripts: Any, how: str, said: str) -> None:
    assert scripts.run(PROGRAM, how).stdout == said


def test_a_function_that_names_ours_is_loaded_by_a_fresh_interpreter(scripts: Any) -> None:
    """It brings its own file only, which is not all it needs."""
    scripts.run(
        """
        import subprocess, sys
        import cloudpickle
        from monarch.actor import current_rank, this_host, this_proc

        def work():
            assert current_rank().rank == 0
            return this_host().spawn_procs({"gpus": 2}).size()

        assert b"monarch._" not in cloudpickle.dumps((work, this_proc))
        code = "import pickle, sys; print(pickle.load(sys.stdin.buffer)())"
        done = subprocess.run([sys.executable, "-c", code], input=cloudpickle.dumps(work), capture_output=True)
        assert done.stdout == b"2\\n", done
        """
    )
