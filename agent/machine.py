"""The agent of one node as a pure machine: (state, event, now) -> (state, actions, reason).

    event -> take it in -> what follows for anybody: decide, spawn, register, leave -> actions

No clock, no log, no I/O; the driver performs the actions in order and brings the next event.
"""

from typing import assert_never

from easyscale.agent import (
    crew,
    following,
    leading,
    leaving,
    news,
    offering,
    reaching,
    records,
    watchdog,
)
from easyscale.agent.actions import AgentAction, Campaign, Transact, Write
from easyscale.agent.balance import ledger
from easyscale.agent.events import (
    AgentEvent,
    Asked,
    Deposed,
    DeviceTroubled,
    Elected,
    Enrolled,
    ForkFailed,
    JobOpened,
    LeaseEnded,
    LogEnded,
    Probed,
    Signalled,
    SlotsFound,
    SlotsRefused,
    SnapshotsFound,
    StoreAway,
    StoreBack,
    Ticked,
    Transacted,
    Viewed,
    Withdrawn,
    WorkerExited,
    WorkerForked,
    WorkerSaid,
    ZygoteLost,
    ZygoteReady,
)
from easyscale.agent.settings import Identity, LaunchSettings
from easyscale.agent.state import Now, Stage, State, Story, Turn
from easyscale.model import encode
from easyscale.rendezvous.keys import JobKeys
from easyscale.rendezvous.store import Delete, Range, Stretch
from easyscale.reports import EventKind

__all__ = ["Now", "State", "Story", "begin", "deadline", "followed_ranges", "step"]


def begin(settings: LaunchSettings, identity: Identity, *, now: Now) -> State:
    """An agent that knows what it was asked for and nothing else yet."""
    return State(
        settings=settings,
        identity=identity,
        keys=JobKeys.of(settings.job_id),
        began_s=now.s,
    )


def followed_ranges(keys: JobKeys) -> tuple[Range, ...]:
    """What every agent watches; only the leader needs the rest, which grows with the nodes.

    Commits and head lie in one stretch: who sees the new head has seen what it fences.
    """
    return (
        Stretch(keys.commits, keys.head),  # with gone/
        Stretch(keys.job, keys.leader),
        Stretch(keys.outcome, keys.plans),
        Stretch(keys.snapshots, keys.wishes),
    )


def step(state: State, event: AgentEvent, now: Now) -> tuple[State, tuple[AgentAction, ...], str]:
    """Take one event in; the reason is empty where nothing was decided."""
    turn = Turn(state, now, type(event).__name__)
    _take_in(turn, event)
    if turn.state.stage is not Stage.GONE:
        leading.decide(turn)
        crew.spawn(turn)
        following.notice_kinds(turn)
        following.enrol(turn)
        leaving.settle(turn)
    return turn.state, tuple(turn.actions), "; ".join(turn.reasons)


def _take_in(turn: Turn, event: AgentEvent) -> None:
    match event:
        case ZygoteReady(cpu_kind=kind):
            turn.set(zygote_kind=kind)
        case ZygoteLost():
            crew.zygote_lost(turn, event)
        case WorkerForked():
            crew.forked(turn, event)
        case ForkFailed():
            crew.fork_failed(turn, event)
        case WorkerSaid():
            _hear(turn, event)
        case WorkerExited():
            crew.exited(turn, event)
        case LogEnded():
            news.tell_log_ended(turn, event)
        case SlotsFound() | SlotsRefused() | DeviceTroubled():
            offering.heard(turn, event)
        case JobOpened():
            _open_job(turn, event)
        case SnapshotsFound(records=found, profile=kept):
            records.find_snapshots(turn, found)
            turn.set(kept_profile=kept)
        case Enrolled():
            _enrol(turn, event)
        case LeaseEnded():
            following.lease_ended(turn, event)
        case StoreAway():
            _lose_store(turn, event)
        case StoreBack():
            _meet_store_again(turn, event)
        case Elected():
            leading.elected(turn, event)
        case Deposed():
            leading.deposed(turn, event)
        case Viewed(complete=complete):
            turn.set(is_complete=complete)
            following.viewed(turn, event)
        case Transacted():
            _note_transaction(turn, event)
        case Probed():
            reaching.probed(turn, event)
        case Signalled():
            leaving.signalled(turn, event)
        case Asked() | Withdrawn():
            _pass_on(turn, event)
        case Ticked():
            _tick(turn, event)
        case _:
            assert_never(event)


