"""The stream of `launch` at every width, and against the design's own drawing of it."""

# ruff: noqa: RUF001 - the signs of multiplication are meant

from collections.abc import Callable

import msgspec
import pytest

from easyscale.reports import EventKind, FirstCause, JobEvent
from easyscale_cli.views.closing import exit_words, first_cause_lines, summary_lines
from easyscale_cli.views.glyphs import ASCII, UNICODE
from easyscale_cli.views.launch import Page, event_lines, heading
from easyscale_cli.views.progress import live_lines
from easyscale_cli.views.style import Line, plain_text
from tests.unit.views import launch_states as states

STREAM = (
    states.MET,
    states.STARTED,
    states.JOINED,
    states.REBALANCED,
    states.LOST,
    states.RECOVERED,
    states.JOINED_AGAIN,
    states.SLOW,
)
SPARK_80 = "█▇▆▅▄▄▃▃▂▂▂▂▂▁▁▁▁▁▁▁▁▁"
SPARK_160 = "█▇▇▆▅▅▅▄▄▄▃▃▃▃▂▂▂▂▂▂▂▂▂▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁"
DRAWN_80 = """\
   easyscale 0.1.0 · job resnet50 · 16 logical workers · determinism D2
         Met etcd-0:2379 in 0.04 s · this is node a, 4 slots H100
     Started 4 workers in 1.31 s · gen 1 · 16 = 4+4+4+4
      Joined b, 4 slots A100 · step 412 · gen 2 · paused 0.021 s
  Rebalanced A100 13.2/s, H100 26.3/s: a 2 → 3, b 2 → 1 a slot; step 156 → 118
             ms · step 432 · gen 3 · paused 0.000 s
        Lost b/cuda:2, worker 48213 killed by SIGKILL · step 2,944, rank 14
   Recovered in 0.083 s · rank 14 ran again on a/cuda:1 · gen 4 · 0 steps lost
      Joined b/cuda:2, new worker 48977 · step 2,950 · gen 5 · paused 0.018 s
      ! Slow b/cuda:1: 131 ms, 1.7 × its kind; plan kept, best other 152 ms
━━━━━━━━━━━━━━━━━━━╸───────────  6,412/10,000 · 64 % · 7.4 steps/s · 8m 05s left
loss 0.612 █▇▆▅▄▄▃▃▂▂▂▂▂▁▁▁▁▁▁▁▁▁ · 2 nodes, 8 slots · gen 5 · ! slow: b/cuda:1
"""
DRAWN_80_ASCII = """\
###################|...........  6,412/10,000 | 64 % | 7.4 steps/s | 8m 05s left
loss 0.612 8765443322222111111111 | 2 nodes, 8 slots | gen 5 | ! slow: b/cuda:1
"""
DRAWN_160 = """\
  Rebalanced A100 13.2/s, H100 26.3/s: a 2 → 3, b 2 → 1 a slot; step 156 → 118 ms · step 432 · \
gen 3 · paused 0.000 s
        Lost b/cuda:2, worker 48213 killed by SIGKILL · step 2,944, rank 14 · kernel log: out of \
memory
   Recovered in 0.083 s · rank 14 ran again on a/cuda:1 · gen 4 · 0 steps lost · 7 workers kept
epoch 6 of 10 · loss 0.612 █▇▇▆▅▅▅▄▄▄▃▃▃▃▂▂▂▂▂▂▂▂▂▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁ · 2 nodes, 8 slots · gen 5 · \
! slow: b/cuda:1 · s status  ctrl-c drain
"""
DRAWN_OTHERS = """\
     Waiting for 1 of 2 nodes · 12 s of 600 s · have a
     Waiting gen 3 could still run: waits for b/cuda:0 or proof that it ended
             31 s of 60 s · have c
     Drained node b (SIGTERM from slurmstepd, 30 s grace) · step 7,200 · gen 6
        Hung b/cuda:3, silent 10.2 s in step 3,310's reduction · stacks in its log
   Recovered in 10.4 s · rank 15 ran again on a/cuda:0 · gen 7 · 0 steps lost
        Lost etcd-0:2379 for 4.0 s · training goes on, changes wait
         Met etcd-0:2379 again after 21.7 s · gen 7 stands, nothing lost
    Restored step 6,400 from b:runs/resnet50 · 12 steps back, all were gone
  ! Snapshot of step 6,600 not written: disk full on a, 0 B free · 6,400 kept
"""
# Sizes have three digits everywhere, so 98.1 MB stands where the drawing has 98 MB.
DRAWN_END = """\

    Finished resnet50 · 10,000 steps, 10 epochs in 21m 56s · exit 0
      digest 8c1f04e26b0a5d11c2aa0f9b4b5d1e7790b3a4f61c8e2d35f7a9016bd93a77b1
        loss 0.531  █▇▆▅▅▄▄▄▃▃▃▂▂▂▂▂▂▂▂▁▁▁▁▁▁▁▁▁▁▁▁▁  from 2.303
        rate 7.6 steps/s · 3,896 samples/s · median step 118 ms
     changes 5 · 2 joined, 1 lost, 1 drained, 1 rebalanced
      paused 0.131 s in all (0.01 %) · longest 0.083 s
             0 steps lost, 0 restarts
    snapshot step 10,000 · 98.1 MB, verified · runs/resnet50/step-00010000
        logs runs/resnet50/logs
"""
DRAWN_FIRST_CAUSE = """\
        Lost b/cuda:1, worker 50311 exited 1 · step 6,412, rank 3
        Lost a/cuda:0, worker 4811 exited 1 · step 6,412, rank 3 again
        Lost a/cuda:2, worker 4813 exited 1 · step 6,412, rank 3 again
             2 of 3 restarts

── resnet50 failed: first cause ────────────────────────────────────────────────

  ✗ ValueError: target 11 is out of bounds for 10 classes
    logical rank 3 · step 6,412 · node b · slot cuda:1 · pid 50311 · gen 5

    train.py:41 in check   from train.py:23 in main; 2 library frames hidden
       39 │ def check(x, y):
       40 │     if y.max() >= CLASSES:
     ▸ 41 │         raise ValueError(f"target {int(y.max())} is out of bounds f…
       42 │     return x, y

    why ended rank 3 failed the same way at step 6,412 on 3 slots (b/cuda:1,
              a/cuda:0, a/cuda:2): it is the script or its data, not a device
      victims 5 other workers, stopped by us; none failed by itself
     snapshot step 6,400, verified, 12 steps back · runs/resnet50/step-00006400
          log b:runs/resnet50/logs/b/cuda-1.2/stderr.log
              easyscale logs resnet50 --rank 3   the same from any node

         next fix it, then run the same command again: it resumes at step 6,400
              python train.py   fails the same way on one device, for a debugger

── exit 1: job failed ──────────────────────────────────────────────────────────
"""


