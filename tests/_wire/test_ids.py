from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._wire.ids import ActorAddr, ProcId, Uid, encode58, new_id

BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

ids = st.text(BASE58, min_size=1, max_size=14)
labels = st.text(min_size=1).filter(lambda text: "<" not in text and ">" not in text)
uids = st.one_of(st.builds(Uid, labels, ids), st.builds(Uid, st.none(), ids), st.builds(Uid, labels, st.none()))


def test_new_ids_are_eleven_base58_digits_and_differ() -> None:
    made = [new_id() for _ in range(1000)]
    assert len(set(made)) == 1000
    assert all(len(id) == 11 and set(id) <= set(BASE58) for id in made)


@given(st.integers(0, 2**64 - 1))
def test_a_64_bit_value_survives_its_digits(value: int) -> None:
    assert len(encode58(value)) == 11
    assert Uid.instance_from_value(value).instance_value == value


@given(uids)
def test_a_uid_is_what_its_text_says(uid: Uid) -> None:
    again = Uid.from_string(str(uid))
    assert again == uid and hash(again) == hash(uid)
    assert (again.label, again.instance_value) == (uid.label, uid.instance_value)
    assert pickle.loads(pickle.dumps(uid)) == uid
    assert uid.is_instance is not uid.is_singleton


@pytest.mark.parametrize(
    ("uid", "text"),
    [
        (Uid("worker", "2Ab"), "worker<2Ab>"),
        (Uid(None, "2Ab"), "<2Ab>"),
        (Uid("worker", None), "worker"),
        (Uid.singleton("controller"), "controller"),
        (Uid.instance_from_value(0, "zero"), "zero<11111111111>"),
    ],
)
def test_how_a_uid_is_written(uid: Uid, text: str) -> None:
    assert str(uid) == text
    assert repr(uid) == f"Uid({text!r})"


@pytest.mark.parametrize(
    "text", ["", "<>", "a<>", "a<b", "a>", "a<0OIl>", "a<b c>", "a<b>c", "a<<b>", "a<b>>", "<", ">"]
)
def test_what_is_no_uid_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(ValueError, match=r"^invalid (uid|label) "):
        Uid.from_string(text)


@pytest.mark.parametrize(("label", "id"), [(None, None), ("", None), ("a", ""), (None, "0"), ("a<", "2"), (">", None)])
def test_a_uid_that_could_not_be_written_cannot_be_made(label: str | None, id: str | None) -> None:
    with pytest.raises(ValueError, match=r"uid|Uid"):
        Uid(label, id)


def test_instances_differ_and_singletons_are_equal() -> None:
    assert Uid.instance("a") != Uid.instance("a")
    assert Uid.anonymous().label is None
    assert Uid.singleton("a") == Uid.singleton("a") != Uid.instance("a")
    assert Uid.singleton("a") != "a"


@given(uids)
def test_a_proc_id_is_its_uid(uid: Uid) -> None:
    proc = ProcId(uid)
    assert ProcId.from_string(str(proc)) == proc == pickle.loads(pickle.dumps(proc))
    assert hash(ProcId(uid)) == hash(proc)
    assert (proc.uid, proc.label, str(proc)) == (uid, uid.label, str(uid))
    assert proc != uid


@pytest.mark.parametrize(
    ("addr", "text"),
    [
        ("local:0", "actor.test@inproc://0"),
        ("unix:/run/x/client", "actor.test@unix:/run/x/client"),
        ("tcp:[::1]:7", "actor.test@tcp:[::1]:7"),
    ],
)
def test_how_an_actor_address_is_written(addr: str, text: str) -> None:
    made = ActorAddr(addr=addr, proc_name="test", actor_name="actor")
    assert str(made) == text
    assert ActorAddr.from_string(text) == made == pickle.loads(pickle.dumps(made))
    assert hash(ActorAddr.from_string(text)) == hash(made)


def test_the_parts_of_an_actor_address() -> None:
    addr = ActorAddr(addr="unix:/a", proc_name="procs<2A>", actor_name="worker<3B>")
    assert (addr.uid, addr.pid) == (Uid("worker", "3B"), Uid("worker", "3B"))
    assert (addr.label, addr.proc_label, addr.proc_id, addr.is_root) == (
        "worker",
        "procs",
        "procs<2A>",
        False,
    )
    assert ActorAddr(addr="unix:/a", proc_name="p", actor_name="client").is_root


@pytest.mark.parametrize("text", ["", "actor.proc", "actor@unix:/a", "a.p@unix", "a.@unix:/a", ".p@unix:/a"])
def test_what_is_no_actor_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"address|ActorAddr"):
        ActorAddr.from_string(text)
