"""Tests that what a recorded function takes from outside of Python's variables is never frozen: noticed, with the line, and
done operation by operation from then on."""

from __future__ import annotations

import contextvars
import datetime
import os
import pathlib
import queue
import random
import re
import secrets
import threading
import time
import types
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import torch

from monarch.tensor import function
from monarch.tensor.controller.activation import no_modes
from tests.tensor.recording.looked_at import number

np = pytest.importorskip("numpy")


def global_numpy() -> float:
    return float(np.random.rand())


RANDOM = random.Random(1)
STATE = np.random.RandomState(1)
RNG = np.random.default_rng(1)
LOCAL = torch.Generator()
MESSAGES: queue.Queue[float] = queue.Queue()
SIMPLE: queue.SimpleQueue[float] = queue.SimpleQueue()
FILE = pathlib.Path(__file__)
HELD = types.SimpleNamespace(rng=np.random.default_rng(2))


def drawn_here() -> float:
    with no_modes():
        return float(torch.rand((), generator=LOCAL))


def drawn_from_the_default() -> float:
    with no_modes():
        return float(torch.rand(()))


def shuffled() -> float:
    values = [1.0, 2.0, 3.0]
    np.random.shuffle(values)
    return values[0]


SOURCES: dict[str, tuple[Callable[[], float], str]] = {
    "numpy": (global_numpy, r"draws numbers with NumPy's random \(.*test_outside.py:\d+ in global_numpy\)"),
    "numpy, shuffle": (shuffled, r"NumPy's random \(.*test_outside.py:\d+ in shuffled\)"),
    "RandomState": (lambda: float(STATE.rand()), r"draws numbers with NumPy's random \(STATE\)"),
    "default_rng": (lambda: float(RNG.random()), r"draws numbers with NumPy's random \(RNG\)"),
    "of an object": (lambda: float(HELD.rng.normal()), r"draws numbers with NumPy's random \(HELD.rng\)"),
    "a new generator": (lambda: float(np.random.default_rng().random()), "takes random bytes of the system"),
    "random": (random.random, r"draws numbers with Python's random \(.*test_outside.py:\d+ in "),
    "random, own": (lambda: RANDOM.uniform(0, 1), r"Python's random \(.*test_outside.py"),
    "SystemRandom": (lambda: random.SystemRandom().random(), "random bytes of the system"),
    "urandom": (lambda: float(os.urandom(1)[0]), "random bytes of the system"),
    "secrets": (lambda: float(secrets.randbelow(9)), "random bytes of the system"),
    "uuid4": (lambda: float(uuid.uuid4().int % 7), "random bytes of the system"),
    "uuid1": (lambda: float(uuid.uuid1().int % 7), "reads a clock"),
    "time": (time.time, r"reads a clock \(.*test_outside.py:\d+ in "),
    "perf_counter": (time.perf_counter, "reads a clock"),
    "datetime": (lambda: datetime.datetime.now().timestamp(), "reads a clock"),
    "a file": (lambda: float(len(FILE.read_text())), "reads files"),
    "whether a file is there": (lambda: float(FILE.exists()), "reads files"),
    "torch in this process": (drawn_here, "a generator of torch in this process"),
    "torch's own": (drawn_from_the_default, r"torch in this process \(.*in drawn_from_the_default"),
    "a queue": (MESSAGES.get, "takes what another thread or process has sent"),
    "a simple queue": (SIMPLE.get, "takes what another thread or process has sent"),
}


@pytest.mark.parametrize(("source", "text"), SOURCES.values(), ids=SOURCES)
def test_what_is_taken_from_outside_is_not_frozen(loop: Any, source: Any, text: str) -> None:
    taken: list[float] = []
    for count in range(8):
        MESSAGES.put(count)
        SIMPLE.put(count)

    def call(x: Any) -> Any:
        return x * source()

    recorded = function(call)
    with pytest.warns(RuntimeWarning, match=rf"call runs operation by operation from now on: it .*{text}") as told:
        for _ in range(8):
            taken.append(number(loop, recorded(torch.ones(1))))
    assert len(told) == 1
    assert recorded.traces == 0


