"""What a wait shows of itself on the pulse page while it lasts."""

import os
import threading

import pytest

from easyscale.errors import GenerationBroken
from easyscale.pulse import Phase, Pulse
from easyscale.runtime.group import Wait, await_event


@pytest.fixture
def pulse() -> Pulse:
    descriptor = Pulse.allocate()
    page = Pulse.attach(descriptor)
    os.close(descriptor)
    page.beat(Phase.EXCHANGE, position=3, step=3)
    return page


def test_a_wait_shows_that_it_is_awake_until_it_ends(pulse: Pulse) -> None:
    done = threading.Event()
    seen: list[float | None] = []

    def look() -> None:
        seen.append(pulse.read().polled_s)
        if len(seen) == 3:
            done.set()

    await_event(done, Wait(timeout_s=20.0, interrupt=look, pulse=pulse), name="a wait")
    times = [each for each in seen if each is not None]
    assert len(times) == 3
    assert times == sorted(set(times)), "each poll is seen"
    assert pulse.read().polled_s is None
    assert pulse.read().phase is Phase.EXCHANGE


def test_a_wait_that_is_given_up_leaves_no_sign_of_being_in_one(pulse: Pulse) -> None:
    wait = Wait(timeout_s=20.0, interrupt=lambda: "superseded", pulse=pulse)
    with pytest.raises(GenerationBroken, match="superseded"):
        await_event(threading.Event(), wait, name="a wait")
    assert pulse.read().polled_s is None


def test_a_beat_says_that_no_wait_is_under_way(pulse: Pulse) -> None:
    pulse.poll()
    pulse.beat(Phase.OUTER_BODY, position=4, step=4)
    assert pulse.read().polled_s is None
