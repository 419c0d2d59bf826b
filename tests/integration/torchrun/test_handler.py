"""The rendezvous of torchrun's agents, handler by handler, on a real etcd."""

import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from tests.support.etcd import Server, free_port, wait_until

SHORT = {"last_call_timeout": "1", "keep_alive_interval": "1", "keep_alive_max_attempt": "2"}


class Nodes:
    """The handlers of one run, each meeting in a thread of its own."""

    def __init__(self, etcd: Server, run_id: str) -> None:
        self.etcd, self.run_id = etcd, run_id
        self.handlers: list[RendezvousHandler] = []
        self.pool = ThreadPoolExecutor(8)

    def handler(self, least: int, most: int, **conf: str) -> RendezvousHandler:
        parameters = RendezvousParameters(
            "easyscale", str(self.etcd.endpoint), self.run_id, least, most, "127.0.0.1",
            **{"join_timeout": "20", **SHORT, **conf},
        )  # fmt: skip
        made = get_rendezvous_handler(parameters)
        self.handlers.append(made)
        return made

    def meet(self, *handlers: RendezvousHandler) -> list[RendezvousInfo]:
        asked = [self.ask(handler) for handler in handlers]
        return sorted((one.result(30) for one in asked), key=lambda info: info.rank)

    def ask(self, handler: RendezvousHandler) -> "Future[RendezvousInfo]":
        return self.pool.submit(handler.next_rendezvous)

    def end(self) -> None:
        for handler in self.handlers:
            handler.shutdown()
        self.pool.shutdown()
        gc.collect()  # torch's stores close their sockets when they go


@pytest.fixture
def nodes(etcd_server: Server, folder: str) -> Iterator[Nodes]:
    made = Nodes(etcd_server, folder)
    yield made
    made.end()


def until(condition: Callable[[], object], what: str) -> None:
    wait_until(condition, what, deadline_s=15)


@pytest.mark.timeout(60)
def test_two_nodes_meet_share_a_store_and_close(nodes: Nodes) -> None:
    a, b = nodes.handler(2, 2), nodes.handler(2, 2)
    assert (a.get_backend(), a.get_run_id(), a.use_agent_store) == ("easyscale", nodes.run_id, True)
    first, second = nodes.meet(a, b)
    assert [(i.rank, i.world_size) for i in (first, second)] == [(0, 2), (1, 2)]
    first.store.set("word", "said")
    assert second.store.get("word") == b"said"
    assert first.bootstrap_store_info == second.bootstrap_store_info
    assert (a.num_nodes_waiting(), b.num_nodes_waiting(), a.is_closed()) == (0, 0, False)
    assert a.shutdown()
    until(b.is_closed, "b hears that the run is closed")
    assert b.num_nodes_waiting() == 0
    with pytest.raises(RendezvousClosedError, match="is closed"):
        b.next_rendezvous()
    with pytest.raises(RendezvousClosedError, match="is closed"):
        nodes.handler(1, 2).next_rendezvous()


@pytest.mark.timeout(60)
def test_a_late_node_is_let_in_and_a_lost_one_is_noticed(nodes: Nodes) -> None:
    a = nodes.handler(1, 2)
    (alone,) = nodes.meet(a)
    assert alone.world_size == 1
    b = nodes.handler(1, 2)
    joining = nodes.ask(b)
    until(a.num_nodes_waiting, "a hears of the late node")
    (again,) = nodes.meet(a)
    assert [(i.rank, i.world_size) for i in (again, joining.result(30))] == [(0, 2), (1, 2)]
    again.store.set("word", "of this round")
    surplus = nodes.ask(nodes.handler(1, 2, join_timeout="2"))
    with pytest.raises(RendezvousTimeoutError, match=r"waits for all 2 nodes of round 2 live"):
        surplus.result(30)
    assert a.num_nodes_waiting() == 0, "nobody is disturbed for a node without a place"

    began = time.monotonic()
    b._store.close()  # type: ignore[attr-defined]  # its host has lost all power
    until(a.num_nodes_waiting, "a hears that b is lost")
    assert time.monotonic() - began < 10
    (alone,) = nodes.meet(a)
    assert (alone.rank, alone.world_size) == (0, 1)
    assert not alone.store.check(["word"]), "every round has a store of its own"


@pytest.mark.timeout(30)
def test_too_few_nodes_and_a_silent_etcd_are_told_in_torchs_words(nodes: Nodes) -> None:
    with pytest.raises(RendezvousTimeoutError, match="1 of at least 2 nodes have joined"):
        nodes.handler(2, 2, join_timeout="1").next_rendezvous()
    nowhere = RendezvousParameters(
        "easyscale", f"127.0.0.1:{free_port()}", "r", 1, 1, join_timeout="1"
    )
    with pytest.raises(RendezvousConnectionError, match="no etcd answered, asked for"):
        get_rendezvous_handler(nowhere)
