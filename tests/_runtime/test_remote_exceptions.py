"""`ActorError.exception` is the remote exception or a stand-in for it, whatever its class does."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from monarch._errors import ActorError, RemoteStandIn
from monarch._runtime import remote_errors
from monarch._runtime.remote_errors import RemoteError, decode_answer, encode_error, encode_whole
from monarch._wire import codec
from monarch._wire.message import ERROR
from monarch.actor import Actor, Channel, Port, endpoint, this_host
from monarch.testing import InProcessCluster
from tests.support.patience import TIMEOUT


class OfTwo(Exception):
    """Hands on another argument than it takes."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")
        self.one, self.two = one, two


class OfAFile(OSError):
    def __init__(self, path: str) -> None:
        super().__init__(2, "No such thing", path)


class Locked(ValueError):
    def __init__(self, text: str) -> None:
        super().__init__(text, threading.Lock())
        self.text, self.lock = text, threading.Lock()


class Elsewhere(Exception):
    """Says itself how it is made, wrongly."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one)

    def __reduce__(self) -> Any:
        return _made_elsewhere, (1,)


def _made_elsewhere(one: int) -> Exception:
    raise RuntimeError("not made")


@pytest.fixture(autouse=True)
def nothing_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_errors, "_learned", set())
    monkeypatch.setattr(codec, "_reducers", dict(codec._reducers))


def arrived(exc: BaseException) -> ActorError:
    body, buffers = encode_error(exc, RemoteError("where it was", "its traceback"))
    with pytest.raises(ActorError) as caught:
        decode_answer((0, ERROR, body, buffers), None)
    return caught.value


def caused(exc: BaseException, *causes: BaseException) -> Any:
    """`exc` from the first of these, that from the next, and so on."""
    last = exc
    for cause in causes:
        last.__cause__ = cause
        last = cause
    return exc


def test_a_constructor_with_arguments_of_its_own() -> None:
    exc = caused(OfTwo(1, 2), KeyError("k"))
    exc.add_note("a note")
    error = arrived(exc)
    found = error.exception
    assert type(found) is OfTwo and (found.one, found.two) == (1, 2) and found.args == ("1 and 2",)
    assert found.__notes__ == ["a note"] and repr(found.__cause__) == "KeyError('k')"
    assert error.exception_formatted == "its traceback"


def test_what_a_built_in_class_keeps_beside_the_arguments() -> None:
    found = arrived(OfAFile("/x")).exception
    assert type(found) is OfAFile and (found.errno, found.strerror, found.filename) == (2, "No such thing", "/x")


def test_an_exception_that_arrived_travels_on() -> None:
    error = arrived(OfTwo(1, 2))
    body, buffers = codec.encode([error])
    assert type(codec.decode(body, buffers)[0].exception) is OfTwo
    again = arrived(error)
    assert type(again.exception) is ActorError and type(again.exception.exception) is OfTwo


def test_a_group_of_them() -> None:
    found = arrived(ExceptionGroup("g", [OfTwo(1, 2), KeyError("k")])).exception
    assert isinstance(found, ExceptionGroup) and list(map(type, found.exceptions)) == [OfTwo, KeyError]


def test_a_stand_in_has_all_that_can_be_sent() -> None:
    exc = caused(Locked("held"), Locked("cause"))
    exc.add_note("a note")
    error = arrived(exc)
    found: Any = error.exception
    assert (
        RemoteStandIn in type(found).__mro__ and ValueError in type(found).__mro__ and Locked not in type(found).__mro__
    )
    assert (type(found).__module__, type(found).__qualname__) == (__name__, "Locked")
    assert found.args[0] == found.text == "held" and "_thread.lock" in found.args[1] and "_thread.lock" in found.lock
    assert found.__notes__ == ["a note"] and found.why == "TypeError: cannot pickle '_thread.lock' object"
    assert RemoteStandIn in type(found.__cause__).__mro__ and found.__cause__.text == "cause"
    assert error.exception_formatted == (
        "its traceback\n(the exception itself cannot be sent, and error.exception stands in for it: TypeError: cannot "
        "pickle '_thread.lock' object)"
    )
    again = arrived(error)
    assert isinstance(again.exception, ActorError) and isinstance(again.exception.exception, RemoteStandIn)


@pytest.mark.parametrize(
    "exc",
    [
        ValueError(threading.Lock()),
        KeyError(threading.Lock()),
        OSError(threading.Lock()),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "why"),
        ExceptionGroup("g", [Locked("a")]),
        BaseExceptionGroup("g", [Locked("a"), KeyboardInterrupt()]),
        Elsewhere(1, 2),
        type("Local", (KeyError,), {"__reduce__": lambda self: 1})("x"),
        caused(OfTwo(1, 2), *(OfTwo(1, number) for number in range(50))),
        caused(Locked("x"), *(Locked("y") for _ in range(50))),
    ],
    ids=lambda exc: type(exc).__name__,
)
def test_there_is_always_one(exc: BaseException) -> None:
    for _ in range(2):
        found = arrived(exc).exception
        assert found is not None and type(found).__name__ == type(exc).__name__
        built_in = next(base for base in type(exc).__mro__ if base.__module__ == "builtins")
        assert isinstance(found, built_in) or isinstance(exc, BaseExceptionGroup)


def test_a_circle_of_causes() -> None:
    exc = OfTwo(1, 2)
    exc.__cause__ = other = OfTwo(3, 4)
    other.__cause__ = exc
    assert type(arrived(exc).exception) is OfTwo


def test_a_class_is_pickled_as_ever_until_its_constructor_fails() -> None:
    for exc in (ValueError(1), OSError(2, "x"), Locked("x"), Elsewhere(1, 2)):
        arrived(exc)
    assert remote_errors._learned == set()
    with pytest.raises(TypeError, match=r"pickle '_thread\.lock'"):
        encode_whole(Locked("x"))
    with pytest.raises(RuntimeError, match="not made"):
        encode_whole(Elsewhere(1, 2))
    arrived(OfTwo(1, 2))
    assert remote_errors._learned == {OfTwo}


def test_classes_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_errors, "_LEARNED", 1)
    assert type(arrived(OfTwo(1, 2)).exception) is OfTwo
    error = arrived(OfAFile("/x"))
    found: Any = error.exception
    assert RemoteStandIn in type(found).__mro__ and found.filename is None
    assert "stands in for it: TypeError:" in str(error)


class Raises(Actor):
    @endpoint
    def two(self) -> None:
        raise OfTwo(1, 2)

    @endpoint
    def locked(self) -> None:
        raise Locked("held")

    @endpoint
    def to(self, port: Port[Any]) -> None:
        port.exception(OfTwo(1, 2))


def test_the_exception_of_a_call() -> None:
    with InProcessCluster():
        raises = this_host().spawn_procs().spawn("raises", Raises)
        with pytest.raises(ActorError) as caught:
            raises.two.call_one().get(TIMEOUT)
        assert type(caught.value.exception) is OfTwo
        with pytest.raises(ActorError, match="stands in for it: TypeError: cannot pickle") as caught:
            raises.locked.call_one().get(TIMEOUT)
        assert isinstance(caught.value.exception, RemoteStandIn)
        port, receiver = Channel[Any].open()
        raises.to.broadcast(port)
        with pytest.raises(OfTwo) as raised:
            receiver.recv().get(TIMEOUT)
        assert raised.value.two == 2


CLASS = """
class OfTwo(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")
        self.one, self.two = one, two
"""
SENDS = f"""
import sys
from monarch._runtime.remote_errors import encode_whole
{CLASS}
sys.stdout.buffer.write(encode_whole(OfTwo(1, 2))[0])
"""


def test_a_class_of_a_script_arrives_in_another_process() -> None:
    body = subprocess.run([sys.executable, "-c", SENDS], stdout=subprocess.PIPE, check=True).stdout
    found = codec.decode(body)
    assert type(found).__qualname__ == "OfTwo" and type(found) is not OfTwo and found.two == 2
    assert codec.decode(*codec.encode(found)).two == 2
