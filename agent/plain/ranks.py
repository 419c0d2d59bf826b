"""Who gets which ranks: nodes keep their numbers over a change as far as they can; pure."""

import re
from collections import Counter
from collections.abc import Collection, Sequence

from easyscale.agent.plain.values import Member, Offer


def order_nodes(before: Sequence[str], present: Collection[str], *, most: int | None) -> list[str]:
    """The nodes of the next round by GROUP_RANK: who stays keeps its place.

    Newcomers take the places of those who left; then the last ones fill what is still open, so
    that no more nodes than necessary get another number.
    """
    places: list[str | None] = [node if node in present else None for node in before]
    newcomers = sorted(set(present) - set(before), key=natural)
    for place, node in enumerate(places):
        if node is None and newcomers:
            places[place] = newcomers.pop(0)
    places += newcomers
    while None in places:
        last = places.pop()
        if last is not None:
            places[places.index(None)] = last
    return [node for node in places if node is not None][:most]


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """A key to sort names by: node-2 comes before node-10."""
    parts = re.split(r"(\d+)", name)
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in parts if part)


def deal(ranks: int, places: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Spread a fixed number of ranks evenly over the slots of all nodes, in order.

    Gives for each node the slot of each of its ranks; a slot may take several, or none.
    """
    slots = [(node, slot) for node, names in enumerate(places) for slot in names]
    each, more = divmod(ranks, len(slots))
    dealt: list[list[str]] = [[] for _ in places]
    for number, (node, slot) in enumerate(slots):
        dealt[node] += [slot] * (each + (number < more))
    return [tuple(names) for names in dealt]


def members_of(offers: Sequence[Offer], places: Sequence[tuple[str, ...]]) -> tuple[Member, ...]:
    """Number the workers of nodes in this order, over all and within their roles."""
    role_sizes: Counter[str] = Counter()
    for offer, names in zip(offers, places, strict=True):
        role_sizes[offer.role] += len(names)
    members = []
    ranks = 0
    role_ranks: Counter[str] = Counter()
    for group_rank, (offer, names) in enumerate(zip(offers, places, strict=True)):
        members.append(
            Member(
                node=offer.node,
                incarnation=offer.incarnation,
                address=offer.address,
                role=offer.role,
                group_rank=group_rank,
                first_rank=ranks,
                first_role_rank=role_ranks[offer.role],
                role_world_size=role_sizes[offer.role],
                places=names,
                offered=offer.places,
            )
        )
        ranks += len(names)
        role_ranks[offer.role] += len(names)
    return tuple(members)
