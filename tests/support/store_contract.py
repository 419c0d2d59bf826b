"""What every store promises, as tests: a subclass says which store by its fixture `world`."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import pytest

from easyscale.errors import LeaseLost, StoreClosed, StoreRefused, StoreUnreachable
from easyscale.rendezvous.store import (
    MAX_COMPARES,
    MAX_OPERATIONS,
    Created,
    Delete,
    DeletePrefix,
    LeaseId,
    Modified,
    Operation,
    Put,
    Store,
    Stretch,
    TxnResult,
    View,
    Watch,
    absent,
)

TIMEOUT_S = 5.0
TTL_S = 1


class World(Protocol):
    """A store with the power to harm it."""

    folder: str

    def client(self) -> Store: ...

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        """Let callbacks run until the condition holds."""

    def settle(self) -> None:
        """Let every callback run that is on its way."""

    def pass_time(self, seconds: float) -> None:
        """Let time pass, for the server's leases too."""

    def stop_server(self) -> None: ...

    def start_server(self) -> None: ...

    def wipe_server(self) -> None: ...


@dataclass(slots=True)
class Follower:
    """Follows a range and remembers all that it was told."""

    world: World
    store: Store
    range_: str
    views: list[View] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    watch: Watch | None = None

    def start(self) -> "Follower":
        self.watch = self.store.watch(
            self.range_, deliver=self.views.append, lost=self.losses.append
        )
        self.world.wait_until(lambda: self.views, "the first view")
        return self

    @property
    def values(self) -> dict[str, str]:
        """The newest view, by the last parts of its keys."""
        entries = self.views[-1].entries.values()
        return {entry.key.removeprefix(self.world.folder): entry.value for entry in entries}

    def expect(self, **values: str) -> None:
        """Wait until the newest view is this."""
        self.world.wait_until(lambda: self.values == values, f"{self.range_} is {values}")


