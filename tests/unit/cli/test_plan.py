"""`easyscale plan --slots`: what slots would do that do not exist, exactly."""

import json
import time
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


@pytest.mark.parametrize(
    "slots",
    [
        "fast", "fast:2", "fast:x@1", "fast:2@0", "a:1@1,a:1@2", ":1@1", "a:1@-1", "a:1@nan",
        "a:1@1/0", "a:1@1e400", "a:1@1e-400", "a:1@1e999999999", "a:1@1e-7", "a:1@0.0000001",
        "a:1@1e10", "a:1001@1", "a:501@1,b:500@1", "a:99999999999@1",
        f"a:{'9' * 5000}@1", f"a:1@{'9' * 5000}",
        "a:1@1,b:1@1,c:1@1,d:1@1,e:1@1,f:1@1,g:1@1,h:1@1,i:1@1",
    ],
    ids=lambda slots: slots[:24],
)  # fmt: skip
@pytest.mark.parametrize("as_json", [False, True], ids=["lines", "json"])
def test_slots_that_cannot_be_meant_are_refused_in_one_line(
    slots: str, as_json: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    more = ["--json"] if as_json else []
    assert run(["plan", "--slots", slots, "--logical-workers", "4", *more]) == 2
    said = capfd.readouterr()
    fact, hint = said.err.splitlines()
    assert fact.startswith("error: --slots: ")
    assert len(fact) < 120
    assert hint == "  try: easyscale plan --help"
    assert bool(said.out) == as_json
    if as_json:
        error = json.loads(said.out)["error"]
        assert (error["code"], error["exit_code"]) == ("usage", 2)
        assert fact == f"error: {error['message']}"


@pytest.mark.parametrize("workers", ["0", "-1", "10001", "1000000000", "many"])
def test_a_number_of_workers_that_cannot_be_meant_is_refused_in_one_line(
    workers: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "--slots", "a:1@1", f"--logical-workers={workers}", "--json"]) == 2
    said = capfd.readouterr()
    fact, _ = said.err.splitlines()
    assert fact.startswith("error: --logical-workers: ")
    assert workers in fact
    assert json.loads(said.out)["error"]["exit_code"] == 2


@pytest.mark.parametrize(
    ("words", "is_json"),
    [
        (["plan", "--json", "--slot", "a:1@1"], True),
        (["plan", "--", "--json", "b"], False),
        (["launch", "--nnodez", "2", "train.py", "--json"], False),
    ],
)
def test_a_command_line_that_cannot_be_read_is_an_object_where_one_was_asked_for(
    words: list[str], is_json: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert capfd.readouterr().out.startswith('{"version":1,"error":') == is_json


def test_the_largest_question_is_answered(capfd: pytest.CaptureFixture[str]) -> None:
    """Within about a second of a processor; a limit that says so for any machine is a wide one."""
    slots = ",".join(f"k{i}:125@{10 + i * i / 7:.6f}" for i in range(8))
    began = time.process_time()
    plan = planned(slots, 10_000, capfd)
    assert sum(len(each["ranks"]) for each in plan["assignments"]) == 10_000
    assert time.process_time() - began < 10


def test_an_answer_is_told_in_lines(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = ["plan", "--slots", "fast:2@4.0,slow:1@1.0", "--logical-workers", "16"]
    assert run(words) == 0
    plain = """\
16 logical workers on 2 slots
step 2.00 s predicted

SLOT    KIND  RANKS  N  PER S     ±%  BUSY ms  IDLE ms  STEP, 2.00 s OF WORK
fast/0  fast  0-7    8    4.0      ?    2,000        0  ━╸━╸━╸━╸━╸━╸━╸━╸
fast/1  fast  8-15   8    4.0      ?    2,000        0  ━╸━╸━╸━╸━╸━╸━╸━╸
slow/0  slow  -      0    1.0      ?        0    2,000  ────────────────

throughput 8.0 of 9.0 micro-steps/s (16 / 2.000 s)
     waste 1.0/s, 11.1 %: 1.0 idle until the slowest is done, 0 padding
    reason 16 = 8+8: least step time; among equals fewest slots
"""
    assert capfd.readouterr().out == plain
    assert run([*words, "--explain"]) == 0
    others = """\

Also looked at
  PLAN            PER SLOT    BUSY    NOW  WHY
✓ this plan       8+8       2.00 s         kept
  without fast/0  13+3      3.25 s  +62 %  the others hold 10 of 16 in that time
  one more fast   5+5+5+1   1.25 s  −38 %  proposed: 60 % more for each
"""  # noqa: RUF001 - as it is shown
    assert capfd.readouterr().out == plain + others


def test_slots_without_a_number_of_workers_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--slots", "a:1@1"]) == 2
    assert "--logical-workers 16" in capfd.readouterr().err
