"""Tests of what people are shown of meshes and endpoints: by help(), inspect and dir(), and by completion and `?` in
IPython."""

from __future__ import annotations

import inspect
import json
import pydoc
from typing import Any

import pytest

from monarch._mesh.actors.adverbs import ADVERBS
from monarch._mesh.actors.endpoint import Endpoint
from monarch.actor import Actor, ActorMesh, Port, endpoint
from monarch.testing import InProcessCluster
from tests.support.scripts import Scripts

pytestmark = pytest.mark.usefixtures("no_leaks")


class Counter(Actor):
    """Counts."""

    def __init__(self, start: int) -> None:
        self.value = start

    @endpoint
    def add(self, amount: int, twice: bool = False) -> int:
        """Adds, and returns the sum."""
        return self.value + amount

    @endpoint(explicit_response_port=True)
    def later(self, port: Port[int], times: int) -> None: ...

    @endpoint
    def restart(self, step: int) -> None: ...

    def helper(self) -> None: ...


@pytest.fixture
def counters(cluster: InProcessCluster) -> Any:
    return cluster.this_host().spawn_procs({"gpus": 2}).spawn("counters", Counter, 1)


def test_an_endpoint_has_the_signature_and_the_words_of_its_method(counters: Any) -> None:
    assert list(inspect.signature(counters.add).parameters) == ["amount", "twice"]
    assert list(inspect.signature(counters.later).parameters) == ["times"]
    assert counters.add.__name__ == "add"
    assert counters.add.__doc__.startswith("Adds, and returns the sum.\n\nAn endpoint on 2 actors.")
    assert counters.slice(gpus=0).later.__doc__.startswith("An endpoint on 1 actor.")
    assert inspect.getsource(counters.add).strip().startswith("@endpoint")
    shown = pydoc.plain(pydoc.render_doc(counters.add))
    assert "counters.add(amount: int, twice: bool = False) -> int of 2 actors" in shown
    assert "Adds, and returns the sum." in shown


def test_a_mesh_lists_its_endpoints(counters: Any) -> None:
    public = {name for name in dir(counters) if not name.startswith("_")}
    assert {"add", "later", "restart", "slice", "stop", "sizes"} <= public
    assert "helper" not in public and "value" not in public
    assert "add(amount: int, twice: bool = False) -> int" in counters.__doc__
    assert counters.__doc__.startswith("Counts.\n\nA mesh of 2 actors of class Counter.")


def test_the_classes_keep_their_own_words() -> None:
    for cls in (Endpoint, ActorMesh):
        assert inspect.unwrap(cls) is cls
        assert "self" not in inspect.signature(cls).parameters
        assert inspect.getdoc(cls).startswith(("One endpoint of", "A mesh of actors, or"))  # type: ignore[union-attr]


def test_what_does_not_tell_its_signature_can_be_shown(cluster: InProcessCluster) -> None:
    class Odd(Actor):
        length = endpoint(type("NoSignature", (), {"__call__": lambda *_: 1, "__signature__": 3})())

    odd: Any = cluster.this_host().spawn_procs().spawn("odd", Odd)
    assert repr(odd.length) == "<Endpoint odd.length of 1 actors>"


def test_the_list_of_adverbs_is_whole() -> None:
    assert {name for name in dir(Endpoint) if not name.startswith("_")} == ADVERBS


IPYTHON = """
    import contextlib, io, json, os
    os.environ["IPYTHONDIR"] = os.getcwd() + "/ipython"
    from IPython.core.completer import provisionalcompleter
    from IPython.core.interactiveshell import InteractiveShell
    from monarch.actor import Actor, endpoint
    from monarch.testing import InProcessCluster

    class Counter(Actor):
        '''Counts.'''
        @endpoint
        def add(self, amount: int, twice: bool = False) -> int:
            '''Adds, and returns the sum.'''

    shell = InteractiveShell.instance(colors="nocolor")
    with InProcessCluster() as cluster:
        mesh = cluster.this_host().spawn_procs({"gpus": 2}).spawn("counters", Counter)
        import monarch.actor
        shell.push({"counters": mesh, "actor": monarch.actor})

        def completed(text):
            with provisionalcompleter():
                return [found.text.lstrip(".") for found in shell.Completer.completions(text, len(text))]

        shown = {}
        for what in ("counters.add", "counters"):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                shell.run_line_magic("pinfo", what)
            shown[what] = out.getvalue()
        names = {text: completed(text) for text in ("counters.a", "counters.", "counters.add.", "actor.")}
        print(json.dumps([names, shown]))
"""


def test_in_ipython(scripts: Scripts) -> None:
    names, shown = json.loads(scripts.run(IPYTHON).stdout.splitlines()[-1])
    assert names["counters.a"] == ["add"]
    assert {"add", "slice", "stop", "extent"} <= set(names["counters."])
    assert set(names["counters.add."]) >= ADVERBS
    assert [name for name in names["counters.add."] if not name.startswith("_")] == sorted(ADVERBS)
    assert {"this_host", "Actor"} <= set(names["actor."]) and not {"Any", "importlib"} & set(names["actor."])
    assert "counters.add(amount: int, twice: bool = False) -> int" in shown["counters.add"]
    assert "Adds, and returns the sum." in shown["counters.add"]
    assert "    add(amount: int, twice: bool = False) -> int" in shown["counters"]
