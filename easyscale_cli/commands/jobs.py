"""`easyscale jobs`: the jobs of this machine, or of an etcd, one a line; `prune` forgets some."""

import contextlib
from collections.abc import Mapping
from typing import Any

import click

from easyscale.agent.doors.dialogue import AgentSilent
from easyscale.errors import ExitCode, FormatError, UsageError
from easyscale.job_status import JobStatus
from easyscale_cli.connection import (
    AgentEnded,
    LocalJob,
    agents_here,
)
from easyscale_cli.options import look_options, store_options
from easyscale_cli.output import Output
from easyscale_cli.views.help import PageCommand, PageGroup
from easyscale_cli.views.jobs import (
    forgotten_json,
    forgotten_lines,
    jobs_json,
    jobs_lines,
    row_of,
)
from easyscale_cli.views.layout import line

_HELP = {"help_option_names": ["-h", "--help"]}


@click.group(cls=PageGroup, invoke_without_command=True, context_settings=_HELP)
@store_options
@look_options
@click.pass_context
def command(context: click.Context, /, **asked: Any) -> int:
    """List the jobs of this machine, or of the etcd that is named."""
    if context.invoked_subcommand is not None:
        return ExitCode.DONE
    output = Output(asked)
    with output.answering():
        rows = [row_of(status) for status in _statuses(asked)]
        if output.as_json:
            output.say(jobs_json(rows))
        elif rows:
            output.show(jobs_lines(rows, cells=output.cells, glyphs=output.glyphs))
        else:
            place = asked["etcd"] or "this machine; others: --etcd HOST:2379"
            output.show([line(f"no jobs {'in' if asked['etcd'] else 'on'} {place}")])
    return ExitCode.DONE


def _statuses(asked: Mapping[str, Any]) -> list[JobStatus]:
    found = []
    if not asked["etcd"]:
        for agents in agents_here().values():
            with contextlib.suppress(AgentSilent, AgentEnded):  # it has ended meanwhile
                found.append(LocalJob(agents).glance().status)
        return found
    from easyscale_cli import stored
    from easyscale_cli.stored_plain import StoredPlainJob, stored_plain_jobs

    with contextlib.closing(stored.connect(stored.etcd_settings(asked))) as store:
        for name in stored.stored_jobs(store):
            with contextlib.suppress(FormatError):  # of a newer easyscale: not ours to describe
                found.append(stored.StoredJob(name, store).glance().status)
        for name in stored_plain_jobs(store):
            with contextlib.suppress(FormatError):
                found.append(StoredPlainJob(name, store).glance().status)
    return found


@command.command(
    "prune", cls=PageCommand, short_help="Forget the finished ones", context_settings=_HELP
)
@click.option("--ended", is_flag=True, help="Also those that have failed or were stopped.")
@click.option("--dry-run", is_flag=True, help="Say which would be forgotten.")
@store_options
@look_options
@click.pass_context
def prune(context: click.Context, /, *, ended: bool, dry_run: bool, **asked: Any) -> int:
    """Forget the jobs of an etcd that have finished: their records go, their files stay.

    A job that somebody trains, or that has failed or been stopped, is left alone: it can go on.
    A plain or packed one cannot, so it goes once all its nodes have left.
    """
    above = context.parent.params if context.parent is not None else {}
    asked = {name: value or above.get(name) for name, value in asked.items()}
    if not asked["etcd"]:
        raise UsageError(
            "jobs of this machine leave nothing to forget when they end; an etcd keeps records",
            hint="--etcd HOST:2379",
        )
    output = Output(asked)
    from easyscale_cli import stored
    from easyscale_cli.forgetting import endings, forget
    from easyscale_cli.stored_plain import recorded_plain_jobs

    with (
        output.answering(),
        contextlib.closing(stored.connect(stored.etcd_settings(asked))) as store,
    ):
        found = endings(store)
        going = [each for each in found if each.is_finished or ended or not each.can_go_on]
        if not dry_run:
            going = [each for each in going if forget(store, each)]
        kept = len(stored.stored_jobs(store)) + len(recorded_plain_jobs(store))
        kept -= len(going) if dry_run else 0
        if output.as_json:
            output.say(forgotten_json(going, kept=kept, is_dry=dry_run))
        else:
            output.show(
                forgotten_lines(
                    going, kept=kept, is_dry=dry_run, cells=output.cells, glyphs=output.glyphs
                )
            )
    return ExitCode.DONE
