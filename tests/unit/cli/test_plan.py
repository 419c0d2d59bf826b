"""`easyscale plan --slots`: what slots would do that do not exist, exactly."""

import json
from typing import Any

import pytest

from easyscale_cli.main import run


def planned(slots: str, workers: int, capfd: pytest.CaptureFixture[str]) -> Any:  # noqa: ANN401
    code = run(["plan", "--slots", slots, "--logical-workers", str(workers), "--json"])
    said = capfd.readouterr()
    assert code == 0, said.err
    return json.loads(said.out)


def test_the_predicted_step_is_exact(capfd: pytest.CaptureFixture[str]) -> None:
    plan = planned("fast:2@4.0,slow:1@1.0", 16, capfd)
    assert plan["step_seconds"] == 2.0
    assert plan["waste"] == {"idle_per_s": 1.0, "padding_per_s": 0.0, "share": 1 / 9}
    assert [len(each["ranks"]) for each in plan["assignments"]] == [8, 8, 0]


def test_a_rate_that_floats_cannot_hold_plans_as_it_is_written(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """In floats 3 / 0.3 and 1 / 0.1 differ: one rank would be thought not to fit."""
    plan = planned("a:1@0.3,b:1@0.1", 4, capfd)
    assert plan["step_seconds"] == 10.0
    assert plan["waste"]["share"] == 0.0


def test_kinds_of_equal_slots_plan_as_one_kind(capfd: pytest.CaptureFixture[str]) -> None:
    one = planned("a:5@2.5", 16, capfd)
    two = planned("x:2@2.5,y:3@2.5", 16, capfd)
    assert one["step_seconds"] == two["step_seconds"]
    assert [each["ranks"] for each in one["assignments"]] == [
        each["ranks"] for each in two["assignments"]
    ]


@pytest.mark.parametrize("slots", ["fast", "fast:2", "fast:x@1", "fast:2@0", "a:1@1,a:1@2"])
def test_slots_that_cannot_be_meant_are_refused(
    slots: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "--slots", slots, "--logical-workers", "4"]) == 2
    assert "--slots" in capfd.readouterr().err


def test_slots_without_a_number_of_workers_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--slots", "a:1@1"]) == 2
    assert "--logical-workers 16" in capfd.readouterr().err
