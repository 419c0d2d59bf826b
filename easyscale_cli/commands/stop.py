"""`easyscale stop`: end a job at its next step, with a snapshot to go on from."""

from typing import Any

import click

from easyscale.job_status import Closing, Glance
from easyscale.model import JobState, Wish
from easyscale_cli.dashboard import closing_lines
from easyscale_cli.lookup import found
from easyscale_cli.options import look_options, store_options, user_name
from easyscale_cli.output import Output
from easyscale_cli.parameters import NumberRange
from easyscale_cli.views import numbers
from easyscale_cli.views.help import PageCommand
from easyscale_cli.views.plain import JSON_VERSION, first_cause_fields, summary_fields, to_json
from easyscale_cli.waiting import wait_until


@click.command(cls=PageCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("job")
@click.option(
    "--timeout",
    "limit_s",
    type=NumberRange(min=0.0),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait so long for its end.",
)
@store_options
@look_options
def command(job: str, *, limit_s: float, **asked: Any) -> int:
    """Stop JOB at its next step with a snapshot; a new launch of it goes on from there.

    Workers that do not call easyscale get SIGTERM, and go on from what their script has saved.
    """
    output = Output(asked)
    with output.answering(), found(job, asked, command="stop") as it:
        if it.glance().closing is None:
            it.wish(Wish(kind="stop", by=user_name()))
        glance = wait_until(lambda _: False, job=it, output=output, what=_awaited, limit_s=limit_s)
        closing = glance.closing
        assert closing is not None, "the wait ends with the job or raises"
        show_ending(glance, closing, output)
        return closing.exit_code


def _awaited(glance: Glance) -> str:
    if glance.status.job.step is None:  # its workers have no boundaries that are known here
        used = sum(len(slot.ranks) for slot in glance.status.slots)
        return f"the end of its {numbers.counted(used, 'worker')}" if used else "its agents to end"
    if glance.status.job.state is JobState.DRAINING:
        return f"the snapshot of step {glance.status.job.step:,} and the workers' end"
    return f"the boundary after step {glance.status.job.step:,}"


def show_ending(glance: Glance, closing: Closing, output: Output) -> None:
    """How the job ended, for people or as one object."""
    if not output.as_json:
        output.show(closing_lines(glance.status, closing, output))
        return
    job = glance.status.job
    value = {
        "version": JSON_VERSION,
        "job": job.id,
        "state": str(job.state),
        "step": job.step,
        "exit_code": closing.exit_code,
        "reason": closing.reason,
    }
    if closing.cause is not None:
        value |= first_cause_fields(closing.cause, {})
    if closing.summary is not None:
        value |= summary_fields(closing.summary)
    output.say(to_json(value))
