"""Which keys of a job no open generation names any more; the leader deletes them."""

from collections.abc import Iterable

from easyscale.model import GenerationNumber, WorkerId
from easyscale.rendezvous.keys import Incarnation, JobKeys
from easyscale.rendezvous.view import JobView


def stale_keys(view: JobView, keys: JobKeys, *, keep: Iterable[WorkerId] = ()) -> tuple[str, ...]:
    """Keys of generations and workers that no open generation names; `keep` still explain."""
    head = view.head
    if head is None or not view.open:
        return ()
    current = {commit.generation for commit in view.open}
    planned = GenerationNumber(head.era, head.planned)
    named = {worker for commit in view.open for worker in commit.workers}
    named |= {
        slot.worker for node in view.nodes.values() for slot in node.record.slots if slot.worker
    }
    if planned in view.plans:
        named |= set(view.plans[planned].workers)
    named |= set(keep)
    agents = {Incarnation(worker.node, worker.incarnation) for worker in named}
    agents |= {node.incarnation for node in view.nodes.values()}
    stale = [keys.plan(g) for g in view.plans if g not in current and g != planned]
    stale += [keys.commit(g) for g in view.commits if g not in current]
    stale += [
        keys.ready(g, worker) for g, held in view.ready.items() if g != planned for worker in held
    ]
    stale += [
        keys.entry(g, worker)
        for g, entered in view.entries.items()
        if g not in current
        for worker in entered
    ]
    stale += [
        keys.broken(g, worker)
        for g, broken in view.breaks.items()
        if g not in current
        for worker in broken
    ]
    stale += [keys.gone_worker(worker) for worker in view.gone if worker not in named]
    stale += [
        keys.gone_agent(one.node, one.incarnation) for one in view.gone_agents if one not in agents
    ]
    return tuple(stale)
