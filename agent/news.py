"""What people are told of a change, and the numbers that the closing lines count. Pure.

The reason is the string that the leader put into the commit, so it is the same on every node.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

from easyscale.agent import budget, restoring, words
from easyscale.agent.actions import Announce
from easyscale.agent.events import LogEnded
from easyscale.agent.state import State, Turn
from easyscale.agent.verdicts import Verdict
from easyscale.model import Commit, Ending, Mode, Occasion, SnapshotRecord, WorkerId
from easyscale.rendezvous.agreement import JobView
from easyscale.rendezvous.keys import Incarnation
from easyscale.reports import EventKind, Fact, JobEvent

#: Less than this is nothing to read about: a store that comes back, say.
_SHORT_WAIT_S = 1.0
_COUNTED = frozenset({"joined", "lost", "drained", "rebalanced", "migrated", "restored"})


def announce(
    turn: Turn, event: EventKind, reason: str = "", /, *, at_step: int | None = None, **facts: Fact
) -> None:
    """One change, as one line; `at_step` where it is of another step than the job's present one."""
    state = turn.state
    generation = state.commit.generation if state.commit else None
    line = JobEvent(
        at=stamp(turn.now.wall_s),
        job=state.settings.job_id,
        event=event,
        step=state.step if at_step is None else at_step,
        era=generation.era if generation else 0,
        generation=generation.number if generation else 0,
        reason=reason,
        facts=facts,
    )
    turn.do(Announce(event=line))
    if event.value in _COUNTED:
        totals = state.totals
        changes = {**totals.changes, event.value: totals.changes.get(event.value, 0) + 1}
        turn.set(totals=replace(totals, changes=changes))


def tell_log_ended(turn: Turn, event: LogEnded) -> None:
    """A full disk costs the log, never the training."""
    announce(
        turn,
        EventKind.NOTE,
        f"the {event.stream} log of {event.worker.place} ends here: {event.reason.lower()};"
        " training goes on",
        node=event.worker.node,
        slot=event.worker.slot,
        pid=event.pid,
    )