def text(lines: list[Line]) -> str:
    return "".join(plain_text(row) + "\n" for row in lines)


def stream(page: Page, events: tuple[JobEvent, ...]) -> list[Line]:
    return [row for event in events for row in event_lines(event, page)]


def test_the_first_line_says_where_snapshots_and_logs_go() -> None:
    told = states.HEADING | {"snapshot_dir": "runs/resnet50", "log_dir": "runs/resnet50/logs"}
    lines = heading("resnet50", told, version="0.1.0", page=Page(80, UNICODE))
    assert text(lines) == (
        "   easyscale 0.1.0 · job resnet50 · 16 logical workers · determinism D2\n"
        "             snapshots runs/resnet50 · logs runs/resnet50/logs\n"
    )


def test_the_stream_reads_as_drawn_at_80_columns() -> None:
    page = Page(80, UNICODE)
    lines = heading("resnet50", states.HEADING, version="0.1.0", page=page)
    lines += stream(page, STREAM)
    lines += live_lines(states.progress(SPARK_80), cells=80, glyphs=UNICODE)
    assert text(lines) == DRAWN_80


def test_the_live_lines_read_as_drawn_in_ascii() -> None:
    assert text(live_lines(states.progress(SPARK_80), cells=80, glyphs=ASCII)) == DRAWN_80_ASCII


def test_the_stream_tells_the_same_facts_longer_at_160_columns() -> None:
    page = Page(160, UNICODE)
    lines = stream(page, (states.REBALANCED, states.LOST, states.RECOVERED))
    keys = ("s status", "ctrl-c drain")
    lines += live_lines(states.progress(SPARK_160), cells=160, glyphs=UNICODE, keys=keys)[1:]
    assert text(lines) == DRAWN_160


def test_every_other_change_reads_as_drawn() -> None:
    assert text(stream(Page(82, UNICODE), states.OTHERS)) == DRAWN_OTHERS


def test_the_end_reads_as_drawn() -> None:
    assert text(summary_lines(states.SUMMARY, Page(80, UNICODE))) == DRAWN_END


def test_the_first_cause_reads_as_drawn() -> None:
    page = Page(80, UNICODE)
    lines = stream(page, states.LOST_THREE_TIMES)
    lines += first_cause_lines(states.FIRST_CAUSE, page)
    assert text(lines) == DRAWN_FIRST_CAUSE


