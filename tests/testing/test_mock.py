from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from monarch.actor import Actor, endpoint, get_or_spawn_controller, this_host, this_proc
from monarch.testing import InProcessCluster, Local, patch_actor
from tests.support.patience import TIMEOUT


class Database(Actor):
    def __init__(self, url: str) -> None:
        self.url = url

    @endpoint
    def read(self) -> str:
        return f"real {self.url}"


class Fake(Actor):
    def __init__(self, url: str) -> None:
        self.url = url

    @endpoint
    def read(self) -> str:
        return f"fake {self.url}"


class Faker(Fake):
    @endpoint
    def read(self) -> str:
        return f"faker {self.url}"


class Service(Actor):
    """Spawns a Database, here or in a process of its own."""

    @endpoint
    async def here(self) -> str:
        return await this_proc().spawn("db", Database, "here").read.call_one()

    @endpoint
    async def below(self) -> str:
        procs = this_host().spawn_procs()
        return await procs.spawn("db", Database, "below").read.call_one()

    @endpoint
    async def far_below(self) -> str:
        procs = this_host().spawn_procs()
        return await procs.spawn("service", Service).here.call_one()


def read(url: str = "x") -> str:
    procs = this_host().spawn_procs()
    return procs.spawn("db", Database, url).read.call_one().get(TIMEOUT)  # type: ignore[no-any-return]


@pytest.mark.usefixtures("no_leaks", "cluster")
class TestInACluster:
    def test_spawn_makes_the_mock_while_the_patch_is_active(self) -> None:
        assert read() == "real x"
        with patch_actor(Database, Fake):
            assert read() == "fake x"
        assert read() == "real x"

    def test_the_mesh_is_one_of_the_mock(self) -> None:
        with patch_actor(Database, Fake):
            mesh: Any = this_host().spawn_procs().spawn("db", Database, "x")
        assert mesh._class is Fake

    def test_arguments_are_checked_against_the_mock(self) -> None:
        with patch_actor(Database, Fake), pytest.raises(TypeError):
            this_host().spawn_procs().spawn("db", Database)

    def test_the_innermost_patch_counts(self) -> None:
        with patch_actor(Database, Fake):
            with patch_actor(Database, Faker):
                assert read() == "faker x"
            assert read() == "fake x"

    def test_patches_of_different_classes_hold_together(self) -> None:
        with patch_actor(Database, Fake), patch_actor(Faker, Database):
            procs = this_host().spawn_procs()
            assert procs.spawn("a", Database, "1").read.call_one().get(TIMEOUT) == "fake 1"
            assert procs.spawn("b", Faker, "2").read.call_one().get(TIMEOUT) == "real 2"

    @pytest.mark.parametrize("method", ["here", "below", "far_below"])
    def test_actors_in_processes_started_meanwhile_spawn_the_mock(self, method: str) -> None:
        with patch_actor(Database, Fake):
            service = this_host().spawn_procs().spawn("service", Service)
            assert getattr(service, method).call_one().get(TIMEOUT).startswith("fake ")
        assert getattr(service, method).call_one().get(TIMEOUT).startswith("fake ")

    def test_actors_in_processes_that_were_there_before_spawn_what_they_say(self) -> None:
        service = this_host().spawn_procs().spawn("service", Service)
        with patch_actor(Database, Fake):
            assert service.here.call_one().get(TIMEOUT) == "real here"

    def test_the_inner_patch_counts_in_processes_started_meanwhile(self) -> None:
        with patch_actor(Database, Fake), patch_actor(Database, Faker):
            service = this_host().spawn_procs().spawn("service", Service)
        assert service.below.call_one().get(TIMEOUT) == "faker below"

    def test_a_bootstrap_function_still_runs_and_its_spawns_are_patched(self) -> None:
        spawned = Local[list[type]]([])

        def bootstrap() -> None:
            mesh: Any = this_proc().spawn("db", Database, "boot")
            spawned.value.append(mesh._class)

        with patch_actor(Database, Fake):
            this_host().spawn_procs({"gpus": 2}, bootstrap=bootstrap).initialized.get(TIMEOUT)
        assert spawned.value == [Fake, Fake]

    def test_controllers_are_patched(self) -> None:
        with patch_actor(Database, Fake):
            database: Any = get_or_spawn_controller("db", Database, "shared").get(TIMEOUT)
            assert database.read.call_one().get(TIMEOUT) == "fake shared"

    def test_a_decorated_function_runs_under_the_patch_each_time(self) -> None:
        @patch_actor(Database, Fake)
        def test(url: str) -> str:
            """Read it."""
            return read(url)

        assert [test("1"), read("2"), test("3")] == ["fake 1", "real 2", "fake 3"]
        assert (test.__name__, test.__doc__) == ("test", "Read it.")

    def test_a_decorated_async_function_runs_under_the_patch(self) -> None:
        @patch_actor(Database, Fake)
        async def test() -> str:
            await asyncio.sleep(0)
            procs = this_host().spawn_procs()
            return await procs.spawn("db", Database, "x").read.call_one()  # type: ignore[no-any-return]

        assert asyncio.run(test()) == "fake x"
        assert read() == "real x"

    def test_as_an_async_context_manager(self) -> None:
        async def run() -> str:
            async with patch_actor(Database, Fake):
                return await this_proc().spawn("db", Database, "x").read.call_one()

        assert asyncio.run(run()) == "fake x"

    def test_a_block_that_raises_ends_the_patch(self) -> None:
        with pytest.raises(KeyError), patch_actor(Database, Fake):
            raise KeyError
        assert read() == "real x"

    def test_an_actor_can_patch_what_its_process_spawns(self) -> None:
        class Patcher(Actor):
            @endpoint
            async def both(self) -> list[str]:
                with patch_actor(Database, Fake):
                    inside = await this_proc().spawn("db", Database, "in").read.call_one()
                return [inside, await this_proc().spawn("db", Database, "out").read.call_one()]

        patcher = this_host().spawn_procs().spawn("patcher", Patcher)
        assert patcher.both.call_one().get(TIMEOUT) == ["fake in", "real out"]


