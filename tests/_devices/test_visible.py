"""The variables that hide cards, side by side with torch's own reading of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch._devices import visible

torch = pytest.importorskip("torch")

CUDA_UUIDS = ["GPU-aa11", "GPU-aa22", "GPU-bb11", "GPU-cc11"]
HIP_UUIDS = ["aa11", "aa22", "bb11", "cc11"]
NAMES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")

entry = st.one_of(
    st.integers(-2, 6).map(str),
    st.sampled_from(
        [
            "GPU-aa11",
            "GPU-aa",
            "GPU-bb",
            "GPU-cc11",
            "GPU-dd",
            "GPU-",
            "MIG-aa",
            "",
            " ",
            " 1",
            "2 ",
            "+1",
            "1gpu2",
            "x",
            "-",
        ]
    ),
)
lists = st.lists(entry, max_size=5).map(",".join)
environments = st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, lists))


def torchs_count(kind: str, environ: dict[str, str], cards: int) -> Any:
    """torch's count without initialising the driver (-1: it would ask the driver), or the class of what it raises."""
    with pytest.MonkeyPatch.context() as patch:
        for name in NAMES:
            patch.delenv(name, raising=False)
        for name, text in environ.items():
            patch.setenv(name, text)
        hip = kind == "hip"
        patch.setattr(torch.version, "hip", "7.1" if hip else None)
        uuids = (HIP_UUIDS if hip else CUDA_UUIDS)[:cards]
        which = "amdsmi" if hip else "nvml"
        patch.setattr(torch.cuda, f"_raw_device_count_{which}", lambda: cards)
        patch.setattr(torch.cuda, f"_raw_device_uuid_{which}", lambda: uuids)
        try:
            return getattr(torch.cuda, f"_device_count_{which}")()
        except (RuntimeError, ValueError) as exc:
            return type(exc)


def our_count(kind: Any, environ: dict[str, str], cards: int) -> Any:
    try:
        found = visible.shown(kind, environ, (HIP_UUIDS if kind == "hip" else CUDA_UUIDS)[:cards])
    except ValueError:
        return RuntimeError
    return -1 if found is None else len(found)


@settings(max_examples=200, deadline=None)
@given(environments, st.integers(1, 4), st.sampled_from(["cuda", "hip"]))
def test_the_count_is_torchs(environ: dict[str, str], cards: int, kind: str) -> None:
    theirs = torchs_count(kind, environ, cards)
    if theirs is ValueError:  # torch stumbles over a lone sign: it is no card
        return
    ours = our_count(kind, environ, cards)
    if kind == "hip" and ours == -1:  # torch has no MIG there: it looks for a card of that uuid
        assert theirs == 0
        return
    assert ours == theirs


@settings(max_examples=120, deadline=None)
@given(environments, st.integers(1, 4), st.sampled_from(["cuda", "hip"]), st.integers(0, 9))
def test_turned_round_the_same_cards_are_seen(environ: dict[str, str], cards: int, kind: Any, first: int) -> None:
    uuids = (HIP_UUIDS if kind == "hip" else CUDA_UUIDS)[:cards]
    changes = visible.rotated(kind, environ, uuids, first)
    if not changes:
        return
    before, after = visible.shown(kind, environ, uuids), visible.shown(kind, {**environ, **changes}, uuids)
    assert before is not None
    at = first % len(before)
    assert after == before[at:] + before[:at]
    assert "ROCR_VISIBLE_DEVICES" not in changes
    assert set(changes) == set(visible.SET[kind])
    assert torchs_count(kind, {**environ, **changes}, cards) == len(before)


