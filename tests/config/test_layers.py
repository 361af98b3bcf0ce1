from __future__ import annotations

import sys
import threading
import types
from typing import Any

import pytest

from monarch.config.kinds import Count, Duration, Flag, OrNone, TextKind
from monarch.config.layers import Layers, Setting

TABLE = (
    Setting("lines", Count(), 20, "LINES_KEPT", "Lines."),
    Setting("patience", Duration(), "3s", "PATIENCE", "Time."),
    Setting("folder", TextKind(), "", "FOLDER", "Where."),
    Setting("nics", OrNone(Count(minimum=1)), None, "NICS", "How many."),
    Setting("enable_log_forwarding", Flag(), False, "FORWARD", "Output."),
    Setting("idle", Count(), 1, "IDLE", "Nothing.", inert=True),
    Setting("nameless", Count(), 1, None, "No variable."),
)


def layers(**environ: str) -> Layers:
    return Layers(TABLE, environ)


def test_defaults_hold_where_nothing_is_set() -> None:
    one = layers()
    assert one.get("patience") == 3.0
    assert one.show() == {
        "lines": 20,
        "patience": "3s",
        "folder": "",
        "nics": None,
        "enable_log_forwarding": False,
        "idle": 1,
        "nameless": 1,
    }


def test_the_environment_hides_the_default_and_configure_hides_both() -> None:
    one = layers(LINES_KEPT="5")
    assert one.get("lines") == 5
    one.set({"lines": 6})
    assert one.get("lines") == 6
    one.set_runtime({})
    assert one.get("lines") == 5


def test_an_inert_setting_that_was_changed_is_named_once() -> None:
    one = layers()
    one.set({"idle": 1, "lines": 5})
    assert one.without_effect(["idle", "lines"]) == []  # `idle` has its default: nobody expects anything of it
    one.set({"idle": 2})
    assert one.without_effect(["idle"]) == ["idle"]
    one.set({"idle": 3})
    assert one.without_effect(["idle"]) == []


def test_setting_adds_to_what_was_set() -> None:
    one = layers()
    one.set({"lines": 6})
    one.set({"patience": "1m"})
    assert (one.get("lines"), one.get("patience")) == (6, 60.0)


@pytest.mark.parametrize("wrong", [{"lines": "x"}, {"unknown": 1}, {"nics": 0}])
def test_nothing_is_set_when_one_value_is_wrong(wrong: dict[str, Any]) -> None:
    one = layers()
    with pytest.raises((TypeError, ValueError)):
        one.set({"folder": "/tmp", **wrong})
    assert one.get("folder") == ""


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    one = layers()
    with pytest.raises(ValueError, match=r"^invalid configuration key: `zzz`\. All are in docs/settings\.md"):
        one.get("zzz")
    with pytest.raises(ValueError, match=r"^invalid configuration key: `patienk`; did you mean `patience`\? All "):
        one.set({"patienk": "3s"})
    with pytest.raises(ValueError, match=r"^invalid configuration key: `ines`; did you mean `lines`\? All "):
        one.set({"ines": 3})


def test_the_environment_is_read_at_the_first_use_and_kept() -> None:
    environ = {"LINES_KEPT": "5"}
    one = Layers(TABLE, environ)
    environ["LINES_KEPT"] = "6"
    assert one.get("lines") == 6
    environ["LINES_KEPT"] = "7"
    one.set({"idle": 2})
    assert one.get("lines") == 6


def test_a_variable_set_to_nothing_is_not_set() -> None:
    assert layers(LINES_KEPT="").get("lines") == 20


def test_an_unreadable_variable_is_named_at_every_use_until_it_is_mended() -> None:
    environ = {"PATIENCE": "soon"}
    one = Layers(TABLE, environ)
    for use in (lambda: one.get("lines"), one.show, lambda: one.set({"lines": 1}), one.snapshot):
        with pytest.raises(ValueError) as caught:
            use()
        assert str(caught.value).startswith(
            "invalid value 'soon' of the environment variable PATIENCE (setting `patience`): Invalid duration format"
        )
    environ["PATIENCE"] = "4s"
    assert one.get("patience") == 4.0


def test_an_unreadable_variable_of_an_inert_setting_is_ignored() -> None:
    assert layers(IDLE="of another program").get("idle") == 1


