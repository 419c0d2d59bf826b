"""Who waits in a broken group, left out by a planned change: when it goes, and when it must not."""

from types import SimpleNamespace
from typing import Any

import pytest

from easyscale.model import Commit, Mode
from easyscale.runtime.departure import Departure
from easyscale.runtime.neighbours import Knowledge
from tests.support.views import commit, number, worker

A, B = worker("a"), worker("b")
FIRST = commit(1, [A, B])
DRAINED = commit(2, [B], mode=Mode.BOUNDARY)
PAUSE = commit(2, [], mode=Mode.BOUNDARY)
BEHIND = Knowledge(entered=number(1))


def departure(newest: Commit | None) -> Departure:
    session: Any = SimpleNamespace(
        newest=newest, worker=A, settings=SimpleNamespace(linger_timeout_s=10.0, token="t")
    )
    training: Any = None
    return Departure(training, session, keep_boundary=lambda: True)


@pytest.mark.parametrize(
    ("planned", "answer", "is_left"),
    [
        (DRAINED, BEHIND, False),
        (DRAINED, Knowledge(entered=number(2)), True),
        (DRAINED, Knowledge(entered=number(1), finished=True), True),
        # It leaves too, and takes nothing over.
        (DRAINED, Knowledge(entered=number(1), left_for=number(2)), False),
        (PAUSE, BEHIND, False),
        (PAUSE, Knowledge(entered=number(1), left_for=number(2)), True),
        # It was to write the state down, and its disk did not take it.
        (PAUSE, Knowledge(entered=number(1), left_for=number(2), has_failed=True), False),
    ],
)
def test_who_is_left_out_goes_once_another_has_passed_the_boundary(
    planned: Commit, answer: Knowledge, *, is_left: bool
) -> None:
    assert is_left is departure(planned).is_left_behind(
        FIRST, [BEHIND, answer], waited_s=0.0, has_boundary=True
    )


@pytest.mark.parametrize(
    ("planned", "waited_s", "has_boundary", "stops", "writes"),
    [
        (PAUSE, 9.9, True, False, False),
        (PAUSE, 10.0, True, True, False),
        (PAUSE, 10.0, False, False, False),
        (DRAINED, 9.9, True, False, False),
        (DRAINED, 10.0, True, False, True),
        (FIRST, 99.0, True, False, False),
        (None, 99.0, True, False, False),
    ],
)
def test_where_nobody_answers_a_pause_is_obeyed_and_a_drain_waits_with_the_state_on_disk(
    planned: Commit | None, waited_s: float, *, has_boundary: bool, stops: bool, writes: bool
) -> None:
    leaving = departure(planned)
    assert stops is leaving.is_left_behind(FIRST, [], waited_s=waited_s, has_boundary=has_boundary)
    assert writes is leaving.may_be_last(FIRST, waited_s=waited_s)