def masked(features: Any, probability: float) -> Any:
    """Hides spans of time, as speech models do in training: NumPy draws which."""
    length = features.shape[1]
    mask = np.zeros((features.shape[0], length), dtype=bool)
    for row in mask:
        start = np.random.randint(0, length - 2)
        row[start : start + 2] = np.random.rand(2) < probability
    return torch.tensor(mask.tolist())


def test_masks_of_numpy_are_those_of_plain_torch(loop: Any) -> None:
    weight, x = torch.nn.Parameter(torch.ones(4)), torch.ones(2, 6, 4)
    with no_modes():
        local, same = torch.nn.Parameter(torch.ones(4)), torch.ones(2, 6, 4)

    def step(weight: Any, x: Any) -> Any:
        hidden = torch.where(masked(x, 0.9)[:, :, None], 0.0, x * weight)
        (grad,) = torch.autograd.grad((hidden * hidden).sum(), [weight])
        with torch.no_grad():
            weight -= 0.01 * grad
        return hidden.sum()

    recorded = function(step)
    np.random.seed(0)
    with pytest.warns(RuntimeWarning, match=r"NumPy's random \(.*test_outside.py:\d+ in masked\)"):
        found = [number(loop, recorded(weight, x)) for _ in range(8)]
    np.random.seed(0)
    with no_modes():
        assert found == [float(step(local, same).detach()) for _ in range(8)]


def test_drawing_the_same_after_a_seed_is_recorded(loop: Any) -> None:
    def call(x: Any) -> Any:
        return x * float(np.random.default_rng(3).random())

    recorded = function(call)
    assert len({number(loop, recorded(torch.ones(1))) for _ in range(5)}) == 1
    assert recorded.traces == 1


def test_the_environment_is_compared(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(x: Any) -> Any:
        return x * float(os.environ.get("MONARCH_TEST_SCALE", "1")) * float(os.getenv("MONARCH_TEST_OTHER") is None)

    recorded = function(call)
    for scale in ("2", "2", "2", "3", "3", "2", "3"):
        monkeypatch.setenv("MONARCH_TEST_SCALE", scale)
        assert number(loop, recorded(torch.ones(1))) == float(scale)
    assert recorded.traces == 2
    monkeypatch.setenv("MONARCH_TEST_OTHER", "")
    assert number(loop, recorded(torch.ones(1))) == 0.0
    monkeypatch.delenv("MONARCH_TEST_SCALE")
    monkeypatch.delenv("MONARCH_TEST_OTHER")
    assert number(loop, recorded(torch.ones(1))) == 1.0


SCALE: contextvars.ContextVar[float] = contextvars.ContextVar("scale", default=1.0)
THREAD = threading.local()
ARRAY = np.ones(1 << 16)
EVENT = threading.Event()
CHANGES: dict[str, tuple[Callable[[], float], Callable[[float], object]]] = {
    "a context variable": (lambda: SCALE.get() + 0.0, SCALE.set),
    "of a thread": (lambda: THREAD.scale, lambda value: setattr(THREAD, "scale", value)),
    "a large array": (lambda: float(ARRAY[7]), lambda value: ARRAY.__setitem__(7, value)),
    "an event": (lambda: 2.0 if EVENT.is_set() else 1.0, lambda value: EVENT.set() if value == 2.0 else EVENT.clear()),
}


@pytest.mark.parametrize(("read", "change"), CHANGES.values(), ids=CHANGES)
def test_values_that_are_held_in_c_are_compared(loop: Any, read: Any, change: Any) -> None:
    def call(x: Any) -> Any:
        return x * read()

    recorded = function(call)
    for value in (1.0, 1.0, 1.0, 2.0, 2.0, 1.0, 2.0):
        change(value)
        assert number(loop, recorded(torch.ones(1))) == value
    assert recorded.traces == 2


def test_what_torch_and_logging_read_is_no_matter(loop: Any) -> None:
    import logging

    logger = logging.getLogger("monarch.test_outside")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    net = torch.nn.Linear(3, 3)

    def call(x: Any) -> Any:
        logger.warning("a step")
        loss = torch.utils.checkpoint.checkpoint(net, torch.nn.functional.dropout(x, 0.1), use_reentrant=False).sum()
        return torch.autograd.grad(loss, list(net.parameters()))

    recorded = function(call)
    for _ in range(4):
        recorded(torch.ones(2, 3))
    assert recorded.traces == 1
    assert re.search("1 traces", repr(recorded))
