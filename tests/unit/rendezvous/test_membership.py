"""A registration over the memory store: made, renewed, verified, lost, made anew, left."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from easyscale.errors import EasyScaleError, StoreError
from easyscale.model import Ending, NodeRecord, decode
from easyscale.rendezvous import membership
from easyscale.rendezvous.membership import Membership
from easyscale.rendezvous.memory import MemoryServer, MemoryStore
from easyscale.rendezvous.store import Put
from tests.support.views import KEYS

DEADLINE_S = 5.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Ear:
    def __init__(self) -> None:
        self.heard: list[tuple[str, object]] = []
        self._news = threading.Condition()

    def _hear(self, what: str, value: object) -> None:
        with self._news:
            self.heard.append((what, value))
            self._news.notify_all()

    def enrolled(self, create_revision: int) -> None:
        self._hear("enrolled", create_revision)

    def lease_ended(self, reason: str) -> None:
        self._hear("lease_ended", reason)

    def store_away(self, error: StoreError) -> None:
        self._hear("store_away", error.message)

    def store_back(self, silent_s: float) -> None:
        self._hear("store_back", silent_s)

    def elected(self, token: int) -> None:
        self._hear("elected", token)

    def deposed(self, reason: str) -> None:
        self._hear("deposed", reason)

    def refused(self, error: EasyScaleError) -> None:
        self._hear("refused", error.message)

    def wait_for(self, what: str, times: int = 1) -> object:
        def found() -> list[object]:
            return [value for name, value in self.heard if name == what]

        with self._news:
            came = self._news.wait_for(lambda: len(found()) >= times, timeout=DEADLINE_S)
            assert came, f"{what} {times} times: heard {self.heard}"
            return found()[times - 1]


class Bench:
    """One membership on a store of its own; the lease's clock and the agent's are one."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.server = MemoryServer(self.clock)
        self.store = self.server.client()
        self.ear = Ear()
        self.membership = Membership(
            self.store, KEYS, self.ear, ttl_s=5, leader_margin_s=1.0, clock=self.clock
        )

    def read(self, key: str) -> str | None:
        entry = self.server.client().read(key, timeout_s=1).get(key)
        return entry.value if entry else None

    def other(self) -> MemoryStore:
        return self.server.client()

    def until(self, holds: Callable[[], bool], name: str) -> None:
        end = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < end, f"{name}: heard {self.ear.heard}"
            time.sleep(0.005)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(membership, "_RETRY_S", (0.005, 0.01))
    made = Bench()
    yield made
    made.membership.close()


def record(*, host: str = "h", address: str = "", incarnation: str = "1") -> NodeRecord:
    return NodeRecord(
        node="a", incarnation=incarnation, boot_id="b", host=host, address=address, slots=()
    )


def test_a_registration_is_one_key_under_a_lease(bench: Bench) -> None:
    bench.membership.enrol(record())
    revision = bench.ear.wait_for("enrolled")
    entry = bench.other().read(KEYS.node("a"), timeout_s=1).get(KEYS.node("a"))
    assert entry is not None
    assert entry.create_revision == revision
    assert entry.lease == bench.membership.lease


def test_a_changed_record_replaces_the_one_that_stands(bench: Bench) -> None:
    bench.membership.enrol(record())
    revision = bench.ear.wait_for("enrolled")
    bench.membership.enrol(record(address="h:1"))
    bench.until(lambda: '"h:1"' in (bench.read(KEYS.node("a")) or ""), "the new record stands")
    entry = bench.other().read(KEYS.node("a"), timeout_s=1).get(KEYS.node("a"))
    assert entry is not None
    assert entry.create_revision == revision


def test_a_lost_lease_waits_for_a_fresh_record_and_registers_anew(bench: Bench) -> None:
    bench.membership.enrol(record())
    bench.ear.wait_for("enrolled")
    bench.server.wipe()
    bench.membership.enrol(record(address="h:1"))  # the update finds the key gone
    bench.ear.wait_for("lease_ended")
    assert bench.membership.lease is None
    assert bench.read(KEYS.node("a")) is None  # nobody registers without saying what it knows
    bench.membership.enrol(record(address="h:2"))
    bench.ear.wait_for("enrolled", 2)
    assert '"h:2"' in (bench.read(KEYS.node("a")) or "")


def test_the_store_is_away_once_and_back_once(bench: Bench) -> None:
    bench.membership.enrol(record())
    bench.ear.wait_for("enrolled")
    bench.store.cut()
    bench.membership.enrol(record(address="h:1"))
    bench.ear.wait_for("store_away")
    bench.clock.now += 3.0
    bench.store.heal()
    assert bench.ear.wait_for("store_back") == pytest.approx(3.0)
    bench.until(lambda: '"h:1"' in (bench.read(KEYS.node("a")) or ""), "the record is written")
    assert [name for name, _ in bench.ear.heard].count("store_away") == 1
    assert "lease_ended" not in [name for name, _ in bench.ear.heard]


def names(bench: Bench) -> list[str]:
    return [name for name, _ in bench.ear.heard]


def test_a_store_that_turns_us_away_ends_nothing_and_is_told_once(bench: Bench) -> None:
    bench.membership.enrol(record())
    bench.ear.wait_for("enrolled")
    bench.store.refusal = "authentication failed"
    bench.membership.enrol(record(address="h:1"))
    assert bench.ear.wait_for("store_away") == "the store refuses: authentication failed"
    bench.until(lambda: bench.membership._refusals > 1, "it asks again")
    bench.store.refusal = ""
    bench.ear.wait_for("store_back")
    bench.until(lambda: '"h:1"' in (bench.read(KEYS.node("a")) or ""), "the record is written")
    assert names(bench) == ["enrolled", "store_away", "store_back"]


