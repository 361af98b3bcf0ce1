"""For every test: settings are put back after it, failures that nobody expects fail it, and property tests try the same
examples in every run. Here are the fixtures that tests of several folders use; what they are made of is in tests/support.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

import monarch.actor
from monarch._mesh.failures import observed
from monarch._runtime import log_thread
from monarch.config import configure, configured, settings
from tests.support import tiers
from tests.support.devices import default_device
from tests.support.faults import Faults
from tests.support.hosts import Hosts, hosts_in
from tests.support.long_tests import LongTests
from tests.support.processes import Watch, descendants
from tests.support.scripts import Scripts

TESTS = Path(__file__).resolve().parent

# What `make test-all` uses, and whoever does not say --hypothesis-profile; `make test` uses the other.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("quick", hypothesis.settings.get_profile("repeatable"), max_examples=20)
hypothesis.settings.load_profile("repeatable")


# Where nothing is to write bytecode, every program of the tests, and each of its processes, compiles the package anew: that
# is half of the time which most of them take.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_configure(config: pytest.Config) -> None:
    """Shells start background jobs with SIGINT ignored, nohup with SIGHUP: the programs that tests start would inherit
    that, and tests that send these signals would wait in vain."""
    config.stash[_LONG_TESTS] = LongTests(os.dup(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Before anything is left out of what was collected."""
    for item in items:
        tiers.mark_processes(item, item.path.relative_to(TESTS).parts[0])
    config.stash[tiers.COUNTED] = Counter(
        item.path.relative_to(TESTS).as_posix() for item in filter(tiers.counts, items)
    )


# --- tests that take long

_LONG_TESTS = pytest.StashKey[LongTests]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    watch = item.config.stash[_LONG_TESTS]
    in_worker = hasattr(item.config, "workerinput")  # where nobody sits in a debugger
    watch.began(item.nodeid, may_last=not in_worker or tiers.may_last(item))
    try:
        return (yield)
    finally:
        watch.ended()


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_LONG_TESTS].close()


# --- the garbage collector, which many tests call and which would look at all modules and tests each time


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Half a character in what a test has logged or printed would end the worker that sends its report."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    if isinstance(report.longrepr, tuple):
        return report
    text = str(report.longrepr or "")
    if not text.isascii() and text.encode("utf-8", "backslashreplace").decode() != text:
        report.longrepr = text.encode("utf-8", "backslashreplace").decode()
    return report


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_LONG_TESTS].watch()
    gc.disable()  # while tests are collected, nothing becomes garbage


def pytest_collection_finish() -> None:
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _what_is_there_stays() -> None:
    """Modules that earlier tests have imported included."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _no_preload() -> None:
    """Processes import what they need. Otherwise each would wait for torch, which tests of other folders have imported."""
    configure(preload="none")


@pytest.fixture(scope="module")
def torch_preloaded() -> Iterator[None]:
    """For modules whose processes all need it."""
    with configured(preload="auto"):
        yield


@pytest.fixture(autouse=True)
def settings_as_they_were() -> Iterator[None]:
    before = settings.LAYERS.runtime()
    yield
    settings.LAYERS.set_runtime(before)


@pytest.fixture(autouse=True)
def _logs_of_a_test_are_its_own() -> Iterator[None]:
    """Waits until all is logged: what the I/O thread has to say is logged by another thread, perhaps when the next test
    looks at its own logs."""
    yield
    assert log_thread.flush(30)


# --- failures that reach this process's client


@pytest.fixture
def calls_are_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that call what has failed: they may be slower than the 50 ms in which such a call still tells of it."""
    monkeypatch.setattr(observed, "GRACE", 60.0)


_faults = Faults()


@pytest.fixture(scope="session", autouse=True)
def _faults_are_kept() -> Iterator[None]:
    """For the whole session, in which files of any folders follow each other: the default hook would interrupt pytest."""
    before = monarch.actor.unhandled_fault_hook
    monarch.actor.unhandled_fault_hook = _faults
    _faults.watch_client()
    yield
    monarch.actor.unhandled_fault_hook = before


@pytest.fixture(autouse=True)
def _no_unexpected_fault(request: pytest.FixtureRequest) -> Iterator[None]:
    _faults.rest()
    yield
    if "faults" not in request.fixturenames:
        assert [str(fault) for fault in _faults.rest()] == []


@pytest.fixture
def faults(_faults_are_kept: None) -> Faults:
    """Returns what reached the root client in this test. A test that does not ask for it must cause no fault."""
    _faults.rest()
    return _faults


device = pytest.fixture(default_device, name="device")  # of tests marked `every_device`


# --- processes


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Starts hosts on this machine."""
    with hosts_in(tmp_path) as started:
        yield started


@pytest.fixture
def watch() -> type[Watch]:
    """`watch([pid, ...])` before, `.survivors(seconds)` after what should end them."""
    return Watch


@pytest.fixture(name="descendants")
def _descendants() -> Callable[[int], list[int]]:
    """`descendants(pid)`: the pids of all processes below it, now."""
    return descendants


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the test: a job's file and logs go there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def scripts(tmp_path: Path) -> Iterator[Scripts]:
    # Not below tmp_path: the address of a Unix socket holds about a hundred bytes.
    runtime = Path(tempfile.mkdtemp(prefix="mnr"))
    runner = Scripts(tmp_path, runtime)
    yield runner
    runner.close()
    shutil.rmtree(runtime, ignore_errors=True)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Makes a folder of this user, and nobody else may write in it; those of pytest cannot be entered by others."""
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="linux-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def shared(open_folder: Path) -> Path:
    """Makes a folder in which everybody may write, as in /tmp: who has made an entry alone may remove it."""
    folder = open_folder / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder
