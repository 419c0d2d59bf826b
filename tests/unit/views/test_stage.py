"""What a launch writes on its two streams: a terminal, a pipe, JSON."""

# ruff: noqa: RUF001 - the sign of multiplication is meant

import json

import msgspec
import pytest

from easyscale.reports import EventKind, Stream
from easyscale_cli.views.glyphs import UNICODE
from easyscale_cli.views.stage import Look, ProgressChoice, Stage, StageSettings
from easyscale_cli.views.style import Palette
from tests.unit.views import launch_states as states

TERMINAL = Look(is_terminal=True, palette=Palette.NONE, glyphs=UNICODE)
COLOURED = Look(is_terminal=True, palette=Palette.HUES, glyphs=UNICODE)
PIPE = Look(is_terminal=False, palette=Palette.NONE, glyphs=UNICODE)
AT = "2026-10-04T14:00:00.000Z"


class Tape:
    """Both streams as one list of what was written where."""

    def __init__(self, columns: int = 80) -> None:
        self.pieces: list[tuple[str, str]] = []
        self.columns = columns

    def outlet(self, name: str) -> "End":
        return End(self, name)

    def text(self, name: str) -> str:
        return "".join(text for where, text in self.pieces if where == name)


class End:
    def __init__(self, tape: Tape, name: str) -> None:
        self.tape, self.name = tape, name

    def write(self, text: str) -> None:
        self.tape.pieces.append((self.name, text))

    def cells(self) -> int:
        return self.tape.columns


class Terminal:
    """Just enough of a terminal to know what stands on it: rows, returns, moves up, erasing."""

    def __init__(self, columns: int = 80) -> None:
        self.rows, self.row, self.column, self.columns = [""], 0, 0, columns

    def take(self, text: str) -> None:
        while text:
            if text.startswith("\x1b["):
                end = next(i for i, letter in enumerate(text) if letter.isalpha())
                count, letter = int(text[2:end] or 1), text[end]
                if letter == "A":
                    self.row -= count
                elif letter == "J":
                    self.rows = [*self.rows[: self.row], self.rows[self.row][: self.column]]
                text = text[end + 1 :]
                continue
            self._put(text[0])
            text = text[1:]

    def _put(self, letter: str) -> None:
        if letter == "\r":
            self.column = 0
        elif letter == "\n":
            self.row, self.column = self.row + 1, 0
            self.rows += [""] * (self.row + 1 - len(self.rows))
        else:
            kept = self.rows[self.row]
            self.rows[self.row] = kept[: self.column] + letter + kept[self.column + 1 :]
            self.column += 1


def stage_on(tape: Tape, *, out: Look = PIPE, err: Look = PIPE, **choices: object) -> Stage:
    chosen = StageSettings(out=out, err=err, version="0.1.0", **choices)  # type: ignore[arg-type]
    return Stage(chosen, tape.outlet("out"), tape.outlet("err"), lambda: AT)


def rows_of(tape: Tape) -> list[str]:
    terminal = Terminal()
    for _, text in tape.pieces:
        terminal.take(text)
    return terminal.rows


def test_pipes_get_plain_lines_and_the_workers_output_with_its_origin() -> None:
    tape = Tape()
    stage = stage_on(tape)
    stage.open("resnet50", states.HEADING, 0.0)
    stage.output(states.B1, Stream.STDOUT, b"sample 40213: ignored\n", rank=13, now=1.0)
    stage.output(states.A0, Stream.STDERR, b"warning\n", rank=None, now=1.0)
    stage.event(states.JOINED, 2.0)
    stage.close(3.0)
    assert tape.text("out") == "[b/cuda:1 r13] sample 40213: ignored\n"
    assert tape.text("err") == (
        "2026-10-04T14:00:00.000Z easyscale job=resnet50 version=0.1.0 "
        "logical_workers=16 determinism=D2\n"
        "[a/cuda:0] warning\n"
        "2026-10-04T14:02:11.204Z easyscale job=resnet50 event=joined node=b slots=4 kind=A100 "
        "step=412 generation=2 pause_s=0.021 steps_lost=0\n"
    )


def test_a_single_worker_writes_to_a_pipe_as_if_nobody_stood_between() -> None:
    tape = Tape()
    stage = stage_on(tape, tags=False)
    stage.output(states.A0, Stream.STDOUT, b"a,b\n1,2\n", rank=0, now=0.0)
    stage.close(0.0)
    assert tape.text("out") == "a,b\n1,2\n"
    assert tape.text("err") == ""


