"""Agents ask each other at their doors whether the way between them is open."""

import queue

from easyscale.agent.actions import Probe
from easyscale.agent.doors.prober import QUESTION, probe
from easyscale.agent.doors.remote_door import RemoteDoor
from easyscale.agent.events import Probed
from easyscale.model import NodeRecord, encode
from easyscale.rendezvous.keys import JobKeys
from easyscale.rendezvous.memory import MemoryServer
from easyscale.rendezvous.store import Put

KEYS = JobKeys.of("job")


def record(node: str, address: str) -> str:
    return encode(
        NodeRecord(node=node, incarnation="i", boot_id="b", host=node, address=address, slots=())
    )


def test_who_answers_with_the_jobs_token_is_reached_and_nobody_else() -> None:
    doors = {name: RemoteDoor("127.0.0.1") for name in ("ours", "other-job", "closed")}
    doors["ours"].open(token=lambda: "t" * 32, handlers={QUESTION: lambda _: {}})
    doors["other-job"].open(token=lambda: "u" * 32, handlers={QUESTION: lambda _: {}})
    doors["closed"].open(token=lambda: "t" * 32, handlers={})
    doors["closed"].close()
    store = MemoryServer(lambda: 0.0).client()
    puts = [Put(KEYS.node(name), record(name, door.address)) for name, door in doors.items()]
    doorless = Put(KEYS.node("doorless"), record("doorless", ""))
    store.transact([], [*puts, doorless], timeout_s=1)
    answers: queue.Queue[Probed] = queue.Queue()
    nodes = ("closed", "doorless", "gone", "other-job", "ours")
    try:
        probe(Probe(nodes=nodes), keys=KEYS, store=store, token="t" * 32, post=answers.put)
        answer = answers.get(timeout=10)
        assert answer == Probed(asked=nodes, reached=("doorless", "ours"), absent=("gone",))
        store.cut()
        probe(Probe(nodes=("ours",)), keys=KEYS, store=store, token="t" * 32, post=answers.put)
        assert answers.get(timeout=10) == Probed(asked=("ours",), reached=(), absent=())
    finally:
        for name in ("ours", "other-job"):
            doors[name].close()
