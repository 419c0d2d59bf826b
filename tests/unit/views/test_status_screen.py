"""The screen of `status` against the design's drawing, at every width and in every state."""

import json
from collections.abc import Callable
from datetime import UTC
from pathlib import Path

import msgspec
import pytest

from easyscale.job_status import JobStatus, count_slots
from easyscale.model import JobState
from easyscale.reports import EventKind
from easyscale_cli.views.changes import changes_of
from easyscale_cli.views.glyphs import ASCII, UNICODE
from easyscale_cli.views.job_status import status_json
from easyscale_cli.views.layout import width
from easyscale_cli.views.slots import Form, in_order, natural
from easyscale_cli.views.status import Window, form_of, status_lines
from easyscale_cli.views.style import plain_text
from easyscale_cli.views.worth_a_look import slot_run
from tests.unit.views import status_states as states

DRAWN = Path(__file__).parent / "drawn"
SPARK_80 = "█▇▆▅▅▄▃▃▂▂▂▂▂▂▁▁▁▁▁▁▁▁▁▁"
SPARK_160 = "██▇▇▆▆▆▅▅▅▄▄▄▄▃▃▃▃▃▃▃▂▂▂▂▂▂▂▂▂▂▂▂▂▂▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁"


def shown(status: JobStatus, window: Window) -> str:
    return "".join(plain_text(row) + "\n" for row in status_lines(status, window))


def drawn(name: str) -> str:
    return (DRAWN / f"{name}.txt").read_text(encoding="utf-8")


def test_two_nodes_of_four_slots_read_as_drawn() -> None:
    narrow = Window(80, 40, UNICODE, UTC)
    assert shown(states.two_by_four(SPARK_80), narrow) == drawn("status-2x4-80")
    wide = Window(160, 40, UNICODE, UTC)
    assert shown(states.two_by_four(SPARK_160), wide) == drawn("status-2x4-160")


def test_two_nodes_of_four_slots_read_as_drawn_in_ascii() -> None:
    window = Window(80, 40, ASCII, UTC)
    assert shown(states.two_by_four(SPARK_80), window) == drawn("status-2x4-80-ascii")


def test_sixty_four_nodes_of_eight_slots_read_as_drawn() -> None:
    status = states.sixty_four_by_eight(SPARK_160)
    assert shown(status, Window(160, 40, UNICODE, UTC)) == drawn("status-64x8-160")
    # The narrow drawing has a shorter story of the slots that are gone.
    status = states.sixty_four_by_eight(SPARK_80)
    story = "Xid 79, GPU fell off the bus; 4 ranks moved"
    slots = tuple(
        msgspec.structs.replace(slot, note=story) if slot.state == "gone" else slot
        for slot in status.slots
    )
    status = msgspec.structs.replace(status, slots=slots)
    assert shown(status, Window(80, 42, UNICODE, UTC)) == drawn("status-64x8-80")


@pytest.mark.parametrize("cells", (60, 80, 120, 160))
@pytest.mark.parametrize("is_ascii", (False, True), ids=["unicode", "ascii"])
def test_every_state_keeps_its_width(
    compare_screen: Callable[..., None], cells: int, is_ascii: bool
) -> None:
    window = Window(cells, 40, ASCII if is_ascii else UNICODE, UTC)
    falling = "█▇▆▅▅▄▃▃▂▂▂▂▂▂▁▁▁▁▁▁▁▁▁▁"
    every = {
        "2x4": states.two_by_four(falling),
        "64x8": states.sixty_four_by_eight(falling),
        **states.SMALL_STATES,
    }
    for name, status in every.items():
        lines = status_lines(status, window)
        compare_screen(f"status-{name}", lines, cells=cells, is_ascii=is_ascii)


@pytest.mark.parametrize("rows", (16, 20, 24, 30, 41))
@pytest.mark.parametrize("cells", (60, 80, 132, 200))
def test_a_frame_fits_its_window(cells: int, rows: int) -> None:
    big = states.sixty_four_by_eight(SPARK_80)
    for status in (big, states.two_by_four(SPARK_80), *states.SMALL_STATES.values()):
        lines = status_lines(status, Window(cells, rows, UNICODE, UTC))
        assert len(lines) <= rows
        assert all(width(row) <= cells for row in lines)


def test_a_window_that_is_too_small_is_told_so_and_once_prints_anyhow() -> None:
    status = states.two_by_four(SPARK_80)
    small = Window(59, 40, UNICODE, UTC)
    assert shown(status, small).startswith("the window is 59x40; status needs 60x16, --once")
    once = Window(59, 5, UNICODE, UTC, has_keys=False)
    assert "cuda:3" in shown(status, once)
    assert "q quit" not in shown(status, once)


