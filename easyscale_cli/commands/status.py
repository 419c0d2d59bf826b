"""`easyscale status`: how a job is, once or live, for people and programs."""

from typing import Any

import click

from easyscale.errors import UsageError
from easyscale_cli.connection import Story
from easyscale_cli.dashboard import watch, window_of
from easyscale_cli.lookup import found
from easyscale_cli.options import look_options, store_options
from easyscale_cli.output import Output
from easyscale_cli.views.help import PageCommand
from easyscale_cli.views.job_status import status_json
from easyscale_cli.views.layout import line
from easyscale_cli.views.status import status_lines
from easyscale_cli.views.story import story_json, story_lines


@click.command(cls=PageCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("job", required=False)
@click.option("--once", is_flag=True, help="One frame, then end.")
@click.option("--story", is_flag=True, help="What was decided, on what, and why.")
@click.option(
    "--node", metavar="NODE", help="With --story: by this node's agent [by the job's leader]."
)
@click.option(
    "--rank", type=click.IntRange(min=0), metavar="N", help="With --story: where it has been."
)
@store_options
@look_options
def command(
    job: str | None, *, once: bool, story: bool, node: str | None, rank: int | None, **asked: Any
) -> int:
    """Show how JOB is; without a name the only job of this machine."""
    output = Output(asked)
    with output.answering():
        _check(story=story, node=node, rank=rank)
        with found(job, asked, command="status") as it:
            if story:
                _tell(it.id, it.story(node=node, rank=rank), output)
            elif output.as_json:
                output.say(status_json(it.closely().status))
            elif once or not output.look.is_terminal:
                window = window_of(output, has_keys=False)
                output.show(status_lines(it.closely().status, window))
            else:
                return watch(it, output)
    return 0


def _check(*, story: bool, node: str | None, rank: int | None) -> None:
    given = "--node" if node is not None else "--rank" if rank is not None else ""
    if given and not story:
        raise UsageError(f"{given} says whose story is told", hint=f"--story {given} ...")
    if node is not None and rank is not None:
        raise UsageError("a story is of a node or of a rank", hint="give one of --node, --rank")


def _tell(job: str, told: Story, output: Output) -> None:
    if output.as_json:
        output.say(story_json(job, told))
    elif told:
        output.show(story_lines(told, cells=output.cells, glyphs=output.glyphs, zone=None))
    else:
        output.show([line("nothing was decided yet")])
