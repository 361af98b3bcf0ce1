"""Tests of which device each process uses, on a machine that has some. Each test is a program of its own, in which
nothing has asked the driver before."""

from __future__ import annotations

import textwrap

import pytest

from tests.support.scripts import Scripts

pytestmark = [pytest.mark.device, pytest.mark.procs]

_RANK = """
import os, threading
from monarch.actor import Actor, endpoint, this_host

class Rank(Actor):
    @endpoint
    def unused(self):
        import torch
        from monarch import _devices
        return _devices.count(), torch.cuda.is_initialized()

    @endpoint
    def where(self):
        "The number and the name of the device of this thread and of a new one; how many are seen."
        import torch

        def one():
            device = torch.ones(1, device="cuda").device
            found.append((device.index, str(torch.cuda.get_device_properties(device).uuid)))

        found = []
        one()
        thread = threading.Thread(target=one)
        thread.start()
        thread.join(120)
        return found, torch.cuda.device_count()

    @endpoint
    def hold(self, mebibytes):
        import torch
        self.held = None
        self.held = torch.empty(mebibytes << 20, dtype=torch.uint8, device="cuda") if mebibytes else None

    @endpoint
    def device_of(self, tensor):
        return tensor.device.index
"""


def program(body: str) -> str:
    return _RANK + "\nif __name__ == '__main__':\n" + textwrap.indent(textwrap.dedent(body), "    ")


def test_counting_does_not_settle_what_a_process_sees(scripts: Scripts) -> None:
    """The driver reads the variable when it is initialised, and counting is not to initialise it."""
    done = scripts.run(
        """
        import os, torch
        from monarch import _devices
        if torch.version.hip is None and torch.cuda._device_count_nvml() < 0:
            raise SystemExit(print("skip"))
        assert _devices.count() > 0
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["HIP_VISIBLE_DEVICES"] = ""
        print(torch.cuda.is_available())
        """
    )
    if done.stdout == "skip\n":
        pytest.skip("torch cannot count here without the driver: no NVML, or MIG devices")
    assert done.stdout == "False\n"


def test_each_rank_uses_the_device_of_its_place_on_every_thread(scripts: Scripts) -> None:
    done = scripts.run(
        program("""
        import torch
        count = torch.cuda.device_count()
        procs = this_host().spawn_procs({"replica": count, "gpus": 1})
        ranks, other = procs.spawn("ranks", Rank), procs.spawn("other", Rank)
        before = list(ranks.unused.call().get(100).values())
        assert before == [(count, False)] * count, before
        other.unused.call().get(100)
        for mesh in (ranks, other):  # the second one's threads are older than the first use of a device
            found = list(mesh.where.call().get(100).values())
            for place, (devices, seen) in enumerate(found):
                assert seen == count, found
                assert [index for index, _ in devices] == [place, place], found
            assert len({devices[0][1] for devices, _ in found}) == count, found
        print("done")
        """)
    )
    assert done.stdout == "done\n"


def test_a_second_mesh_uses_other_devices_or_says_who_shares(scripts: Scripts) -> None:
    done = scripts.run(
        program("""
        import torch
        count = torch.cuda.device_count()
        size = (count + 1) // 2
        first = this_host().spawn_procs({"gpus": size}, name="first")
        second = this_host().spawn_procs({"gpus": size}, name="second")
        names = []
        for procs in (first, second):
            for place, (devices, seen) in enumerate(procs.spawn("ranks", Rank).where.call().get(100).values()):
                assert seen == count
                assert [index for index, _ in devices] == [place, place], devices
                names.append(devices[0][1])
        print(count, len(set(names)))
        """)
    )
    count, different = map(int, done.stdout.split())
    assert different == count
    assert ("mesh 'second'" in done.stderr and "share device" in done.stderr) == (count % 2 == 1)


def test_a_variable_of_the_program_is_followed(scripts: Scripts) -> None:
    done = scripts.run(
        program("""
        import torch
        last = str(torch.cuda.device_count() - 1)
        variables = {"HIP_VISIBLE_DEVICES": last} if torch.version.hip else {}
        procs = this_host().spawn_procs({"gpus": 2}, env={"CUDA_VISIBLE_DEVICES": last, **variables})
        for devices, seen in procs.spawn("ranks", Rank).where.call().get(100).values():
            assert seen == 1
            assert [index for index, _ in devices] == [0, 0]
        print("done")
        """)
    )
    assert done.stdout == "done\n"


def test_memory_of_each_rank(scripts: Scripts) -> None:
    done = scripts.run(
        program("""
        from monarch.memory import device_memory, reset_peak_memory
        procs = this_host().spawn_procs({"gpus": 1})
        ranks = procs.spawn("ranks", Rank)
        before, = device_memory(procs).get(100).values()
        assert before.device == "", before
        ranks.hold.call_one(256).get(100)
        used, = device_memory(procs).get(100).values()
        assert used.device == "cuda:0" and 256 << 20 <= used.allocated <= used.reserved <= used.total - used.free, used
        ranks.hold.call_one(0).get(100)
        after, = device_memory(procs).get(100).values()
        assert after.allocated < 256 << 20 <= after.peak_allocated, after
        reset_peak_memory(procs).get(100)
        reset, = device_memory(procs).get(100).values()
        assert reset.peak_allocated < 256 << 20, reset
        print("done")
        """)
    )
    assert done.stdout == "done\n"


def test_out_of_memory_says_where(scripts: Scripts) -> None:
    done = scripts.run(
        """
        import monarch, torch
        from monarch.actor import this_host
        with this_host().spawn_procs({"gpus": 1}).activate() as mesh:
            large = torch.empty(1 << 48, dtype=torch.uint8, device="cuda")
            try:
                monarch.inspect(large[:1])
            except monarch.tensor.RemoteException as exc:
                print(exc)
            small = torch.full((2,), 7, device="cuda:0")  # the process goes on
            print(monarch.inspect(small).tolist())
        """,
        check=False,
    )
    assert "out of memory on rank 0 (host " in done.stdout, done.stdout + done.stderr
    assert "GiB free" in done.stdout
    assert "[7, 7]" in done.stdout


def test_a_tensor_arrives_on_the_receivers_device(scripts: Scripts) -> None:
    done = scripts.run(
        program("""
        import torch
        count = torch.cuda.device_count()
        procs = this_host().spawn_procs({"gpus": count})
        found = procs.spawn("ranks", Rank).device_of.call(torch.ones(1 << 20, device="cuda")).get(100).values()
        assert list(found) == list(range(count)), found
        print("done")
        """)
    )
    assert done.stdout == "done\n"
