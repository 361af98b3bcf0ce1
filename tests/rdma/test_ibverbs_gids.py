"""The addresses of two ports: what each offers, and which pair they agree on."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.rdma.backends.ibverbs.pairing import TOLD, ChoiceError, Gid, agree, offered, same_partition

V1, V2 = "IB/RoCE v1", "RoCE v2"


def raw(address: str) -> bytes:
    return ipaddress.IPv6Address(address if ":" in address else f"::ffff:{address}").packed


def table(*entries: str) -> tuple[Gid, ...]:
    """Each address with both kinds of RoCE, as drivers fill the table: "10.0.0.1"; or "1:10.0.0.1" for v1 alone."""
    found: list[tuple[bytes, str]] = []
    for entry in entries:
        only = {"1": V1, "2": V2}.get(entry.partition("|")[0]) if "|" in entry else None
        address = entry.rpartition("|")[2]
        found += [(raw(address), kind) for kind in (V1, V2) if only in (None, kind)]
    return tuple(Gid(slot, *entry) for slot, entry in enumerate(found))


def met(here: tuple[Gid, ...], there: tuple[Gid, ...], ethernet: bool = True) -> tuple[int, int] | None:
    found = agree(here, there, ethernet)
    return None if found is None else (found[0].slot, found[1].slot)


@pytest.mark.parametrize(
    ("gids", "slot"),
    [
        (["2|fe80::1", "1|10.0.0.1", "2|10.0.0.1"], 2),
        (["2|2001:db8::1", "2|10.0.0.1"], 1),
        (["2|fe80::1", "2|2001:db8::1"], 1),
        (["2|169.254.3.4", "2|2001:db8::1"], 1),
        (["1|10.0.0.1", "2|fe80::1"], 1),
        (["1|10.0.0.1", "1|fe80::1"], 0),
        (["2|10.0.0.1", "2|10.0.0.2"], 0),
    ],
)
def test_routable_addresses_are_offered_first(gids: list[str], slot: int) -> None:
    assert offered("n", table(*gids), True, None)[0].slot == slot


def test_addresses_of_infiniband() -> None:
    has = (Gid(1, raw("fe80::2"), ""), Gid(0, raw("fe80::1"), ""))
    assert [gid.slot for gid in offered("n", has, False, None)] == [0, 1]
    with pytest.raises(ChoiceError, match="the port of n has no GID"):
        offered("n", (), False, None)


def test_a_setting_leaves_one_entry() -> None:
    has = table("fe80::1", "10.0.0.1")
    assert offered("n", has, True, 2) == (Gid(2, raw("10.0.0.1"), V1),)
    with pytest.raises(
        ChoiceError,
        match=r"RDMA_IB_GID_INDEX \(rdma_ib_gid_index\) is 7, but the port of n.*3: 10.0.0.1 RoCE v2.*show_gids",
    ):
        offered("n", has, True, 7)
    with pytest.raises(ChoiceError, match=r"it has none"):
        offered("n", (), True, 0)


def test_no_more_is_told_than_others_take() -> None:
    has = tuple(Gid(slot, raw(f"10.0.{slot}.1"), V2) for slot in range(200))
    assert len(offered("n", has, True, None)) == TOLD


def test_several_vlans() -> None:
    """The lowest slot of each side is in another VLAN."""
    here = table("fe80::1", "10.1.0.5", "10.2.0.5", "10.3.0.5")
    there = table("fe80::2", "10.3.0.6", "10.2.0.6")
    assert met(here, there) == (5, 5)  # 10.2.0.5 and .6, by RoCE v2: 10.3 would do as well, and has a higher slot here
    assert met(there, here) == (3, 7)
    for one, other in ((here, there), (there, here)):
        found = agree(one, other, True)
        assert found is not None and found[0].raw[:15] == found[1].raw[:15]
    assert met(table("10.1.0.5", "10.2.0.5"), table("10.2.0.6")) == (3, 1)
    assert met(table("10.1.0.5"), table("10.2.0.6")) == (1, 1)  # a routed fabric


def test_the_kind_and_the_family_have_to_be_the_same() -> None:
    assert met(table("1|10.0.0.1"), table("2|10.0.0.2")) is None
    assert met(table("2|10.0.0.1"), table("2|2001:db8::1")) is None
    assert met(table("2|10.0.0.1", "2|2001:db8::2"), table("2|2001:db8::1")) == (1, 0)
    assert met(table("2|fe80::1"), table("2|2001:db8::1")) is None
    assert met(table("10.0.0.1"), table("1|10.0.0.2")) == (0, 0)
    assert met((), table("10.0.0.1")) is None


def test_subnets_of_infiniband() -> None:
    here = (Gid(0, raw("fe80::1"), ""), Gid(1, raw("fec0:0:0:7::1"), ""))
    there = (Gid(0, raw("fec0:0:0:7::2"), ""),)
    assert met(here, there, False) == (1, 0)
    assert met(here[:1], there, False) == (0, 0)  # by a router


addresses = st.one_of(
    st.builds("10.{}.0.{}".format, st.integers(0, 3), st.integers(1, 9)),
    st.builds("2001:db8:{}::{}".format, st.integers(0, 3), st.integers(1, 9)),
    st.builds("fe80::{}".format, st.integers(1, 9)),
)
tables = st.lists(addresses, max_size=5, unique=True).map(lambda entries: table(*entries))


@given(tables, tables)
def test_what_is_agreed_on_is_of_one_kind_and_in_one_subnet_if_any_is(
    here: tuple[Gid, ...], there: tuple[Gid, ...]
) -> None:
    found = agree(here, there, True)
    alike = [(a, b) for a in here for b in there if a.kind == b.kind and a.raw[:12] == b.raw[:12]]
    if found is None:
        assert not alike
        return
    one, other = found
    assert one in here and other in there and one.kind == other.kind
    shared = [(a, b) for a, b in alike if a.raw[:14] == b.raw[:14] and a.raw[:2] == bytes(2) and a.kind == V2]
    if shared:
        assert (one, other) in shared


@pytest.mark.parametrize(
    ("here", "there", "same"),
    [
        (0xFFFF, 0xFFFF, True),
        (0xFFFF, 0x7FFF, True),
        (0x7FFF, 0x7FFF, False),
        (0x8001, 0x8002, False),
        (0x8001, 1, True),
    ],
)
def test_partitions(here: int, there: int, same: bool) -> None:
    assert same_partition(here, there) is same
