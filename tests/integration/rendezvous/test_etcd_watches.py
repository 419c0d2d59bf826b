"""One stream carries all watches of a store; each of them lives and ends by itself."""

import threading
import time
from collections.abc import Iterator

import pytest

from easyscale.rendezvous.etcd import EtcdStore, connect
from easyscale.rendezvous.etcd_connection import Connection
from easyscale.rendezvous.etcd_stream import WatchStream
from easyscale.rendezvous.store import Put, Range, Stretch, View, Watch
from tests.support.etcd import Server, wait_until

TIMEOUT_S = 5.0


@pytest.fixture
def store(own_server: Server) -> Iterator[EtcdStore]:
    store = connect(own_server.settings, timeout_s=TIMEOUT_S)
    yield store
    store.close()


class Followed:
    """A watch, and the values that it showed last."""

    def __init__(self, store: EtcdStore, range_: Range) -> None:
        self.views: list[View] = []
        self.watch: Watch = store.watch(range_, deliver=self.views.append, lost=pytest.fail)
        wait_until(lambda: self.views, f"the first view of {range_}")

    @property
    def values(self) -> list[str]:
        return [entry.value for entry in self.views[-1].entries.values()]


def put(store: EtcdStore, key: str, value: str) -> None:
    store.transact([], [Put(key, value)], timeout_s=TIMEOUT_S)


def test_all_watches_go_down_one_stream_and_each_hears_of_its_range(
    own_server: Server, store: EtcdStore, folder: str
) -> None:
    before = own_server.started("Watch")
    ranges: list[Range] = [
        folder + "a/", folder + "b", Stretch(folder + "c/", folder + "d"), folder,
    ]  # fmt: skip
    first, second, third, whole = (Followed(store, range_) for range_ in ranges)
    for number, key in enumerate(("a/x", "b", "c/x", "d"), 1):
        put(store, folder + key, str(number))
    wait_until(lambda: whole.values == ["1", "2", "3", "4"], "the whole folder")
    wait_until(lambda: third.values == ["3", "4"], "the stretch")
    assert (first.values, second.values) == (["1"], ["2"])
    assert [len(one.views) for one in (first, second, third, whole)] == [2, 2, 3, 5]
    assert own_server.started("Watch") - before == 1


def test_a_watch_that_was_closed_is_silent_and_the_others_go_on(
    own_server: Server, store: EtcdStore, folder: str
) -> None:
    before = own_server.started("Watch")
    closed, kept = Followed(store, folder + "a"), Followed(store, folder + "b")
    closed.watch.close()
    for value in "12":
        put(store, folder + "a", value)
        put(store, folder + "b", value)
    late = Followed(store, folder + "a")
    wait_until(lambda: kept.values == ["2"], "the one that was kept")
    assert len(closed.views) == 1
    assert late.values == ["2"]
    assert own_server.started("Watch") - before == 1


def follow_once(store: EtcdStore, key: str, value: str) -> None:
    one = Followed(store, key)
    put(store, key, value)
    wait_until(lambda: one.values == [value], "the value")
    one.watch.close()


def test_after_all_were_closed_the_connection_is_let_go_and_a_new_watch_follows(
    own_server: Server, store: EtcdStore, folder: str
) -> None:
    before = own_server.started("Watch")
    threads = threading.active_count()
    for value in "123":
        follow_once(store, folder + "a", value)
        wait_until(lambda: threading.active_count() <= threads + 1, "the stream is gone")
    assert own_server.started("Watch") - before == 3


def test_closing_waits_for_the_callback_that_runs(store: EtcdStore, folder: str) -> None:
    runs, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def deliver(view: View) -> None:
        runs.set()
        may_end.wait(TIMEOUT_S)
        ended.set()

    watch = store.watch(folder, deliver=deliver, lost=pytest.fail)
    assert runs.wait(TIMEOUT_S)
    closer = threading.Thread(target=watch.close)
    closer.start()
    time.sleep(0.1)
    assert closer.is_alive()
    may_end.set()
    closer.join(TIMEOUT_S)
    assert ended.is_set()


def test_a_watch_may_be_closed_by_its_own_callback(store: EtcdStore, folder: str) -> None:
    views: list[View] = []
    watches: list[Watch] = []

    def deliver(view: View) -> None:
        views.append(view)
        if len(views) == 2:
            watches[0].close()

    watches.append(store.watch(folder + "a", deliver=deliver, lost=pytest.fail))
    other = Followed(store, folder + "b")
    for value in "123":
        put(store, folder + "a", value)
    put(store, folder + "b", "1")
    wait_until(lambda: other.values == ["1"], "the other one")
    assert len(views) == 2


def test_a_watch_outlives_an_error_that_nobody_foresaw(
    store: EtcdStore, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = WatchStream.__init__
    attempts: list[int] = []

    def fail_once(stream: WatchStream, connection: Connection) -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise RuntimeError("can't start new thread")
        begin(stream, connection)

    monkeypatch.setattr(WatchStream, "__init__", fail_once)
    views: list[View] = []
    losses: list[str] = []
    store.watch(folder, deliver=views.append, lost=losses.append)
    wait_until(lambda: losses, "the error is told")
    put(store, folder + "a", "1")
    wait_until(lambda: views[-1].entries, "it follows all the same")
    assert losses == ['following etcd broke: RuntimeError("can\'t start new thread")']