class StoreContract:
    """The tests; `world` comes from the subclass."""

    @pytest.fixture
    def store(self, world: World) -> Store:
        return world.client()

    # --- transactions ---------------------------------------------------------------------------

    def test_a_new_key_carries_the_revision_of_its_transaction(
        self, world: World, store: Store
    ) -> None:
        result = put(store, world, a="1")
        entry = read(store, world).entries[world.folder + "a"]
        assert result.succeeded
        assert (entry.create_revision, entry.mod_revision) == (result.revision, result.revision)
        assert (entry.value, entry.lease) == ("1", None)

    def test_a_rewritten_key_keeps_its_identity(self, world: World, store: Store) -> None:
        first, second = put(store, world, a="1"), put(store, world, a="2")
        entry = read(store, world).entries[world.folder + "a"]
        assert (entry.create_revision, entry.mod_revision) == (first.revision, second.revision)
        assert second.revision > first.revision

    def test_a_failed_compare_writes_nothing(self, world: World, store: Store) -> None:
        put(store, world, a="1")
        before = read(store, world)
        result = store.transact(
            [absent(world.folder + "b"), absent(world.folder + "a")],
            [Put(world.folder + "b", "2"), Delete(world.folder + "a")],
            timeout_s=TIMEOUT_S,
        )
        assert not result.succeeded
        assert read(store, world) == before

    def test_a_key_deleted_and_created_again_is_another_one(
        self, world: World, store: Store
    ) -> None:
        token = put(store, world, a="same").revision
        assert holds(store, Created(world.folder + "a", token))
        delete(store, world, "a")
        put(store, world, a="same")
        assert not holds(store, Created(world.folder + "a", token))

    def test_a_write_in_between_shows_in_the_compare(self, world: World, store: Store) -> None:
        seen = put(store, world, a="same").revision
        assert holds(store, Modified(world.folder + "a", seen))
        put(store, world, a="same")
        assert not holds(store, Modified(world.folder + "a", seen))

    def test_absence_is_a_compare(self, world: World, store: Store) -> None:
        assert holds(store, absent(world.folder + "a"))
        assert holds(store, Modified(world.folder + "a", 0))
        put(store, world, a="1")
        assert not holds(store, absent(world.folder + "a"))

    def test_operations_of_one_transaction_share_its_revision(
        self, world: World, store: Store
    ) -> None:
        put(store, world, old="0")
        result = store.transact(
            [],
            [
                Put(world.folder + "a", "1"),
                Put(world.folder + "b", "2"),
                Delete(world.folder + "old"),
            ],
            timeout_s=TIMEOUT_S,
        )
        view = read(store, world)
        assert {entry.mod_revision for entry in view.entries.values()} == {result.revision}
        assert view.revision == result.revision

    def test_a_folder_is_deleted_without_its_namesakes(self, world: World, store: Store) -> None:
        keys = ("in/a", "in/b/c", "in", "inn", "in0")
        store.transact([], [Put(world.folder + key, "") for key in keys], timeout_s=TIMEOUT_S)
        store.transact([], [DeletePrefix(world.folder + "in/")], timeout_s=TIMEOUT_S)
        left = [key.removeprefix(world.folder) for key in read(store, world).entries]
        assert left == ["in", "in0", "inn"]

    def test_deleting_what_is_not_there_changes_nothing(self, world: World, store: Store) -> None:
        before = read(store, world).revision
        result = store.transact(
            [], [Delete(world.folder + "a"), DeletePrefix(world.folder)], timeout_s=TIMEOUT_S
        )
        assert result == TxnResult(succeeded=True, revision=before)

    def test_a_transaction_may_be_as_large_as_etcd_allows(self, world: World, store: Store) -> None:
        names = [f"{world.folder}{number:03}" for number in range(MAX_OPERATIONS)]
        compares = [absent(name) for name in names[:MAX_COMPARES]]
        assert store.transact(
            compares, [Put(name, "") for name in names], timeout_s=TIMEOUT_S
        ).succeeded
        assert list(read(store, world).entries) == names

    @pytest.mark.parametrize(
        "operations",
        [
            [Put("{}a", "")] * 2,
            [Put("{}a", ""), Delete("{}a")],
            [DeletePrefix("{}"), Put("{}a", "")],
            [Delete(f"{{}}{number}") for number in range(MAX_OPERATIONS + 1)],
            [Put("{}a", "x" * 1_600_000)],
        ],
        ids=["put twice", "put and delete", "put into a deleted folder", "too many", "too long"],
    )
    def test_what_etcd_cannot_take_is_refused(
        self, world: World, store: Store, operations: list[Operation]
    ) -> None:
        placed = [place(operation, world.folder) for operation in operations]
        with pytest.raises(StoreRefused):
            store.transact([], placed, timeout_s=TIMEOUT_S)
        assert not read(store, world).entries

    def test_a_folder_without_its_slash_is_refused(self, world: World, store: Store) -> None:
        with pytest.raises(StoreRefused, match="slash"):
            store.transact([], [DeletePrefix(world.folder + "a")], timeout_s=TIMEOUT_S)

    @pytest.mark.parametrize("value", ["", "ümläut ☃", "a\nb\0c", "x" * 200_000])
    def test_a_value_comes_back_as_it_was(self, world: World, store: Store, value: str) -> None:
        put(store, world, a=value)
        assert read(store, world).entries[world.folder + "a"].value == value

    def test_of_many_who_create_a_key_one_succeeds(self, world: World) -> None:
        key, won = world.folder + "leader", []

        def campaign(name: str, store: Store) -> None:
            if store.transact([absent(key)], [Put(key, name)], timeout_s=TIMEOUT_S).succeeded:
                won.append(name)

        candidates = [
            threading.Thread(target=campaign, args=(str(number), world.client()))
            for number in range(8)
        ]
        for candidate in candidates:
            candidate.start()
        for candidate in candidates:
            candidate.join(TIMEOUT_S)
        assert won == [read(world.client(), world).entries[key].value]

    # --- reads ----------------------------------------------------------------------------------

    def test_a_read_of_several_ranges_is_one_view(self, world: World, store: Store) -> None:
        keys = ("head", "header", "nodes/a", "nodes/b", "nodesx", "other/a")
        store.transact([], [Put(world.folder + key, "") for key in keys], timeout_s=TIMEOUT_S)
        view = store.read(
            world.folder + "nodes/", world.folder + "head", world.folder + "none", timeout_s=1.0
        )
        found = [key.removeprefix(world.folder) for key in view.entries]
        assert found == ["head", "nodes/a", "nodes/b"]
        assert [entry.key for entry in view.under(world.folder + "nodes/")] == [
            world.folder + "nodes/a",
            world.folder + "nodes/b",
        ]

    # --- leases ---------------------------------------------------------------------------------

    def test_a_lease_that_nobody_renews_takes_all_its_keys_at_once(
        self, world: World, store: Store
    ) -> None:
        lease = store.grant(TTL_S, timeout_s=TIMEOUT_S)
        leased(store, world, lease, "a", "b")
        put(store, world, c="stays")
        follower = Follower(world, store, world.folder).start()
        world.pass_time(TTL_S)
        follower.expect(c="stays")
        assert [len(view.entries) for view in follower.views] == [3, 1]
        assert store.keep_alive(lease, timeout_s=TIMEOUT_S) == 0

    def test_a_revoked_lease_takes_its_keys_and_may_be_revoked_again(
        self, world: World, store: Store
    ) -> None:
        lease = store.grant(60, timeout_s=TIMEOUT_S)
        leased(store, world, lease, "a")
        assert read(store, world).entries[world.folder + "a"].lease == lease
        store.revoke(lease, timeout_s=TIMEOUT_S)
        assert not read(store, world).entries
        store.revoke(lease, timeout_s=TIMEOUT_S)
        assert store.keep_alive(lease, timeout_s=TIMEOUT_S) == 0

    def test_a_renewed_lease_tells_its_time(self, world: World, store: Store) -> None:
        lease = store.grant(60, timeout_s=TIMEOUT_S)
        assert store.keep_alive(lease, timeout_s=TIMEOUT_S) == 60

    def test_leases_differ(self, world: World, store: Store) -> None:
        assert store.grant(60, timeout_s=TIMEOUT_S) != store.grant(60, timeout_s=TIMEOUT_S)

    def test_a_key_written_anew_without_a_lease_outlives_it(
        self, world: World, store: Store
    ) -> None:
        lease = store.grant(60, timeout_s=TIMEOUT_S)
        leased(store, world, lease, "a", "b")
        put(store, world, a="free")
        store.revoke(lease, timeout_s=TIMEOUT_S)
        assert list(read(store, world).entries) == [world.folder + "a"]

    def test_a_put_under_an_ended_lease_writes_nothing(self, world: World, store: Store) -> None:
        lease = store.grant(60, timeout_s=TIMEOUT_S)
        store.revoke(lease, timeout_s=TIMEOUT_S)
        operations = [Put(world.folder + "b", ""), Put(world.folder + "a", "", lease)]
        with pytest.raises(LeaseLost):
            store.transact([], operations, timeout_s=TIMEOUT_S)
        assert not read(store, world).entries

    def test_a_failed_compare_goes_before_an_ended_lease(self, world: World, store: Store) -> None:
        lease = store.grant(60, timeout_s=TIMEOUT_S)
        store.revoke(lease, timeout_s=TIMEOUT_S)
        result = store.transact(
            [Created(world.folder + "a", 1)],
            [Put(world.folder + "a", "", lease)],
            timeout_s=TIMEOUT_S,
        )
        assert not result.succeeded

    # --- watches --------------------------------------------------------------------------------

    def test_a_watch_begins_with_what_is_there(self, world: World, store: Store) -> None:
        put(store, world, a="1")
        follower = Follower(world, store, world.folder).start()
        assert follower.views == [read(store, world)]

    def test_a_watch_of_nothing_begins_with_an_empty_view(self, world: World, store: Store) -> None:
        assert not Follower(world, store, world.folder).start().views[0].entries

    def test_a_watch_delivers_the_range_after_every_revision(
        self, world: World, store: Store
    ) -> None:
        follower = Follower(world, store, world.folder).start()
        expected = [follower.views[0]]
        changes: list[list[Operation]] = [
            [Put(world.folder + "b", "1")],
            [Put(world.folder + "a", "1"), Put(world.folder + "b", "2")],
            [Delete(world.folder + "b"), Put(world.folder + "c/d", "")],
            [DeletePrefix(world.folder)],
        ]
        for change in changes:
            store.transact([], change, timeout_s=TIMEOUT_S)
            expected.append(read(store, world))
        world.wait_until(lambda: len(follower.views) >= len(expected), "five views")
        assert follower.views == expected
        assert follower.losses == []

    def test_a_stretch_is_read_and_watched_from_folder_to_key(
        self, world: World, store: Store
    ) -> None:
        stretch = Stretch(world.folder + "b/", world.folder + "h")
        views: list[View] = []
        store.watch(stretch, deliver=views.append, lost=pytest.fail)
        put(store, world, **{"a": "1", "b/1": "2", "g/1": "3", "h": "4", "ha": "5", "i": "6"})
        inside = {world.folder + key for key in ("b/1", "g/1", "h")}
        world.wait_until(lambda: views and set(views[-1].entries) == inside, "the stretch")
        assert set(store.read(stretch, timeout_s=TIMEOUT_S).entries) == inside
        parts = [store.read(world.folder + one, timeout_s=TIMEOUT_S) for one in ("b/", "g/", "h")]
        assert View.union(parts).entries == views[-1].entries

    def test_a_watch_hears_of_its_range_only(self, world: World, store: Store) -> None:
        follower = Follower(world, store, world.folder + "head").start()
        put(store, world, header="1", other="1")
        put(store, world, head="1")
        follower.expect(head="1")
        assert len(follower.views) == 2

    def test_a_closed_watch_is_silent(self, world: World, store: Store) -> None:
        silent = Follower(world, store, world.folder).start()
        assert silent.watch is not None
        silent.watch.close()
        silent.watch.close()
        told = Follower(world, store, world.folder).start()
        put(store, world, a="1")
        told.expect(a="1")
        assert len(silent.views) == 1
        assert silent.losses == []

    def test_a_watch_may_be_closed_from_its_own_callback(self, world: World, store: Store) -> None:
        views: list[View] = []
        watches: list[Watch] = []

        def deliver(view: View) -> None:
            views.append(view)
            if view.entries:
                watches[0].close()

        watches.append(store.watch(world.folder, deliver=deliver, lost=pytest.fail))
        world.wait_until(lambda: views, "the first view")
        put(store, world, a="1")
        world.wait_until(lambda: len(views) == 2, "the second view")
        told = Follower(world, store, world.folder).start()
        put(store, world, a="2")
        told.expect(a="2")
        assert len(views) == 2

    def test_a_callback_may_use_the_store(self, world: World, store: Store) -> None:
        def answer(view: View) -> None:
            if world.folder + "question" in view.entries:
                key = world.folder + "answer"
                store.transact([absent(key)], [Put(key, "42")], timeout_s=TIMEOUT_S)

        store.watch(world.folder, deliver=answer, lost=pytest.fail)
        follower = Follower(world, store, world.folder).start()
        put(store, world, question="?")
        follower.expect(question="?", answer="42")

    def test_a_closed_store_says_that_we_closed_it(self, world: World, store: Store) -> None:
        follower = Follower(world, store, world.folder).start()
        store.close()
        store.close()
        with pytest.raises(StoreClosed):
            store.read(world.folder, timeout_s=1.0)
        with pytest.raises(StoreClosed):
            store.transact([], [], timeout_s=1.0)
        with pytest.raises(StoreClosed):
            store.watch(world.folder, deliver=follower.views.append, lost=pytest.fail)
        put(world.client(), world, a="1")
        world.settle()
        assert len(follower.views) == 1
        assert follower.losses == []


