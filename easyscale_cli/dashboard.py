"""The live screen of `easyscale status`: asks once a second, draws what changed, listens to keys.

It lives on the alternate screen; its last frame stays in the scrollback.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from types import FrameType
from typing import Self

import msgspec

from easyscale.agent.dialogue import AgentSilent
from easyscale.errors import StoreError
from easyscale.job_status import Closing, Glance, JobStatus, StoreFacts
from easyscale_cli.connection import Job
from easyscale_cli.output import Output
from easyscale_cli.views.closing import exit_words, first_cause_lines, record_lines, summary_lines
from easyscale_cli.views.launch import entry
from easyscale_cli.views.layout import line
from easyscale_cli.views.status import Window, status_lines
from easyscale_cli.views.style import Line, rich_text, rich_theme
from easyscale_cli.views.watching import Choice, frame_lines, press

_EVERY_S = 1.0
#: An agent that does not answer for so long is believed to have ended.
_SILENT_S = 10.0
_INTERRUPTED = 130


def watch(job: Job, output: Output) -> int:
    """Show the job until it ends or the person leaves; returns the exit code."""
    view = _View(job, output)
    try:
        closing = view.run()
    except KeyboardInterrupt:
        output.show([*view.last_frame(), line(f"{job.id} goes on: only status was interrupted")])
        return _INTERRUPTED
    output.show(view.last_frame())
    if closing is None:
        return 0
    output.show(closing_lines(view.status, closing, output))
    return closing.exit_code


def closing_lines(status: JobStatus, closing: Closing, output: Output) -> list[Line]:
    """The last word on a job: its summary, its first cause, its records, or how the agent ended."""
    page = output.page
    if closing.cause is not None:
        return first_cause_lines(closing.cause, page)
    if closing.summary is not None:
        return summary_lines(closing.summary, page)
    code = closing.exit_code
    if status.job.exit_code is not None:
        return record_lines(status, code, page)
    words = f"exit {code}" if code == 0 else f"exit {exit_words(code)}"
    return entry(line("Ended"), [page.glyphs.prose(closing.reason), words], page)


def window_of(output: Output, *, has_keys: bool) -> Window:
    """The window as it is now."""
    size = shutil.get_terminal_size((80, 40))
    return Window(output.cells, size.lines, output.glyphs, has_keys=has_keys)


class _View:
    """What is known and what the person chose; draws it."""

    def __init__(self, job: Job, output: Output) -> None:
        self._job = job
        self._output = output
        self._glance = job.closely(watches=True)
        self._heard_s = time.monotonic()
        self._choice = Choice()

    @property
    def status(self) -> JobStatus:
        return self._glance.status

    def last_frame(self) -> list[Line]:
        return status_lines(self._glance.status, window_of(self._output, has_keys=False))

    def run(self) -> Closing | None:
        """Until the job has ended, then how; None: the person left."""
        from rich.console import Console
        from rich.live import Live

        console = Console(
            theme=rich_theme(self._output.look.palette),
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
        )
        live = Live(console=console, screen=True, auto_refresh=False)
        with live, _Keyboard() as keyboard:
            next_s = time.monotonic() + _EVERY_S
            while self._glance.closing is None:
                live.update(rich_text(self._frame()), refresh=True)
                key = keyboard.wait(max(0.0, next_s - time.monotonic()))
                if key and not self._press(key):
                    return None
                if time.monotonic() >= next_s:
                    self._look()
                    next_s = time.monotonic() + _EVERY_S
        return self._glance.closing

    def _frame(self) -> list[Line]:
        window = window_of(self._output, has_keys=True)
        return frame_lines(self._glance.status, self._choice, window)

    def _press(self, key: str) -> bool:
        window = window_of(self._output, has_keys=True)
        choice = press(self._choice, key, self._glance.status, window)
        if choice is None:
            return False
        self._choice = choice
        return True

    def _look(self) -> None:
        try:
            self._glance = self._job.closely(watches=True)
        except AgentSilent:
            if time.monotonic() - self._heard_s > _SILENT_S:
                raise
        except StoreError:
            self._glance = _out_of_reach(self._glance, time.monotonic() - self._heard_s)
        else:
            self._heard_s = time.monotonic()


def _out_of_reach(glance: Glance, silent_s: float) -> Glance:
    """What was known when etcd answered last."""
    store = StoreFacts(reachable=False, silent_s=silent_s)
    return Glance(status=msgspec.structs.replace(glance.status, store=store))


class _Keyboard:
    """Single keys without echo; a change of the window's size wakes the wait too."""

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        self._input = sys.stdin.fileno()
        if sys.stdin.isatty():
            before = termios.tcgetattr(self._input)
            self._stack.callback(termios.tcsetattr, self._input, termios.TCSADRAIN, before)
            tty.setcbreak(self._input)
        self._resized, self._resize = os.pipe()
        for end in (self._resized, self._resize):
            os.set_blocking(end, False)
            self._stack.callback(os.close, end)
        former = signal.signal(signal.SIGWINCH, self._note_resize)
        self._stack.callback(signal.signal, signal.SIGWINCH, former)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def wait(self, timeout_s: float) -> str:
        """A key, or nothing after the time or a resize."""
        sources = [self._resized, *([self._input] if sys.stdin.isatty() else [])]
        ready, _, _ = select.select(sources, [], [], timeout_s)
        if self._resized in ready:
            os.read(self._resized, 4096)
        if self._input in ready:
            return os.read(self._input, 1).decode("ascii", "ignore")
        return ""

    def _note_resize(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        with contextlib.suppress(BlockingIOError):
            os.write(self._resize, b"\0")