def stamp(wall_s: float) -> str:
    at = datetime.fromtimestamp(wall_s, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def tell_commit(turn: Turn, commit: Commit, *, pause_s: float | None) -> None:
    """The lines of a generation, once the first of our workers stands in it."""
    former = turn.state.former
    _count_pause(turn, pause_s, first=former is None or not former.members)
    match commit.mode:
        case Mode.RESTORE:
            _tell_start(turn, commit, former)
        case Mode.NOW:
            kept = len(commit.members)
            _tell_silent(turn, commit, former)
            announce(
                turn,
                EventKind.RECOVERED,
                commit.reason,
                pause_s=pause_s,
                steps_lost=0,
                workers_kept=kept,
                ranks_moved=_moved(commit, former),
            )
        case Mode.BOUNDARY:
            _tell_change(turn, commit, former, pause_s)
    if any(worker.node == turn.state.node for worker in commit.workers):
        turn.set(told_start=True)


def _tell_start(turn: Turn, commit: Commit, former: Commit | None) -> None:
    state = turn.state
    own = [w for w in commit.workers if w.node == state.node]
    counts = [len(member.ranks) for member in commit.members]
    snapshot = commit.snapshot
    restarted = state.told_start and former is not None and bool(former.members)
    if own and not restarted:
        announce(
            turn,
            EventKind.STARTED,
            commit.reason,
            node=state.node,
            workers=len(own),
            took_s=turn.now.s - state.began_s,
            shares=tuple(sorted(counts, reverse=True)),
        )
    step = snapshot.step if snapshot else 0
    back = _lost(commit) if restarted or _saw_it_begin(state, commit) else 0
    if restarted:
        back = max(back, _reached(state, former) - step)
    if snapshot is None and not restarted and not back:
        return
    record = state.view.snapshots.get(snapshot.name) if snapshot else None
    totals = state.totals
    turn.set(
        totals=replace(
            totals,
            steps_lost=totals.steps_lost + back,
            restarts=totals.restarts + (1 if restarted else 0),
        )
    )
    announce(
        turn,
        EventKind.RESTORED,
        "" if own and not restarted else commit.reason,
        at_step=step,
        snapshot=snapshot.name if snapshot else "",
        source=f"{record.nodes[0]}:{record.path}" if record and record.nodes else "",
        steps_lost=back if restarted or back else None,
    )


def _saw_it_begin(state: State, commit: Commit) -> bool:
    """We are in it, or heard of it before anybody was; who comes later has lost nothing."""
    is_member = any(worker.node == state.node for worker in commit.workers)
    return is_member or not state.view.entries.get(commit.generation)


def _lost(commit: Commit) -> int:
    """The steps that this restore throws away, by what the store knew when it was decided."""
    led = commit.restores[-1] if commit.restores else None
    return led.lost if led is not None and led.generation == commit.generation else 0


def _reached(state: State, former: Commit | None) -> int:
    """The furthest step that any worker of the generation before stood in, the ended ones too."""
    own = (worker.step for worker in state.workers.values())
    members = former.workers if former else ()
    ended = (state.view.gone[worker].step for worker in members if worker in state.view.gone)
    return max((*own, *ended), default=0)


def _tell_change(turn: Turn, commit: Commit, former: Commit | None, pause_s: float | None) -> None:
    before = former.workers if former else ()
    came = [worker for worker in commit.workers if worker not in before]
    left = [worker for worker in before if worker not in commit.workers]
    if commit.pauses:
        return
    has_promise = commit.occasion is Occasion.REBALANCE and commit.step_s is not None
    before_s, after_s = (commit.step_s or (None, None)) if has_promise else (None, None)
    if commit.occasion is Occasion.MIGRATION:
        moved = _moved(commit, former)
        announce(
            turn,
            EventKind.MIGRATED,
            commit.reason,
            pause_s=pause_s,
            steps_lost=0,
            ranks_moved=moved,
        )
        return
    for node, workers in _by_node(came):
        one = workers[0] if len(workers) == 1 else None
        announce(
            turn,
            EventKind.JOINED,
            commit.reason,
            node=node,
            slots=len(workers),
            slot=one.slot if one else None,
            kind=_kind(turn, workers[0]),
            pid=_pid(turn, one),
            pause_s=pause_s,
            steps_lost=0,
        )
    for node, workers in _by_node(left):
        announce(
            turn,
            EventKind.DRAINED,
            commit.reason,
            node=node,
            slots=len(workers),
            slot=workers[0].slot if len(workers) == 1 else None,
            pause_s=pause_s,
            steps_lost=0,
        )
    if not came and not left:
        announce(
            turn,
            EventKind.REBALANCED,
            commit.reason,
            pause_s=pause_s,
            steps_lost=0,
            step_s_before=before_s,
            step_s_after=after_s,
        )


def tell_speeds(turn: Turn, former: JobView, view: JobView) -> None:
    """Slots that have become slow, and those that are not any more, by the leader's record."""
    was = {each.worker: each for each in former.speed.slow} if former.speed else {}
    now = {each.worker: each for each in view.speed.slow} if view.speed else {}
    for worker, slow in now.items():
        if worker not in was or (slow.emptied and not was[worker].emptied):
            announce(
                turn,
                EventKind.SLOW,
                slow.reason,
                node=worker.node,
                slot=worker.slot,
                ratio=slow.ratio,
                emptied=slow.emptied,
                since_step=slow.since_step,
            )
    for worker, slow in was.items():
        if worker in now or view.base is None or worker not in view.base.workers:
            continue  # who has left did not become faster
        present = view.is_present(worker) or not view.nodes
        if present and not view.ended(worker):
            announce(
                turn,
                EventKind.RECOVERED_SPEED,
                f"as fast as usual again, slow since step {slow.since_step:,}",
                node=worker.node,
                slot=worker.slot,
            )


def _by_node(workers: Iterable[WorkerId]) -> list[tuple[str, list[WorkerId]]]:
    nodes: dict[str, list[WorkerId]] = {}
    for worker in workers:
        nodes.setdefault(worker.node, []).append(worker)
    return sorted(nodes.items())


def _kind(turn: Turn, worker: WorkerId) -> str:
    node = turn.state.view.nodes.get(worker.node)
    slots = node.record.slots if node else turn.state.record.slots if turn.state.record else ()
    return next((slot.kind for slot in slots if slot.slot == worker.slot), "")


def _pid(turn: Turn, worker: WorkerId | None) -> int | None:
    own = turn.own(worker) if worker is not None else None
    return own.pid if own else None


def _moved(commit: Commit, former: Commit | None) -> tuple[int, ...]:
    before = {rank: m.worker for m in former.members for rank in m.ranks} if former else {}
    return tuple(
        sorted(r for m in commit.members for r in m.ranks if before.get(r, m.worker) != m.worker)
    )


def _count_pause(turn: Turn, pause_s: float | None, *, first: bool) -> None:
    if pause_s is None or first:
        return
    totals = turn.state.totals
    turn.set(
        totals=replace(
            totals,
            paused_s=totals.paused_s + pause_s,
            longest_pause_s=max(totals.longest_pause_s, pause_s),
        )
    )


def tell_lost(turn: Turn, worker: WorkerId, ending: Ending) -> None:
    """A worker ended that nobody had asked to."""
    if worker in turn.state.reported_lost:
        return
    turn.set(reported_lost=turn.state.reported_lost | {worker})
    announce(
        turn,
        EventKind.LOST,
        ending.how,
        at_step=ending.step,
        node=worker.node,
        slot=worker.slot,
        pid=ending.pid,
        exit_code=ending.exit_code,
        signal=words.signal_name(ending.signal) if ending.signal else None,
        ranks=_ranks_at_fault(ending),
        restarts=_restarts(turn, worker, ending),
        restarts_limit=turn.state.settings.max_restarts,
    )


def _tell_silent(turn: Turn, commit: Commit, former: Commit | None) -> None:
    """Who was left out without a word of its own agent: that was killed, or nobody hears it."""
    view = turn.state.view
    for member in former.members if former else ():
        worker = member.worker
        told_elsewhere = worker.node == turn.state.node or worker in view.gone
        if told_elsewhere or worker in commit.workers:
            continue
        agent = view.gone_agents.get(Incarnation(worker.node, worker.incarnation))
        how = agent.how if agent is not None else "the others do not hear it"
        tell_lost(turn, worker, Ending(how=how, step=turn.state.step, ranks=member.ranks))


def _restarts(turn: Turn, worker: WorkerId, ending: Ending) -> int | None:
    """How much of the budget is used with this failure; only the leader knows all of them."""
    state = turn.state
    if state.token is None or ending.failure is None:
        return None
    known = {**dict(budget.failures(state.view)), worker: ending.failure}
    timeouts = state.settings.timeouts
    alike = budget.counted(
        tuple(known.items()),
        step=state.job_step,
        forgiven_after_steps=timeouts.forgiven_after_steps,
    )
    nodes = (node.record for node in state.view.nodes.values())
    places = budget.contenders(alike, state.view, nodes)
    return budget.used(alike, places=places, benched_after=timeouts.quarantine_failures)


def _ranks_at_fault(ending: Ending) -> tuple[int, ...]:
    """The rank whose micro-step failed, else all that were lost with the worker."""
    failed = ending.failure.rank if ending.failure else None
    return tuple(ending.ranks) if failed is None else (failed,)


def newest_snapshot(turn: Turn) -> SnapshotRecord | None:
    """The newest that can be read, here or by the store's word."""
    state = turn.state
    known = {s.name: s for s in (*state.found, *state.unregistered)} | dict(state.view.snapshots)
    return restoring.newest_to_restore(known.values(), state.commit)


def tell_waiting(turn: Turn, verdict: Verdict, *, every_s: float = 30.0) -> None:
    """What the job stands still for, when it changes and now and then."""
    state, waiting = turn.state, verdict.waiting
    if waiting is None:
        return
    waited_s = turn.now.s - waiting.since_s
    if waiting.wanted is None and waited_s < _SHORT_WAIT_S:
        return
    is_told = verdict.reason == state.told_waiting
    if is_told and turn.now.s - state.waiting_s < every_s:
        return
    turn.set(waiting_s=turn.now.s, told_waiting=verdict.reason)
    announce(
        turn,
        EventKind.WAITING,
        verdict.reason,
        waited_s=waited_s,
        limit_s=waiting.limit_s,
        wanted=waiting.wanted,
        missing=waiting.missing,
        have=tuple(sorted(state.view.nodes)),
    )
