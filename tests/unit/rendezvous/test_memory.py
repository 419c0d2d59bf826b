"""The store in memory keeps the contract, and its harms do what they say."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from easyscale.errors import OutcomeUnknown, StoreUnreachable
from easyscale.rendezvous.memory import MemoryServer
from easyscale.rendezvous.store import Put, Store, View
from tests.support.store_contract import (
    TIMEOUT_S,
    Follower,
    OutageContract,
    StoreContract,
    put,
    read,
)


@dataclass(slots=True)
class MemoryWorld:
    """A world whose time and deliveries are the test's."""

    folder: str = "/easyscale/v1/test/"
    now: float = 1000.0
    server: MemoryServer = field(init=False)

    def __post_init__(self) -> None:
        self.server = MemoryServer(lambda: self.now)

    def client(self) -> Store:
        return self.server.client()

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        self.server.deliver()
        assert condition(), what

    def settle(self) -> None:
        self.server.deliver()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def stop_server(self) -> None:
        self.server.stop()

    def start_server(self) -> None:
        self.server.start()

    def wipe_server(self) -> None:
        self.server.wipe()


@pytest.fixture
def world() -> MemoryWorld:
    return MemoryWorld()


class TestMemoryStore(StoreContract, OutageContract):
    """The contract, on memory."""


def test_nothing_is_delivered_before_it_is_asked_for(world: MemoryWorld) -> None:
    views: list[View] = []
    world.client().watch(world.folder, deliver=views.append, lost=pytest.fail)
    assert views == []
    assert world.server.deliver() == 1
    assert len(views) == 1


def test_a_lease_lives_until_its_last_moment(world: MemoryWorld) -> None:
    store = world.client()
    lease = store.grant(5, timeout_s=TIMEOUT_S)
    world.now += 4.999
    assert store.keep_alive(lease, timeout_s=TIMEOUT_S) == 5
    world.now += 5
    assert store.keep_alive(lease, timeout_s=TIMEOUT_S) == 0


def test_a_lost_answer_hides_whether_it_was_carried_out(world: MemoryWorld) -> None:
    store = world.server.client()
    store.lose_answer(executed=False)
    store.lose_answer(executed=True)
    for name in ("a", "b"):
        with pytest.raises(OutcomeUnknown):
            put(store, world, **{name: "1"})
    assert list(read(store, world).entries) == [world.folder + "b"]


def test_a_cut_client_is_alone(world: MemoryWorld) -> None:
    cut, other = world.server.client(), world.server.client()
    followers = [Follower(world, store, world.folder).start() for store in (cut, other)]
    cut.cut()
    with pytest.raises(StoreUnreachable):
        read(cut, world)
    put(other, world, a="1")
    followers[1].expect(a="1")
    assert [len(follower.losses) for follower in followers] == [1, 0]
    assert len(followers[0].views) == 1
    cut.heal()
    followers[0].expect(a="1")


def test_a_held_watch_hears_everything_later_and_in_order(world: MemoryWorld) -> None:
    store = world.server.client()
    views: list[View] = []
    watch = store.watch(world.folder, deliver=views.append, lost=pytest.fail)
    world.settle()
    watch.is_held = True
    for number in range(3):
        put(store, world, a=str(number))
    world.settle()
    assert len(views) == 1
    watch.is_held = False
    world.settle()
    assert [view.entries[world.folder + "a"].value for view in views[1:]] == ["0", "1", "2"]


def test_a_held_watch_finds_the_newest_view_after_a_compaction(world: MemoryWorld) -> None:
    store = world.server.client()
    views: list[View] = []
    watch = store.watch(world.folder, deliver=views.append, lost=pytest.fail)
    world.settle()
    watch.is_held = True
    for number in range(3):
        put(store, world, a=str(number))
    world.server.compact()
    watch.is_held = False
    world.settle()
    assert [view.entries[world.folder + "a"].value for view in views[1:]] == ["2"]


def test_callbacks_that_never_come_to_rest_are_an_error(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("easyscale.rendezvous.memory._MAX_CALLBACKS", 100)
    store = world.client()

    def write_again(view: View) -> None:
        store.transact([], [Put(world.folder + "a", str(view.revision))], timeout_s=TIMEOUT_S)

    store.watch(world.folder, deliver=write_again, lost=pytest.fail)
    with pytest.raises(RuntimeError, match="100"):
        world.server.deliver()


def test_a_thousand_watches_of_one_folder_are_no_burden(world: MemoryWorld) -> None:
    views: list[View] = []
    for _ in range(1000):
        world.client().watch(world.folder, deliver=views.append, lost=pytest.fail)
    world.settle()
    put(world.client(), world, a="1")
    world.settle()
    # One view serves all, or a simulation of a thousand agents would drown in copies.
    assert len(views) == 2000
    assert len({id(view) for view in views[1000:]}) == 1
