"""Whoever stops waiting for a profile or a migration has asked for nothing any more."""

import os
import signal
from collections.abc import Callable, Iterator

import msgspec
import pytest

from easyscale.balance import ProfileRecord
from easyscale.model import Wish, decode, encode
from easyscale.rendezvous.store import Delete, Put
from easyscale_cli.main import run
from tests.support.kept import WHERE, keep
from tests.support.views import KEYS, Job, commit, worker

OTHERS = Wish(kind="profile", target="10", by="asked by bob")
MOVE = ("migrate", *WHERE, "a", "b")
MEASURE = ("profile", *WHERE)
ASKED = ((MOVE, "the migration"), (MEASURE, "the profile"))


class Watched:
    """A job in a store, and what happens there at each look that a command takes."""

    def __init__(self, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = keep(job, monkeypatch)
        self.looks: list[Callable[[], object]] = []
        self.seen: list[list[str]] = []
        monkeypatch.setattr("easyscale_cli.waiting.time.sleep", self._look)

    def _look(self, _: float) -> None:
        self.seen.append(sorted(self.wishes))
        assert len(self.seen) < 50, "it waits for ever"
        if self.looks:
            self.looks.pop(0)()

    @property
    def wishes(self) -> dict[str, Wish]:
        entries = self.store.read(KEYS.wishes, timeout_s=1.0).entries
        return {
            key.removeprefix(KEYS.wishes): decode(entry.value, Wish, source=key)
            for key, entry in entries.items()
        }

    def put(self, key: str, value: msgspec.Struct) -> None:
        self.store.transact([], [Put(key, encode(value))], timeout_s=1.0)

    def drop_wishes(self) -> None:
        for wish_id in self.wishes:
            self.store.transact([], [Delete(KEYS.wish(wish_id))], timeout_s=1.0)

    def measured(self, wish: str) -> None:
        record = ProfileRecord(
            wish=wish, by="ann", at="t", logical_workers=4, planned=0, points=(), done=True
        )
        self.put(KEYS.profile, record)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    job = Job().leads().node("a", "in_use").node("b", "starting").node("c", "gone").progress(7)
    return Watched(job.committed(commit(1, {worker("a"): [0, 1, 2, 3]})), monkeypatch)


def interrupt() -> None:
    raise KeyboardInterrupt


def end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def _alone() -> Iterator[None]:
    """As a command runs for itself: nobody else cares for the signal that ends it."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    assert signal.signal(signal.SIGTERM, before) is signal.SIG_DFL


ENDS = ((interrupt, 130), (end, 143))


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("ends", ENDS, ids=["ctrl-c", "sigterm"])
@pytest.mark.parametrize("asked", ASKED, ids=["move", "measure"])
def test_ctrl_c_and_a_signal_withdraw_the_wish_and_say_so(
    watched: Watched,
    capfd: pytest.CaptureFixture[str],
    asked: tuple[tuple[str, ...], str],
    ends: tuple[Callable[[], None], int],
) -> None:
    (words, name), (how, code) = asked, ends
    watched.looks = [lambda: None, how]
    try:
        ended: object = run([*words])
    except SystemExit as left:
        ended = left.code
    assert ended == code
    assert [len(each) for each in watched.seen] == [1, 1]
    assert watched.wishes == {}
    assert f"{name} is withdrawn" in capfd.readouterr().err


@pytest.mark.parametrize(("words", "name"), ASKED, ids=["move", "measure"])
def test_a_deadline_withdraws_the_wish_and_says_so(
    watched: Watched, capfd: pytest.CaptureFixture[str], words: tuple[str, ...], name: str
) -> None:
    assert run([*words, "--timeout", "0"]) != 0
    assert watched.wishes == {}
    assert f"; {name} is withdrawn" in capfd.readouterr().err


@pytest.mark.parametrize("words", [MOVE, MEASURE], ids=["move", "measure"])
def test_who_waits_ends_when_somebody_withdraws_the_wish(
    watched: Watched, capfd: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    watched.looks = [lambda: None, watched.drop_wishes]
    assert run([*words]) != 0
    assert "withdrawn" in capfd.readouterr().err


def test_a_second_command_joins_the_profile_that_is_asked_for_and_leaves_it_to_its_owner(
    watched: Watched, capfd: pytest.CaptureFixture[str]
) -> None:
    watched.put(KEYS.wish("w1"), OTHERS)
    watched.looks = [lambda: None, interrupt]
    assert run([*MEASURE]) == 130
    assert watched.wishes == {"w1": OTHERS}
    told = capfd.readouterr().err
    assert "waits for the same profile asked by bob" in told
    assert "the profile stands, since somebody else asked for it" in told


def test_a_second_command_ends_with_the_profile_that_it_has_joined(watched: Watched) -> None:
    watched.put(KEYS.wish("w1"), OTHERS)
    watched.looks = [lambda: watched.measured("w1")]
    assert run([*MEASURE]) == 0


def test_a_profile_of_other_steps_waits_for_the_one_before_it(
    watched: Watched, capfd: pytest.CaptureFixture[str]
) -> None:
    watched.put(KEYS.wish("w1"), OTHERS)
    watched.put(
        KEYS.profile,
        ProfileRecord(wish="w1", by="asked by bob", at="t", logical_workers=4, planned=3),
    )
    watched.looks = [lambda: None, interrupt]
    assert run([*MEASURE, "--steps", "20"]) == 130
    assert watched.wishes == {"w1": OTHERS}
    assert "waiting for the profile asked by bob to end first" in capfd.readouterr().err


def test_one_that_is_done_and_not_yet_cleared_away_is_not_joined(watched: Watched) -> None:
    watched.put(KEYS.wish("w1"), OTHERS)
    watched.measured("w1")
    watched.looks = [interrupt]
    assert run([*MEASURE]) == 130
    assert len(watched.seen[0]) == 2


def test_more_steps_than_a_job_may_be_held_up_for_are_refused(watched: Watched) -> None:
    assert run([*MEASURE, "--steps", "100000"]) == 2
    assert watched.wishes == {}


@pytest.mark.parametrize("target", ["c", "c/cpu:0"])
def test_a_target_that_is_gone_is_refused_at_once(
    watched: Watched, capfd: pytest.CaptureFixture[str], target: str
) -> None:
    assert run(["migrate", *WHERE, "a", target]) != 0
    assert watched.wishes == {}
    assert f"{target} is gone or drains: it takes nothing over" in capfd.readouterr().err


def test_a_target_that_goes_while_one_waits_ends_the_wait(
    watched: Watched, capfd: pytest.CaptureFixture[str]
) -> None:
    gone = Job().node("b", "gone").entries[KEYS.node("b")]
    watched.looks = [
        lambda: None,
        lambda: watched.store.transact([], [Put(gone.key, gone.value)], timeout_s=1.0),
    ]
    assert run([*MOVE]) != 0
    assert watched.wishes == {}
    told = capfd.readouterr().err
    assert "b is gone or drains: it takes nothing over; the migration is withdrawn" in told