class OutageContract:
    """What a store promises while its server is away and afterwards."""

    def test_an_outage_is_told_once_and_ends_with_all_that_happened(self, world: World) -> None:
        store = world.client()
        put(store, world, a="1")
        follower = Follower(world, store, world.folder).start()
        world.stop_server()
        world.wait_until(lambda: follower.losses, "word of the loss")
        with pytest.raises(StoreUnreachable):
            store.read(world.folder, timeout_s=0.2)
        with pytest.raises(StoreUnreachable):
            store.transact([], [Put(world.folder + "a", "2")], timeout_s=0.2)
        with pytest.raises(StoreUnreachable):
            store.grant(TTL_S, timeout_s=0.2)
        world.start_server()
        world.wait_until(lambda: len(follower.views) == 2, "a view after the outage")
        put(store, world, a="3")
        follower.expect(a="3")
        assert len(follower.losses) == 1

    def test_an_outage_does_not_shorten_a_lease(self, world: World) -> None:
        store = world.client()
        lease = store.grant(TTL_S, timeout_s=TIMEOUT_S)
        leased(store, world, lease, "a")
        world.stop_server()
        world.pass_time(TTL_S)
        world.start_server()
        assert store.keep_alive(lease, timeout_s=TIMEOUT_S) == TTL_S
        assert list(read(store, world).entries) == [world.folder + "a"]

    def test_a_watch_begun_in_an_outage_says_so_and_follows_later(self, world: World) -> None:
        store = world.client()
        put(store, world, a="1")
        world.stop_server()
        views: list[View] = []
        losses: list[str] = []
        store.watch(world.folder, deliver=views.append, lost=losses.append)
        world.wait_until(lambda: losses, "word of the loss")
        assert views == []
        world.start_server()
        world.wait_until(lambda: views, "the first view")
        assert len(losses) == 1

    def test_a_store_that_comes_back_empty_is_seen_to_be_empty(self, world: World) -> None:
        store = world.client()
        lease = store.grant(60, timeout_s=TIMEOUT_S)
        for number in range(20):
            put(store, world, a=str(number))
        follower = Follower(world, store, world.folder).start()
        world.wipe_server()
        follower.expect()
        assert follower.views[-1].revision < follower.views[0].revision
        assert store.keep_alive(lease, timeout_s=TIMEOUT_S) == 0
        put(store, world, b="new")
        follower.expect(b="new")


def put(store: Store, world: World, **values: str) -> TxnResult:
    operations = [Put(world.folder + name, value) for name, value in values.items()]
    return store.transact([], operations, timeout_s=TIMEOUT_S)


def leased(store: Store, world: World, lease: LeaseId, *names: str) -> None:
    operations = [Put(world.folder + name, "", lease) for name in names]
    store.transact([], operations, timeout_s=TIMEOUT_S)


def delete(store: Store, world: World, name: str) -> None:
    store.transact([], [Delete(world.folder + name)], timeout_s=TIMEOUT_S)


def read(store: Store, world: World) -> View:
    return store.read(world.folder, timeout_s=TIMEOUT_S)


def holds(store: Store, compare: Created | Modified) -> bool:
    return store.transact([compare], [], timeout_s=TIMEOUT_S).succeeded


def place(operation: Operation, folder: str) -> Operation:
    """Put an operation into a test's folder."""
    match operation:
        case Put(key=key, value=value):
            return Put(key.format(folder), value)
        case Delete(key=key):
            return Delete(key.format(folder))
        case DeletePrefix(folder=key):
            return DeletePrefix(key.format(folder))
