"""The job as one immutable view of the store, and the exact transactions that may change it.

A leader decides on a `JobView`; `transaction` turns its decision into compares and operations.
What makes two running groups impossible stands here and is checked again for every commit.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

import msgspec

from easyscale.model import (
    Commit,
    Ending,
    GenerationNumber,
    Head,
    JobSpec,
    Mode,
    Outcome,
    Plan,
    WorkerId,
    encode,
)
from easyscale.rendezvous.keys import Incarnation, JobKeys
from easyscale.rendezvous.store import (
    Compare,
    Created,
    Delete,
    DeletePrefix,
    Modified,
    Operation,
    Put,
    absent,
)
from easyscale.rendezvous.view import JobView, Node, incarnation_of, outlives

__all__ = [
    "CommitAtOnce",
    "CommitPlan",
    "Decision",
    "End",
    "Fence",
    "GiveUp",
    "JobView",
    "Node",
    "Propose",
    "Tidy",
    "Transaction",
    "incarnation_of",
    "objection",
    "outlives",
    "transaction",
]

#: A transaction takes 128 compares. Above this many nodes the view stands in: a member that was
#: lost since it was taken costs a generation, as one that is lost just after the commit does.
MOST_NODE_COMPARES = 120
#: A reason names at most this many places.
MOST_NAMED = 3
#: Keys that one transaction clears beside what it decides: etcd takes 128 operations. The others
#: go with those that follow.
MOST_TIDIED = 100


@dataclass(frozen=True, slots=True)
class Propose:
    """Write a plan of mode boundary; its members say that they hold it."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """Make the open plan a fact. The wishes it answers go in the same transaction."""

    commit: Commit
    wishes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitAtOnce:
    """Plan and commit in one: modes now and restore. No `plan/<g>`: nobody has to say ready for it.

    `spec` is set where this generation fixes the job's kind. A new start of the job removes the
    outcome of the former one and `forgives` its failures.
    """

    commit: Commit
    spec: JobSpec | None = None
    clears_outcome: bool = False
    forgives: tuple[WorkerId, ...] = ()


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Drop an open plan; its generation number is spent."""

    generation: GenerationNumber


@dataclass(frozen=True, slots=True)
class End:
    """Say how the job ended."""

    outcome: Outcome
    wishes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fence:
    """Record an operator's word that these agents and their workers have ended."""

    agents: tuple[Incarnation, ...]
    by: str
    wishes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tidy:
    """Delete keys that no open generation names, and wishes that have been answered."""

    keys: tuple[str, ...]


Decision = Propose | CommitPlan | CommitAtOnce | GiveUp | End | Fence | Tidy


@dataclass(frozen=True, slots=True)
class Transaction:
    compares: tuple[Compare, ...]
    operations: tuple[Operation, ...]


def objection(
    commit: Commit, view: JobView, *, silent: frozenset[Incarnation] = frozenset()
) -> str | None:
    """Why this commit must not be made (rules C1 to C4), or None.

    `silent` are the agents that have been without a lease for the take-over time.
    """
    return (
        _number_objection(commit, view)
        or _readiness_objection(commit, view)
        or _overlap_objection(commit, view, silent)
        or _base_objection(commit, view, silent)
    )


def _number_objection(commit: Commit, view: JobView) -> str | None:
    """C1: a boundary commit is of the open plan, any other takes the next number."""
    head = view.head
    planned = commit.mode is Mode.BOUNDARY
    number = commit.generation
    if not planned and number.number == 1 and (head is None or number.era > head.era):
        return None  # a new era: the store is new, or lost what it had acknowledged
    if head is None:
        return f"{number.label} cannot be planned in a store without head"
    due = GenerationNumber(head.era, head.planned if planned else head.planned + 1)
    if commit.generation != due:
        return f"{commit.generation.label} is not {due.label}, which is due"
    if planned and due not in view.plans:
        return f"the plan of {due.label} was given up"
    return None