@pytest.mark.parametrize("pair", [(Database, object), (int, Fake), (Database, Fake("x"))])
def test_only_actor_classes_are_patched(pair: Any) -> None:
    with pytest.raises(TypeError, match="two subclasses of"):
        patch_actor(*pair)


def test_a_patch_needs_no_client() -> None:
    with patch_actor(Database, Fake), InProcessCluster():
        assert read() == "fake x"


@pytest.mark.procs
def test_patches_reach_real_processes_and_those_they_start() -> None:
    with patch_actor(Database, Fake):
        procs = this_host().spawn_procs()
    try:
        service = procs.spawn("service", Service)
        assert service.here.call_one().get(TIMEOUT) == "fake here"
        assert service.far_below.call_one().get(TIMEOUT) == "fake here"
    finally:
        procs.stop().get(TIMEOUT)


@pytest.mark.procs
def test_patches_of_classes_of_the_main_program_reach_real_processes() -> None:
    program = """
        from monarch.actor import Actor, endpoint, this_host, this_proc
        from monarch.testing import patch_actor

        class Real(Actor):
            @endpoint
            def name(self): return "real"

        class Mock(Actor):
            @endpoint
            def name(self): return "mock"

        class Outer(Actor):
            @endpoint
            async def ask(self): return await this_proc().spawn("inner", Real).name.call_one()

        with patch_actor(Real, Mock):
            print(this_host().spawn_procs().spawn("outer", Outer).ask.call_one().get(300))
        print(this_host().spawn_procs().spawn("outer", Outer).ask.call_one().get(300))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.split(), done.returncode) == (["mock", "real"], 0), done.stderr
