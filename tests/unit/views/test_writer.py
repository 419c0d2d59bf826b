"""The writer between the agent's loop and the two streams: it never blocks, grows or raises."""

import os
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from easyscale.reports import Stream
from easyscale_cli.views.glyphs import UNICODE
from easyscale_cli.views.stage import Look, StageSettings
from easyscale_cli.views.style import Palette
from easyscale_cli.views.writer import FileOutlet, LaunchWriter
from tests.unit.views import launch_states as states

PIPE = Look(is_terminal=False, palette=Palette.NONE, glyphs=UNICODE)
SETTINGS = StageSettings(out=PIPE, err=PIPE, version="0.1.0")


class Paper:
    """An outlet that keeps what is written, and can be held shut."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.is_open = threading.Event()
        self.is_open.set()
        self.is_reached = threading.Event()

    def write(self, text: str) -> None:
        self.is_reached.set()
        assert self.is_open.wait(10), "the test never opened the outlet"
        self.pieces.append(text)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def cells(self) -> int:
        return 80


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    for descriptor in (read, write):
        with suppress(OSError):  # the test has closed it
            os.close(descriptor)


def test_everything_is_written_in_order_before_close_returns() -> None:
    out, err = Paper(), Paper()
    writer = LaunchWriter(SETTINGS, out=out, err=err)
    writer.open(job="resnet50", facts=states.HEADING)
    for number in range(500):
        writer.output(states.A0, Stream.STDERR, b"%d\n" % number, None)
    writer.event(states.JOINED)
    writer.output(states.A0, Stream.STDOUT, b"last", None)
    writer.close()
    shown = err.text.splitlines()
    assert shown[0].endswith("logical_workers=16 determinism=D2")
    assert shown[1:501] == [f"[a/cuda:0] {number}" for number in range(500)]
    assert "event=joined" in shown[501]
    assert out.text == "[a/cuda:0] last\n"


def test_a_stalled_reader_costs_lines_and_neither_time_nor_memory() -> None:
    out, err = Paper(), Paper()
    out.is_open.clear()
    writer = LaunchWriter(SETTINGS, out=out, err=err)
    writer.output(states.A0, Stream.STDOUT, b"first\n", None)
    assert out.is_reached.wait(10)
    line = b"x" * 1023 + b"\n"
    for _ in range(6 * 1024):
        writer.output(states.A0, Stream.STDOUT, line, None)
    writer.event(states.JOINED)
    out.is_open.set()
    writer.close()
    shown = out.text.count("x" * 1023)
    assert shown == 4 * 1024
    assert f"… {6 * 1024 - shown:,} lines not shown, see log" in err.text
    assert "event=joined" in err.text


def test_close_gives_up_on_a_reader_that_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("easyscale_cli.views.writer._CLOSE_S", 0.01)
    out = Paper()
    out.is_open.clear()
    writer = LaunchWriter(SETTINGS, out=out, err=Paper())
    writer.output(states.A0, Stream.STDOUT, b"first\n", None)
    assert out.is_reached.wait(10)
    writer.close()
    assert out.text == ""
    out.is_open.set()
    writer.join()


def test_a_reader_that_has_gone_is_no_error(pipe: tuple[int, int]) -> None:
    read, write = pipe
    outlet = FileOutlet(write, "utf-8")
    outlet.write("one\n")
    os.close(read)
    outlet.write("two\n")
    outlet.write("three\n")
    assert outlet.is_closed


def test_a_full_pipe_that_does_not_block_is_waited_for(pipe: tuple[int, int]) -> None:
    read, write = pipe
    os.set_blocking(write, False)
    outlet = FileOutlet(write, "utf-8")
    text = "0123456789" * 40_000
    taken: list[bytes] = []

    def drain() -> None:
        while sum(map(len, taken)) < len(text):
            taken.append(os.read(read, 65_536))

    reader = threading.Thread(target=drain)
    reader.start()
    outlet.write(text)
    reader.join(10)
    assert b"".join(taken).decode() == text


def test_what_an_encoding_cannot_say_is_written_by_its_number(pipe: tuple[int, int]) -> None:
    read, write = pipe
    FileOutlet(write, "latin-1").write("é 模\n")
    assert os.read(read, 100) == b"\xe9 \\u6a21\n"


def test_a_pipe_has_the_design_width(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert FileOutlet(pipe[1], "utf-8").cells() >= 40


def test_closing_a_writer_that_was_never_used_is_nothing() -> None:
    out, err = Paper(), Paper()
    LaunchWriter(SETTINGS, out=out, err=err).close()
    assert out.text == err.text == ""
