"""The thread at an agent's store: orders in turn, what failed again, and an end that writes."""

import threading
from collections.abc import Callable

import pytest

from easyscale.agent import store_thread
from easyscale.agent.store_events import LeaseEnded, Standing, StoreAway, StoreBack
from easyscale.agent.store_thread import Ear, StoreThread, WriteRoad
from easyscale.errors import (
    EasyScaleError,
    FormatError,
    StoreClosed,
    StoreExhausted,
    StoreRefused,
    StoreUnreachable,
)
from easyscale.rendezvous.memory import MemoryServer
from easyscale.rendezvous.store import Put

DEADLINE_S = 10.0


class Work:
    """What happens, by name; the store answers as the test says."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.news = threading.Condition()
        self.failing = 0
        self.blind = 0
        self.error: EasyScaleError | None = None

    def note(self, what: str) -> None:
        with self.news:
            self.happened.append(what)
            self.news.notify_all()

    def until(self, is_so: Callable[[list[str]], bool]) -> None:
        with self.news:
            assert self.news.wait_for(lambda: is_so(self.happened), DEADLINE_S), self.happened

    def open(self) -> None:
        if self.error is not None:
            raise self.error
        self.note("open")

    def carry_out(self, order: str, /) -> None:
        self.note(order)

    def write(self) -> bool:
        self.failing -= 1
        self.note("write")
        return self.failing < 0

    def look(self) -> bool:
        self.blind -= 1
        self.note("look")
        return self.blind < 0


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_thread, "RETRY_S", 0.001)


def made(work: Work, failed: Callable[[EasyScaleError], None]) -> StoreThread[str]:
    return StoreThread(work, name="test-store", fail=failed)


def test_orders_wait_for_the_store_and_are_carried_out_in_turn() -> None:
    work, failures = Work(), list[EasyScaleError]()
    thread = made(work, failures.append)
    for order in ("one", "two", "three"):
        thread.order(order)
    assert work.happened == []
    thread.start()
    work.until(lambda all_: "write" in all_)
    assert work.happened[:5] == ["open", "one", "two", "three", "write"]
    thread.close()
    assert failures == []


def test_what_could_not_be_written_is_tried_again_without_an_order() -> None:
    work = Work()
    work.failing = 3
    thread = made(work, lambda _: None)
    thread.start()
    thread.order("one")
    work.until(lambda all_: all_.count("write") >= 4)
    thread.close()
    assert work.happened[-1] == "write", "the end writes what still can be"


def test_a_look_that_failed_is_taken_again() -> None:
    work = Work()
    work.blind = 2
    thread = made(work, lambda _: None)
    thread.start()
    thread.see()
    work.until(lambda all_: all_.count("look") == 3)
    thread.close()
    assert work.happened.count("look") == 3


class SlowWork(Work):
    """Each look takes as long as it is told, by a clock of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.look_s = 0.01

    def look(self) -> bool:
        self.now_s += self.look_s
        return super().look()


@pytest.mark.parametrize(("look_s", "pause_s"), [(0.01, 0.03), (5.0, 0.2)])
def test_news_that_comes_in_a_burst_is_seen_together_and_orders_do_not_wait_for_it(
    look_s: float, pause_s: float
) -> None:
    work = SlowWork()
    work.look_s = look_s
    thread = StoreThread[str](
        work, name="test-store", fail=lambda _: None, clock=lambda: work.now_s
    )
    thread.start()
    thread.see()
    work.until(lambda all_: "look" in all_)
    for number in range(20):
        thread.see()
        thread.order(f"order {number}")
    work.until(lambda all_: "order 19" in all_)
    assert work.happened.count("look") == 1
    work.now_s += pause_s
    thread.see()
    work.until(lambda all_: all_.count("look") == 2)
    thread.close()
    assert work.happened.count("look") == 2


def test_what_is_ordered_before_the_end_is_carried_out() -> None:
    work = Work()
    thread = made(work, lambda _: None)
    thread.start()
    work.until(lambda all_: "open" in all_)
    thread.order("last")
    thread.close()
    assert work.happened[-2:] == ["last", "write"]


def test_a_store_that_is_closed_under_the_last_write_ends_the_thread_without_a_word() -> None:
    class Closed(Work):
        def write(self) -> bool:
            super().write()
            if "last" in self.happened:
                raise StoreClosed("closed")
            return True

    work, failures = Closed(), list[EasyScaleError]()
    thread = made(work, failures.append)
    thread.start()
    work.until(lambda all_: "open" in all_)
    thread.order("last")
    work.until(lambda all_: all_[-2:] == ["last", "write"])
    thread.close()  # an exception of a thread fails the test
    assert failures == []


def test_a_store_that_does_not_open_ends_the_launch() -> None:
    work, failures = Work(), list[EasyScaleError]()
    work.error = StoreUnreachable("no answer")
    thread = made(work, failures.append)
    thread.start()
    thread.order("one")
    thread.close()
    assert failures == [work.error]
    assert work.happened == []