@pytest.mark.parametrize(
    ("kind", "environ", "first", "wanted"),
    [
        ("cuda", {}, 2, "2,3,0,1"),
        ("cuda", {}, 6, "2,3,0,1"),
        ("cuda", {}, 4, None),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "3, 1"}, 1, "1,3"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "GPU-cc,GPU-aa11"}, 1, "GPU-aa11,GPU-cc"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}, 1, None),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "2"}, 1, None),
        ("cuda", {"CUDA_VISIBLE_DEVICES": ""}, 1, None),
        ("hip", {}, 1, "1,2,3,0"),
        ("hip", {"ROCR_VISIBLE_DEVICES": "2,3"}, 1, "1,0"),
        ("hip", {"ROCR_VISIBLE_DEVICES": "1,2,3", "HIP_VISIBLE_DEVICES": "0,2"}, 1, "2,0"),
        ("hip", {"CUDA_VISIBLE_DEVICES": "0,3"}, 1, "3,0"),
        ("cpu", {}, 1, None),
    ],
)
def test_turned_round(kind: Any, environ: dict[str, str], first: int, wanted: str | None) -> None:
    uuids = HIP_UUIDS if kind == "hip" else CUDA_UUIDS if kind == "cuda" else []
    changes = visible.rotated(kind, environ, uuids, first)
    assert changes == ({} if wanted is None else dict.fromkeys(visible.SET[kind], wanted))


def test_what_rocr_renumbered_is_numbered_back() -> None:
    both = {"ROCR_VISIBLE_DEVICES": "1,3", "HIP_VISIBLE_DEVICES": "1"}
    assert visible.shown("hip", both, HIP_UUIDS) == [1]
    assert visible.physical("hip", both, HIP_UUIDS) == [3]
    assert visible.physical("hip", {"ROCR_VISIBLE_DEVICES": "GPU-cc,GPU-bb"}, HIP_UUIDS) == [3, 2]
    assert visible.physical("hip", {"CUDA_VISIBLE_DEVICES": "2"}, HIP_UUIDS) == [2]
    assert visible.physical("cuda", {"CUDA_VISIBLE_DEVICES": "GPU-bb"}, CUDA_UUIDS) == [2]


@pytest.mark.parametrize(
    ("kind", "environ", "words"),
    [
        ("cuda", {}, ""),
        ("cuda", {"CUDA_VISIBLE_DEVICES": ""}, ""),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "-1"}, ""),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "0,1"}, ""),
        (
            "cuda",
            {"CUDA_VISIBLE_DEVICES": "0,9"},
            "names 9, which is no device here (this host has 4): torch sees only",
        ),
        (
            "cuda",
            {"CUDA_VISIBLE_DEVICES": "7"},
            "names 7, which is no device here (this host has 4): torch sees nothing",
        ),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "1,1"}, "names a device twice"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "GPU-aa"}, "names GPU-aa, which is no device, or several, here"),
        ("hip", {"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0,1"}, "lists more devices than ROCR"),
        ("hip", {"CUDA_VISIBLE_DEVICES": "5"}, "CUDA_VISIBLE_DEVICES=5 names 5"),
    ],
)
def test_what_is_wrong_is_said(kind: Any, environ: dict[str, str], words: str) -> None:
    said = visible.problem(kind, environ, HIP_UUIDS if kind == "hip" else CUDA_UUIDS)
    assert (words in said) if words else not said


def test_what_nobody_knows_is_not_wrong() -> None:
    assert visible.problem("cuda", {"CUDA_VISIBLE_DEVICES": "GPU-zz"}, ["", ""]) == ""
    assert visible.problem("cuda", {"CUDA_VISIBLE_DEVICES": "5"}, []) == ""
    assert "names 5" in visible.problem("cuda", {"CUDA_VISIBLE_DEVICES": "5"}, ["", ""])


@settings(max_examples=100, deadline=None)
@given(environments, st.integers(0, 4), st.sampled_from(["cuda", "hip"]))
def test_there_is_always_an_answer(environ: dict[str, str], cards: int, kind: Any) -> None:
    uuids = (HIP_UUIDS if kind == "hip" else CUDA_UUIDS)[:cards]
    assert isinstance(visible.problem(kind, environ, uuids), str)
    try:
        found = visible.physical(kind, environ, uuids)
    except ValueError:
        return
    assert found is None or all(0 <= index < cards for index in found)
