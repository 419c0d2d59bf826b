"""An agent's link to a real etcd: what a leader sees, through harm to etcd, and what it costs."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from easyscale.agent import actions, events
from easyscale.agent.code_check import CodeCheck
from easyscale.agent.link import StoreLink
from easyscale.agent.settings import StoreSettings
from easyscale.agent.snapshots import Catalogue
from easyscale.model import Ending, NodeRecord, encode
from easyscale.rendezvous.etcd import connect
from easyscale.rendezvous.keys import JobKeys
from easyscale.rendezvous.store import Delete, Put, Store
from easyscale.rendezvous.view import JobView
from tests.support.etcd import Server, etcd_binary, own_server, wait_until
from tests.support.views import launch_settings

__all__ = ["etcd_binary", "own_server"]

TIMEOUT_S = 5.0
KEYS = JobKeys.of("linked")
OTHERS = 40


def record(node: str) -> NodeRecord:
    return NodeRecord(node=node, incarnation="i", boot_id="b", host=node, address="", slots=())


class Leader:
    """A link that stands for election, and all that it brought."""

    def __init__(self, etcd: Server, folder: Path, *, user: str = "", password: str = "") -> None:
        chosen = launch_settings(
            job_id="linked",
            working_directory=str(folder),
            snapshot_dir=str(folder / "snapshots"),
            store=StoreSettings(endpoints=(str(etcd.endpoint),), user=user, password=password),
        )
        self.brought: list[events.AgentEvent] = []
        self.link = StoreLink(
            chosen,
            Catalogue(folder / "snapshots", job_id="linked", node="a"),
            CodeCheck(chosen),
            post=self.brought.append,
            tell=lambda _: None,
            fail=self._fail,
        )
        self.link.start()
        self.link.take(actions.Enrol(record=record("a")))
        self.link.take(actions.Campaign())

    def _fail(self, error: Exception) -> None:
        raise error

    @property
    def view(self) -> JobView:
        seen = [one for one in self.brought if isinstance(one, events.Viewed) and one.complete]
        return seen[-1].view if seen else JobView()

    def standing(self) -> list[events.StoreAway | events.StoreBack]:
        return [e for e in self.brought if isinstance(e, events.StoreAway | events.StoreBack)]

    def sees(self, condition: Callable[[JobView], object], what: str) -> None:
        wait_until(lambda: condition(self.view), what)


@pytest.fixture
def leader(own_server: Server, tmp_path: Path) -> Iterator[Leader]:
    (tmp_path / "train.py").write_text("")
    leader = Leader(own_server, tmp_path)
    leader.sees(lambda view: view.leader_token, "it leads")
    yield leader
    leader.link.close()


@pytest.fixture
def store(own_server: Server) -> Iterator[Store]:
    store = connect(own_server.settings, timeout_s=TIMEOUT_S)
    yield store
    store.close()


def register(store: Store, *names: str) -> None:
    for name in names:
        store.transact([], [Put(KEYS.node(name), encode(record(name)))], timeout_s=TIMEOUT_S)


def test_what_others_write_reaches_a_leader_without_a_read(
    leader: Leader, store: Store, own_server: Server
) -> None:
    before = own_server.started("Range")
    began_s = time.monotonic()
    register(store, *(f"n{number}" for number in range(OTHERS)))
    leader.sees(lambda view: len(view.nodes) == OTHERS + 1, "it sees all")
    took_s = time.monotonic() - began_s
    # A stream that is silent for two seconds is asked whether it lives.
    assert own_server.started("Range") - before <= 2 + took_s
    store.transact([], [Delete(KEYS.node("n3"))], timeout_s=TIMEOUT_S)
    leader.sees(lambda view: "n3" not in view.nodes, "it sees a key go")
    assert list(leader.view.nodes) == sorted(leader.view.nodes)


def test_a_leader_sees_what_was_written_while_its_watch_was_broken_and_history_forgotten(
    leader: Leader, store: Store, own_server: Server
) -> None:
    register(store, "before")
    leader.sees(lambda view: "before" in view.nodes, "it follows")
    own_server.kill()
    own_server.start()
    store.transact([], [Delete(KEYS.node("before"))], timeout_s=TIMEOUT_S)
    register(store, "after")
    own_server.compact(store.read(KEYS.nodes, timeout_s=TIMEOUT_S).revision)
    leader.sees(lambda view: {"after", "a"} <= set(view.nodes), "it follows again")
    assert "before" not in leader.view.nodes


@pytest.mark.parametrize("harm", ["freeze", "kill"])
def test_a_link_closes_within_the_time_that_is_left_whatever_etcd_does(
    leader: Leader, own_server: Server, harm: str
) -> None:
    getattr(own_server, harm)()
    key = KEYS.gone_agent("a", "i")
    leader.link.take(actions.Write(key=key, value=encode(Ending(how="ended")), leased=False))
    leader.link.take(actions.Leave(how="drained"))
    began_s = time.monotonic()
    leader.link.close(within_s=0.5)
    assert time.monotonic() - began_s < 1.5


def test_an_etcd_that_is_full_is_told_of_once_and_written_to_when_it_has_room(
    leader: Leader, store: Store, own_server: Server
) -> None:
    own_server.refuse_writes(refuse=True)
    key = KEYS.gone_agent("b", "i")
    ask = actions.Transact(
        name="n", compares=(), operations=(Put(KEYS.wish("w"), encode(Ending(how="x"))),)
    )
    leader.link.take(ask)
    leader.link.take(actions.Write(key=key, value=encode(Ending(how="ended")), leased=False))
    time.sleep(2.0)  # renewals of the lease and the watch's probes are answered meanwhile
    (away,) = leader.standing()
    assert isinstance(away, events.StoreAway)
    assert away.refuses == "mvcc: database space exceeded"
    own_server.refuse_writes(refuse=False)
    wait_until(lambda: len(leader.standing()) == 2, "its return is told")
    leader.sees(lambda view: "b" in {one.node for one in view.gone_agents}, "it is written")
    assert leader.view.leader_token, "it has led all the time"
    assert not any(isinstance(e, events.Deposed | events.LeaseEnded) for e in leader.brought)


def test_a_password_that_counts_no_more_ends_nothing_and_counts_again(
    own_server: Server, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("")
    own_server.enable_users("old")
    leader = Leader(own_server, tmp_path, user="root", password="old")
    try:
        leader.sees(lambda view: view.leader_token, "it leads")
        own_server.change_password("old", "new")
        leader.link.take(
            actions.Write(
                key=KEYS.gone_agent("b", "i"), value=encode(Ending(how="ended")), leased=False
            )
        )
        wait_until(leader.standing, "it is told")
        (away,) = leader.standing()
        assert isinstance(away, events.StoreAway)
        assert "authentication failed" in away.refuses
        time.sleep(1.0)
        own_server.change_password("new", "old")
        wait_until(lambda: len(leader.standing()) == 2, "its return is told")
        leader.sees(lambda view: "b" in {one.node for one in view.gone_agents}, "it is written")
    finally:
        leader.link.close()