def _readiness_objection(commit: Commit, view: JobView) -> str | None:
    """C2: every member holds the plan, survivors included."""
    if commit.mode is not Mode.BOUNDARY:
        return None
    ready = view.ready.get(commit.generation, {})
    missing = [worker for worker in commit.workers if worker not in ready]
    if missing:
        return f"{_places(missing)} {_have(missing)} not said ready for {commit.generation.label}"
    return None


def _overlap_objection(commit: Commit, view: JobView, silent: frozenset[Incarnation]) -> str | None:
    """C3: share a living worker with every generation that could run, or know that one ended."""
    if commit.pauses:
        return None  # nobody runs in it, so it cannot be a second running group
    members = set(commit.workers)
    for older in view.open:
        if not older.members:
            continue
        shares = any(worker in members and not view.ended(worker) for worker in older.workers)
        proven = any(view.ended(worker) for worker in older.workers)
        taken_over = _may_be_taken_over(older, commit, view) and all(
            _agent(worker) in silent for worker in older.workers
        )
        if not (shares or proven or taken_over or _has_been_left(older, view)):
            label = older.generation.label
            ended = "it" if len(older.workers) == 1 else "one of them"
            return (
                f"{label} could still run: waits for {_places(older.workers)}"
                f" or proof that {ended} ended"
            )
    return None


def _may_be_taken_over(older: Commit, commit: Commit, view: JobView) -> bool:
    """A restore leaves a silent group behind; so does whoever goes on with what a restore began."""
    return commit.mode is Mode.RESTORE or any(
        newer.mode is Mode.RESTORE and newer.generation > older.generation for newer in view.open
    )


def _has_been_left(older: Commit, view: JobView) -> bool:
    """A worker entered a newer generation and met a member of this one there.

    Entering takes the arrival of all members, and whoever has arrived never goes back: this
    generation has lost a worker that it needs, also if nobody hears of that worker any more.
    """
    return any(
        newer.generation > older.generation
        and view.entries.get(newer.generation)
        and not set(older.workers).isdisjoint(newer.workers)
        for newer in view.open
    )


def _base_objection(commit: Commit, view: JobView, silent: frozenset[Incarnation]) -> str | None:
    """C4: state comes from a living holder; a snapshot only when no holder can be left."""
    if commit.pauses:
        return None
    if commit.mode is not Mode.RESTORE:
        if any(view.holds_state(worker) for worker in commit.workers):
            return None
        return "none of its members holds the training state"
    for older in view.open:
        left = [
            worker
            for worker in older.workers
            if view.may_hold_state(worker)
            and not view.ended(worker)
            and _agent(worker) not in silent
        ]
        if left:
            return f"{_places(left)} may hold newer state than any snapshot"
    return None


def transaction(decision: Decision, view: JobView, *, keys: JobKeys, token: int) -> Transaction:
    """The one transaction that carries a decision out, under the leader's and the head's fence."""
    fence: tuple[Compare, ...] = (
        Created(keys.leader, token),
        Modified(keys.head, view.head_revision),
    )
    match decision:
        case Propose(plan=plan):
            more, operations = _propose(plan, view, keys)
        case CommitPlan(commit=commit, wishes=wishes):
            more, operations = _commit_plan(commit, view, keys)
            operations += _without(wishes, keys)
        case CommitAtOnce():
            more, operations = _commit_at_once(decision, view, keys)
        case GiveUp(generation=generation):
            more = (Modified(keys.plan(generation), view.plan_revisions[generation]),)
            operations = (Delete(keys.plan(generation)), DeletePrefix(keys.ready_in(generation)))
        case End(outcome=outcome, wishes=wishes):
            more = (Modified(keys.outcome, view.outcome_revision),)
            operations = (Put(keys.outcome, encode(outcome)), *_without(wishes, keys))
        case Fence():
            more, operations = (), _fence(decision, keys)
        case Tidy(keys=stale):
            more = ()
            operations = tuple(Delete(key) for key in stale[:MOST_TIDIED])
        case _:
            assert_never(decision)
    return Transaction((*fence, *more), operations)


