"""The restart budget and the conviction of a script: a pure function of the recorded failures.

A micro-step depends on (logical rank, step) alone. The same failure of it on three slots is
therefore the script's, and a failure that vanishes elsewhere is the device's. Who fails on the way
in, before the first generation, speaks for its own node while somebody else stands or gets further.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from easyscale.agent import words
from easyscale.errors import ExitCode
from easyscale.model import Cause, GenerationNumber, Mode, NodeRecord, WorkerFailure, WorkerId
from easyscale.rendezvous.agreement import JobView

#: The same failure on so many slots (on all, where there are fewer) is the script's.
CONVICTING_SLOTS = 3
#: On the only slot in use it has to happen so often.
CONVICTING_TIMES = 2
#: States of slots that get no worker any more.
NOT_OFFERED = ("draining", "gone")

Failed = tuple[WorkerId, WorkerFailure]


@dataclass(frozen=True, slots=True)
class Ruling:
    """How much of the budget is used, and whether the job ends for it."""

    used: int
    exit_code: ExitCode | None = None
    cause: Cause | None = None

    @property
    def ends(self) -> bool:
        return self.exit_code is not None


def failures(view: JobView) -> tuple[Failed, ...]:
    """All recorded failures that nothing has outdated, in the order in which they were recorded.

    Where a restore had to follow, nobody has survived, though each agent may have thought so of
    the others. What kept a place from coming in is behind it once a worker has come in there.
    """
    base = view.base
    members = base.workers if base is not None else ()
    came_in = {w.place for w in members if view.is_present(w) and view.holds_state(w)}
    restored = base.generation if base is not None and base.mode is Mode.RESTORE else None
    found = ((worker, view.gone[worker].failure) for worker in view.gone_order)
    return tuple(
        (worker, _as_it_came_out(failure, restored))
        for worker, failure in found
        if failure is not None and not (failure.generation is None and worker.place in came_in)
    )


def _as_it_came_out(failure: WorkerFailure, restored: GenerationNumber | None) -> WorkerFailure:
    if restored is None or failure.generation is None or failure.generation >= restored:
        return failure
    return replace(failure, survived=False)


def counted(
    failed: Sequence[Failed], *, step: int, forgiven_after_steps: int
) -> tuple[Failed, ...]:
    """Those that the job has not left behind by making progress since."""
    return tuple((w, f) for w, f in failed if max(f.step, f.job_step) + forgiven_after_steps > step)


def contenders(
    failed: Sequence[Failed], view: JobView, nodes: Iterable[NodeRecord]
) -> frozenset[str]:
    """The places of these nodes that have a worker, or lost one by a failure and get another."""
    lost = {worker.place for worker, _ in failed}
    return frozenset(
        f"{node.node}/{slot.slot}"
        for node in nodes
        for slot in node.slots
        if (slot.worker is not None and not view.ended(slot.worker))
        or (f"{node.node}/{slot.slot}" in lost and slot.state not in NOT_OFFERED)
    )


def judge(
    failed: Sequence[Failed],
    *,
    slots: int,
    places: Collection[str],
    max_restarts: int,
    benched_after: int,
    workers: int,
    formed: bool = False,
) -> Ruling:
    """Decide on the counted failures of a job that has so many slots and living workers.

    `places`: its contenders. `benched_after`: failures in a row that put a slot in quarantine while
    others train. `formed`: the script has come as far as a generation once, so what
    stops it on the way in convicts it only where nobody gets past it.
    """
    spent = used(failed, places=places, benched_after=benched_after)
    if formed and not set(places) <= set(_on_the_way_in(failed)):
        failed = [(w, f) for w, f in failed if f.generation is not None]
    for worker, failure in failed:
        if failure.refused:
            why = failure.hint or "it would be the same on any slot, so it was not tried again"
            return _ends(
                ExitCode.JOB_FAILED,
                [(worker, failure)],
                why=why,
                blames="script",
                used=spent,
                workers=workers,
            )
    same: dict[Hashable, list[Failed]] = defaultdict(list)
    for worker, failure in failed:
        if _is_comparable(failure):
            same[(failure.rank, failure.step, failure.type, failure.place)].append(
                (worker, failure)
            )
    for alike in same.values():
        if _convicts(alike, slots):
            why = _conviction(alike, slots)
            return _ends(
                ExitCode.JOB_FAILED, alike, why=why, blames="script", used=spent, workers=workers
            )
    if spent > max_restarts:
        why, blames = _exhaustion(failed, spent, max_restarts)
        return _ends(
            ExitCode.RESTART_BUDGET_SPENT,
            failed,
            why=why,
            blames=blames,
            used=spent,
            workers=workers,
        )
    return Ruling(spent)


def used(failed: Sequence[Failed], *, places: Collection[str], benched_after: int) -> int:
    """How many failures these count as.

    Those of one generation are one: a node of eight slots that dies is no eight failures. On the
    way in it takes one at each place to keep the job from starting. What others survived is its
    own place's, and so many of it in a row end in quarantine: it adds to nothing.
    """
    generations = {f.generation for _, f in failed if f.generation is not None and not f.survived}
    rounds = _on_the_way_in(failed)
    given_up = {worker.place for worker, failure in failed if failure.refused}
    again = set(places) - given_up
    not_survived = len(generations) + min((rounds[place] for place in again), default=0)
    survived = Counter(w.place for w, f in failed if f.generation is not None and f.survived)
    return max(not_survived, min(max(survived.values(), default=0), benched_after))


def _on_the_way_in(failed: Sequence[Failed]) -> Counter[str]:
    return Counter(worker.place for worker, failure in failed if failure.generation is None)


def _is_comparable(failure: WorkerFailure) -> bool:
    """A signal outside a micro-step (rank unknown) may come from anywhere and convicts nobody."""
    return failure.rank is not None or bool(failure.place) or failure.type.startswith("exit")


def _convicts(alike: Sequence[Failed], slots: int) -> bool:
    if slots <= 1:
        return len(alike) >= CONVICTING_TIMES
    return len({worker.place for worker, _ in alike}) >= min(CONVICTING_SLOTS, slots)


def _conviction(alike: Sequence[Failed], slots: int) -> str:
    failure = alike[0][1]
    where = list(dict.fromkeys(worker.place for worker, _ in alike))
    who = "the script" if failure.rank is None else f"rank {failure.rank}"
    # Others may be drained or in quarantine: there are more slots then than can be tried.
    times = (
        f"{len(alike)} times on the only slot in use, {where[0]}"
        if slots <= 1 and len(where) == 1
        else f"on {words.count(len(where), 'slot')} ({', '.join(where)})"
    )
    verdict = "it is the script or its data, not a device"
    return f"{who} failed the same way at step {failure.step:,} {times}: {verdict}"


def _exhaustion(failed: Sequence[Failed], used: int, borne: int) -> tuple[str, str]:
    where = {worker.place for worker, _ in failed}
    hit = {failure.rank for _, failure in failed}
    if len(where) == 1 and len(hit) > 1:
        place = next(iter(where))
        node = failed[0][0].node
        steps = [f"{step:,}" for step in sorted({f.step for _, f in failed})]
        why = (
            f"{place} failed at {'steps' if len(steps) > 1 else 'step'} {words.listed(steps)} with"
            f" {words.count(len(hit), 'rank')} that ran well elsewhere: the device or node {node},"
            " not the script"
        )
        return why, "device"
    why = f"{words.count(used, 'failure')} without progress; {borne} are borne (--max-restarts)"
    return why, "budget"


def _ends(
    exit_code: ExitCode,
    failed: Sequence[Failed],
    *,
    why: str,
    blames: str,
    used: int,
    workers: int,
) -> Ruling:
    worker, failure = min(failed, key=_by_causality)
    others = dict.fromkeys(w.place for w, _ in failed if w.place != worker.place)
    cause = Cause(
        worker=worker,
        failure=failure,
        why_ended=why,
        blames=blames,
        also_on=tuple(others),
        victims=workers,
    )
    return Ruling(used, exit_code, cause)


def _by_causality(one: Failed) -> tuple[GenerationNumber, int, int]:
    """The first failure by its generation and step; min keeps the first recorded of equals."""
    generation = one[1].generation or GenerationNumber(0, 0)
    return generation, one[1].step, one[0].spawn
