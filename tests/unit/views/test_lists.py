"""`jobs`, `plan` and `snapshots` against the design's drawings, at every width."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC
from pathlib import Path

import msgspec
import pytest

from easyscale_cli.views.glyphs import ASCII, UNICODE, Glyphs
from easyscale_cli.views.jobs import (
    forgotten_json,
    forgotten_lines,
    jobs_json,
    jobs_lines,
    row_of,
)
from easyscale_cli.views.plan import plan_json, plan_lines
from easyscale_cli.views.snapshots import (
    difference_lines,
    pruned_lines,
    snapshot_names,
    snapshots_json,
    snapshots_lines,
    verdict_lines,
)
from easyscale_cli.views.style import Line, plain_text
from tests.unit.views import list_states as states
from tests.unit.views.status_states import PLAIN

DRAWN = Path(__file__).parent / "drawn"


def text(lines: Sequence[Line]) -> str:
    return "".join(plain_text(row) + "\n" for row in lines)


def drawn(name: str) -> str:
    return (DRAWN / f"{name}.txt").read_text(encoding="utf-8")


def plan(cells: int, glyphs: Glyphs = UNICODE) -> list[Line]:
    return plan_lines(states.PLAN, cells=cells, glyphs=glyphs, zone=UTC, explain=True)


def snapshots(cells: int, glyphs: Glyphs = UNICODE) -> list[Line]:
    return snapshots_lines(states.SNAPSHOTS, footer=states.FOOTER, cells=cells, glyphs=glyphs)


def differences(cells: int, glyphs: Glyphs = UNICODE, most: int | None = None) -> list[Line]:
    return difference_lines(
        states.DIFFERENCES,
        names=("6,200", "6,400"),
        count=62,
        most=most,
        cells=cells,
        glyphs=glyphs,
    )


def test_what_nobody_knows_of_a_plain_job_is_a_dash_and_null() -> None:
    row = row_of(PLAIN)
    name, *cells = text(jobs_lines([row], cells=80, glyphs=UNICODE)).splitlines()[1].split()
    assert (name, cells) == ("ddp", ["●", "running", "-", "-", "3", "-", "-"])
    [job] = json.loads(jobs_json([row]))
    assert (job["mode"], job["step"], job["epoch"], job["steps_per_s"]) == (
        "plain", None, None, None,
    )  # fmt: skip


@pytest.mark.parametrize("cells", (80, 160))
def test_jobs_read_as_drawn(cells: int) -> None:
    assert text(jobs_lines(states.JOBS, cells=cells, glyphs=UNICODE)) == drawn(f"jobs-{cells}")


@pytest.mark.parametrize("cells", (80, 160))
def test_a_plan_reads_as_drawn(cells: int) -> None:
    assert text(plan(cells)) == drawn(f"plan-{cells}")


def test_a_plan_names_the_slots_that_wait_for_data() -> None:
    waits = (0.0004, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, None)
    slots = tuple(
        msgspec.structs.replace(slot, data_wait_s=wait_s)
        for slot, wait_s in zip(states.PLAN.assignments, waits, strict=True)
    )
    waiting = msgspec.structs.replace(states.PLAN, assignments=slots)
    lines = plan_lines(waiting, cells=80, glyphs=UNICODE, zone=UTC, explain=True)
    told = [plain_text(line) for line in lines if plain_text(line).startswith("      data ")]
    assert told == [
        "      data a/cuda:1 waits 20 ms of the 38 ms a rank takes",
        "      data a/cuda:2 waits 20 ms of the 38 ms a rank takes",
        "      data a/cuda:3 waits 20 ms of the 38 ms a rank takes",
        "      data b/cuda:0 waits 20 ms of the 76 ms a rank takes",
        "      data and 2 more slots",
    ]


def test_snapshots_read_as_drawn() -> None:
    assert text(snapshots(80)) == drawn("snapshots-80")


def test_a_verdict_reads_as_drawn() -> None:
    rows = [
        row
        for verdict in states.VERDICTS
        for row in verdict_lines(verdict, cells=80, glyphs=UNICODE)
    ]
    assert text(rows) == (
        "✓ step-00006400  98.1 MB, 62 tensors, blake2b and digest agree, 0.21 s\n"
        "− step-00006200  was removed before it was read\n"  # noqa: RUF001 - as it is shown
        "✗ step-00006000  state.pt: blake2b of bytes 41,943,040 to 46,137,344 differs\n"
        "                 → skipped by restore; easyscale snapshots prune --damaged\n"
    )


def test_a_difference_names_every_kind_of_it() -> None:
    shown = text(differences(120)).splitlines()
    assert shown[0] == "62 tensors: 2 differ in value, 1 in shape, 1 only in one"
    assert shown[2].split() == [
        *("fc.weight", "10x512", "all", "5,120", "3.1e-03", "[0,0]", "0.0114276", "0.0119021"),
    ]
    assert "17 of 9,408" in shown[3]
    assert shown[4].split() == ["head.bias", "10", "→", "11", "shape"]
    assert shown[5].split() == ["head.scale", "1", "only", "in", "6,400"]


def test_a_long_difference_is_cut_to_what_was_asked_for() -> None:
    assert text(differences(80, most=1)).splitlines()[-1] == "… 3 more: --all"


def test_equal_snapshots_are_said_to_be_equal() -> None:
    lines = difference_lines([], names=("1", "2"), count=62, most=None, cells=80, glyphs=UNICODE)
    assert text(lines) == "✓ 62 tensors and all plain values are equal, bit by bit\n"


def test_what_went_and_what_would_go_are_told_apart() -> None:
    def last(*, is_dry: bool) -> str:
        lines = pruned_lines(
            states.REMOVED[:1], kept=("step-00000007-g1.1-a",), is_dry=is_dry, cells=80,
            glyphs=UNICODE,
        )  # fmt: skip
        return text(lines).splitlines()[-1]

    assert last(is_dry=True) == "1 would go, 98.1 MB; 1 snapshot stays, the newest step-00000007"
    assert last(is_dry=False) == "1 removed, 98.1 MB; 1 snapshot stays, the newest step-00000007"


def test_two_snapshots_of_one_step_are_told_apart_by_their_whole_names() -> None:
    first, second = states.SNAPSHOTS[:2]
    twin = msgspec.structs.replace(first, name="step-00006400-g1.6-aaaaaaaa")
    assert snapshot_names([first, twin, second]) == {
        first.name: first.name,
        twin.name: twin.name,
        second.name: "step-00006200",
    }


@pytest.mark.parametrize("cells", (60, 80, 120, 160))
@pytest.mark.parametrize("is_ascii", (False, True), ids=["unicode", "ascii"])
def test_every_list_keeps_its_width(
    compare_screen: Callable[..., None], cells: int, is_ascii: bool
) -> None:
    glyphs = ASCII if is_ascii else UNICODE
    unmeasured = plan_lines(states.UNMEASURED, cells=cells, glyphs=glyphs, zone=UTC, explain=False)
    verdicts = [
        row
        for verdict in states.VERDICTS
        for row in verdict_lines(verdict, cells=cells, glyphs=glyphs)
    ]
    screens = {
        "jobs": jobs_lines(states.JOBS, cells=cells, glyphs=glyphs),
        "plan": [*plan(cells, glyphs), (), *unmeasured],
        "snapshots": [*snapshots(cells, glyphs), *verdicts, *differences(cells, glyphs)],
        "snapshots-diff": difference_lines(
            states.DIFFERENCES,
            states.VALUES,
            names=("6,200", "6,400"),
            count=62,
            most=2,
            cells=cells,
            glyphs=glyphs,
        ),
        "jobs-prune": forgotten_lines(
            states.FORGOTTEN, kept=2, is_dry=False, cells=cells, glyphs=glyphs
        ),
        "snapshots-prune": pruned_lines(
            states.REMOVED,
            kept=("step-00006400-g1.5-3fa9c2d1",),
            is_dry=False,
            cells=cells,
            glyphs=glyphs,
        ),
    }
    for name, lines in screens.items():
        compare_screen(name, lines, cells=cells, is_ascii=is_ascii)


def test_what_is_forgotten_is_told_to_programs_too() -> None:
    value = json.loads(forgotten_json(states.FORGOTTEN, kept=2, is_dry=True))
    assert (value["version"], value["dry_run"], value["kept"]) == (1, True, 2)
    assert [(row["job"], row["digest"]) for row in value["forgotten"]][1] == ("toy-ddp", None)
    nothing = forgotten_lines((), kept=1, is_dry=False, cells=80, glyphs=UNICODE)
    assert text(nothing) == "nothing to forget; 1 job stays, and all snapshots and logs\n"


def test_json_has_a_version_first_and_nulls_for_what_is_unknown() -> None:
    jobs = json.loads(jobs_json(states.JOBS))
    assert [*jobs[0]][:2] == ["version", "id"]
    assert (jobs[0]["slots"], jobs[0]["nodes"], jobs[0]["user"]) == (8, 2, "dev1")
    plan_value = json.loads(plan_json(states.PLAN))
    assert plan_value["waste"] == {"idle_per_s": 30.0, "padding_per_s": 0.0, "share": 0.197}
    assert plan_value["alternatives"][0]["against_now_share"] is None
    rows = json.loads(snapshots_json(states.SNAPSHOTS))
    assert rows[3]["digest"] is None
    assert rows[0]["nodes"] == ["a", "b"]
