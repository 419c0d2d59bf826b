"""The thread at an agent's store: orders in turn, what failed again, and an end that writes."""

import threading
from collections.abc import Callable

import pytest

from easyscale.agent import store_thread
from easyscale.agent.store_events import LeaseEnded, StoreAway, StoreBack
from easyscale.agent.store_thread import Ear, StoreThread
from easyscale.errors import EasyScaleError, StoreClosed, StoreUnreachable

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


def test_what_a_membership_tells_becomes_events() -> None:
    posted: list[LeaseEnded | StoreAway | StoreBack] = []
    offices: list[tuple[int | None, str]] = []
    revisions: list[int] = []
    failures: list[EasyScaleError] = []
    ear = Ear(
        post=posted.append,
        enrolled_at=revisions.append,
        took_office=lambda token, reason: offices.append((token, reason)),
        fail=failures.append,
    )
    ear.enrolled(7)
    ear.lease_ended("late")
    ear.store_away("no answer")
    ear.store_back(2.5)
    ear.elected(9)
    ear.deposed("late")
    error = StoreUnreachable("no")
    ear.refused(error)
    assert posted == [
        LeaseEnded(reason="late"), StoreAway(reason="no answer"), StoreBack(silent_s=2.5),
    ]  # fmt: skip
    assert (revisions, offices, failures) == ([7], [(9, ""), (None, "late")], [error])
