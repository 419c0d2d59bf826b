"""Keys make choices, choices make frames; a story, devices and kinds read as they should."""

import json
from datetime import UTC

import msgspec
import pytest

from easyscale.job_status import SlotFacts, count_slots
from easyscale.model import JobState
from easyscale_cli.views.closing import record_lines
from easyscale_cli.views.devices import devices_json, devices_lines
from easyscale_cli.views.glyphs import ASCII, UNICODE
from easyscale_cli.views.jobs import row_of
from easyscale_cli.views.kinds import short_kind
from easyscale_cli.views.launch import Page
from easyscale_cli.views.layout import width
from easyscale_cli.views.slots import Form
from easyscale_cli.views.status import Window
from easyscale_cli.views.story import story_json, story_lines
from easyscale_cli.views.style import plain_text
from easyscale_cli.views.watching import Choice, Shown, frame_lines, press
from tests.unit.views import status_states as states

STATUS = states.two_by_four("█▇▆▅▄▃▂▁")
WINDOW = Window(80, 40, UNICODE, UTC)


def pressed(*keys: str) -> Choice:
    choice = Choice()
    for key in keys:
        after = press(choice, key, STATUS, WINDOW)
        assert after is not None
        choice = after
    return choice


def test_q_leaves_from_every_page() -> None:
    for keys in ("", "e", "?"):
        assert press(pressed(*keys), "q", STATUS, WINDOW) is None


def test_e_and_any_key_after_the_help_come_back_to_the_status() -> None:
    assert pressed("e").shown is Shown.EVENTS
    assert pressed("e", "e").shown is Shown.STATUS
    assert pressed("?", "x").shown is Shown.STATUS


def test_s_walks_through_the_forms_and_begins_again() -> None:
    forms = [pressed(*"s" * count).form for count in range(1, 5)]
    assert forms == [Form.NODES, Form.CELLS, Form.ODD, None]


def test_a_key_that_means_nothing_changes_nothing() -> None:
    assert pressed("z", "\x1b") == Choice()


@pytest.mark.parametrize("keys", ["", "e", "?", "s"])
@pytest.mark.parametrize(("cells", "rows"), [(60, 16), (80, 24), (160, 50)])
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_every_page_fits_its_window(keys: str, cells: int, rows: int, glyphs: object) -> None:
    window = Window(cells, rows, UNICODE if glyphs is UNICODE else ASCII, UTC)
    lines = frame_lines(STATUS, pressed(*keys), window)
    assert 0 < len(lines) <= rows
    assert max(map(width, lines)) <= cells


def test_the_keys_that_are_named_are_the_keys_that_work() -> None:
    shown = plain_text(frame_lines(STATUS, Choice(), WINDOW)[-1])
    for key in ("s", "e", "?"):
        assert f"{key} " in shown
        assert press(Choice(), key, STATUS, WINDOW) != Choice()


# --- other small screens -----------------------------------------------------------------------

DAY = "2026-10-04T14:02"
STORY = [
    {
        "at": "2026-10-04T14:02:11.204Z",
        "node": "a",
        "event": "Viewed",
        "decision": "decides",
        "reason": "g " * 60,
    },
    {
        "at": "2026-10-04T14:02:12.204Z",
        "node": "a",
        "event": "Elected",
        "decision": "leads",
        "reason": "",
    },
]


def test_a_story_is_never_cut() -> None:
    lines = [plain_text(row) for row in story_lines(STORY, cells=60, glyphs=UNICODE, zone=UTC)]
    assert sum(row.count("g ") + row.endswith("g") for row in lines) == 60
    assert lines[-1].split() == ["14:02:12", "a", "Elected", "leads"]
    assert json.loads(story_json("j", STORY))["story"] == STORY


def slot(name: str, **changes: object) -> SlotFacts:
    values = {"node": "a", "slot": name, "kind": "cpu avx2 x torch-2.13", "state": "in_use"}
    return SlotFacts(**{**values, **changes})  # type: ignore[arg-type]


def test_devices_are_listed_in_natural_order_with_what_they_do() -> None:
    slots = [slot("cpu:10", state="standby"), slot("cpu:2", ranks=(0, 1, 5))]
    lines = [plain_text(row) for row in devices_lines(slots, cells=80, glyphs=UNICODE)]
    assert lines[1].split() == ["a", "cpu:2", "cpu", "avx2", "in", "use", "0-1,5"]
    assert lines[2].split() == ["cpu:10", "cpu", "avx2", "standby", "-"]
    value = json.loads(devices_json("j", slots, ["n"]))
    assert [each["slot"] for each in value["slots"]] == ["cpu:2", "cpu:10"]
    assert value["slots"][0]["kind"] == "cpu avx2 x torch-2.13"


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("cpu avx2 AuthenticAMD+avx2 torch-2.13.0+cpu threads-1", "cpu avx2"),
        ("NVIDIA H100 80GB HBM3 sm-90", "H100 80GB HBM3"),
        ("H100", "H100"),
        ("", ""),
    ],
)
def test_a_kind_is_shown_by_what_a_person_calls_the_device(kind: str, shown: str) -> None:
    assert short_kind(kind) == shown


def test_a_jobs_note_is_what_a_person_has_to_do_with() -> None:
    def note(**changes: object) -> str | None:
        slots = (slot("cpu:0"), slot("cpu:1", **changes))
        status = msgspec.structs.replace(STATUS, slots=slots, counts=count_slots(slots))
        return row_of(status).job.note

    assert note(hung=True, slow=True) == "! hung: a/cpu:1"
    assert note(slow=True) == "! slow: a/cpu:1"
    assert note(state="gone") == "1 slot gone"
    ended = msgspec.structs.replace(
        STATUS.job, state=JobState.FINISHED, digest="a91e77f05c3d" + "0" * 52
    )
    finished = msgspec.structs.replace(STATUS, job=ended)
    assert row_of(finished).job.note == "digest a91e77f05c3d"


def test_a_job_of_which_only_records_are_left_closes_with_its_digest_and_snapshot() -> None:
    digest = "8c1f04e2" * 8
    ended = msgspec.structs.replace(STATUS.job, state=JobState.FINISHED, digest=digest)
    status = msgspec.structs.replace(STATUS, job=ended)
    lines = [plain_text(row) for row in record_lines(status, 0, Page(80, UNICODE))]
    assert lines[1].split() == ["Finished", "resnet50", "·", "6,412", "steps", "·", "exit", "0"]
    assert lines[2].strip() == f"digest {digest}"
    assert lines[3].split()[:3] == ["snapshot", "step", "6,400"]
    failed = msgspec.structs.replace(
        STATUS.job, state=JobState.FAILED, note="ValueError: target 11"
    )
    lost = record_lines(msgspec.structs.replace(STATUS, job=failed), 1, Page(80, UNICODE))
    assert "ValueError: target 11 · exit 1: job failed" in plain_text(lost[1])