def test_a_plain_job_has_the_tag_that_torchruns_users_know() -> None:
    tape = Tape()
    stage = stage_on(tape, role="default")
    source = msgspec.structs.replace(states.A0, slot="0")
    stage.output(source, Stream.STDOUT, b"hello\n", rank=None, now=0.0)
    stage.close(0.0)
    assert tape.text("out") == "[default0]:hello\n"


def test_pipes_are_told_of_progress_once_per_interval() -> None:
    tape = Tape()
    stage = stage_on(tape, progress_every_s=30.0)
    stage.open("resnet50", {}, 0.0)
    before = len(tape.pieces)
    for second in range(100):
        stage.progress(states.progress("█▁"), float(second))
    assert len(tape.pieces) - before == 3
    assert tape.pieces[-1][1] == (
        "2026-10-04T14:07:30.000Z easyscale job=resnet50 event=progress step=6412 steps=10000 "
        "epoch=6 loss=0.6121 steps_per_s=7.4 left_s=485 nodes=2 slots=8 generation=5 "
        "slow=b/cuda:1\n"
    )


def test_no_progress_is_told_where_none_is_asked_for() -> None:
    for look in (PIPE, TERMINAL):
        tape = Tape()
        stage = stage_on(tape, err=look, progress=ProgressChoice.NONE)
        stage.open("resnet50", {}, 0.0)
        before = len(tape.pieces)
        for second in range(100):
            stage.progress(states.progress("█▁"), float(second))
            stage.tick(float(second))
        assert len(tape.pieces) == before


def test_live_lines_stand_under_the_last_line_and_go_before_the_next() -> None:
    tape = Tape()
    stage = stage_on(tape, out=TERMINAL, err=TERMINAL)
    stage.open("resnet50", states.HEADING, 0.0)
    stage.progress(states.progress("█▁"), 0.1)
    stage.tick(0.1)
    live = rows_of(tape)[-2:]
    assert live[0].startswith("━━━")
    assert live[1].startswith("loss 0.612")
    stage.output(states.A0, Stream.STDOUT, b"epoch 0\n", rank=None, now=0.2)
    stage.event(states.JOINED, 0.3)
    stage.tick(0.3)
    rows = rows_of(tape)
    assert rows[1:3] == [
        "    a/cuda:0 │ epoch 0",
        "      Joined b, 4 slots A100 · step 412 · gen 2 · paused 0.021 s",
    ]
    assert rows[3:] == ["", *live]
    stage.close(0.4)
    assert rows_of(tape)[3:] == [""]


def test_live_lines_are_drawn_at_most_twice_a_second() -> None:
    tape = Tape()
    stage = stage_on(tape, err=TERMINAL)
    for hundredth in range(400):
        now = hundredth / 100
        progress = msgspec.structs.replace(states.progress("█▁"), step=hundredth)
        stage.progress(progress, now)
        stage.tick(now)
    drawn = [text for _, text in tape.pieces if "loss" in text]
    assert len(drawn) == 8


def test_nothing_is_redrawn_while_nothing_changes() -> None:
    tape = Tape()
    stage = stage_on(tape, err=TERMINAL)
    stage.progress(states.progress("█▁"), 0.0)
    stage.tick(0.0)
    before = len(tape.pieces)
    for second in range(1, 100):
        stage.tick(float(second))
    assert stage.next_due(100.0) is None
    assert len(tape.pieces) == before


def test_a_wait_is_a_live_line_that_leaves_no_trace() -> None:
    tape = Tape()
    stage = stage_on(tape, err=TERMINAL)
    for second in range(10):
        waiting = states.event(
            EventKind.WAITING, missing=1, wanted=2, waited_s=float(second), limit_s=600.0
        )
        stage.event(waiting, float(second))
        stage.tick(float(second))
        assert rows_of(tape)[-1].strip() == f"Waiting for 1 of 2 nodes · {second} s of 600 s"
    stage.event(states.STARTED, 10.0)
    stage.tick(10.0)
    assert [row for row in rows_of(tape) if "Waiting" in row] == []


