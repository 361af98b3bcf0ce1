"""References: their forms, percent encoding, what is said of wrong ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.admin import references
from monarch.admin.references import BadReference

ACTOR = "w<key1>.mesh-0<uid>@unix:/run/one"


@given(st.text(min_size=1))
def test_what_is_encoded_is_decoded(text: str) -> None:
    encoded = references.encoded(text)
    assert "/" not in encoded and "@" not in encoded
    assert references.decoded(encoded.encode()) == text


@pytest.mark.parametrize("reference", ["root", ACTOR, references.host_reference("tcp!h:1"), "client@inproc:x"])
def test_the_forms_that_there_are(reference: str) -> None:
    assert references.check(reference) == reference


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("x", "invalid reference 'x': missing '@' separator between id and location"),
        ("@here", "invalid reference '@here': no id before '@'"),
        ("w@", "invalid reference 'w@': no location behind '@'"),
    ],
)
def test_what_has_no_such_form_is_not_found(reference: str, said: str) -> None:
    with pytest.raises(BadReference) as raised:
        references.check(reference)
    assert (str(raised.value), raised.value.bad_request) == (said, False)


@pytest.mark.parametrize("raw", [b"", b"%zz", b"%4", b"a%", b"%ff%fe"])
def test_what_cannot_be_decoded_is_a_bad_request(raw: bytes) -> None:
    with pytest.raises(BadReference) as raised:
        references.decoded(raw)
    assert raised.value.bad_request


def test_a_long_wrong_reference_is_shown_in_part() -> None:
    with pytest.raises(BadReference) as raised:
        references.check("x" * 100_000)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("actor", "proc"),
    [
        (ACTOR, "mesh-0<uid>@unix:/run/one"),
        ("client-x.client@unix:/run/one", "client@unix:/run/one"),
        ("a.b<key>.mesh.x-0<uid>@h", "mesh.x-0<uid>@h"),
    ],
)
def test_the_process_of_an_actor(actor: str, proc: str) -> None:
    assert references.proc_of(actor) == proc


def test_natural_order() -> None:
    assert sorted(["w-10", "w-2", "w-1", "a"], key=references.natural) == ["a", "w-1", "w-2", "w-10"]
