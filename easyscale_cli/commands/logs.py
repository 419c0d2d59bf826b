"""`easyscale logs`: what the workers of a job printed, from all its nodes, in the order of time."""

import contextlib
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import click

from easyscale.agent.doors.dialogue import AgentSilent
from easyscale.errors import EasyScaleError
from easyscale_cli.connection import AgentEnded, Job, NodeUnknown
from easyscale_cli.log_reading import AgentShelf, FolderShelf, LogReading, Shelf, Wanted
from easyscale_cli.lookup import JobUnknown, found
from easyscale_cli.options import look_options, store_options
from easyscale_cli.output import Output
from easyscale_cli.views.errors import near_miss, some_of
from easyscale_cli.views.help import PageCommand
from easyscale_cli.views.log_lines import LogLine
from easyscale_cli.views.logs import LogView, log_json

_EVERY_S = 0.5
#: So many lines are written at once.
_BATCH = 500
#: Who is silent for so long while logs are followed has ended.
_SILENT_S = 10.0
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


class LogsElsewhere(EasyScaleError):
    """Raised when nobody who can be asked has the logs of a job."""

    code = "logs_elsewhere"


class Moment(click.ParamType[float]):
    """A time: `10m` ago, `14:05` of today, or a date with its time."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds since 1970."""
        if isinstance(value, float):
            return value
        text = str(value).strip()
        if (ago := _AGO.fullmatch(text)) is not None:
            return time.time() - float(ago[1]) * _UNITS[ago[2]]
        try:
            if re.fullmatch(r"\d{2}:\d{2}(:\d{2})?", text):
                today = datetime.now().astimezone().date()
                moment = datetime.fromisoformat(f"{today} {text}")
                if moment.timestamp() > time.time():
                    moment -= timedelta(days=1)
            else:
                moment = datetime.fromisoformat(text)
            return moment.timestamp()
        except (ValueError, OverflowError):
            self.fail(f"{text!r} is no time; 10m, 14:05 or 2026-10-04T14:05:00Z is", param, ctx)


@click.command(cls=PageCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("job", required=False)
@click.option("--follow", "-f", is_flag=True, help="Go on until the job ends.")
@click.option(
    "--rank", type=click.IntRange(min=0), metavar="N", help="What this logical rank printed."
)
@click.option("--slot", metavar="SLOT", help="Workers of this slot: cuda:3, or gpu-4/cuda:3.")
@click.option("--node", metavar="NODE", help="Workers of this node.")
@click.option("--since", type=Moment(), metavar="TIME", help="From then on: 10m, 14:05, a date.")
@click.option(
    "--log-dir",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Read this folder once the job's agents have ended [runs/JOB/logs].",
)
@store_options
@look_options
def command(
    job: str | None,
    *,
    follow: bool,
    rank: int | None,
    slot: str | None,
    node: str | None,
    since: float | None,
    log_dir: str | None,
    **asked: Any,
) -> int:
    """Print what the workers of JOB printed; rN is the logical rank that did."""
    output = Output(asked)
    if slot is not None and "/" in slot and node is None:
        node, _, slot = slot.partition("/")
    wanted = Wanted(node=node, slot=slot, rank=rank, since_s=since)
    with output.answering(), _shelf(job, asked, log_dir, follows=follow) as (name, shelf, it):
        reading = LogReading(shelf, wanted)
        files = reading.files()
        _check(name, files, shelf, wanted)
        _check_rank(it, rank)
        screen = _Screen(name, output)
        screen.show(reading.lines(files))
        if follow and it is not None:
            _follow(reading, screen)
        screen.show(reading.rest())
    return 0


@contextlib.contextmanager
def _shelf(
    job: str | None, asked: dict[str, Any], log_dir: str | None, *, follows: bool
) -> Iterator[tuple[str, Shelf, Job | None]]:
    """Who has the logs: the job's agents, or a folder that those who have ended have left."""
    try:
        with found(job, asked, command="logs") as it:
            if it.roads():
                yield it.id, AgentShelf(it, follows=follows), it
                return
            job = it.id
            if not _folder(job, log_dir).is_dir():
                raise LogsElsewhere(
                    f"the agents of job {job!r} have ended; its logs lie on its nodes",
                    hint=f"there: easyscale logs {job} --log-dir {_folder(job, log_dir)}",
                )
    except JobUnknown:
        if job is None or not _folder(job, log_dir).is_dir():
            raise
    yield job, FolderShelf(_folder(job, log_dir)), None


def _folder(job: str, log_dir: str | None) -> Path:
    return Path(log_dir) if log_dir is not None else Path("runs") / job / "logs"


def _check(job: str, files: Sequence[Any], shelf: Shelf, wanted: Wanted) -> None:
    """Refuse a node or slot of which there is no log, and a folder that holds other things."""
    if files:
        return
    every = shelf.files()
    if not every and isinstance(shelf, FolderShelf):
        raise LogsElsewhere(
            f"{shelf.folder} holds no logs of workers",
            hint="--log-dir DIR, as at the launch; a plain job keeps files with --tee 3 alone",
        )
    if wanted.node is None and wanted.slot is None:
        return
    nodes = sorted({file.node for file in every})
    if wanted.node is not None and wanted.node not in nodes:
        near = near_miss(wanted.node, nodes)
        raise NodeUnknown(
            f"job {job!r} has no logs of node {wanted.node!r}; it has {some_of(nodes) or 'none'}",
            hint=f"easyscale logs {job} --node {near or nodes[0]}" if nodes else "",
        )
    slots = sorted({file.slot for file in every if wanted.node in (None, file.node)})
    if wanted.slot is not None and wanted.slot not in slots:
        raise NodeUnknown(
            f"job {job!r} has no logs of slot {wanted.slot!r}; it has {some_of(slots) or 'none'}",
            hint=f"easyscale logs {job} --slot {slots[0]}" if slots else "",
        )


def _check_rank(job: Job | None, rank: int | None) -> None:
    """Refuse a rank that the job has not, as far as anybody can say."""
    if job is None or rank is None:
        return
    status = job.glance().status
    what, count = "logical workers", status.job.logical_workers
    if count is None and status.counts.in_use:  # of a job whose ranks are processes
        what, count = "ranks", 1 + max(rank for slot in status.slots for rank in (*slot.ranks, 0))
    if count is not None and rank >= count:
        raise NodeUnknown(
            f"job {job.id!r} has {count:,} {what}; there is no rank {rank:,}",
            hint=f"--rank {count - 1}",
        )


class _Screen:
    """Where lines go, some at a time."""

    def __init__(self, job: str, output: Output) -> None:
        self._job = job
        self._output = output
        self._view = LogView(output.look)

    @property
    def is_read(self) -> bool:
        return self._output.is_read

    def show(self, lines: Iterable[LogLine]) -> None:
        source = iter(lines)
        while self.is_read and (batch := list(islice(source, _BATCH))):
            if self._output.as_json:
                text = "".join(log_json(self._job, line) + "\n" for line in batch)
            else:
                text = self._view.text(batch)
            self._output.write(text)


def _follow(reading: LogReading, screen: _Screen) -> None:
    """Until the job's agents have ended, or nobody reads."""
    heard_s = time.monotonic()
    while screen.is_read and time.monotonic() - heard_s < _SILENT_S:
        time.sleep(_EVERY_S)
        try:
            files = reading.files()
        except AgentEnded:
            return
        except AgentSilent:
            continue
        heard_s = time.monotonic()
        screen.show(reading.lines(files))
        reading.thank()
