"""What an agent writes into the store under the head fence: progress and snapshots. Pure.

A fenced worker's agent compares an old head, so nothing of it is ever recorded.
"""

from collections.abc import Iterable, Iterator

import msgspec

from easyscale.agent import news, restoring
from easyscale.agent.actions import DeleteSnapshots, Transact
from easyscale.agent.state import OwnWorker, Phase, State, Turn
from easyscale.messages import SnapshotRejected, SnapshotWritten
from easyscale.model import ProgressRecord, SnapshotRecord, WorkerId, encode
from easyscale.rendezvous.agreement import MOST_TIDIED
from easyscale.rendezvous.store import Compare, Created, Modified, Put
from easyscale.reports import EventKind

PROGRESS = "progress"
SNAPSHOT = "snapshot "
REJECT = "reject "
#: Of those found, the newest that a registration tells of.
_MOST_BROUGHT = 3


def _fence(state: State) -> tuple[Compare, ...] | None:
    """The head as we know it and our own registration, or None while we have neither.

    A head that is not of our newest commit belongs to others: nothing of ours is recorded there.
    """
    head, commit = state.view.head, state.commit
    if state.enrolled is None or state.away_s is not None:
        return None
    if head is None or commit is None or head.digest != commit.digest:
        return None
    return (
        Modified(state.keys.head, state.view.head_revision),
        Created(state.keys.node(state.node), state.enrolled),
    )


def record_progress(turn: Turn) -> None:
    """Main's agent says where the job is, about once a second."""
    state = turn.state
    if turn.now.s - state.progress_s < state.settings.timeouts.progress_every_s:
        return
    main = state.main_worker
    fence = _fence(state)
    if main is None or main.report is None or main.stopped or fence is None:
        return
    if main.entered is None or main.phase is Phase.LEAVING or state.view.head is None:
        return
    report = main.report
    rate = 1 / report.step_s if report.step_s else None
    samples = report.samples_per_step
    record = ProgressRecord(
        position=report.position,
        step=report.step,
        steps=report.steps,
        epoch=report.epoch,
        epochs=report.epochs,
        metrics=report.metrics,
        steps_per_s=rate,
        samples_per_s=samples * rate if samples and rate else None,
    )
    turn.set(progress_s=turn.now.s)
    put = Put(state.keys.progress, encode(record))
    turn.do(Transact(name=PROGRESS, compares=fence, operations=(put,)))


def find_snapshots(turn: Turn, found: tuple[SnapshotRecord, ...]) -> None:
    """What lies in this node's folder from before: the store may not know it."""
    folder = turn.state.settings.snapshot_dir
    seen_in = turn.state.identity.folder
    placed = tuple(
        s if s.path else msgspec.structs.replace(s, path=f"{folder}/{s.name}", folder=seen_in)
        for s in found
    )
    good = (s for s in placed if not s.rejected)
    turn.set(found=placed, unregistered=(*turn.state.unregistered, *good))


def brought(state: State) -> tuple[SnapshotRecord, ...]:
    """The newest that lay here when this agent began, until the job is under way.

    One that starts in an empty store knows of them by this alone.
    """
    if state.commit is not None and state.commit.members:
        return ()
    own = (s for s in state.found if state.node in s.nodes)
    return tuple(sorted(own, key=restoring.age_order)[-_MOST_BROUGHT:])


def note_snapshot(turn: Turn, worker: OwnWorker, written: SnapshotWritten) -> None:
    """A snapshot is durable on this node: it is registered as soon as the store takes it."""
    state = turn.state
    record = SnapshotRecord(
        name=written.name,
        step=written.step,
        epoch=written.epoch,
        digest=written.digest,
        bytes=written.bytes,
        generation=written.generation,
        nodes=(worker.id.node,),
        path=f"{state.settings.snapshot_dir}/{written.name}",
        folder=state.identity.folder,
    )
    turn.set(unregistered=(*state.unregistered, record))
    news.announce(
        turn,
        EventKind.SNAPSHOT,
        f"step {written.step:,} written",
        at_step=written.step,
        node=worker.id.node,
        bytes=written.bytes,
        path=record.path,
        took_s=written.seconds,
        snapshot_pause_s=written.pause_s,
    )
    register_snapshots(turn)


