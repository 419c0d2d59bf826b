"""etcd keeps the contract, with each server that jobs may run on; and memory means the same."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from easyscale.rendezvous.etcd import EtcdStore, connect
from easyscale.rendezvous.memory import MemoryServer
from easyscale.rendezvous.store import (
    Compare,
    Created,
    Delete,
    DeletePrefix,
    Modified,
    Operation,
    Put,
    Store,
    View,
)
from tests.support.etcd import Server, wait_until
from tests.support.store_contract import TIMEOUT_S, Follower, OutageContract, StoreContract, put


@dataclass(slots=True)
class EtcdWorld:
    """A world around a real server; every client of a test is closed behind it."""

    server: Server
    folder: str
    stores: list[EtcdStore] = field(default_factory=list)

    def client(self) -> Store:
        store = connect(self.server.settings, timeout_s=TIMEOUT_S)
        self.stores.append(store)
        return store

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        wait_until(condition, what)

    def settle(self) -> None:
        """Follow a write with a second watch: what is on its way arrives no later."""
        store = self.client()
        follower = Follower(self, store, self.folder).start()
        put(store, self, settled="")
        wait_until(lambda: "settled" in follower.values, "word of the last write")

    def pass_time(self, seconds: float) -> None:
        time.sleep(seconds)

    def stop_server(self) -> None:
        self.server.kill()

    def start_server(self) -> None:
        self.server.start()

    def wipe_server(self) -> None:
        self.server.wipe()


@pytest.fixture
def world(etcd_server: Server, folder: str) -> Iterator[EtcdWorld]:
    world = EtcdWorld(etcd_server, folder)
    yield world
    world.close()


class TestEtcdStore(StoreContract):
    """The contract, on etcd."""


class TestEtcdOutages(OutageContract):
    """The contract, on an etcd that is killed."""

    @pytest.fixture
    def world(self, own_server: Server, folder: str) -> Iterator[EtcdWorld]:
        world = EtcdWorld(own_server, folder)
        yield world
        world.close()


NAMES = ("a", "b", "in/a", "in/b", "in")
OPERATIONS = st.one_of(
    st.builds(Put, st.sampled_from(NAMES), st.sampled_from("xy")),
    st.builds(Delete, st.sampled_from(NAMES)),
    st.just(DeletePrefix("in/")),
)


@dataclass(frozen=True, slots=True)
class Guess:
    """A compare to be: against what an earlier transaction saw, so that either may hold."""

    name: str
    about_creation: bool
    seen_at: int


@dataclass(frozen=True, slots=True)
class Step:
    guesses: list[Guess]
    operations: list[Operation]


def is_takeable(operations: list[Operation]) -> bool:
    puts = [o.key for o in operations if isinstance(o, Put)]
    deleted = {o.key for o in operations if isinstance(o, Delete)}
    folders = any(isinstance(o, DeletePrefix) for o in operations)
    return len(set(puts)) == len(puts) and not (
        deleted & set(puts) or (folders and any(key.startswith("in/") for key in puts))
    )


STEPS = st.lists(
    st.builds(
        Step,
        st.lists(
            st.builds(Guess, st.sampled_from(NAMES), st.booleans(), st.integers(0, 9)), max_size=2
        ),
        st.lists(OPERATIONS, max_size=3).filter(is_takeable),
    ),
    max_size=10,
)


def run_steps(store: Store, folder: str, steps: list[Step]) -> list[object]:
    """Carry out steps and tell all that can be seen, with revisions counted from the first."""
    views = [store.read(folder, timeout_s=TIMEOUT_S)]
    start = views[0].revision
    seen: list[object] = []
    for step in steps:
        compares = [compare_of(guess, views, folder) for guess in step.guesses]
        operations = [placed(operation, folder) for operation in step.operations]
        result = store.transact(compares, operations, timeout_s=TIMEOUT_S)
        views.append(store.read(folder, timeout_s=TIMEOUT_S))
        entries = [
            (e.key.removeprefix(folder), e.value, e.create_revision - start, e.mod_revision - start)
            for e in views[-1].entries.values()
        ]
        seen.append((result.succeeded, result.revision - start, entries))
    return seen


def compare_of(guess: Guess, views: list[View], folder: str) -> Compare:
    entry = views[guess.seen_at % len(views)].get(folder + guess.name)
    if guess.about_creation:
        return Created(folder + guess.name, entry.create_revision if entry else 0)
    return Modified(folder + guess.name, entry.mod_revision if entry else 0)


def placed(operation: Operation, folder: str) -> Operation:
    match operation:
        case Put(key=key, value=value):
            return Put(folder + key, value)
        case Delete(key=key):
            return Delete(folder + key)
        case DeletePrefix(folder=below):
            return DeletePrefix(folder + below)


@pytest.fixture
def store(world: EtcdWorld) -> Store:
    return world.client()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_memory_means_what_etcd_means(world: EtcdWorld, store: Store, steps: list[Step]) -> None:
    store.transact([], [DeletePrefix(world.folder)], timeout_s=TIMEOUT_S)
    memory = MemoryServer(lambda: 0.0).client()
    assert run_steps(memory, world.folder, steps) == run_steps(store, world.folder, steps)
