"""`easyscale profile`: throughput against number and kind of slots, measured in the running job."""

from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import click

from easyscale.balance import MOST_PROFILE_STEPS, ProfileRecord
from easyscale.errors import EasyScaleError, UsageError
from easyscale.job_status import Glance
from easyscale.model import Wish
from easyscale_cli.connection import Job
from easyscale_cli.lookup import found
from easyscale_cli.options import look_options, store_options, user_name
from easyscale_cli.output import Output
from easyscale_cli.parameters import NumberRange
from easyscale_cli.views.help import PageCommand
from easyscale_cli.views.profile import profile_json, profile_lines
from easyscale_cli.waiting import Asking, wait_until


class ProfileEnded(EasyScaleError):
    """Raised when a profile ended before its last point: the job goes on."""

    code = "profile_ended"


class PictureNotWritten(EasyScaleError):
    """Raised when a profile stands and its picture does not."""

    code = "picture_not_written"


@click.command(cls=PageCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("job", required=False)
@click.option(
    "--steps",
    type=click.IntRange(min=3, max=MOST_PROFILE_STEPS),
    default=10,
    show_default=True,
    metavar="N",
    help="Measure each size for so many steps.",
)
@click.option("--show", is_flag=True, help="Only show what was measured last.")
@click.option(
    "--png",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="Draw it there too; needs pip install 'easyscale-torch[plot]'.",
)
@click.option(
    "--timeout",
    "limit_s",
    type=NumberRange(min=0.0),
    default=3600.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait so long for all sizes.",
)
@store_options
@look_options
def command(
    job: str | None, *, steps: int, show: bool, png: str | None, limit_s: float, **asked: Any
) -> int:
    """Scale JOB in and out in place, measure each size, and show what more slots bring."""
    output = Output(asked)
    with output.answering():
        picture = Path(png) if png is not None else None
        if picture is not None:
            _check_plotting()
            _check_place(picture)
        with found(job, asked, command="profile") as it:
            record = it.profile() if show else _measure(it, steps, output, limit_s=limit_s)
            if record is None:
                raise UsageError(
                    f"job {it.id!r} has not been measured", hint=f"easyscale profile {it.id}"
                )
            if picture is not None and not record.points:
                raise UsageError(
                    f"no size of job {it.id!r} has been measured yet",
                    hint=f"easyscale profile {it.id}",
                )
            failure = _draw(it.id, record, picture) if picture is not None else None
            if failure is None or not output.as_json:
                _show(it.id, record, output)
            if failure is not None:
                raise failure
    return 0


def _check_plotting() -> None:
    if find_spec("matplotlib") is None:
        raise UsageError(
            "--png draws with matplotlib, which is not installed",
            hint="pip install 'easyscale-torch[plot]', or leave --png out",
        )


def _check_place(picture: Path) -> None:
    """Refuse a file that could not be written, before anybody measures for it."""
    try:
        with NamedTemporaryFile(dir=picture.parent, prefix=f".{picture.name}."):
            pass
    except OSError as error:
        raise UsageError(
            f"--png {picture}: {_words_of(error)}",
            hint="name a file in a folder that can be written",
        ) from error


def _draw(job: str, record: ProfileRecord, picture: Path) -> PictureNotWritten | None:
    """Draw it; what was measured stands also where that fails."""
    from easyscale_cli.plotting import draw_profile

    try:
        draw_profile(job, record, picture)
    except OSError as error:
        return PictureNotWritten(
            f"{picture} was not written: {_words_of(error)}; what was measured stands",
            hint=f"easyscale profile {job} --show --png FILE",
        )
    return None


def _words_of(error: OSError) -> str:
    """What the system says, as part of a sentence."""
    said = error.strerror or str(error)
    return said[:1].lower() + said[1:]


def _measure(job: Job, steps: int, output: Output, *, limit_s: float) -> ProfileRecord | None:
    """Ask for it and wait; of one that is asked for already, and is the same, for that one."""
    wish = Wish(kind="profile", target=str(steps), by=f"asked by {user_name()}")
    standing = _standing(job)
    joined = next((i for i, w in standing.items() if w.target == wish.target), None)
    asking = Asking(job, wish, output, name="the profile", joins=joined)
    wish_id = asking.id
    if joined is not None:
        output.remark(f"waits for the same profile {standing[joined].by}")
    newest: ProfileRecord | None = None

    def is_done(glance: Glance) -> bool:
        nonlocal newest
        del glance
        is_gone = asking.is_gone()
        newest = job.profile()
        is_ours = newest is not None and newest.wish == wish_id
        if is_gone and not (newest is not None and is_ours and newest.done):
            raise ProfileEnded(f"job {job.id!r} was not measured: its profile was withdrawn")
        return newest is not None and is_ours and newest.done

    def awaited(glance: Glance) -> str:
        if newest is not None and newest.wish == wish_id:
            return f"{len(newest.points) + 1} of {newest.planned} sizes to be measured"
        if newest is not None and newest.wish in standing and not newest.done:
            return f"the profile {newest.by} to end first, at step {glance.status.job.step:,}"
        return f"the profile to begin, at step {glance.status.job.step:,}"

    with asking.waited_for():
        glance = wait_until(
            is_done, job=job, output=output, what=awaited, limit_s=limit_s, at_end=asking.withdraw
        )
    if newest is None or newest.wish != wish_id or not newest.done:
        reason = glance.closing.reason if glance.closing is not None else "it did not begin"
        raise ProfileEnded(f"job {job.id!r} ended before it was measured: {reason}")
    if newest.reason:
        raise ProfileEnded(
            f"measured {len(newest.points)} of {newest.planned} sizes: {newest.reason}",
            hint=f"easyscale profile {job.id}, when its slots stay",
        )
    return newest


def _standing(job: Job) -> dict[str, Wish]:
    """Profiles that are asked for and not done, the oldest first."""
    standing = {i: wish for i, wish in job.wishes().items() if wish.kind == "profile"}
    last = job.profile() if standing else None
    if last is not None and last.done:
        standing.pop(last.wish, None)
    return standing


def _show(job: str, record: ProfileRecord, output: Output) -> None:
    if output.as_json:
        output.say(profile_json(job, record))
        return
    output.show(profile_lines(job, record, cells=output.cells, glyphs=output.glyphs))