class BrokenWork(Work):
    """It meets an error that is none of the store's."""

    def __init__(self, broken: Exception) -> None:
        super().__init__()
        self.broken = broken

    def carry_out(self, order: str, /) -> None:
        super().carry_out(order)
        raise self.broken


def failures_of(work: BrokenWork) -> list[EasyScaleError]:
    """What ends the agent when this breaks in the thread."""
    failures: list[EasyScaleError] = []
    thread = made(work, failures.append)
    thread.start()
    thread.order("one")
    work.until(lambda all_: "one" in all_)
    thread.close()
    return failures


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_that_nobody_foresaw_ends_the_agent_and_says_where_it_was() -> None:
    (told,) = failures_of(BrokenWork(ZeroDivisionError("a bug")))
    assert told.message == "the thread test-store of this agent broke: ZeroDivisionError: a bug"


def test_an_error_of_ours_ends_the_agent_in_its_own_words() -> None:
    work = BrokenWork(FormatError("terms: torn"))
    assert failures_of(work) == [work.broken]


class PacedWork(Work):
    """Nothing can be written; time is what the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def write(self) -> bool:
        super().write()
        return False

    @property
    def writes(self) -> int:
        return self.happened.count("write")


def test_a_store_that_takes_nothing_is_asked_less_and_less_and_at_once_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("random.uniform", lambda _, longest_s: longest_s)
    work = PacedWork()
    thread = StoreThread[str](
        work, name="test-store", fail=lambda _: None, clock=lambda: work.now_s
    )
    thread.start()

    def look() -> None:
        """What was due before has happened then."""
        before = work.happened.count("look")
        thread.see()
        work.until(lambda all_: all_.count("look") > before)

    thread.order("one")
    work.until(lambda _: work.writes == 1)
    look()
    for doubling in range(1, 4):
        work.now_s += 0.001 * 2**doubling - 0.0005
        look()
        assert work.writes == doubling
        work.now_s += 0.0006
        look()
        assert work.writes == doubling + 1
    thread.write_soon()
    look()
    assert work.writes == 5
    thread.close()


Told = list[StoreAway | StoreBack]


def test_a_store_is_away_while_any_road_to_it_is_barred_and_that_is_told_once() -> None:
    told, now = Told(), [10.0]
    standing = Standing(told.append, clock=lambda: now[0])
    standing.away("writes", StoreAway(reason="full", refuses="full"))
    standing.away("registration", StoreAway(reason="no answer"))
    standing.away("writes", StoreAway(reason="full", refuses="full"))
    now[0] += 1.0
    standing.back("writes")
    assert told == [StoreAway(reason="full", refuses="full")]
    standing.back("registration", silent_s=3.0)  # it had been silent before it was noticed
    standing.back("registration", silent_s=3.0)
    assert told[1:] == [StoreBack(silent_s=3.0)]


def test_a_store_that_refuses_to_write_is_asked_until_it_does_and_nothing_is_changed() -> None:
    server, told = MemoryServer(lambda: 0.0), Told()
    store = server.client()
    road = WriteRoad(Standing(told.append, clock=lambda: 0.0), asked_with="/k")
    road.bear(StoreUnreachable("no answer"))
    assert (told, road.is_barred) == ([], False), "the registration tells of a silent store"
    server.is_full = True
    with pytest.raises(StoreExhausted) as full:
        store.transact([], [Put("/k", "1")], timeout_s=1)
    for _ in range(2):
        road.bear(full.value)
        with pytest.raises(StoreExhausted):
            road.ask_again(store)
    assert told == [StoreAway(reason="the store refuses: it is full", refuses="it is full")]
    server.is_full = False
    road.ask_again(store)
    road.ask_again(store)
    assert told[1:] == [StoreBack(silent_s=0.0)]
    assert not store.read("/k", timeout_s=1).entries


def test_people_read_what_the_store_says() -> None:
    full = StoreAway.of(StoreRefused("etcd at h:1 refuses: no room", words="no room"))
    assert full.told("training goes on") == "etcd refuses: no room; training goes on"
    assert StoreAway.of(StoreUnreachable("no answer")).told("training goes on") == (
        "training goes on"
    )


def test_what_a_membership_tells_becomes_events() -> None:
    posted: list[LeaseEnded | StoreAway | StoreBack] = []
    offices: list[tuple[int | None, str]] = []
    revisions: list[int] = []
    failures: list[EasyScaleError] = []
    ear = Ear(
        post=posted.append,
        standing=Standing(posted.append, clock=lambda: 0.0),
        enrolled_at=revisions.append,
        took_office=lambda token, reason: offices.append((token, reason)),
        fail=failures.append,
    )
    ear.enrolled(7)
    ear.lease_ended("late")
    ear.store_away(StoreUnreachable("no answer"))
    ear.store_back(2.5)
    ear.elected(9)
    ear.deposed("late")
    error = StoreUnreachable("no")
    ear.refused(error)
    assert posted == [
        LeaseEnded(reason="late"), StoreAway(reason="no answer"), StoreBack(silent_s=2.5),
    ]  # fmt: skip
    assert (revisions, offices, failures) == ([7], [(9, ""), (None, "late")], [error])