def test_a_wait_is_told_to_a_pipe_once_per_interval() -> None:
    tape = Tape()
    stage = stage_on(tape, progress_every_s=30.0)
    stage.open("resnet50", {}, 0.0)
    before = len(tape.pieces)
    for second in range(61):
        waiting = states.event(EventKind.WAITING, missing=1, wanted=2, waited_s=float(second))
        stage.event(waiting, float(second))
    assert len(tape.pieces) - before == 3


def test_a_narrower_window_is_cleared_of_the_rows_that_were_folded() -> None:
    tape = Tape()
    stage = stage_on(tape, err=TERMINAL)
    stage.progress(states.progress("█▁"), 0.0)
    stage.tick(0.0)
    tape.columns = 40
    stage.event(states.JOINED, 1.0)
    # A blank row, and two rows of 80 and 45 cells folded at 40.
    assert tape.pieces[-2] == ("err", "\r\x1b[4A\x1b[J")


def test_the_gutter_grows_with_the_longest_tag_and_then_loses_the_front() -> None:
    tape = Tape()
    stage = stage_on(tape, out=TERMINAL, err=TERMINAL)
    for node in ("a", "gpu-node-017", "rack-12-chassis-4-gpu-node-017"):
        source = msgspec.structs.replace(states.A0, node=node, slot="cuda:5")
        stage.output(source, Stream.STDOUT, b"text\n", rank=123, now=0.0)
        stage.event(states.event(EventKind.NOTE, reason="now"), 0.0)
    assert tape.text("out").splitlines() == [
        "a/cuda:5 r123 │ text",
        "gpu-node-017/cuda:5 r123 │ text",
        "…pu-node-017/cuda:5 r123 │ text",
    ]
    assert tape.text("err").splitlines()[-1] == " " * 20 + "note now"


def test_lines_of_many_workers_and_floods_are_told_in_the_gutter() -> None:
    tape = Tape()
    stage = stage_on(tape, out=TERMINAL, err=TERMINAL)
    for source in (states.A0, states.A1, states.A2, states.A3):
        stage.output(source, Stream.STDERR, b"UserWarning\n", rank=None, now=0.0)
    stage.output(states.A0, Stream.STDERR, b"x\n" * 1339, rank=None, now=0.1)
    stage.tick(1.2)
    shown = tape.text("err").splitlines()
    assert shown[0] == "        a ×4 │ UserWarning"
    assert shown[-1] == "    a/cuda:0 │ … 1,340 lines in the last second, see log"


def test_colours_of_workers_pass_on_a_terminal_and_nothing_else_does() -> None:
    tape = Tape()
    stage = stage_on(tape, out=COLOURED, err=COLOURED)
    stage.output(states.A0, Stream.STDOUT, b"\x1b[31mred\x1b[2J\n", rank=None, now=0.0)
    stage.close(0.0)
    assert tape.text("out").endswith(" \x1b[31mred\\x1b[2J\x1b[0m\n")


@pytest.mark.parametrize("look", (PIPE, TERMINAL), ids=["pipe", "no colour"])
def test_without_colour_no_escape_is_written(look: Look) -> None:
    tape = Tape()
    stage = stage_on(tape, out=look, err=look)
    stage.open("resnet50", states.HEADING, 0.0)
    stage.output(states.A0, Stream.STDOUT, b"\x1b[31mred\x1b[0m \x1b]0;t\x07\n", rank=None, now=0.0)
    stage.event(states.LOST, 0.0)
    stage.fail(states.FIRST_CAUSE, 0.0)
    stage.close(0.0)
    assert "\x1b" not in tape.text("out") + tape.text("err")
    assert "red \\x1b]0;t\\x07" in tape.text("out")


def test_the_first_cause_is_the_last_thing_said() -> None:
    tape = Tape()
    stage = stage_on(tape, out=TERMINAL, err=TERMINAL)
    stage.progress(states.progress("█▁"), 0.0)
    stage.tick(0.0)
    stage.output(states.B1, Stream.STDERR, b"no newline at the end", rank=3, now=0.0)
    stage.fail(states.FIRST_CAUSE, 0.1)
    stage.close(0.1)
    rows = rows_of(tape)
    assert rows[0] == " b/cuda:1 r3 │ no newline at the end"
    assert [row[:25] for row in rows if row.startswith("──")] == [
        "── resnet50 failed: first",
        "── exit 1: job failed ───",
    ]
    assert rows[-1] == ""


def json_lines(tape: Tape) -> list[dict[str, object]]:
    return [json.loads(line) for line in tape.text("out").splitlines()]


