"""An agent's link over the memory store: what the store refuses waits, is told, and is written.

Whatever a store says once it was open, the agent lives.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from easyscale.agent import actions, events, link, store_thread
from easyscale.agent.code_check import CodeCheck
from easyscale.agent.link import StoreLink
from easyscale.agent.opening import Opened
from easyscale.agent.snapshots import Catalogue
from easyscale.errors import EasyScaleError, TransactionInvalid
from easyscale.model import NodeRecord
from easyscale.rendezvous.endpoints import EtcdSettings, parse_endpoints
from easyscale.rendezvous.memory import MemoryServer
from easyscale.rendezvous.store import Put, absent
from tests.support.views import KEYS, launch_settings

DEADLINE_S = 10.0


class Linked:
    """A link that has opened a memory store, and all that it told."""

    def __init__(self, folder: Path) -> None:
        (folder / "train.py").write_text("")
        settings = launch_settings(
            working_directory=str(folder), snapshot_dir=str(folder / "snapshots")
        )
        self.server = MemoryServer(time.monotonic)
        self.store = self.server.client()
        self.heard: list[events.AgentEvent] = []
        self.told: list[str] = []
        self.failures: list[EasyScaleError] = []
        self.link = StoreLink(
            settings,
            Catalogue(folder / "snapshots", job_id="job", node="a"),
            CodeCheck(settings),
            post=self.heard.append,
            tell=self.told.append,
            fail=self.failures.append,
        )

    def opened(self, *_: object, **__: object) -> Opened:
        etcd = EtcdSettings(parse_endpoints("memory"))
        return Opened(store=self.store, etcd=etcd, server=None, warning="")

    def until(self, holds: Callable[[], object], what: str) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while not holds():
            self.server.deliver()
            assert time.monotonic() < end_s, f"{what}: heard {self.heard}"
            time.sleep(0.002)

    def standing(self) -> list[events.StoreAway | events.StoreBack]:
        return [e for e in self.heard if isinstance(e, events.StoreAway | events.StoreBack)]

    def transacted(self) -> list[events.Transacted]:
        return [e for e in self.heard if isinstance(e, events.Transacted)]

    def write(self, name: str) -> str:
        key = KEYS.wish(name)
        self.link.take(actions.Write(key=key, value=name, leased=False))
        return key

    def read(self, key: str) -> str | None:
        entry = self.server.client().read(key, timeout_s=1).get(key)
        return entry.value if entry else None


@pytest.fixture
def linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Linked]:
    made = Linked(tmp_path)
    monkeypatch.setattr(link, "open_store", made.opened)
    monkeypatch.setattr(store_thread, "RETRY_S", 0.005)
    made.link.start()
    made.link.take(
        actions.Enrol(
            record=NodeRecord(
                node="a", incarnation="i", boot_id="b", host="a", address="", slots=()
            )
        )
    )
    made.until(lambda: any(isinstance(e, events.Enrolled) for e in made.heard), "it is enrolled")
    yield made
    with contextlib.suppress(EasyScaleError):
        made.link.close(within_s=1.0)
    assert made.failures == []


FULL = events.StoreAway(reason="the store refuses: it is full", refuses="it is full")


def test_what_a_full_store_refuses_is_told_once_and_written_when_there_is_room(
    linked: Linked,
) -> None:
    linked.server.is_full = True
    keys = [linked.write("one"), linked.write("two")]
    linked.until(linked.standing, "it is told")
    time.sleep(0.05)  # some attempts
    assert linked.standing() == [FULL]
    linked.server.is_full = False
    linked.until(lambda: all(linked.read(key) for key in keys), "both are written")
    linked.until(lambda: len(linked.standing()) == 2, "its return is told")
    assert isinstance(linked.standing()[1], events.StoreBack)


def test_a_refused_transaction_is_asked_after_though_nothing_else_is_to_be_written(
    linked: Linked,
) -> None:
    linked.server.is_full = True
    key = KEYS.wish("one")
    ask = actions.Transact(name="n", compares=(absent(key),), operations=(Put(key, "1"),))
    linked.link.take(ask)
    linked.until(linked.transacted, "it ended")
    assert linked.transacted() == [events.Transacted(name="n", succeeded=None)]
    linked.until(linked.standing, "it is told")
    linked.server.is_full = False
    linked.until(lambda: len(linked.standing()) == 2, "its return is told without a word of ours")
    assert linked.read(KEYS.progress) is None
    linked.link.take(ask)
    linked.until(lambda: linked.read(key), "it is carried out")


def test_a_login_that_counts_no_more_ends_nothing(linked: Linked) -> None:
    linked.store.refusal = "authentication failed"
    key = linked.write("one")
    linked.until(linked.standing, "it is told")
    linked.store.refusal = ""
    linked.until(lambda: linked.read(key), "it is written")
    linked.until(lambda: len(linked.standing()) == 2, "its return is told")


def test_what_no_store_would_ever_take_is_told_and_holds_nothing_up(
    linked: Linked, monkeypatch: pytest.MonkeyPatch
) -> None:
    transact = linked.store.transact

    def too_large(compares: object, operations: tuple[Put, ...], *, timeout_s: float) -> object:
        if any(put.value == "huge" for put in operations):
            raise TransactionInvalid("a transaction of 2 MB is over etcd's limit")
        return transact(compares, operations, timeout_s=timeout_s)  # type: ignore[arg-type]

    monkeypatch.setattr(linked.store, "transact", too_large)
    linked.write("huge")
    key = linked.write("one")
    linked.until(lambda: linked.read(key), "the next one is written")
    assert linked.told == [
        f"{KEYS.wish('huge')} cannot be written: a transaction of 2 MB is over etcd's limit"
    ]
    assert linked.standing() == []
