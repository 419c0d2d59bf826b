"""A command's answer: lines for a person, one JSON object for a program, and what it waits for."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from easyscale.errors import EasyScaleError
from easyscale_cli.views.errors import json_of_error
from easyscale_cli.views.glyphs import Glyphs
from easyscale_cli.views.launch import Page
from easyscale_cli.views.layout import cut, line
from easyscale_cli.views.style import ColorChoice, Line, paint
from easyscale_cli.views.writer import FileOutlet, look_of

#: In a pipe a wait is told when it changes, and then so often.
_TELL_EVERY_S = 10.0
#: Of a pipe, where everything is printed whole anyhow.
_ROWS = 40


class Output:
    """Standard output with its look, decided once per command."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        choice, is_ascii = ColorChoice(asked["color"]), asked["use_ascii"]
        self.as_json: bool = asked["as_json"]
        self.look, self._error_look = (
            look_of(stream, color=choice, ascii_asked=is_ascii, environ=os.environ)
            for stream in (sys.stdout, sys.stderr)
        )
        self._out, self._err = (
            FileOutlet(stream.fileno(), stream.encoding) for stream in (sys.stdout, sys.stderr)
        )
        self._waits_for = ""
        self._told_s = 0.0
        self._live = ""
        self._stage = ""

    @property
    def glyphs(self) -> Glyphs:
        return self.look.glyphs

    @property
    def cells(self) -> int:
        return self._out.cells()

    @property
    def rows(self) -> int:
        """The height of the terminal, or the design height of 40."""
        try:
            return os.get_terminal_size(sys.stdout.fileno()).lines or _ROWS
        except OSError:
            return _ROWS

    @property
    def page(self) -> Page:
        return Page(cells=self.cells, glyphs=self.glyphs)

    def show(self, lines: Sequence[Line]) -> None:
        """Print a person's lines."""
        self.stop_waiting()
        self._out.write("".join(f"{paint(each, self.look.palette)}\n" for each in lines))

    @property
    def is_read(self) -> bool:
        """Whether the reader of a pipe, or the terminal, is still there."""
        return not self._out.is_closed

    def write(self, text: str) -> None:
        """Print whole lines that are ready as they are."""
        self.stop_waiting()
        self._out.write(text)

    def say(self, text: str) -> None:
        """Print one line as it is: JSON, or plain words for a pipe."""
        self.stop_waiting()
        self._out.write(f"{text}\n")

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Say an error as the JSON that the program asked for; it goes on to the exit code."""
        try:
            yield
        except EasyScaleError as error:
            if self.as_json:
                self.say(json_of_error(error))
            raise
        finally:
            self.stop_waiting()

    def show_live(self, row: Line) -> None:
        """Draw a line that the next text takes the place of; nothing where nobody watches."""
        if self.look.is_terminal and not self.as_json:
            shown = paint(cut(row, self.cells - 1, self.glyphs.cut), self.look.palette)
            if shown != self._live:
                self._out.write(f"\r\x1b[K{shown}")
            self._live = shown

    def end_live(self) -> None:
        """Take that line away."""
        if self._live:
            self._out.write("\r\x1b[K")
        self._live = ""

    def tell_work(self, text: str, *, stage: str) -> None:
        """Say what goes on: a live line on a terminal; else each stage once, and now and then."""
        if self.look.is_terminal and not self.as_json:
            self.show_live(line(self.glyphs.prose(text)))
        elif stage != self._stage or time.monotonic() - self._told_s >= _TELL_EVERY_S:
            self._told_s = time.monotonic()
            self._err.write(f"{self._error_look.glyphs.prose(text)}\n")
        self._stage = stage

    def end_work(self) -> None:
        """It is over: take its live line away."""
        self.end_live()
        self._stage = ""

    # --- waits ---------------------------------------------------------------------------------

    def wait_for(self, what: str, *, waited_s: float, limit_s: float) -> None:
        """Say what is waited for: a live line on a terminal, now and then in a pipe."""
        shown = self._error_look.glyphs.prose(what)
        told = f"waiting for {shown}, {waited_s:.0f} s of {limit_s:.0f} s"
        if self._error_look.is_terminal:
            row = cut(line(told), self._err.cells() - 1, self._error_look.glyphs.cut)
            self._err.write(f"\r\x1b[K{paint(row, self._error_look.palette)}")
        elif what != self._waits_for or time.monotonic() - self._told_s >= _TELL_EVERY_S:
            self._told_s = time.monotonic()
            self._err.write(f"{told}\n")
        self._waits_for = what

    def remark(self, text: str) -> None:
        """One line beside the answer: on standard error, also where that is JSON."""
        self.stop_waiting()
        self._err.write(f"{self._error_look.glyphs.prose(text)}\n")

    def stop_waiting(self) -> None:
        """Take the live line away."""
        if self._waits_for and self._error_look.is_terminal:
            self._err.write("\r\x1b[K")
        self._waits_for = ""