def _without(wishes: tuple[str, ...], keys: JobKeys) -> tuple[Operation, ...]:
    return tuple(Delete(keys.wish(wish)) for wish in wishes[:MOST_TIDIED])


def _fence(decision: Fence, keys: JobKeys) -> tuple[Operation, ...]:
    """The wish goes with the last of its agents: while it stands, the others are due."""
    ending = encode(Ending(how=f"fenced by {decision.by}"))
    due = decision.agents[:MOST_TIDIED]
    ended = tuple(Put(keys.gone_agent(one.node, one.incarnation), ending) for one in due)
    return ended if len(due) < len(decision.agents) else (*ended, *_without(decision.wishes, keys))


def _propose(
    plan: Plan, view: JobView, keys: JobKeys
) -> tuple[tuple[Compare, ...], tuple[Operation, ...]]:
    head = _head_of(view)
    assert plan.generation == GenerationNumber(head.era, head.planned + 1)
    moved = Head(
        era=head.era,
        planned=plan.generation.number,
        committed=head.committed,
        digest=head.digest,
    )
    more = (absent(keys.plan(plan.generation)),)
    return more, (Put(keys.plan(plan.generation), encode(plan)), Put(keys.head, encode(moved)))


def _commit_plan(
    commit: Commit, view: JobView, keys: JobKeys
) -> tuple[tuple[Compare, ...], tuple[Operation, ...]]:
    assert objection(commit, view) is None
    generation = commit.generation
    nodes = sorted({worker.node for worker in commit.workers})
    held: tuple[Compare, ...] = ()
    if len(nodes) <= MOST_NODE_COMPARES:
        held = tuple(Created(keys.node(n), view.nodes[n].create_revision) for n in nodes)
    more = (
        absent(keys.commit(generation)),
        Modified(keys.plan(generation), view.plan_revisions[generation]),
        *held,
    )
    return more, _facts(commit, keys)


def _commit_at_once(
    decision: CommitAtOnce, view: JobView, keys: JobKeys
) -> tuple[tuple[Compare, ...], tuple[Operation, ...]]:
    commit = decision.commit
    more: tuple[Compare, ...] = (
        absent(keys.commit(commit.generation)),
        absent(keys.plan(commit.generation)),
    )
    operations: tuple[Operation, ...] = _facts(commit, keys)
    if decision.spec is not None:
        more = (*more, Modified(keys.job, view.spec_revision))
        operations = (*operations, Put(keys.job, encode(decision.spec)))
    if commit.mode is Mode.RESTORE:
        operations = (*operations, Delete(keys.progress))  # it goes back: what stood there is over
    if decision.clears_outcome:
        operations = (*operations, Delete(keys.outcome))
    forgiven = (
        Put(keys.gone_worker(one), encode(msgspec.structs.replace(view.gone[one], failure=None)))
        for one in decision.forgives[:MOST_TIDIED]
    )
    return more, (*operations, *forgiven)


def _facts(commit: Commit, keys: JobKeys) -> tuple[Operation, ...]:
    generation = commit.generation
    head = Head(
        era=generation.era,
        planned=generation.number,
        committed=generation.number,
        digest=commit.digest,
    )
    return (Put(keys.commit(generation), encode(commit)), Put(keys.head, encode(head)))


def _head_of(view: JobView) -> Head:
    assert view.head is not None
    return view.head


def _agent(worker: WorkerId) -> Incarnation:
    return Incarnation(worker.node, worker.incarnation)


def _places(workers: Iterable[WorkerId]) -> str:
    names = [worker.place for worker in workers]
    if len(names) > MOST_NAMED:
        return f"{', '.join(names[:2])} and {len(names) - 2} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _have(workers: list[WorkerId]) -> str:
    return "has" if len(workers) == 1 else "have"
