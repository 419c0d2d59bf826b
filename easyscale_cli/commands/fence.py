"""`easyscale fence`: a person's word that a silent node has ended, which is proof to the job."""

from typing import Any

import click

from easyscale.errors import EasyScaleError
from easyscale.job_status import Glance
from easyscale.model import Wish
from easyscale_cli.lookup import check_place, found
from easyscale_cli.options import look_options, store_options, user_name
from easyscale_cli.output import Output
from easyscale_cli.views import numbers
from easyscale_cli.views.help import PageCommand
from easyscale_cli.views.launch import entry
from easyscale_cli.views.layout import line
from easyscale_cli.views.plain import JSON_VERSION, to_json
from easyscale_cli.waiting import wait_until

_LIMIT_S = 60.0


class NodeIsRegistered(EasyScaleError):
    """Raised when a node that shall be held to have ended has a living registration."""

    code = "node_is_registered"


@click.command(cls=PageCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("job")
@click.argument("node")
@store_options
@look_options
def command(job: str, node: str, **asked: Any) -> int:
    """Say that NODE of JOB has ended, so that the others need not wait for proof.

    Only after making sure of it: a group that still ran there would be left behind.
    """
    output = Output(asked)
    with output.answering(), found(job, asked, command="fence", apart_from=node) as it:
        status = it.glance().status
        check_place([(each.node, each.slot) for each in status.slots], job=it.id, node=node)
        if any(each.node == node and each.state != "gone" for each in status.slots):
            raise NodeIsRegistered(
                f"node {node} is registered, so it has not ended; its agent renews that by itself",
                hint=f"easyscale drain {it.id} {node}",
            )
        it.wish(Wish(kind="fence", node=node, by=user_name()))
        glance = wait_until(
            lambda glance: not _is_named(glance, node),
            job=it,
            output=output,
            what=lambda _: f"the job to go on without node {node}",
            limit_s=_LIMIT_S,
        )
        _show(glance, node, output)
    return 0


def _is_named(glance: Glance, node: str) -> bool:
    return any(each.node == node for each in glance.status.slots)


def _show(glance: Glance, node: str, output: Output) -> None:
    job = glance.status.job
    if output.as_json:
        value = {
            "version": JSON_VERSION,
            "job": job.id,
            "node": node,
            "step": job.step,
            "era": job.era,
            "generation": job.generation,
        }
        output.say(to_json(value))
        return
    rows = [
        f"node {output.glyphs.name(node)} is held to have ended",
        f"step {numbers.count(job.step)}",
        numbers.generation(job.era, job.generation),
    ]
    output.show(entry(line("Fenced"), rows, output.page))