def test_a_dict_that_was_shown_is_the_callers_own() -> None:
    one = layers()
    one.show()["lines"] = 99
    assert one.get("lines") == 20


def test_a_child_sees_what_the_client_set_and_had_in_its_environment() -> None:
    client = layers(LINES_KEPT="5", FOLDER="/a")
    client.set({"patience": "1m", "nics": 2})
    snapshot = client.snapshot()
    child = layers()
    child.restore(snapshot)
    assert child.show() == client.show()
    assert snapshot == {
        "client": {"patience": "1m", "nics": "2"},
        "inherited": {"lines": "5", "folder": "/a"},
    }


def test_a_childs_environment_hides_the_clients_environment_but_not_what_the_client_set() -> None:
    client = layers(LINES_KEPT="5")
    client.set({"patience": "1m"})
    child = layers(LINES_KEPT="6", PATIENCE="2m")
    child.restore(client.snapshot())
    assert (child.get("lines"), child.get("patience")) == (6, 60.0)
    child.set({"patience": "3m"})
    assert child.get("patience") == 180.0
    child.set_runtime({})
    assert child.get("patience") == 60.0


def test_what_the_client_set_to_the_default_also_hides_a_childs_environment() -> None:
    client = layers()
    client.set({"lines": 20, "nics": None})
    child = layers(LINES_KEPT="6", NICS="4")
    child.restore(client.snapshot())
    assert (child.get("lines"), child.get("nics")) == (20, None)


def test_a_grandchild_sees_what_the_client_set() -> None:
    client = layers(FOLDER="/a")
    client.set({"lines": 5})
    child = layers()
    child.restore(client.snapshot())
    child.set({"patience": "1m"})
    grandchild = layers(LINES_KEPT="6")
    grandchild.restore(child.snapshot())
    assert (grandchild.get("lines"), grandchild.get("patience"), grandchild.get("folder")) == (5, 60.0, "/a")


def test_restoring_reads_the_environment_again_and_replaces_what_was_taken_over() -> None:
    environ: dict[str, str] = {}
    child = Layers(TABLE, environ)
    child.restore({"client": {"lines": "5"}})
    environ["PATIENCE"] = "1m"
    child.restore({"client": {"folder": "/b"}})
    assert (child.get("lines"), child.get("patience"), child.get("folder")) == (20, 60.0, "/b")
    child.restore({})
    assert child.get("folder") == ""


def test_a_snapshot_tells_what_its_process_has_whatever_is_set_here() -> None:
    client = layers(LINES_KEPT="5", FOLDER="/tmp")
    client.set({"lines": 6, "patience": "7s"})
    here = layers(LINES_KEPT="8", NICS="9")
    here.set({"patience": "10s"})
    told = client.snapshot()
    names = ("lines", "patience", "folder", "nics")
    assert [here.told(told, name) for name in names] == [client.get(name) for name in names] == [6, 7.0, "/tmp", None]
    with pytest.raises(ValueError, match="invalid configuration key"):
        here.told({"client": {"linse": "1"}}, "linse")


def test_a_snapshot_with_an_unknown_setting_is_refused_and_changes_nothing() -> None:
    child = layers()
    with pytest.raises(ValueError, match="invalid configuration key: `newer`"):
        child.restore({"client": {"lines": "5"}, "inherited": {"newer": "1"}})
    assert child.get("lines") == 20


@pytest.mark.parametrize(("running", "expected"), [(True, True), (False, False)])
def test_forwarding_is_on_by_itself_in_a_notebook(
    monkeypatch: pytest.MonkeyPatch, running: bool, expected: bool
) -> None:
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: object() if running else None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    client = layers()
    assert client.get("enable_log_forwarding") is expected
    assert layers(FORWARD="0").get("enable_log_forwarding") is False
    monkeypatch.delitem(sys.modules, "IPython")
    child = layers()
    child.restore(client.snapshot())
    assert child.get("enable_log_forwarding") is expected


def test_threads_that_set_different_keys_lose_none() -> None:
    table = [Setting(f"key{number}", Count(), 0, None, "") for number in range(8)]
    one = Layers(table, {})
    start = threading.Barrier(len(table))

    def work(name: str) -> None:
        start.wait()
        for value in range(1, 200):
            one.set({name: value})
            assert one.get(name) == value

    threads = [threading.Thread(target=work, args=(setting.name,)) for setting in table]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(one.show().values()) == {199}
