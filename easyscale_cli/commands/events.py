"""`easyscale events`: what changed in a job since its agent here began."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from easyscale.reports import JobEvent, stamp
from easyscale_cli.connection import AgentEnded, Job
from easyscale_cli.lookup import found
from easyscale_cli.options import look_options, store_options
from easyscale_cli.output import Output
from easyscale_cli.views.changes import change_table, changes_of
from easyscale_cli.views.help import PageCommand
from easyscale_cli.views.layout import line
from easyscale_cli.views.plain import event_json, event_line

_EVERY_S = 0.5


@click.command(cls=PageCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("job", required=False)
@click.option("--follow", "-f", is_flag=True, help="Go on until the job ends.")
@store_options
@look_options
def command(job: str | None, *, follow: bool, **asked: Any) -> int:
    """List what changed in JOB: newest first on a terminal, one line each for pipes."""
    output = Output(asked)
    with output.answering(), found(job, asked, command="events") as it:
        if follow:
            _follow(it, output)
            return 0
        events = it.events(0).events
        if output.as_json or not output.look.is_terminal:
            _say(events, output)
        else:
            _show(events, output)
    return 0


def _follow(job: Job, output: Output) -> None:
    number = 0
    while True:
        try:
            told = job.events(number, watches=True)
        except AgentEnded:
            if number:
                return  # the agent has ended with its job
            raise
        _say(told.events, output)
        number = told.next
        if told.is_over:
            return
        time.sleep(_EVERY_S)


def _say(events: Sequence[JobEvent], output: Output) -> None:
    for event in events:
        output.say(event_json(event) if output.as_json else event_line(event))


def _show(events: Sequence[JobEvent], output: Output) -> None:
    changes = changes_of(events[::-1])
    if not changes:
        output.show([line("nothing has changed yet")])
        return
    now = stamp(datetime.now(UTC).timestamp())
    output.show(change_table(changes, now, output.cells, glyphs=output.glyphs, zone=None))