def test_json_has_events_on_standard_output_and_workers_on_standard_error() -> None:
    tape = Tape()
    stage = stage_on(tape, json=True)
    stage.open("resnet50", states.HEADING, 0.0)
    stage.output(states.A0, Stream.STDOUT, b"printed\n", rank=None, now=0.0)
    stage.event(states.LOST, 0.0)
    stage.progress(states.progress("█▁"), 100.0)
    stage.event(states.event(EventKind.FINISHED, step=10_000, reason="script ended"), 101.0)
    stage.finish(states.SUMMARY, 101.0)
    stage.close(101.0)
    heading, printed = tape.text("err").splitlines()
    assert "job=resnet50 version=0.1.0" in heading
    assert printed == "[a/cuda:0] printed"
    lost, progress, finished = json_lines(tape)
    assert list(lost) == [
        *("version", "at", "job", "event", "step", "era", "generation", "node", "slot", "pid"),
        *("exit_code", "signal", "ranks", "reason"),
    ]
    assert (lost["version"], lost["exit_code"], lost["ranks"]) == (1, None, [14])
    assert (progress["event"], progress["steps_per_s"]) == ("progress", 7.4)
    assert finished["digest"] == states.SUMMARY.digest
    assert (finished["paused_s"], finished["longest_pause_s"]) == (0.131, 0.083)


def test_json_tells_the_first_cause_with_the_failed_event() -> None:
    tape = Tape()
    stage = stage_on(tape, json=True)
    failed = states.event(
        EventKind.FAILED,
        step=6412,
        generation=5,
        blames="script",
        also_on=("a/cuda:0", "a/cuda:2"),
        reason="rank 3 failed the same way on 3 slots",
    )
    stage.event(failed, 0.0)
    stage.fail(states.FIRST_CAUSE, 0.0)
    stage.close(0.0)
    (event,) = json_lines(tape)
    cause = event["first_cause"]
    assert isinstance(cause, dict)
    assert (cause["type"], cause["rank"], cause["line"]) == ("ValueError", 3, 41)
    assert cause["message"] == "target 11 is out of bounds for 10 classes"
    assert (cause["blames"], cause["also_on"]) == ("script", ["a/cuda:0", "a/cuda:2"])
    assert (event["exit_code"], event["victims"]) == (1, 5)
    assert event["reason"] == "rank 3 failed the same way on 3 slots"


def test_the_closing_facts_stand_on_the_line_of_the_event_that_ended_the_job() -> None:
    tape = Tape()
    stage = stage_on(tape)
    finished = states.event(EventKind.FINISHED, step=10_000, generation=6, reason="script ended")
    stage.event(finished, 0.0)
    stage.finish(states.SUMMARY, 0.0)
    stage.close(0.0)
    (line,) = tape.text("err").splitlines()
    assert line.startswith(
        "2026-10-04T14:02:11.204Z easyscale job=resnet50 event=finished exit_code=0 step=10000 "
        f"generation=6 steps_lost=0 digest={states.SUMMARY.digest} elapsed_s=1316 "
    )
    assert line.endswith('reason="script ended"')


@pytest.mark.parametrize("as_json", (False, True), ids=["plain", "json"])
def test_an_ending_without_a_summary_is_told_anyhow(as_json: bool) -> None:
    tape = Tape()
    stage = stage_on(tape, json=as_json)
    stage.event(states.event(EventKind.FINISHED, reason="because"), 0.0)
    stage.close(0.0)
    assert "because" in tape.text("out") + tape.text("err")


def test_json_never_loses_an_ending_that_has_no_summary() -> None:
    tape = Tape()
    stage = stage_on(tape, json=True)
    stage.event(states.event(EventKind.FAILED, reason="because"), 0.0)
    stage.close(0.0)
    assert [line["reason"] for line in json_lines(tape)] == ["because"]


def test_a_script_may_redirect_standard_output_while_the_terminal_shows_the_rest() -> None:
    tape = Tape()
    stage = stage_on(tape, out=PIPE, err=TERMINAL, tags=False)
    stage.progress(states.progress("█▁"), 0.0)
    stage.tick(0.0)
    before = len(tape.pieces)
    stage.output(states.A0, Stream.STDOUT, b"data\n" * 3, rank=None, now=0.1)
    assert tape.pieces[before:] == [("out", "data\ndata\ndata\n")]
