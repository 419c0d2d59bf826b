"""Keys make choices, choices make frames; a story, devices and kinds read as they should."""

import json
import time
from collections.abc import Callable
from datetime import UTC

import msgspec
import pytest

from easyscale.agent.processes.log_files import LogFile
from easyscale.job_status import JobStatus, SlotFacts, count_slots
from easyscale.model import JobState
from easyscale.reports import EventKind, Stream
from easyscale_cli.keyboard import keys_in
from easyscale_cli.views.closing import record_lines
from easyscale_cli.views.devices import devices_json, devices_lines
from easyscale_cli.views.filters import events_with, log_lines_with, slots_with
from easyscale_cli.views.glyphs import ASCII, UNICODE, Glyphs
from easyscale_cli.views.jobs import row_of
from easyscale_cli.views.kinds import short_kind
from easyscale_cli.views.launch import Page
from easyscale_cli.views.layout import width
from easyscale_cli.views.log_lines import LogLine
from easyscale_cli.views.slots import Form
from easyscale_cli.views.status import Window
from easyscale_cli.views.story import story_json, story_lines
from easyscale_cli.views.style import plain_text
from easyscale_cli.views.watching import Choice, Shown, Sight, frame_lines, press
from tests.unit.views import list_states
from tests.unit.views import status_states as states

STATUS = states.two_by_four("█▇▆▅▄▃▂▁")
WINDOW = Window(80, 40, UNICODE, UTC)
LOG_FILE = LogFile(
    node="b", slot="cuda:1", spawn=1, stream=Stream.STDOUT, name="cuda-1.1/stdout", size=0
)
PRINTED = ["epoch 5", "sample 40213: EXIF orientation ignored", "\x1b[2J\u202eodd \x07", "w " * 90]
LOG = tuple(
    LogLine(LOG_FILE, float(number), 13 if number % 3 else None, text)
    for number, text in enumerate(
        ["epoch 5", "sample 40213: EXIF orientation ignored", "\x1b[2J\u202eodd \x07", "w " * 90]
        * 20
    )
)
SIGHT = Sight(status=STATUS, plan=list_states.PLAN, log=LOG)


def pressed(*keys: str, status: JobStatus = STATUS) -> Choice:
    choice = Choice()
    for key in keys:
        after = press(choice, key, status, WINDOW)
        assert after is not None
        choice = after
    return choice


def shown(choice: Choice, *, sight: Sight = SIGHT, window: Window = WINDOW) -> str:
    return "\n".join(plain_text(row) for row in frame_lines(sight, choice, window))


def test_q_leaves_from_every_page() -> None:
    for keys in ("", "e", "l", "p", "?", "j"):
        assert press(pressed(*keys), "q", STATUS, WINDOW) is None


@pytest.mark.parametrize(
    ("key", "page"), [("e", Shown.EVENTS), ("l", Shown.LOGS), ("p", Shown.PLAN), ("?", Shown.KEYS)]
)
def test_a_key_shows_its_page_and_brings_back(key: str, page: Shown) -> None:
    assert pressed(key).shown is page
    assert pressed(key, key).shown is Shown.STATUS
    assert pressed(key, "escape").shown is Shown.STATUS
    assert pressed("?", "x").shown is Shown.STATUS


def test_s_walks_through_the_forms_and_begins_again() -> None:
    forms = [pressed(*"s" * count).form for count in range(1, 5)]
    assert forms == [Form.NODES, Form.CELLS, Form.ODD, None]


def test_a_key_that_means_nothing_changes_nothing() -> None:
    assert pressed("z", "escape") == Choice()


def test_j_and_k_select_one_slot_after_the_other_and_stay_within() -> None:
    assert pressed("j").selected == ("a", "cuda:0")
    assert pressed("j", "down", "j").selected == ("a", "cuda:2")
    assert pressed("j", "k", "up").selected == ("a", "cuda:0")
    assert pressed("k").selected == ("b", "cuda:3")
    assert pressed("k", "j").selected == ("b", "cuda:3")
    assert pressed("j", "escape") == Choice()