def test_the_form_is_the_most_detailed_one_that_fits() -> None:
    status = states.sixty_four_by_eight(SPARK_80)
    forms = {rows: form_of(status, Window(80, rows, UNICODE)) for rows in (16, 29, 79, 80, 528)}
    assert forms == {
        16: Form.ODD,
        29: Form.CELLS,
        79: Form.CELLS,
        80: Form.NODES,
        528: Form.SLOTS,
    }


def test_a_chosen_form_sticks_only_while_it_fits() -> None:
    status = states.two_by_four(SPARK_80)
    assert form_of(status, Window(80, 40, UNICODE, form=Form.CELLS)) is Form.CELLS
    big = states.sixty_four_by_eight(SPARK_80)
    assert form_of(big, Window(80, 40, UNICODE, form=Form.SLOTS)) is Form.CELLS


def test_the_counts_of_the_heading_add_up_to_all_slots() -> None:
    for slots in (states.SLOTS_2X4, states.SLOTS_64X8, states.MIXED.slots):
        counts = msgspec.structs.asdict(count_slots(slots))
        counts.pop("nodes")
        assert sum(counts.values()) == len(slots)


def test_only_the_odd_names_how_many_are_as_usual() -> None:
    lines = shown(states.sixty_four_by_eight(SPARK_80), Window(80, 20, UNICODE, UTC))
    assert "60 nodes as usual (480 slots, 412 to 412 ms)" in lines
    assert "gpu-052" in lines


def test_names_are_ordered_as_people_count() -> None:
    names = ["gpu-10", "gpu-2", "gpu-2a", "a"]
    assert sorted(names, key=natural) == ["a", "gpu-2", "gpu-2a", "gpu-10"]
    mixed = [slot.slot for slot in in_order(states.MIXED.slots) if slot.node == "c"]
    assert mixed == [f"cuda:{index}" for index in (0, 1, 2, 10, 11, 12)]


def test_slots_of_one_story_share_a_row() -> None:
    assert slot_run(["cuda:3", "cuda:4"]) == "cuda:3-4"
    assert slot_run(["cuda:0", "cuda:2"]) == "cuda:0,2"
    assert slot_run(["cuda:3/1", "cpu"]) == "cuda:3/1, cpu"


def test_at_most_five_rows_are_worth_a_look_and_the_rest_is_counted() -> None:
    slots = tuple(
        msgspec.structs.replace(slot, slow=True, note=f"story {number}")
        for number, slot in enumerate(states.SLOTS_64X8)
    )
    status = msgspec.structs.replace(states.sixty_four_by_eight(SPARK_80), slots=slots)
    lines = shown(status, Window(80, 100, UNICODE, UTC, form=Form.CELLS))
    assert "Worth a look  512 of 512 slots" in lines
    assert "… 507 more: s" in lines


def test_a_loss_and_its_recovery_are_one_row_with_the_generation_that_answered() -> None:
    rows = changes_of(states.CHANGES_2X4)
    lost = next(row for row in rows if row.event.event is EventKind.LOST)
    assert lost.reason == "SIGKILL; rank 14 ran again on a/cuda:1; kernel log: out of memory"
    assert (lost.pause_s, lost.generation) == (0.083, 4)
    assert len(rows) == len(states.CHANGES_2X4) - 1


def test_recoveries_without_their_loss_keep_a_row_each() -> None:
    recovery = states.CHANGES_2X4[2]
    assert [row.event for row in changes_of([recovery, recovery])] == [recovery, recovery]


def test_every_state_of_a_job_has_its_mark_and_its_word() -> None:
    for state in JobState:
        job = msgspec.structs.replace(states.RESNET50, state=state)
        status = msgspec.structs.replace(states.two_by_four(SPARK_80), job=job)
        for glyphs in (UNICODE, ASCII):
            first = shown(status, Window(80, 40, glyphs, UTC)).splitlines()[0]
            assert f" {state} " in first


def test_json_is_the_state_with_versions_units_and_nulls() -> None:
    value = json.loads(status_json(states.two_by_four(SPARK_80)))
    assert list(value) == [
        *("version", "at", "job", "metrics", "slots", "counts", "step_time", "changes"),
        *("snapshot", "budget", "store"),
    ]
    assert value["version"] == 1
    assert value["job"]["digest"] is None
    assert value["slots"][5]["against_kind"] == 1.73
    assert value["slots"][5]["ranks"] == [13]
    assert value["changes"]["last"][0]["event"] == "slow"
    assert value["changes"]["last"][0]["node"] == "b"
    assert value["metrics"]["loss"]["history"][0] == [0, 7.0]


def test_json_of_a_loss_that_is_no_number_is_null() -> None:
    value = json.loads(status_json(states.DIVERGED))
    assert value["metrics"]["loss"]["last"] is None
    assert value["metrics"]["loss"]["not_finite_since"] == 144
