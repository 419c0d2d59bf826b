"""Which of a job's recorded snapshots a restore starts from. Pure."""

from collections.abc import Iterable

from easyscale.model import Commit, GenerationNumber, SnapshotRecord


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