def test_the_selected_slot_is_marked_and_told_in_full() -> None:
    text = shown(pressed("k", "k", "k"))
    assert "▸cuda:1" in text
    assert "▸ b/cuda:1  A100 · rank 13 · 131 ms, 1.7 " in text
    assert " its kind · waits 0 ms · pid 48102" in text
    in_cells = shown(pressed("k", "k", "k", "s", "s"))
    assert "▸ b/cuda:1  A100" in in_cells


def test_a_filter_leaves_what_says_it_and_tells_of_how_many() -> None:
    typing = pressed("/", *"b/cuda")
    assert typing.typed == "b/cuda"
    assert "/b/cuda_  enter keeps the filter, escape drops it" in shown(typing)
    assert "a     cuda:0" not in shown(typing)
    kept = pressed("/", *"b/cudax", "backspace", "enter")
    assert kept.filter == "b/cuda"
    text = shown(kept)
    assert "/b/cuda  4 of 8 slots" in text
    assert "Slots  8 in use" in text, "the heading counts all"
    assert pressed("/", *"b", "escape") == Choice()
    assert pressed("/", *"b", "enter", "escape") == Choice()
    assert "/none  0 of 8 slots" in shown(pressed("/", *"none", "enter"))


@pytest.mark.parametrize(
    ("word", "places"),
    [("r13", ["b/cuda:1"]), ("r0", ["a/cuda:0"]), ("slow", ["b/cuda:1"]), ("A100", ["b"] * 4)],
)
def test_a_filter_knows_ranks_and_words(word: str, places: list[str]) -> None:
    found = [slot.place for slot in slots_with(STATUS.slots, word)]
    assert len(found) == len(places)
    assert all(each.startswith(place) for each, place in zip(found, places, strict=True))


def test_q_while_typing_is_a_letter() -> None:
    assert pressed("/", "q", "j").typed == "qj"


def test_a_filter_finds_events_and_lines_of_a_log() -> None:
    named = {event.event for event in events_with(STATUS.changes.last, "r14")}
    assert named == {EventKind.JOINED, EventKind.RECOVERED}
    found = events_with(STATUS.changes.last, "joined b")
    assert {event.facts["node"] for event in found} == {"b"}
    assert len(log_lines_with(LOG, "EXIF")) == 20
    assert {line.rank for line in log_lines_with(LOG, "r13")} == {13}
    assert "EXIF" in shown(pressed("l", "/", *"exif", "enter"))


def test_a_log_is_read_from_its_end_and_moves_back() -> None:
    window = Window(80, 16, UNICODE, UTC)
    last = shown(pressed("l"), window=window).splitlines()
    assert len(last) == 16
    back = shown(pressed("l", "k", "k"), window=window).splitlines()
    assert back[4:14] == last[2:12]
    assert shown(pressed("l", *["page up"] * 99), window=window).splitlines()[2].endswith("epoch 5")


def test_nothing_that_a_worker_prints_steers_the_screen() -> None:
    assert "\\x1b[2J\\u202eodd \\x07" in shown(pressed("l"))


def test_a_list_moves_as_far_as_it_goes() -> None:
    window = Window(80, 16, UNICODE, UTC)
    end = shown(pressed("p", *["page down"] * 9), window=window)
    assert end == shown(pressed("p", *["page down"] * 10), window=window)
    assert end.splitlines()[0] == shown(pressed("p"), window=window).splitlines()[0]


@pytest.mark.parametrize("keys", ["p", "l"])
def test_why_there_is_no_plan_or_log_is_said(keys: str) -> None:
    told = Sight(status=STATUS, note="the agent at b did not answer within 5 s")
    assert "the agent at b did not answer within 5 s" in shown(pressed(keys), sight=told)
    assert "nothing yet" in shown(pressed(keys), sight=Sight(status=STATUS))


def test_a_window_that_is_too_small_says_so_on_every_page() -> None:
    for keys in ("", "e", "l", "p", "?", "j"):
        text = shown(pressed(*keys), window=Window(59, 15, UNICODE, UTC))
        assert text.startswith("the window is 59x15")


PAGES = ["", "e", "l", "p", "?", "s", "j", "j/b", "/cuda", "e/lost", "l/epoch", "jjss"]