def test_a_first_cause_of_many_lines_keeps_them() -> None:
    box = text(first_cause_lines(states.OF_MANY_LINES, Page(80, UNICODE)))
    assert (
        "  ✗ RuntimeError: Error(s) in loading state_dict for Linear:\n"
        '      Missing key(s) in state_dict: "weight".\n'
        "      size mismatch for bias: copying a param with shape torch.Size([4]) from\n"
        "      checkpoint, the shape in current model is torch.Size([5]).\n"
        "      \\x1b[2Jnot a command\n"
        "    logical rank 3"
    ) in box


@pytest.mark.parametrize(
    ("cause", "end"),
    (
        (states.ENDLESS, "    … the rest is in the log"),
        (msgspec.structs.replace(states.ENDLESS, log=""), "    … and more"),
        (
            msgspec.structs.replace(states.ENDLESS, headline="x" * 4000),
            "    … the rest is in the log",
        ),
    ),
)
def test_of_an_endless_text_ten_lines_are_shown(cause: FirstCause, end: str) -> None:
    lines = text(first_cause_lines(cause, Page(80, UNICODE))).splitlines()
    begin = next(number for number, row in enumerate(lines) if "✗" in row)
    assert lines[begin + 9] == end
    assert lines[begin + 10].startswith("    logical rank 3")


def test_the_digest_is_the_only_bold_text_of_the_summary() -> None:
    bold = [
        span.text
        for row in summary_lines(states.SUMMARY, Page(80, UNICODE))
        for span in row
        if "name" in span.role
    ]
    assert bold == [states.SUMMARY.digest]


def test_a_digest_wider_than_the_window_stays_on_one_line() -> None:
    lines = text(summary_lines(states.SUMMARY, Page(60, UNICODE))).splitlines()
    assert states.SUMMARY.digest in lines


@pytest.mark.parametrize("cells", (60, 80, 120, 160))
@pytest.mark.parametrize("is_ascii", (False, True), ids=["unicode", "ascii"])
def test_every_line_of_a_launch_keeps_its_width(
    compare_screen: Callable[..., None], cells: int, is_ascii: bool
) -> None:
    glyphs = ASCII if is_ascii else UNICODE
    page = Page(cells, glyphs)
    screens = {
        "stream": [
            *heading("resnet50", states.HEADING, version="0.1.0", page=page),
            *stream(page, (*STREAM, *states.OTHERS, *states.MORE, *states.LOST_THREE_TIMES)),
            *stream(page, states.HOSTILE),
        ],
        "live": [
            row
            for progress in states.EVERY_PROGRESS
            for row in live_lines(progress, cells=cells, glyphs=glyphs, keys=("ctrl-c drain",))
        ],
        "summary": [
            row for summary in states.EVERY_SUMMARY for row in summary_lines(summary, page)
        ],
        "first-cause": [
            row for cause in states.EVERY_CAUSE for row in first_cause_lines(cause, page)
        ],
    }
    for name, lines in screens.items():
        compare_screen(f"launch-{name}", lines, cells=cells, is_ascii=is_ascii)


def test_every_kind_of_change_has_a_line_or_a_screen_of_its_own() -> None:
    with_screen = {EventKind.FINISHED, EventKind.FAILED, EventKind.STOPPED}
    page = Page(80, UNICODE)
    for kind in EventKind:
        event = states.event(kind, node="a", reason="because", asked=True)
        assert bool(event_lines(event, page)) is (kind not in with_screen), kind


def test_text_of_a_node_cannot_steer_the_terminal() -> None:
    shown = text(stream(Page(80, UNICODE), states.HOSTILE))
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "\\x1b[2J" in shown
    assert "\\u202e" in shown


@pytest.mark.parametrize(
    ("code", "words"),
    (
        (0, "0: done"),
        (1, "1: job failed"),
        (4, "4: too few nodes in time"),
        (5, "5: restart budget spent"),
        (130, "130: ended by SIGINT"),
        (137, "137: ended by SIGKILL"),
        (255, "255: ended by signal 127"),
        (17, "17"),
    ),
)
def test_an_exit_code_is_told_in_words_with_its_number(code: int, words: str) -> None:
    assert exit_words(code) == words


def test_draining_is_said_once_and_the_way_on_last() -> None:
    draining = msgspec.structs.replace(
        states.JOINED, event=EventKind.DRAINING, reason="draining this node at step 6,413", facts={}
    )
    told = text(event_lines(draining, Page(80, UNICODE)))
    assert told.strip() == "draining this node at step 6,413"
    assert (
        text(summary_lines(states.PAUSED, Page(120, UNICODE)))
        .rstrip()
        .endswith(
            "        next the same command with --job-id resnet50-1f9c07 goes on from step 10,000"
        )
    )
