"""`easyscale verify`: train a script a few steps in every layout and compare every bit."""

import ast
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from easyscale.agent.verified import RunRow, Verdict, Verified
from easyscale.errors import ExitCode, UsageError
from easyscale.messages import ScriptTarget
from easyscale.model import Determinism
from easyscale_cli.options import look_options, option
from easyscale_cli.output import Output
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
    show_default=True,
    help="Global steps of each run.",
)
@option(
    "--logical-workers",
    type=click.IntRange(min=1),
    help="Shares of each step [what the script passes to init].",
)
@option(
    "--determinism",
    type=click.Choice([str(level) for level in Determinism]),
    default="same-kind",
    show_default=True,
    help="The level to run at.",
)
@option("--devices", default="auto", show_default=True, help="Slots: auto, cuda[:LIST] or cpu.")
@option("--seed", type=int, help="Stands over the script's init(seed=...).")
@option("--threads-per-worker", type=click.IntRange(min=1), default=1, show_default=True)
@option("--partials", type=click.Choice(["device", "host"]), default="device", hidden=True)
@option("--preload", default="", help="Modules to import once, before the forks.")
@click.option("--keep-going", is_flag=True, help="Do all runs, also after one that differs.")
@click.option("--keep", metavar="FOLDER", help="Leave the records of all runs there.")
@click.option("--module", "-m", "is_module", is_flag=True, help="SCRIPT is a module.")
@look_options
def command(script: str, arguments: tuple[str, ...], **asked: Any) -> int:
    """Train SCRIPT a few steps in every layout and compare every bit.

    A fixed run, then others with more workers, with changes in place, a kill, a restore and other
    loader workers. SCRIPT is not changed; what it writes where you stand is thrown away.
    Words that are not options of verify are the script's; so are all after a --.
    """
    output = Output(asked)
    with output.answering():
        target = _target(script, arguments, is_module=asked["is_module"])
        n = asked["logical_workers"] or _logical_workers_of(script, is_module=asked["is_module"])
        verified = _verify(target, n, asked=asked, output=output)
        if output.as_json:
            output.say(verified_json(verified))
        else:
            output.show(verdict_lines(verified, cells=output.cells, glyphs=output.glyphs))
    return ExitCode.DONE if verified.verdict is Verdict.SAME_BITS else ExitCode.JOB_FAILED


def _verify(target: ScriptTarget, n: int, *, asked: dict[str, Any], output: Output) -> Verified:
    from easyscale.agent.devices import find_slots
    from easyscale.agent.rehearsal import RehearsalSettings, opened
    from easyscale.agent.scratch import Mirror
    from easyscale.agent.verification import Verification, VerificationSettings, planned_rows

    slots, notes = find_slots(
        asked["devices"],
        threads_per_worker=asked["threads_per_worker"],
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )
    del notes  # a run of so few steps may share its cores
    what = VerificationSettings(
        steps=asked["steps"], width=max(_WIDTH, len(slots)), keep_going=asked["keep_going"]
    )
    with _folder(asked["keep"]) as folder:
        standing = folder / "standing"
        Mirror().fill(standing, Path.cwd())
        settings = RehearsalSettings(
            script=target,
            python=sys.executable,
            environment=dict(os.environ),
            working_directory=standing,
            folder=folder,
            logical_workers=n,
            seed=asked["seed"],
            determinism=Determinism(asked["determinism"]),
            threads_per_worker=asked["threads_per_worker"],
            partials=asked["partials"],
            preload=tuple(filter(None, asked["preload"].split(","))),
            slots=slots,
        )
        screen = _Screen(planned_rows(n, what), steps=what.steps, output=output)
        with opened(settings) as hosts:
            verified = Verification(hosts, what, screen.take).answer()
        screen.close()
        kept = str(folder) if asked["keep"] else ""
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


@contextmanager
def _folder(keep: str | None) -> Iterator[Path]:
    """A private folder; it goes with all that is in it, unless it was named."""
    if keep is not None:
        path = Path(keep).absolute()
        if path.exists() and any(path.iterdir()):
            raise UsageError(f"--keep {keep}: the folder is not empty", hint="a new folder")
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        yield path
        return
    made = Path(tempfile.mkdtemp(prefix="easyscale-verify-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _target(script: str, arguments: tuple[str, ...], *, is_module: bool) -> ScriptTarget:
    from easyscale_cli.commands.launch import check_script

    if is_module:
        return ScriptTarget.of(script, is_module=True, arguments=arguments)
    check_script(script)
    return ScriptTarget.of(str(Path(script).absolute()), is_module=False, arguments=arguments)


def _logical_workers_of(script: str, *, is_module: bool) -> int:
    """What the script passes to `init`, where that is a number that stands there."""
    found = None if is_module else _passed_to_init(Path(script))
    if found is None:
        raise UsageError(
            "verify needs to know the job's logical workers: they decide its bits",
            hint=f"easyscale verify --logical-workers 16 {script}",
        )
    return found


def _passed_to_init(script: Path) -> int | None:
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func).endswith("init")):
            continue
        for word in node.keywords:
            if word.arg == "logical_workers" and isinstance(word.value, ast.Constant):
                return word.value.value if type(word.value.value) is int else None
    return None
