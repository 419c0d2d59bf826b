"""`easyscale verify`: train a script a few steps in every layout and compare every bit."""

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from easyscale.agent.verify.verified import RunRow, Verdict, Verified
from easyscale.errors import ExitCode
from easyscale.messages import ScriptTarget
from easyscale.model import Determinism
from easyscale_cli.options import look_options, option
from easyscale_cli.output import Output
from easyscale_cli.rehearsing import logical_workers_of, rehearsal, target_of
from easyscale_cli.views.help import PageCommand
from easyscale_cli.views.layout import line
from easyscale_cli.views.style import Line
from easyscale_cli.views.verify import run_lines, verdict_lines, verified_json

_WIDTH = 4


@click.command(
    cls=PageCommand,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "ignore_unknown_options": True,
    },
)
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=30,
    metavar="N",
    show_default=True,
    help="Global steps of each run.",
)
@option(
    "--logical-workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Shares of each step [what the script passes to init].",
)
@option(
    "--determinism",
    type=click.Choice([str(level) for level in Determinism]),
    metavar="LEVEL",
    default="same-kind",
    show_default=True,
    help="The level to run at, or heterogeneous.",
)
@option(
    "--devices",
    metavar="WORD",
    default="auto",
    show_default=True,
    help="Slots: auto, cuda[:LIST] or cpu.",
)
@option("--seed", type=int, metavar="N", help="Stands over the script's init(seed=...).")
@option(
    "--threads-per-worker",
    type=click.IntRange(min=1),
    metavar="N",
    default=1,
    show_default=True,
    help="Part of the bits on CPUs.",
)
@option("--partials", type=click.Choice(["device", "host"]), default="device", hidden=True)
@option(
    "--preload",
    metavar="M,...",
    default="",
    help="Modules to import once instead of in each worker: much quicker where they are large.",
)
@click.option("--keep-going", is_flag=True, help="Do all runs, also after one that differs.")
@click.option("--keep", metavar="FOLDER", help="Leave the records of all runs there.")
@click.option(
    "--module", "-m", "is_module", is_flag=True, help="The script is a module, as python -m."
)
@look_options
def command(script: str, arguments: tuple[str, ...], **asked: Any) -> int:
    """Train SCRIPT a few steps in every layout and compare every bit.

    A fixed run, then others with more workers, with changes in place, a kill, a restore and other
    loader workers. SCRIPT is not changed; what it writes where you stand is thrown away.
    Words that are not options of verify are the script's; so are all after a --.
    """
    output = Output(asked)
    with output.answering():
        is_module = asked["is_module"]
        target = target_of(script, arguments, is_module=is_module)
        n = asked["logical_workers"] or logical_workers_of(
            script, command="verify", is_module=is_module
        )
        verified = _verify(target, n, asked=asked, output=output)
        if output.as_json:
            output.say(verified_json(verified))
        else:
            output.show(verdict_lines(verified, cells=output.cells, glyphs=output.glyphs))
    return ExitCode.DONE if verified.verdict is Verdict.SAME_BITS else ExitCode.JOB_FAILED


def _verify(target: ScriptTarget, n: int, *, asked: dict[str, Any], output: Output) -> Verified:
    from easyscale.agent.verify.rehearsal import opened
    from easyscale.agent.verify.verification import Verification, VerificationSettings, planned_rows

    with rehearsal(target, n, asked=asked) as settings:
        what = VerificationSettings(
            steps=asked["steps"],
            width=max(_WIDTH, len(settings.slots)),
            keep_going=asked["keep_going"],
        )
        screen = _Screen(planned_rows(n, what), steps=what.steps, output=output)
        with opened(settings) as hosts:
            verified = Verification(hosts, what, screen.take).answer()
        screen.close()
        kept = str(settings.folder) if asked["keep"] else ""
        return msgspec.structs.replace(verified, kept=kept)


class _Screen:
    """The table as it grows: a row is written once, and rewritten while its run lasts."""

    def __init__(self, rows: Sequence[RunRow], *, steps: int, output: Output) -> None:
        self._rows = list(rows)
        self._steps = steps
        self._output = output
        self._over = 0
        self._shown = ""
        if not output.as_json:
            output.show(self._lines()[:1])

    def take(self, row: RunRow) -> None:
        """A run began, moved on or is over; one that explains a difference is only told."""
        is_over = row.seconds is not None or row.same is not None
        if self._over >= len(self._rows) or self._rows[self._over].name != row.name:
            if not is_over:
                self._tell(f"looking for the cause: {row.name}, step {row.step}")
            return
        self._rows[self._over] = row
        if not is_over:
            self._tell(None)
            return
        self._output.end_live()
        if not self._output.as_json:
            self._output.show([self._lines()[1 + self._over]])
        self._over += 1

    def close(self) -> None:
        self._output.end_live()

    def _tell(self, text: str | None) -> None:
        if text is None:
            self._output.show_live(self._lines()[1 + self._over])
        else:
            self._output.show_live(line(text))

    def _lines(self) -> list[Line]:
        output = self._output
        return run_lines(self._rows, steps=self._steps, cells=output.cells, glyphs=output.glyphs)
