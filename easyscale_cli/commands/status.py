"""`easyscale status`: how a job is, once or live, for people and programs."""

from typing import Any

import click

from easyscale_cli.dashboard import watch, window_of
from easyscale_cli.lookup import found
from easyscale_cli.options import look_options, store_options
from easyscale_cli.output import Output
from easyscale_cli.views.help import PageCommand
from easyscale_cli.views.job_status import status_json
from easyscale_cli.views.status import status_lines
from easyscale_cli.views.story import story_json, story_lines


@click.command(cls=PageCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("job", required=False)
@click.option("--once", is_flag=True, help="One frame, then end.")
@click.option("--story", is_flag=True, help="What was decided, on what, and why.")
@store_options
@look_options
def command(job: str | None, *, once: bool, story: bool, **asked: Any) -> int:
    """Show how JOB is; without a name the only job of this machine."""
    output = Output(asked)
    with output.answering(), found(job, asked, command="status") as it:
        if story:
            told = it.story()
            if output.as_json:
                output.say(story_json(it.id, told))
            else:
                output.show(story_lines(told, cells=output.cells, glyphs=output.glyphs, zone=None))
        elif output.as_json:
            output.say(status_json(it.closely().status))
        elif once or not output.look.is_terminal:
            output.show(status_lines(it.closely().status, window_of(output, has_keys=False)))
        else:
            return watch(it, output)
    return 0
