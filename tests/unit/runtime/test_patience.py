"""When a wait asks the others whether they are still there, and for whom it goes on."""

from typing import NamedTuple

import pytest

from easyscale.errors import GenerationBroken
from easyscale.runtime import neighbours
from easyscale.runtime.group import Membership, Probe
from easyscale.runtime.neighbours import Knowledge, Patience, await_taker, await_writer
from tests.support.views import commit, worker


class WriterSettings(NamedTuple):
    linger_timeout_s: float


class Session:
    """One that has heard of nothing."""

    lost = frozenset[object]()


def patience_of_a(*, is_coming: bool, first_ask_s: float | None) -> Patience:
    return Patience(
        Membership(commit(1, [worker("a"), worker("b")]), worker("a"), "t"),
        Session(),  # type: ignore[arg-type]
        "forming",
        deadline_s=10.0,
        is_coming=lambda _: is_coming,
        superseded=lambda: None,
        first_ask_s=first_ask_s,
    )


@pytest.mark.parametrize(("first_ask_s", "asked_at"), ((None, [2.5, 5.0]), (0.2, [0.2, 2.7, 5.2])))
def test_the_first_round_of_asking_may_come_early(
    monkeypatch: pytest.MonkeyPatch, first_ask_s: float | None, asked_at: list[float]
) -> None:
    now = [0.0]
    asked: list[float] = []

    def ask(*_: object, **__: object) -> tuple[Probe, dict[int, object]]:
        asked.append(round(now[0], 3))
        return Probe({}, (), (1,)), {}

    monkeypatch.setattr("easyscale.runtime.neighbours.time.monotonic", lambda: now[0])
    monkeypatch.setattr(neighbours, "ask_all", ask)
    patience = patience_of_a(is_coming=True, first_ask_s=first_ask_s)
    for tick in range(1, 56):
        now[0] = tick / 10
        assert patience() is None
    assert asked == asked_at


def test_whoever_refuses_ends_the_wait_at_the_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "ask_all", lambda *_, **__: (Probe({}, (1,), ()), {}))
    patience = patience_of_a(is_coming=True, first_ask_s=0.0)
    with pytest.raises(GenerationBroken, match="nobody answers there") as broken:
        patience()
    assert broken.value.suspects == (1,)


@pytest.mark.parametrize(
    ("misses_until_s", "breaks_at_s"),
    [
        (0.0, 10.25),
        # Who misses somebody gives up itself, half a second later, and says whom.
        (99.0, 20.25),
        (12.0, 12.75),
    ],
)
def test_who_hears_everybody_lets_a_peer_speak_that_does_not(
    monkeypatch: pytest.MonkeyPatch, misses_until_s: float, breaks_at_s: float
) -> None:
    now = [0.0]

    def ask(*_: object, **__: object) -> tuple[Probe, dict[int, Knowledge]]:
        return Probe({}, (), ()), {1: Knowledge(misses_somebody=now[0] < misses_until_s)}

    monkeypatch.setattr("easyscale.runtime.neighbours.time.monotonic", lambda: now[0])
    monkeypatch.setattr(neighbours, "ask_all", ask)
    patience = patience_of_a(is_coming=False, first_ask_s=0.25)

    def wait() -> None:
        for tick in range(300):
            now[0] = tick / 8
            patience()

    with pytest.raises(GenerationBroken, match="all wait for it") as broken:
        wait()
    assert broken.value.suspects == ()
    assert now[0] == breaks_at_s


class Pulse:
    def end_wait(self) -> None:
        """Nobody watches here."""


class Leaving(Session):
    pulse = Pulse()
    settings = WriterSettings(linger_timeout_s=10.0)


@pytest.mark.parametrize(
    ("position", "has_failed", "is_waited_for"),
    [(7, False, True), (6, False, False), (7, True, False)],
)
def test_the_last_snapshot_of_another_is_waited_for_only_where_that_one_can_write_it(
    monkeypatch: pytest.MonkeyPatch, position: int, has_failed: bool, is_waited_for: bool
) -> None:
    now = [0.0]
    answer = Knowledge(position=position, has_failed=has_failed)
    monkeypatch.setattr("easyscale.runtime.neighbours.time.monotonic", lambda: now[0])
    monkeypatch.setattr(
        "easyscale.runtime.neighbours.time.sleep", lambda _: now.__setitem__(0, now[0] + 1.0)
    )
    monkeypatch.setattr(neighbours, "ask_all", lambda *_, **__: (Probe({}, (), ()), {0: answer}))
    is_written = await_writer(
        Membership(commit(1, [worker("a"), worker("b")]), worker("b"), "t"),
        Leaving(),  # type: ignore[arg-type]
        0,
        position=7,
        has_kept=lambda _: now[0] > 30.0,
        superseded=lambda: False,
    )
    assert is_written is is_waited_for
    assert (now[0] > 30.0) is is_waited_for


@pytest.mark.parametrize(
    ("answers_until_s", "enters_at_s", "is_called_at_s", "is_over", "ends_at_s"),
    [
        (99.0, 30.0, None, True, 30.0),  # it may take its time while it answers
        (99.0, None, 30.0, True, 30.0),  # asked back
        (5.0, None, None, False, 14.0),
        (5.0, None, 12.0, True, 12.0),
    ],
)
def test_who_leaves_stays_until_one_that_goes_on_has_entered(
    monkeypatch: pytest.MonkeyPatch,
    answers_until_s: float,
    enters_at_s: float | None,
    is_called_at_s: float | None,
    *,
    is_over: bool,
    ends_at_s: float,
) -> None:
    """Rank 1 leaves too and answers for ever: it takes nothing over."""
    now = [0.0]
    going_on, leaving = Knowledge(position=7), Knowledge(position=7)

    def ask(*_: object, **__: object) -> tuple[Probe, dict[int, Knowledge]]:
        answers = {1: leaving} | ({0: going_on} if now[0] < answers_until_s else {})
        return Probe({}, (), ()), answers

    monkeypatch.setattr("easyscale.runtime.neighbours.time.monotonic", lambda: now[0])
    monkeypatch.setattr(
        "easyscale.runtime.neighbours.time.sleep", lambda _: now.__setitem__(0, now[0] + 1.0)
    )
    monkeypatch.setattr(neighbours, "ask_all", ask)
    assert is_over is await_taker(
        Membership(commit(1, [worker("a"), worker("b"), worker("c")]), worker("c"), "t"),
        Leaving(),  # type: ignore[arg-type]
        [worker("a")],
        has_passed=lambda known: (
            known is leaving or (enters_at_s is not None and now[0] >= enters_at_s)
        ),
        superseded=lambda: is_called_at_s is not None and now[0] >= is_called_at_s,
    )
    assert now[0] == ends_at_s
