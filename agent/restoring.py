"""Which of a job's snapshots a restore starts from, and on which nodes they lie. Pure.

A disk that is away is no reason to pass over what lies on it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from easyscale.model import Commit, GenerationNumber, NodeRecord, SnapshotRecord
from easyscale.rendezvous.agreement import JobView


@dataclass(frozen=True, slots=True)
class Copies:
    """One snapshot: what counts of it, and every record that says where it lies."""

    record: SnapshotRecord
    places: tuple[SnapshotRecord, ...]

    def on(self, nodes: Iterable[NodeRecord]) -> tuple[str, ...]:
        """Those of the nodes that find it in their folder."""
        return tuple(
            sorted(node.node for node in nodes if any(_sees(node, p) for p in self.places))
        )

    @property
    def nodes(self) -> tuple[str, ...]:
        """Those that have said that they have it."""
        return tuple(sorted({node for place in self.places for node in place.nodes}))


def _sees(node: NodeRecord, place: SnapshotRecord) -> bool:
    if place.folder and node.folder:
        return place.folder == node.folder
    return node.node in place.nodes


def copies(view: JobView, found: Iterable[SnapshotRecord]) -> dict[str, Copies]:
    """All that the store knows, that the leader's node has found, and that others have brought."""
    places: dict[str, list[SnapshotRecord]] = {}
    brought = (s for node in view.nodes.values() for s in node.record.found)
    for snapshot in (*view.snapshots.values(), *found, *brought):
        places.setdefault(snapshot.name, []).append(snapshot)
    known = {
        name: Copies(_counting(view, name, seen), tuple(seen)) for name, seen in places.items()
    }
    return {name: each for name, each in known.items() if not each.record.superseded}


def _counting(view: JobView, name: str, seen: list[SnapshotRecord]) -> SnapshotRecord:
    """The store's word; without it a copy that can be read is worth more than one that cannot."""
    stored = view.snapshots.get(name)
    return stored or next((s for s in seen if not s.rejected), seen[0])


def newest_to_restore(
    records: Iterable[SnapshotRecord], commit: Commit | None
) -> SnapshotRecord | None:
    """The newest that counts, by what the newest commit says, and that somebody can read.

    One that was overtaken is the last hope where there is no other.
    """

    def order(snapshot: SnapshotRecord) -> tuple[bool, int, GenerationNumber, str]:
        counts = commit is None or not commit.overtakes(snapshot)
        return counts, *age_order(snapshot)

    usable = (s for s in records if not s.superseded and not s.rejected)
    return max(usable, key=order, default=None)


def age_order(snapshot: SnapshotRecord) -> tuple[int, GenerationNumber, str]:
    """Newest last."""
    return snapshot.step, snapshot.generation, snapshot.name