@pytest.mark.parametrize("keys", PAGES)
@pytest.mark.parametrize(("cells", "rows"), [(60, 16), (80, 17), (80, 24), (160, 50)])
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_every_page_fits_its_window(keys: str, cells: int, rows: int, glyphs: Glyphs) -> None:
    window = Window(cells, rows, glyphs, UTC)
    big = states.sixty_four_by_eight("█▇▆▅▄▃▂▁")
    for status in (STATUS, big, *states.SMALL_STATES.values()):
        sight = Sight(status=status, plan=list_states.PLAN, log=LOG)
        lines = frame_lines(sight, pressed(*keys, status=status), window)
        assert 0 < len(lines) <= rows
        assert max(map(width, lines)) <= cells
        text = "".join(plain_text(row) for row in lines)
        assert text.isprintable()
        assert glyphs is UNICODE or text.isascii()


@pytest.mark.parametrize("cells", (80, 160))
@pytest.mark.parametrize("is_ascii", (False, True), ids=["unicode", "ascii"])
def test_the_pages_keep_their_width(
    compare_screen: Callable[..., None], cells: int, is_ascii: bool
) -> None:
    window = Window(cells, 30, ASCII if is_ascii else UNICODE, UTC)
    for name, keys in {
        "events": "e", "logs": "kkkl", "plan": "p", "keys": "?", "selected": "kkk",
        "filtered": "/r13", "story": "",
    }.items():  # fmt: skip
        lines = frame_lines(SIGHT, pressed(*keys), window)
        if name == "story":
            lines = story_lines(STORY, cells=cells, glyphs=window.glyphs, zone=UTC)
        compare_screen(f"watching-{name}", lines, cells=cells, is_ascii=is_ascii)


def test_ten_thousand_events_are_a_page_like_any_other() -> None:
    many = tuple(
        states.change(EventKind.LOST, "14:02:11", number, 1, "SIGKILL", node="b", slot="cuda:2")
        for number in range(10_000)
    )
    changes = msgspec.structs.replace(STATUS.changes, last=many, count=10_000)
    sight = Sight(status=msgspec.structs.replace(STATUS, changes=changes))
    began_s = time.perf_counter()
    text = shown(pressed("e"), sight=sight)
    assert time.perf_counter() - began_s < 2
    assert "10,000 changes" in text
    assert len(text.splitlines()) == WINDOW.rows


def test_a_node_of_an_odd_name_is_selected_filtered_and_told_literally() -> None:
    name = "gpu-\x1b[31m\u202e" + "n" * 50
    slots = tuple(msgspec.structs.replace(slot, node=name) for slot in STATUS.slots)
    status = msgspec.structs.replace(STATUS, slots=slots)
    sight = Sight(status=status, log=LOG)
    for keys in ("j", "jl", "/gpu"):
        text = shown(pressed(*keys, status=status), sight=sight)
        assert "\x1b" not in text
        assert "\\x1b[31m\\u202e" in text or "nnn" in text


def test_the_keys_that_are_named_are_the_keys_that_work() -> None:
    named = plain_text(frame_lines(SIGHT, Choice(), WINDOW)[-1])
    for key in ("s", "e", "l", "p", "/", "?"):
        assert f"{key} " in named
        assert press(Choice(), key, STATUS, WINDOW) != Choice()
    helped = shown(pressed("?"))
    assert all(
        f"\n{key:<3}  " in helped for key in ("q", "s", "e", "l", "p", "j k", "/", "esc", "?")
    )


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"jk", ["j", "k"]),
        (b"\x1b[A\x1b[B\x1bOA", ["up", "down", "up"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[5~\x1b[6~q", ["page up", "page down", "q"]),
        (b"\r\x7f", ["enter", "backspace"]),
        ("é".encode(), ["é"]),
        (b"\x1b[200~\x00\xff\x1b[M", []),
    ],
)
def test_bytes_of_a_terminal_are_keys(data: bytes, keys: list[str]) -> None:
    assert keys_in(data) == keys


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
        ("nvidia sm-9.0 132-sms 2048-threads torch-2.13.0 cuda-13.0 (NVIDIA H200)", "H200"),
        ("nvidia sm-9.0 (NVIDIA H100 80GB HBM3)", "H100 80GB HBM3"),
        ("amd gfx942:sramecc+:xnack- 304-cus (AMD Instinct MI300X)", "Instinct MI300X"),
        ("nvidia sm-9.0 132-sms 2048-threads torch-2.13.0", "nvidia sm-9.0"),
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
