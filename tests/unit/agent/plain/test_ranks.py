"""Who gets which ranks, and that they keep them."""

from hypothesis import given
from hypothesis import strategies as st

from easyscale.agent.plain.ranks import deal, members_of, natural, order_nodes
from tests.support.plain import offer

NAMES = st.lists(st.sampled_from([f"n{i}" for i in range(12)]), unique=True)


def test_nodes_come_in_the_order_of_their_names_with_numbers_as_numbers() -> None:
    present = {"node-10", "node-2", "node-1"}
    assert order_nodes((), present, most=None) == ["node-1", "node-2", "node-10"]
    assert sorted(["b", "a10", "a9"], key=natural) == ["a9", "a10", "b"]


def test_a_newcomer_takes_the_place_of_who_left() -> None:
    assert order_nodes(("a", "b", "c"), {"a", "c", "z"}, most=None) == ["a", "z", "c"]


def test_one_node_moves_when_one_leaves() -> None:
    assert order_nodes(("a", "b", "c", "d"), {"a", "c", "d"}, most=None) == ["a", "d", "c"]


@given(NAMES, NAMES, st.integers(1, 12))
def test_all_present_nodes_are_numbered_and_few_change(
    before: list[str], present: list[str], most: int
) -> None:
    order = order_nodes(before, set(present), most=None)
    assert sorted(order) == sorted(present)
    moved = [n for n in set(before) & set(present) if before.index(n) != order.index(n)]
    assert len(moved) <= max(0, len(before) - len(present))
    assert order_nodes(before, set(present), most=most) == order[:most]
    assert order_nodes(order, set(present), most=None) == order


@given(st.integers(1, 40), st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_ranks_are_spread_evenly_over_slots_in_order(ranks: int, nodes: list[int]) -> None:
    places = [[f"s{i}" for i in range(count)] for count in nodes]
    dealt = deal(ranks, places)
    counts = [names.count(s) for names, slots in zip(dealt, places, strict=True) for s in slots]
    assert sum(counts) == ranks
    assert max(counts) - min(counts) <= 1
    assert all(list(names) == sorted(names) for names in dealt)


def test_workers_are_numbered_over_all_and_within_their_roles() -> None:
    offers = [offer("a"), offer("b", workers=1, role="reader"), offer("c", workers=3)]
    members = members_of(offers, [each.places for each in offers])
    assert [(m.group_rank, m.first_rank, m.workers) for m in members] == [
        (0, 0, 2),
        (1, 2, 1),
        (2, 3, 3),
    ]
    assert [(m.first_role_rank, m.role_world_size) for m in members] == [(0, 5), (0, 1), (2, 5)]
