"""`easyscale jobs`: the jobs of this machine, or of an etcd, one a line."""

import contextlib
from collections.abc import Mapping
from typing import Any

import click

from easyscale.agent.dialogue import AgentSilent
from easyscale.errors import FormatError
from easyscale.job_status import JobStatus
from easyscale_cli.connection import (
    AgentEnded,
    LocalJob,
    agents_here,
)
from easyscale_cli.options import look_options, store_options
from easyscale_cli.output import Output
from easyscale_cli.views.help import PageCommand
from easyscale_cli.views.jobs import jobs_json, jobs_lines, row_of
from easyscale_cli.views.layout import line


@click.command(cls=PageCommand, context_settings={"help_option_names": ["-h", "--help"]})
@store_options
@look_options
def command(**asked: Any) -> int:
    """List the jobs of this machine, or of the etcd that is named."""
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
    return 0


def _statuses(asked: Mapping[str, Any]) -> list[JobStatus]:
    found = []
    if not asked["etcd"]:
        for agents in agents_here().values():
            with contextlib.suppress(AgentSilent, AgentEnded):  # it has ended meanwhile
                found.append(LocalJob(agents).glance().status)
        return found
    from easyscale_cli import stored

    with contextlib.closing(stored.connect(stored.etcd_settings(asked))) as store:
        for name in stored.stored_jobs(store):
            with contextlib.suppress(FormatError):  # of a newer easyscale: not ours to describe
                found.append(stored.StoredJob(name, store).glance().status)
    return found
