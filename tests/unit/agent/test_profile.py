"""How fast slots are planned to be: what they measured, to the nanosecond, or what stands in."""

import pytest

from easyscale.agent.balance.planner import Place, plan, shares
from easyscale.agent.balance.profile import micro_steps, nanoseconds, seconds
from easyscale.model import SlotRecord, WorkerId
from tests.support.views import worker


def slot(
    who: WorkerId, micro_step_s: float | None, *, kind: str = "cpu", wait_s: float | None = None
) -> SlotRecord:
    return SlotRecord(who.slot, kind, who, "in_use", "x", micro_step_s, data_wait_s=wait_s)


def test_every_round_number_of_milliseconds_is_planned_with_as_it_is() -> None:
    """Of all pairs of such times the plan is thus the exact one: it knows integers only."""
    wrong = [
        ms
        for ms in range(1, 60_001)
        if not nanoseconds(ms / 1000) == nanoseconds(float(f"{ms}e-3")) == ms * 1_000_000
    ]
    assert wrong == []


def test_every_round_number_of_microseconds_up_to_a_second_is_too() -> None:
    assert all(nanoseconds(us / 1_000_000) == us * 1000 for us in range(1, 1_000_001, 7))
    assert seconds(nanoseconds(0.335)) == 0.335


@pytest.mark.parametrize(
    ("times", "n", "counts"),
    [
        ((1.005, 0.335), 3, "3"),  # three times 0.335 s is just 1.005 s: one slot is enough
        ((1.001, 0.143), 7, "7"),
        ((0.333, 0.111), 4, "3+1"),
    ],
)
def test_steps_that_just_fit_are_seen_to_fit(times: tuple[float, ...], n: int, counts: str) -> None:
    slots = [slot(worker(f"a/{i}"), each) for i, each in enumerate(times)]
    taken = micro_steps(slots)
    assert list(taken.values()) == [round(1000 * each) * 1_000_000 for each in times]
    layout = plan([Place(w, t) for w, t in taken.items()], logical_workers=n)
    assert shares(map(len, layout.ranks.values())) == counts


def test_a_wait_for_data_counts_and_rounds_once() -> None:
    assert micro_steps([slot(worker("a/0"), 0.1, wait_s=0.2)]) == {worker("a/0"): 300_000_000}


def test_the_median_of_its_kind_stands_in_then_that_of_all_then_equality() -> None:
    a, b, c, d = (worker(f"a/{i}") for i in range(4))
    known = [slot(a, 0.1), slot(b, 0.3, kind="gpu")]
    taken = micro_steps([*known, slot(c, None, kind="gpu"), slot(d, None, kind="other")])
    assert (taken[c], taken[d]) == (300_000_000, 200_000_000)
    assert set(micro_steps([slot(a, None), slot(b, None)]).values()) == {1_000_000_000}