def _hear(turn: Turn, event: WorkerSaid) -> None:
    worker = turn.own(event.worker)
    if worker is None:
        return  # it ended meanwhile
    seen = crew.hear(turn, worker, event.message)
    if seen is not None:
        following.adopt(turn, seen.commit, road=f"a peer of {worker.id.place}")
    commit = turn.state.commit
    if commit is not None:
        crew.tell_commit(turn, commit)  # a worker that has just registered may be named already


def _enrol(turn: Turn, event: Enrolled) -> None:
    if turn.state.first_revision is None:
        turn.do(Campaign())
    following.enrolled(turn, event)


def _open_job(turn: Turn, event: JobOpened) -> None:
    turn.set(spec=event.spec, store=event.store)
    slots = turn.state.slots
    news.announce(
        turn,
        EventKind.MET,
        endpoint=event.store,
        took_s=event.seconds,
        node=turn.state.node,
        slots=len(slots),
        kind=slots[0].kind if slots else "",
    )


def _lose_store(turn: Turn, event: StoreAway) -> None:
    if turn.state.away_s is None:
        turn.set(away_s=turn.now.s, refuses=event.refuses)
        turn.because("etcd is away: training goes on, changes wait", event.reason)
        news.announce(
            turn,
            EventKind.STORE_AWAY,
            event.told("training goes on, changes wait"),
            endpoint=turn.state.store,
            why=event.reason,
        )


def _meet_store_again(turn: Turn, event: StoreBack) -> None:
    turn.set(away_s=None, refuses="", back_s=turn.now.s)
    commit = turn.state.commit
    stands = f"{commit.generation.label} stands, nothing lost" if commit else "nothing lost"
    turn.because("etcd answers again", stands)
    news.announce(
        turn, EventKind.STORE_BACK, stands, endpoint=turn.state.store, away_s=event.silent_s
    )


def _pass_on(turn: Turn, event: Asked | Withdrawn) -> None:
    """What a person asks, or does not want any more, is for the leader to see."""
    key = turn.state.keys.wish(event.wish_id)
    if isinstance(event, Asked):
        turn.do(Write(key=key, value=encode(event.wish), leased=False))
    else:
        name = f"withdrew {event.wish_id}"
        turn.do(Transact(name=name, compares=(), operations=(Delete(key),)))


def _note_transaction(turn: Turn, event: Transacted) -> None:
    if event.name.startswith(leading.DECISION):
        leading.decided(turn, event)
    elif event.name.startswith(ledger.NOTE):
        ledger.published(turn, event.name, succeeded=event.succeeded)
    elif event.name.startswith(records.SNAPSHOT):
        name = event.name.removeprefix(records.SNAPSHOT)
        records.snapshot_registered(turn, name, succeeded=event.succeeded)


def _tick(turn: Turn, event: Ticked) -> None:
    for worker, report in event.reports.items():
        crew.take_report(turn, worker, report)
    watchdog.take_beats(turn, event.beats, event.monotonic_s)
    watchdog.watch(turn, event.monotonic_s)
    following.kill_excluded(turn)
    reaching.probe(turn)
    records.record_progress(turn)
    if turn.state.unregistered:
        records.register_snapshots(turn)


def deadline(state: State, now: Now) -> float | None:
    """When the machine wants the next tick at the latest, in seconds of `now.s`; None: no hurry."""
    times = [state.wake_s, state.hurry_s, state.leave_by_s]
    times += [respawn.ready_s for respawn in state.respawns.values()]
    times += [cut.ask_s for cut in state.cuts.values() if not cut.is_asked]
    due = [at for at in times if at is not None and now.s < at < float("inf")]
    overdue = state.wake_s is not None and state.wake_s <= now.s
    return now.s if overdue else min(due, default=None)
