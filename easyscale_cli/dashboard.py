"""The live screen of `easyscale status`: draws what changed of what is looked up, obeys keys.

It lives on the alternate screen; its last frame stays in the scrollback.
"""

from easyscale.errors import EasyScaleError
from easyscale.job_status import Closing, JobStatus
from easyscale_cli.connection import Job
from easyscale_cli.keyboard import Keyboard
from easyscale_cli.looking import Looker
from easyscale_cli.output import Output
from easyscale_cli.views.closing import exit_words, first_cause_lines, record_lines, summary_lines
from easyscale_cli.views.launch import entry
from easyscale_cli.views.layout import line
from easyscale_cli.views.status import Window, status_lines
from easyscale_cli.views.style import Line, rich_text, rich_theme
from easyscale_cli.views.watching import Choice, frame_lines, press

#: The clock and the ages move without a key.
_REDRAW_S = 1.0
_INTERRUPTED = 130


def watch(job: Job, output: Output) -> int:
    """Show the job until it ends or the person leaves; returns the exit code."""
    view = _View(job, output)
    try:
        closing = view.run()
    except KeyboardInterrupt:
        output.show([*view.last_frame(), line(f"{job.id} goes on: only status was interrupted")])
        return _INTERRUPTED
    except EasyScaleError:
        output.show(view.last_frame())  # what was known before the job could be reached no more
        raise
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
    return Window(output.cells, output.rows, output.glyphs, has_keys=has_keys)


class _View:
    """What the person chose of what is known; draws it."""

    def __init__(self, job: Job, output: Output) -> None:
        self._looker = Looker(job)
        self._output = output
        self._choice = Choice()

    @property
    def status(self) -> JobStatus:
        return self._looker.sight.status

    def last_frame(self) -> list[Line]:
        return status_lines(self.status, window_of(self._output, has_keys=False))

    def run(self) -> Closing | None:
        """Until the job has ended, then how; None: the person left."""
        from rich.console import Console, ConsoleDimensions
        from rich.live import Live

        console = Console(
            theme=rich_theme(self._output.look.palette),
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
        )
        live = Live(console=console, screen=True, auto_refresh=False)
        with live, Keyboard() as keyboard, self._looker.looking(woken=keyboard.wake):
            drawn: tuple[Window, list[Line]] | None = None
            while (closing := self._looker.closing) is None:
                window = window_of(self._output, has_keys=True)
                frame = frame_lines(self._looker.sight, self._choice, window)
                if (window, frame) != drawn:
                    # The window's own size: COLUMNS and LINES in the environment never change.
                    console.size = ConsoleDimensions(window.cells, window.rows)
                    live.update(rich_text(frame), refresh=True)
                    drawn = (window, frame)
                for key in keyboard.wait(_REDRAW_S):
                    if not self._press(key):
                        return None
        return closing

    def _press(self, key: str) -> bool:
        window = window_of(self._output, has_keys=True)
        choice = press(self._choice, key, self.status, window)
        if choice is None:
            return False
        self._choice = choice
        self._looker.turn_to(choice.shown, choice.selected)
        return True