def test_a_full_store_is_away_until_it_takes_writes_although_it_answers(bench: Bench) -> None:
    bench.membership.enrol(record())
    bench.ear.wait_for("enrolled")
    bench.server.is_full = True
    bench.membership.stand()
    assert bench.ear.wait_for("store_away") == "the store refuses: it is full"
    bench.until(lambda: bench.membership._refusals > 1, "it stands again")
    bench.server.is_full = False
    bench.ear.wait_for("elected")
    bench.ear.wait_for("store_back")
    assert sorted(names(bench)) == ["elected", "enrolled", "store_away", "store_back"]


def test_a_lease_lives_on_while_the_store_is_full(bench: Bench) -> None:
    bench.membership.enrol(record())
    bench.ear.wait_for("enrolled")
    lease = bench.membership.lease
    assert lease is not None
    bench.server.is_full = True
    bench.membership.enrol(record(address="h:1"))
    bench.ear.wait_for("store_away")
    granted_s = bench.clock.now
    bench.clock.now += 3.0
    deadlines = bench.server.contents.leases
    bench.until(lambda: deadlines[lease].deadline > granted_s + 5, "it is renewed")
    assert names(bench) == ["enrolled", "store_away"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_that_nobody_foresaw_is_told_and_ends_the_agent(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fall(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(bench.store, "transact", fall)
    bench.membership.enrol(record())
    told = str(bench.ear.wait_for("refused"))
    assert "membership" in told
    assert "ZeroDivisionError: a bug" in told


def test_a_store_that_comes_back_without_the_key_ends_the_registration(bench: Bench) -> None:
    bench.membership.enrol(record())
    bench.ear.wait_for("enrolled")
    bench.store.cut()
    bench.membership.enrol(record(address="h:1"))
    bench.ear.wait_for("store_away")
    bench.server.wipe()
    bench.store.heal()
    assert bench.ear.wait_for("lease_ended") == "the store came back without the registration"


def test_a_lost_answer_is_read_back(bench: Bench) -> None:
    bench.store.lose_answer(executed=True)
    bench.membership.enrol(record())
    revision = bench.ear.wait_for("enrolled")
    entry = bench.other().read(KEYS.node("a"), timeout_s=1).get(KEYS.node("a"))
    assert entry is not None
    assert entry.create_revision == revision


def test_a_lost_request_is_sent_again(bench: Bench) -> None:
    bench.store.lose_answer(executed=False)
    bench.membership.enrol(record())
    bench.ear.wait_for("enrolled")


def test_a_name_that_another_host_holds_is_refused(bench: Bench) -> None:
    other = bench.other()
    other.transact(
        [], [Put(KEYS.node("a"), '{"node":"a","incarnation":"9","boot_id":"x","host":"h2",'
                 '"address":"","slots":[]}')], timeout_s=1,
    )  # fmt: skip
    bench.membership.enrol(record())
    assert bench.ear.wait_for("refused") == "node name 'a' is taken by a live agent on h2"


def test_a_former_agent_of_this_host_is_waited_out(bench: Bench) -> None:
    other = bench.other()
    lease = other.grant(5, timeout_s=1)
    text = '{"node":"a","incarnation":"9","boot_id":"x","host":"h","address":"","slots":[]}'
    other.transact([], [Put(KEYS.node("a"), text, lease)], timeout_s=1)
    bench.membership.enrol(record())
    time.sleep(0.05)
    bench.clock.now += 5.5
    bench.ear.wait_for("enrolled")


def test_a_vacant_office_is_taken_with_the_registrations_lease(bench: Bench) -> None:
    bench.membership.enrol(record())
    bench.ear.wait_for("enrolled")
    bench.membership.stand()
    token = bench.ear.wait_for("elected")
    entry = bench.other().read(KEYS.leader, timeout_s=1).get(KEYS.leader)
    assert entry is not None
    assert entry.create_revision == token
    assert entry.lease == bench.membership.lease


def test_a_view_older_than_our_election_deposes_nobody(bench: Bench) -> None:
    bench.membership.enrol(record())
    bench.ear.wait_for("enrolled")
    bench.membership.stand()
    bench.ear.wait_for("elected")
    bench.membership.see_leader(None)
    bench.until(lambda: not bench.membership._verify, "the key was read again")
    assert "deposed" not in [name for name, _ in bench.ear.heard]


def test_a_leader_that_cannot_renew_steps_down_by_its_own_clock(bench: Bench) -> None:
    bench.membership.enrol(record())
    bench.ear.wait_for("enrolled")
    bench.membership.stand()
    token = bench.ear.wait_for("elected")
    bench.store.cut()
    bench.clock.now += 4.5
    bench.membership.enrol(record(address="h:1"))
    assert "not renewed" in str(bench.ear.wait_for("deposed"))
    bench.store.heal()
    assert bench.ear.wait_for("elected", 2) == token  # its lease had lived on in the store


def test_leaving_says_so_and_lets_go_of_the_lease(bench: Bench) -> None:
    bench.membership.enrol(record())
    bench.ear.wait_for("enrolled")
    bench.membership.leave("drained")
    assert bench.read(KEYS.node("a")) is None
    text = bench.read(KEYS.gone_agent("a", "1"))
    assert text is not None
    assert decode(text, Ending, source="gone").how == "drained"


def test_leaving_without_a_store_returns_all_the_same(bench: Bench) -> None:
    bench.membership.enrol(record())
    bench.ear.wait_for("enrolled")
    bench.store.cut()
    bench.membership.leave("drained")
