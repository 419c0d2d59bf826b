"""What the leader of a plain or packed job decides: a pure function of what it sees.

    too few -> RUNNING -> all done -> outcome
                  | a failure, a loss, a newcomer
               STOPPING -> all have stopped -> the next round, or outcome

A failure is charged only where all members of its round are still there: who lost its peers has
not failed. One decision at a time; the store refuses it if what it rests on has changed.
"""

from dataclasses import dataclass

import msgspec

from easyscale.agent.plain import ranks
from easyscale.agent.plain.settings import StaticPlace
from easyscale.agent.plain.values import (
    Fault,
    Member,
    Offer,
    Outcome,
    Report,
    ReportState,
    Round,
    RoundPhase,
    Sight,
    Terms,
)
from easyscale.agent.words import listed
from easyscale.errors import ExitCode


@dataclass(frozen=True, slots=True)
class Waited:
    """How long things are as they are, by the leader's clock."""

    #: Since the set of nodes that are there last changed.
    quiet_s: float
    #: Since nodes were last enough to train, or since the leader began to wait for them.
    short_s: float


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the leader waits for nodes."""

    join_timeout_s: float
    last_call_s: float


Decision = Round | Outcome | None


def decide(sight: Sight, terms: Terms, waited: Waited, patience: Patience) -> Decision:
    """The next thing to write, or None."""
    if sight.outcome is not None:
        return None
    decision = _decide(sight, terms, waited, patience)
    if sight.stop is None or isinstance(decision, Outcome):
        return decision
    restarts = sight.round.restarts if sight.round is not None else 0
    reason = f"stopped by {sight.stop.by or 'a wish'}"
    return Outcome(exit_code=ExitCode.DONE, reason=reason, restarts=restarts, is_stop=True)


def _decide(sight: Sight, terms: Terms, waited: Waited, patience: Patience) -> Decision:
    if sight.round is None:
        return _first(sight, terms, waited, patience)
    if sight.round.phase is RoundPhase.RUNNING:
        return _judge(sight, sight.round, terms)
    return _after(sight, sight.round, terms, waited, patience)


def _first(sight: Sight, terms: Terms, waited: Waited, patience: Patience) -> Decision:
    if len(sight.staying) < terms.min_nodes:
        return _too_few(sight, terms, waited, patience)
    if not _is_full(sight, terms) and waited.quiet_s < patience.last_call_s:
        return None
    return next_round(sight, terms, restarts=0, reason="")


def _judge(sight: Sight, running: Round, terms: Terms) -> Decision:
    """Whether a running round goes on."""
    done = {n for n, report in sight.reports.items() if report.state is ReportState.DONE}
    left = [m for m in running.members if m.node not in done]
    if not left:
        return Outcome(exit_code=ExitCode.DONE, reason="", restarts=running.restarts)
    failed = [n for n, report in sight.reports.items() if report.state is ReportState.FAILED]
    gone = [m.node for m in left if _is_gone(sight, m)]
    if failed or gone:
        why = f"lost {listed(gone)}" if gone else f"a worker of {failed[0]} failed"
        return _stopped(running, why, lost=tuple(gone))
    if any(m.node in done and m.workers for m in running.members):
        return None  # nearly over: nobody is asked to begin again for more or other devices
    if drained := [m.node for m in running.members if sight.leaving(m.node)]:
        return _stopped(running, f"drained {listed(drained)}", drained=tuple(drained))
    newcomers = _newcomers(sight, running, terms)
    if newcomers and _has_need(running, terms):
        return _stopped(running, f"{listed(newcomers)} joined", joined=tuple(newcomers))
    if changed := [m.node for m in running.members if _has_changed(sight, m)]:
        return _stopped(running, f"{listed(changed)}: other slots")
    return None


def _stopped(running: Round, reason: str, **changed: tuple[str, ...]) -> Round:
    """`changed`: the nodes that were lost, drained, or joined."""
    return msgspec.structs.replace(running, phase=RoundPhase.STOPPING, reason=reason, **changed)


def _after(
    sight: Sight, stopping: Round, terms: Terms, waited: Waited, patience: Patience
) -> Decision:
    """What follows a round once all of its workers have ended."""
    gone = [m for m in stopping.members if _is_gone(sight, m)]
    if any(m not in gone and not _has_stopped(sight, m) for m in stopping.members):
        return None
    faults = [r.fault for r in sight.reports.values() if r.fault is not None]
    is_charged = bool(faults) and not gone
    restarts = stopping.restarts + is_charged
    if is_charged:
        fault = first_fault(faults)
        if fault.is_hopeless or restarts > terms.max_restarts:
            failed = sum(report.failed for report in sight.reports.values())
            return _failed(stopping, fault, terms, also=max(failed - 1, 0))
    if len(sight.staying) < terms.min_nodes:
        return _too_few(sight, terms, waited, patience)
    reason = f"restart {restarts} of {terms.max_restarts}" if is_charged else stopping.reason
    return next_round(sight, terms, restarts=restarts, reason=reason)


def next_round(sight: Sight, terms: Terms, *, restarts: int, reason: str) -> Round:
    """A round of the nodes that are there, with new ranks where it must be."""
    before = sight.round
    names = [member.node for member in before.members] if before else []
    by_name = {offer.node: offer for offer in sight.staying}
    order = ranks.order_nodes(names, by_name, most=terms.max_nodes)
    offers = [by_name[node] for node in order]
    return round_of(
        offers,
        logical_workers=terms.logical_workers,
        number=before.number + 1 if before else 1,
        restarts=restarts,
        reason=reason,
    )


def round_of(
    offers: list[Offer], *, logical_workers: int | None, number: int, restarts: int, reason: str
) -> Round:
    places = [offer.places for offer in offers]
    if logical_workers is not None:
        places = ranks.deal(logical_workers, places)
    members = ranks.members_of(offers, places)
    return Round(
        number=number,
        phase=RoundPhase.RUNNING,
        restarts=restarts,
        members=members,
        world_size=sum(member.workers for member in members),
        group_world_size=sum(member.workers > 0 for member in members),
        master_addr=offers[0].address,
        master_port=offers[0].port,
        reason=reason,
    )


def at_static_place(round_: Round, place: StaticPlace) -> Round:
    """The same round among nodes that do not meet: all have as many workers as this one."""
    (member,) = round_.members
    first = place.node_rank * member.workers
    size = place.nodes * member.workers
    here = msgspec.structs.replace(
        member,
        group_rank=place.node_rank,
        first_rank=first,
        first_role_rank=first,
        role_world_size=size,
    )
    return msgspec.structs.replace(
        round_,
        members=(here,),
        world_size=size,
        group_world_size=place.nodes,
        master_addr=place.master_addr,
        master_port=place.master_port,
    )


def first_fault(faults: list[Fault]) -> Fault:
    """The earliest by causality: who only lost its peers comes after who failed by itself."""
    return min(faults, key=lambda fault: fault.is_victim)


def _failed(stopping: Round, fault: Fault, terms: Terms, *, also: int) -> Outcome:
    others = max(stopping.world_size - 1 - also, 0)
    if fault.is_hopeless:
        why = "it would fail the same way again: not restarted"
    elif terms.max_restarts:
        why = f"{terms.max_restarts} of {terms.max_restarts} restarts are spent"
    else:
        why = "a worker failed, and --max-restarts is 0"
    return Outcome(
        exit_code=ExitCode.JOB_FAILED,
        reason=why,
        fault=fault,
        restarts=stopping.restarts,
        victims=others,
        also_failed=also,
    )


def _too_few(sight: Sight, terms: Terms, waited: Waited, patience: Patience) -> Decision:
    if waited.short_s < patience.join_timeout_s:
        return None
    have = ", ".join(offer.node for offer in sight.offers)
    return Outcome(
        exit_code=ExitCode.TOO_FEW_NODES,
        reason=f"{len(sight.offers)} of {terms.min_nodes} nodes came within"
        f" {patience.join_timeout_s:g} s: have {have}",
    )


def _is_full(sight: Sight, terms: Terms) -> bool:
    return terms.max_nodes is not None and len(sight.offers) >= terms.max_nodes


def _is_gone(sight: Sight, member: Member) -> bool:
    return sight.offer(member.node, member.incarnation) is None


def _has_changed(sight: Sight, member: Member) -> bool:
    offer = sight.offer(member.node, member.incarnation)
    return offer is not None and offer.places != member.offered


def _has_stopped(sight: Sight, member: Member) -> bool:
    report: Report | None = sight.reports.get(member.node)
    return report is not None and report.incarnation == member.incarnation and report.is_over


def _has_need(running: Round, terms: Terms) -> bool:
    """Whether more slots would change anything: packed ranks that have one each need no other."""
    if terms.logical_workers is None:
        return True
    return any(len(set(member.places)) < member.workers for member in running.members)


def _newcomers(sight: Sight, running: Round, terms: Terms) -> list[str]:
    known = {(member.node, member.incarnation) for member in running.members}
    new = [o.node for o in sight.staying if (o.node, o.incarnation) not in known]
    room = None if terms.max_nodes is None else terms.max_nodes - len(running.members)
    return new[:room]