def register_snapshots(turn: Turn) -> None:
    """Register the oldest waiting snapshot, and mark what it supersedes."""
    state = turn.state
    fence = _fence(state)
    if fence is None or state.registering or not state.revision_known:
        return
    _drop_overtaken(turn)
    state = turn.state
    if not state.unregistered:
        return
    record = state.unregistered[0]
    known = {name: s for name, s in state.view.snapshots.items() if not s.superseded}
    known[record.name] = record
    usable = sorted(_counting(state, known.values()), key=lambda s: (s.step, s.generation))
    keep = {s.name for s in usable[-state.settings.snapshot_keep :]}
    old = [
        s for s in usable if s.name not in keep and s.name != record.name and state.node in s.nodes
    ]
    marks = (
        Put(state.keys.snapshot(s.name), encode(msgspec.structs.replace(s, superseded=True)))
        for s in old[:MOST_TIDIED]  # the others with the snapshots that follow
    )
    put = Put(state.keys.snapshot(record.name), encode(record))
    turn.set(registering=record.name)
    turn.do(Transact(name=f"{SNAPSHOT}{record.name}", compares=fence, operations=(put, *marks)))


def _counting(state: State, known: Iterable[SnapshotRecord]) -> Iterator[SnapshotRecord]:
    """Those that a restore would read: one that it would pass over takes nobody's place."""
    commit = state.commit
    for snapshot in known:
        if not snapshot.rejected and not (commit is not None and commit.overtakes(snapshot)):
            yield snapshot


def _drop_overtaken(turn: Turn) -> None:
    """Snapshots that our newest commit has left behind are not recorded; their folders stay."""
    state = turn.state
    commit = state.commit
    overtaken = tuple(s for s in state.unregistered if commit is not None and commit.overtakes(s))
    if not overtaken:
        return
    turn.set(unregistered=tuple(s for s in state.unregistered if s not in overtaken))
    for snapshot in overtaken:
        news.announce(
            turn,
            EventKind.NOTE,
            f"{snapshot.name} does not count: the job was restored from before it",
        )


def snapshot_registered(turn: Turn, name: str, *, succeeded: bool | None) -> None:
    """The transaction ended: forget what it registered, or try again with the next view."""
    state = turn.state
    turn.set(registering="")
    if not succeeded:
        return
    turn.set(unregistered=tuple(s for s in state.unregistered if s.name != name))
    register_snapshots(turn)


def remember_snapshots(turn: Turn) -> None:
    """Keep what the store shows: one that comes back empty shall not cost the job its snapshots."""
    state = turn.state
    known = {s.name: s for s in state.found} | dict(state.view.snapshots)
    found = tuple(
        s
        for name, s in sorted(known.items())
        # Those that cannot be read stay: a job that has had snapshots does not begin anew.
        if not (s.superseded or name in state.deleted)
    )
    turn.set(found=found)
    head = state.view.head
    if head is None or head.era == state.shown_era:
        return
    if state.shown_era is not None:
        waiting = {s.name for s in state.unregistered} | state.view.snapshots.keys()
        lost = tuple(
            s for s in found if state.node in s.nodes and s.name not in waiting and not s.rejected
        )
        turn.set(unregistered=(*state.unregistered, *lost))
    turn.set(shown_era=head.era)


def delete_superseded(turn: Turn) -> None:
    """Folders of this node that a fenced mark has superseded may go; the mark was seen."""
    state = turn.state
    marked = tuple(
        name
        for name, s in sorted(state.view.snapshots.items())
        if s.superseded and state.node in s.nodes and name not in state.deleted
    )
    if marked:
        turn.set(deleted=state.deleted | frozenset(marked))
        turn.do(DeleteSnapshots(names=marked))


def reject_snapshot(turn: Turn, worker: WorkerId, said: SnapshotRejected) -> None:
    """A generation could not start from this snapshot: nobody shall try it again."""
    state = turn.state
    news.announce(
        turn, EventKind.NOTE, f"{said.name} cannot be read on {worker.node}: {said.reason}"
    )
    known = {s.name: s for s in state.found} | dict(state.view.snapshots)
    record, fence = known.get(said.name), _fence(state)
    if record is None or fence is None:
        return
    marked = msgspec.structs.replace(record, rejected=said.reason)
    put = Put(state.keys.snapshot(said.name), encode(marked))
    turn.set(found=tuple(s for s in state.found if s.name != said.name))
    turn.do(Transact(name=f"{REJECT}{said.name}", compares=fence, operations=(put,)))
