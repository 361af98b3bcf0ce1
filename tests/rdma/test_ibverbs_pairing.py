"""Tests of which devices of two ends pair, by rails and nearness, and what each pair carries; which addresses they use."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.rdma.backends.ibverbs.pairing import (
    PAGE,
    PAIRS,
    TOLD,
    ChoiceError,
    Gid,
    NicPort,
    Pairing,
    Stripe,
    affinity,
    agree,
    offered,
    pairings,
    pairs,
    same_partition,
    stripes,
    why_none,
)

GID = Gid(3, ipaddress.IPv6Address("::ffff:10.0.0.1").packed, "RoCE v2")


def port(
    nic: str, near: bool = True, ethernet: bool = True, rate: int = 0, pkey: int = 0xFFFF, gid: Gid = GID
) -> NicPort:
    return NicPort(nic, near, ethernet, rate, pkey, (gid,))


def rails(count: int, *near: int) -> list[NicPort]:
    return [port(f"mlx5_{number}", number in near) for number in range(count)]


def names(found: list[Pairing]) -> list[tuple[str, str]]:
    return [(pairing.here, pairing.there) for pairing in found]


def test_who_may_pair() -> None:
    assert affinity("")("a", "b") and affinity("any")("a", "b")
    assert affinity("match_name")("a", "a") and not affinity("match_name")("a", "b")
    groups = affinity("groups:a, b|c")
    assert groups("a", "b") and groups("c", "c")
    assert not groups("a", "c") and not groups("x", "x") and not groups("x", "a")


@pytest.mark.parametrize("text", ["all", "groups:", "groups:a,|b", "groups:a|a", "groups:a,a", "match"])
def test_affinities_that_mean_nothing(text: str) -> None:
    with pytest.raises(ChoiceError, match=r"RDMA_PEER_DEVICE_AFFINITY.*expected any, match_name"):
        affinity(text)


def test_pairs() -> None:
    every = affinity("any")
    assert pairs(["a", "b"], ["x", "y"], every) == [("a", "x"), ("b", "y")]
    assert pairs(["a"], ["x", "y"], every) == [("a", "x"), ("a", "y")]
    assert pairs(["a", "b", "c"], ["x", "y"], every) == [("a", "x"), ("b", "y"), ("c", "x")]
    assert pairs(["a", "b"], ["b", "a"], affinity("match_name")) == [("a", "a"), ("b", "b")]
    assert pairs(["a"], ["b"], affinity("match_name")) == []


letters = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8)


@given(letters, letters, st.sampled_from(["any", "match_name", "groups:a,b|c,d,e"]))
def test_pairs_are_allowed_and_use_what_can_be_used(here: list[str], there: list[str], text: str) -> None:
    may = affinity(text)
    found = pairs(here, there, may)
    assert all(one in here and other in there and may(one, other) for one, other in found)
    assert len(set(found)) == len(found) <= PAIRS
    assert bool(found) == any(may(one, other) for one in here for other in there)


# --- rails


@pytest.mark.parametrize(
    ("here", "there", "text", "expected"),
    [
        ((0,), (0,), "any", [("mlx5_0", "mlx5_0")]),
        ((0,), (3,), "any", [("mlx5_0", "mlx5_3")]),
        ((0,), (3,), "match_name", [("mlx5_3", "mlx5_3")]),  # across this host to rail 3
        ((0, 1), (3,), "match_name", [("mlx5_3", "mlx5_3")]),
        ((0, 1), (1, 2), "match_name", [("mlx5_1", "mlx5_1")]),
        ((0, 1), (2, 3), "match_name", [("mlx5_2", "mlx5_2"), ("mlx5_3", "mlx5_3")]),
        ((0,), (3,), "groups:mlx5_0,mlx5_1|mlx5_2,mlx5_3", [("mlx5_2", "mlx5_3")]),
    ],
)  # fmt: skip
def test_rails(here: tuple[int, ...], there: tuple[int, ...], text: str, expected: list[tuple[str, str]]) -> None:
    assert names(pairings(rails(4, *here), rails(4, *there), affinity(text))) == expected


def test_what_the_owner_lacks_crosses_over_there() -> None:
    """The near device there has no counterpart here at all."""
    here, there = [port("mlx5_0")], [port("mlx5_0", near=False), port("mlx5_3")]
    assert names(pairings(here, there, affinity("match_name"))) == [("mlx5_0", "mlx5_0")]
    only_far = [port("mlx5_0"), port("mlx5_1", near=False)], [port("mlx5_3"), port("mlx5_1", near=False)]
    assert names(pairings(*only_far, affinity("match_name"))) == [("mlx5_1", "mlx5_1")]


def test_ports_that_cannot_reach_each_other() -> None:
    every = affinity("any")
    inner = Gid(0, ipaddress.IPv6Address("fe80::1").packed, "")
    assert pairings([port("a")], [port("b", ethernet=False, gid=inner)], every) == []
    assert "one side has Ethernet" in why_none([port("a")], [port("b", ethernet=False)], every)
    assert pairings([port("a", pkey=0x8001)], [port("b", pkey=0x8002)], every) == []
    text = why_none([port("a", pkey=0x8001)], [port("b", pkey=0x8002)], every)
    assert "a here has key 0x8001, b there 0x8002" in text and "rdma_ib_pkey_index" in text
    old = GID._replace(kind="IB/RoCE v1")
    assert pairings([port("a")], [port("b", gid=old)], every) == []
    text = why_none([port("a")], [port("b", gid=old)], every)
    assert "a here has 3: 10.0.0.1 RoCE v2, b there 3: 10.0.0.1 IB/RoCE v1" in text and "rdma_ib_gid_index" in text
    assert "see rdma_peer_device_affinity" in why_none([port("a")], [port("b")], affinity("match_name"))


def test_one_that_fits_is_found_among_those_that_do_not() -> None:
    here = [port("a", pkey=0x8001), port("b")]
    assert names(pairings(here, [port("x")], affinity("any"))) == [("b", "x")]


# --- rates


def test_a_pair_is_as_fast_as_its_slower_end_and_shares_what_is_shared() -> None:
    here = [port("a", rate=400_000), port("b", rate=100_000)]
    there = [port("x", rate=200_000), port("y", rate=200_000)]
    assert [pairing.rate for pairing in pairings(here, there, affinity("any"))] == [200_000, 100_000]
    assert [pairing.rate for pairing in pairings(here[:1], there, affinity("any"))] == [200_000, 200_000]
    assert [pairing.rate for pairing in pairings([port("a")], [port("x"), port("y", rate=8)], affinity("any"))] == [
        4,
        4,
    ]
    assert [pairing.rate for pairing in pairings([port("a")], [port("x")], affinity("any"))] == [1]


rates = st.lists(st.integers(1, 800_000), min_size=1, max_size=PAIRS)


@given(st.integers(1, 1 << 40), rates, st.integers(0, 1 << 30))
def test_stripes_cover_every_byte_once_in_proportion(size: int, rates: list[int], least: int) -> None:
    found = stripes(size, rates, least)
    assert [stripe.at for stripe in found] == [sum(one.size for one in found[:index]) for index in range(len(found))]
    assert sum(stripe.size for stripe in found) == size and all(stripe.size > 0 for stripe in found)
    assert len({stripe.way for stripe in found}) == len(found)
    assert all(stripe.size % PAGE == 0 for stripe in found[:-1])
    total = sum(rates[stripe.way] for stripe in found)
    if len(found) > 1:
        assert all(stripe.size + PAGE >= least for stripe in found)
    if size > PAGE * len(rates) * 800_000:
        assert all(abs(stripe.size - size * rates[stripe.way] / total) <= 2 * PAGE for stripe in found)


@given(st.integers(1, 1 << 40), st.integers(1, 16), st.integers(1, 1 << 30))
def test_ways_of_one_rate_get_as_many_stripes_as_are_long_enough(size: int, ways: int, least: int) -> None:
    found = stripes(size, [7] * ways, least)
    assert len(found) <= max(1, min(ways, size // max(least, PAGE)))
    assert [stripe.way for stripe in found] == list(range(len(found)))


def test_stripes_of_a_small_transfer() -> None:
    assert stripes(1000, [1] * 4, 512 << 10) == [Stripe(0, 0, 1000)]
    assert stripes(1 << 20, [1] * 4, 512 << 10) == [Stripe(0, 0, 512 << 10), Stripe(1, 512 << 10, 512 << 10)]
    assert stripes(0, [1] * 4, 1) == [Stripe(0, 0, 0)]
    assert stripes(1000, [100, 400], 512 << 10) == [Stripe(1, 0, 1000)]  # by the faster one


def test_stripes_of_ports_of_different_rate() -> None:
    assert stripes(6 << 20, [200_000, 400_000], 512 << 10) == [Stripe(0, 0, 2 << 20), Stripe(1, 2 << 20, 4 << 20)]
    assert [stripe.way for stripe in stripes(3 << 20, [400, 10, 400], 512 << 10)] == [
        0,
        2,
    ]  # too little for the slow one


# --- addresses

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
