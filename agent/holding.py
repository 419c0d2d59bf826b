"""The snapshot that a restore reads, and who of its members holds it; or what it waits for. Pure.

A snapshot on the disk of a node that is away is not lost: that node is waited for, and what is
given up when it does not come is said.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from easyscale.agent import restoring, words
from easyscale.agent.memory import Memory
from easyscale.agent.restoring import Copies
from easyscale.agent.verdicts import Standpoint, Verdict, Waiting
from easyscale.errors import ExitCode
from easyscale.model import JobState, Outcome, SnapshotRecord
from easyscale.rendezvous.agreement import End


@dataclass(frozen=True, slots=True)
class Choice:
    """What a restore starts from; without a snapshot, from what the script builds."""

    snapshot: SnapshotRecord | None = None
    #: Nodes that see it.
    holders: tuple[str, ...] = ()
    #: Why it is not the newest.
    reason: str = ""


def choose(at: Standpoint, memory: Memory, *, nodes: Collection[str]) -> Choice | Verdict:
    """The newest snapshot that one of these nodes holds, unless a newer one is worth a wait."""
    known = restoring.copies(at.view, at.found)
    newest = _newest(at, known.values())
    if newest is None:
        refused = _none_is_readable(known)
        return _end(refused, ExitCode.JOB_FAILED, memory) if refused else Choice()
    members = [node.record for name, node in at.view.nodes.items() if name in nodes]
    if holders := newest.on(members):
        return Choice(newest.record, holders)
    here = newest.on(node.record for node in at.view.nodes.values())
    if (waits := _wait(at, memory, newest, here=here)) is not None:
        return waits
    older = _newest(at, (each for each in known.values() if each.on(members)))
    if older is None:
        return _end(_did_not_come(newest), ExitCode.TOO_FEW_NODES, memory)
    return Choice(older.record, older.on(members), _passed_over(newest, older))


def _newest(at: Standpoint, known: Iterable[Copies]) -> Copies | None:
    each_of = {each.record.name: each for each in known}
    best = restoring.newest_to_restore((c.record for c in each_of.values()), at.view.newest)
    return each_of[best.name] if best is not None else None


def _wait(
    at: Standpoint, memory: Memory, newest: Copies, *, here: tuple[str, ...]
) -> Verdict | None:
    """Wait for a node that has the newest; None once that has taken too long.

    Who comes after the end of the job learns that it is over: nothing is left to restore.
    """
    standing = at.view.outcome
    if standing is not None and standing.state is JobState.FINISHED and not here:
        why = f"finished before; its last snapshot lies on {words.listed(newest.nodes)}"
        return Verdict(End(standing), why, memory)
    others_come = bool(at.settings.store.endpoints or at.settings.store.serve_at or here)
    since = at.now if memory.gathering_s is None else memory.gathering_s
    # Without a take-over no step is given up, however long the others are away.
    is_endless = at.settings.takeover_after_s is None
    limit_s = None if is_endless else at.timeouts.meeting_timeout_s
    if not others_come or (limit_s is not None and at.now >= since + limit_s):
        return None
    wake_s = None if limit_s is None else since + limit_s
    return Verdict(None, _apart(newest, here=here), memory, wake_s, Waiting(since, limit_s))


def _end(why: str, code: ExitCode, memory: Memory) -> Verdict:
    return Verdict(End(Outcome(state=JobState.FAILED, exit_code=code, reason=why)), why, memory)


def _named(snapshot: Copies) -> str:
    return f"the snapshot of step {snapshot.record.step:,}"


def _apart(newest: Copies, *, here: tuple[str, ...]) -> str:
    if here:
        return f"waits for the workers of {words.listed(here)}, who can read {_named(newest)}"
    nodes = words.listed(newest.nodes)
    return (
        f"{_named(newest)} lies on {nodes} alone: start {nodes} again"
        " (any node reads it from a --snapshot-dir that all share)"
    )


def _did_not_come(newest: Copies) -> str:
    nodes = words.listed(newest.nodes)
    return (
        f"{_named(newest)} lies on {nodes} alone, which did not come; a launch on"
        f" {nodes}, or with a --snapshot-dir that all nodes share, goes on from it"
    )


def _passed_over(newest: Copies, older: Copies) -> str:
    lost = words.count(newest.record.step - older.record.step, "step")
    return (
        f"all were gone; {_named(newest)} lies on {words.listed(newest.nodes)} alone, which did"
        f" not come: {lost} more are lost"
    )


def _none_is_readable(known: Mapping[str, Copies]) -> str:
    """Why a job that has snapshots cannot go on; it must not begin anew without a word."""
    if not known:
        return ""
    newest = max((each.record for each in known.values()), key=restoring.age_order)
    others = f", nor any of the {len(known) - 1} before it" if len(known) > 1 else ""
    return (
        f"snapshot {newest.name} cannot be read{others}: {newest.rejected}; "
        "--job-id NAME begins a new job from step 0"
    )
