"""Generations that begin without a plan before them: the first, a restore, survivors at once.

Pure. Also the start of a new era, when a store comes back without what it had acknowledged.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from easyscale.agent import budget, drafts, gathering, holding, restoring, words
from easyscale.agent.balance import limits
from easyscale.agent.gathering import Gathered
from easyscale.agent.memory import Memory
from easyscale.agent.verdicts import Standpoint, Verdict, Waiting
from easyscale.errors import ExitCode
from easyscale.model import (
    Cause,
    Commit,
    GenerationNumber,
    JobSpec,
    JobState,
    LogicalRank,
    Member,
    Mode,
    Outcome,
    SnapshotRecord,
    SnapshotReference,
    WorkerId,
)
from easyscale.rendezvous.agreement import CommitAtOnce, End, objection
from easyscale.rendezvous.keys import Incarnation


@dataclass(frozen=True, slots=True)
class Start:
    """What a generation that is committed at once is made of."""

    mode: Mode
    generation: GenerationNumber
    members: Sequence[WorkerId]
    reason: str
    former: Commit | None = None
    snapshot: SnapshotRecord | None = None
    #: Nodes that see it; one of them is a member.
    holders: tuple[str, ...] = ()
    kind: str = ""
    #: Members without ranks, which leave in the generation after this one.
    guests: tuple[WorkerId, ...] = ()
    #: What the job is, as those know it who run it.
    spec: JobSpec | None = None

    @property
    def of_holders(self) -> tuple[WorkerId, ...]:
        return tuple(worker for worker in self.members if worker.node in self.holders)

    def holders_in(self, workers: Iterable[WorkerId]) -> tuple[str, ...]:
        return tuple(sorted({worker.node for worker in workers} & set(self.holders)))


def begin(at: Standpoint, memory: Memory) -> Verdict | None:
    """A store without head, or with an older one than agents know: a new era begins."""
    lost = _newest_offer(at)
    if lost is None:
        if at.view.head is not None:
            return None
        return _await_offers(at, memory) or restore(at, memory, era=_era_above(at, 0))
    silent = at.silent(memory)
    unknown = [
        worker
        for worker in lost.workers
        if not at.view.is_present(worker)
        and not at.view.ended(worker)
        and Incarnation(worker.node, worker.incarnation) not in silent
    ]
    label = lost.generation.label
    if unknown:
        reason = (
            f"the store came back without {label}: waits for {words.places(unknown)}"
            " to offer it, or proof that they ended"
        )
        waiting = at.waiting_for_proof(memory)
        return Verdict(None, reason, memory, at.takeover_at(memory), waiting)
    era = _era_above(at, lost.generation.era)
    holders = gathering.offered(at.view)
    members = [worker for worker in lost.workers if worker in holders] or list(holders)
    if not members:
        return restore(at, memory, era=era)
    start = Start(
        mode=Mode.NOW,
        generation=GenerationNumber(era, 1),
        members=members,
        reason=f"the store came back without {label}",
        former=lost,
        spec=_offered_spec(at, lost),
    )
    return at_once(start, at, memory)


def _await_offers(at: Standpoint, memory: Memory) -> Verdict | None:
    """Strangers in an empty store: the job has snapshots, so others may still run it.

    Who runs it registers again within a lease and says so. Without a snapshot nothing tells an
    emptied store from a new job, and a store of this machine alone holds nobody else.
    """
    shared = at.settings.store.endpoints or at.settings.store.serve_at
    if not shared or not restoring.copies(at.view, at.found):
        return None
    since = at.now if memory.headless_s is None else memory.headless_s
    wait_s = at.timeouts.mass_guard_s
    if at.now >= since + wait_s:
        return None
    reason = f"the store knows nothing of this job, its snapshots do: {wait_s:g} s for who runs it"
    memory = replace(memory, headless_s=since)
    return Verdict(None, reason, memory, since + wait_s, Waiting(since, wait_s))


def _offered_spec(at: Standpoint, lost: Commit) -> JobSpec | None:
    offers = (node.record for node in at.view.nodes.values())
    return next((o.spec for o in offers if o.commit == lost and o.spec is not None), None)


def _newest_offer(at: Standpoint) -> Commit | None:
    """The newest commit that a registered agent knows and the store does not."""
    return max(at.view.forgotten, key=lambda commit: commit.generation, default=None)


def _era_above(at: Standpoint, era: int) -> int:
    """An era that everybody takes for newer: than the store's, the snapshots', and all offers'.

    A pause is offered too: who knows it would ignore whatever is older.
    """
    known = restoring.copies(at.view, at.found).values()
    seen = [each.record.generation.era for each in known]
    seen += [snapshot.generation.era for snapshot in at.view.snapshots.values()]
    offers = [node.record.commit for node in at.view.nodes.values()]
    seen += [commit.generation.era for commit in offers if commit is not None]
    head = [at.view.head.era] if at.view.head else []
    return max([era, *seen, *head]) + 1


def restore(at: Standpoint, memory: Memory, *, era: int | None = None) -> Verdict:
    """Start from the newest snapshot, or from the state that the script builds."""
    head = at.view.head
    anew = head is None or at.is_new_start
    gathered = gathering.gather(
        at.view,
        memory,
        at.now,
        settings=at.settings,
        least_nodes=at.settings.min_nodes if anew else 1,
    )
    memory = gathered.memory
    if gathered.waits_for:
        return _wait_for_nodes(at, gathered, anew=anew)
    number = GenerationNumber(era or 1, 1)
    if era is None and head is not None:
        number = GenerationNumber(head.era, head.planned + 1)
    members = [slot.worker for slot in gathered.slots if slot.worker is not None]
    choice = holding.choose(at, memory, nodes={worker.node for worker in members})
    if isinstance(choice, Verdict) and choice.decision is None:
        return choice
    guests: tuple[WorkerId, ...] = ()
    # No job is ended, and no step given up, while others may hold newer state.
    refused = None if at.is_new_start else _refusal(_unnamed(number, members), at, memory)
    if refused is not None:
        # Who shall leave an older group that never formed proves by coming that it cannot run.
        guests = gathering.withdrawn_formless(at.view)
        if not guests or _refusal(_unnamed(number, [*members, *guests]), at, memory) is not None:
            return refused
    if isinstance(choice, Verdict):
        return choice
    start = Start(
        mode=Mode.RESTORE,
        generation=number,
        members=members,
        reason=choice.reason or _restore_reason(choice.snapshot, anew=anew),
        snapshot=choice.snapshot,
        holders=choice.holders,
        kind=gathered.kind,
        guests=guests,
    )
    return at_once(start, at, memory)


def _unnamed(number: GenerationNumber, members: Sequence[WorkerId]) -> Commit:
    """A restore by them, as far as it is known before ranks are laid out."""
    named = tuple(Member(worker, "", ()) for worker in members)
    return Commit(generation=number, mode=Mode.RESTORE, members=named, main=None, reason="")


def _wait_for_nodes(at: Standpoint, gathered: Gathered, *, anew: bool) -> Verdict:
    memory, reason = gathered.memory, gathered.waits_for
    since = at.now if memory.gathering_s is None else memory.gathering_s
    limit_s = at.timeouts.meeting_timeout_s
    if anew and at.now - since >= limit_s:
        why = f"{reason}: {limit_s:g} s are over"
        outcome = Outcome(state=JobState.FAILED, exit_code=ExitCode.TOO_FEW_NODES, reason=why)
        return Verdict(End(outcome), why, memory)
    waiting = (
        Waiting(since, limit_s, wanted=at.settings.min_nodes, missing=gathered.missing)
        if gathered.missing
        else None
    )
    return Verdict(None, reason, memory, at.now + at.timeouts.settle_s, waiting)


def _restore_reason(snapshot: SnapshotRecord | None, *, anew: bool) -> str:
    if anew:
        return ""
    return "all were gone" if snapshot else "all were gone before the first snapshot"


def at_once(start: Start, at: Standpoint, memory: Memory) -> Verdict:
    """Plan and commit in one, if nothing speaks against it."""
    view, members = at.view, list(start.members)
    short = limits.shortage(view, members) if start.mode is Mode.RESTORE else ""
    if short:
        return _wait_for_room(at, memory, short, members)
    former = start.former or view.base
    before = drafts.ranks_of(former) if start.mode is Mode.NOW else {}
    layout = drafts.lay_out(
        view,
        members,
        present={w: held for w, held in before.items() if w in members},
        use_all=start.mode is Mode.NOW,
    )
    # Whoever survives stays a member, also without ranks; a start leaves surplus slots waiting.
    order = (
        members
        if start.mode is Mode.NOW
        else [*sorted(layout.ranks, key=lambda worker: layout.ranks[worker]), *start.guests]
    )
    if start.holders and not start.holders_in(order):
        # Ranks went to others alone: those who can read the snapshot begin, the others join them.
        return at_once(replace(start, members=start.of_holders), at, memory)
    plan = drafts.draft(
        layout,
        generation=start.generation,
        mode=start.mode,
        order=order,
        main=former.main if former else None,
        reason=start.reason or layout.reason,
    )
    if start.mode is Mode.NOW:
        moved = _moves(layout.ranks, layout.moved)
        plan = msgspec.structs.replace(plan, reason=moved or plan.reason)
    if tight := limits.beyond_free(view, drafts.slots_of(view), layout.ranks):
        plan = msgspec.structs.replace(plan, reason=f"{plan.reason}; {tight}")
    snapshot = start.snapshot
    reference = (
        SnapshotReference(snapshot.name, snapshot.step, snapshot.digest, start.holders_in(order))
        if snapshot
        else None
    )
    commit = drafts.commit_of(plan, view, snapshot=reference)
    if (refused := _refusal(commit, at, memory)) is not None:
        return refused
    decision = CommitAtOnce(
        commit,
        spec=_fixed_spec(at, start),
        clears_outcome=at.is_new_start,
        forgives=tuple(w for w, _ in budget.failures(view)) if at.is_new_start else (),
    )
    memory = replace(memory, gathering_s=None, complete_s=None, wanted=None)
    return Verdict(decision, f"{start.generation.label} {start.mode}: {plan.reason}", memory)


def _refusal(commit: Commit, at: Standpoint, memory: Memory) -> Verdict | None:
    """What speaks against it by the rules of the agreement, and who is waited for."""
    refused = objection(commit, at.view, silent=at.silent(memory))
    if refused is None:
        return None
    waiting = at.waiting_for_proof(memory)
    return Verdict(None, refused, memory, at.takeover_at(memory), waiting)


def _wait_for_room(
    at: Standpoint, memory: Memory, short: str, members: Sequence[WorkerId]
) -> Verdict:
    """Others may bring slots; a job that nobody can come to ends, with what ran out of memory.

    Who survives a loss is not kept waiting by this: nobody else has the state, and when it runs
    out as well the snapshot is what is left, on all slots.
    """
    view = at.view
    store = at.settings.store
    others_come = bool(store.endpoints or store.serve_at)
    starting = [s for s in drafts.slots_of(view).values() if s.state == "starting"]
    limit_s = at.timeouts.meeting_timeout_s if others_come else at.timeouts.prepare_timeout_s
    since = at.now if memory.gathering_s is None else memory.gathering_s
    if at.now - since < limit_s and (others_come or starting):
        return Verdict(None, short, memory, since + limit_s, Waiting(since, limit_s))
    last = limits.last_to_run_out(view, [worker.place for worker in members])
    failure = view.gone[last].failure if last is not None else None
    assert last is not None
    assert failure is not None
    cause = Cause(
        worker=last,
        failure=failure,
        why_ended=short,
        blames="memory",
        also_on=(),
        victims=len(members),
    )
    outcome = Outcome(
        state=JobState.FAILED,
        exit_code=ExitCode.JOB_FAILED,
        reason=f"{words.in_a_line(failure.headline)}: {short}",
        step=failure.step,
        cause=cause,
    )
    return Verdict(End(outcome), outcome.reason, memory)


def _fixed_spec(at: Standpoint, start: Start) -> JobSpec | None:
    """The spec, if this generation writes it: its kind is fixed now, or the store has lost it."""
    stands, spec = at.view.spec, start.spec or at.view.spec
    if spec is None:
        return None
    wanted = msgspec.structs.replace(spec, kind=start.kind or spec.kind)
    return None if at.view.spec_revision > 0 and stands == wanted else wanted


def _moves(held: Mapping[WorkerId, tuple[LogicalRank, ...]], moved: Sequence[LogicalRank]) -> str:
    """`rank 14 ran again on a/cuda:1`, or where the moved ranks went."""
    takers = [worker for worker, ranks in held.items() if set(ranks) & set(moved)]
    if not takers:
        return ""
    return f"{words.ranks(moved)} ran again on {words.places(takers)}"
