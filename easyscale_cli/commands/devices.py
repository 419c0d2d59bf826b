"""`easyscale devices`: the slots a job's nodes offer, and other ones for a node that runs."""

from collections.abc import Sequence
from typing import Any

import click

from easyscale.errors import UsageError
from easyscale.job_status import Glance, SlotFacts
from easyscale_cli.connection import Job, Offered
from easyscale_cli.lookup import check_place, found
from easyscale_cli.options import look_options, store_options, user_name
from easyscale_cli.output import Output
from easyscale_cli.views.devices import devices_json, devices_lines
from easyscale_cli.views.help import PageCommand
from easyscale_cli.views.layout import line
from easyscale_cli.waiting import wait_until

_LIMIT_S = 60.0


@click.command(cls=PageCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("job", required=False)
@click.argument("node", required=False)
@click.option(
    "--set",
    "word",
    metavar="WORD",
    help="Offer these from now on: auto, cuda[:LIST] or cpu[:COUNT].",
)
@store_options
@look_options
def command(job: str | None, node: str | None, *, word: str | None, **asked: Any) -> int:
    """List the slots of JOB, or those of NODE; --set changes them while training goes on."""
    if word is not None and node is None:
        raise UsageError("--set needs the node whose slots change", hint="devices JOB NODE --set")
    output = Output(asked)
    with output.answering(), found(job, asked, command="devices") as it:
        slots = it.glance().status.slots
        notes: tuple[str, ...] = ()
        if node is not None:
            check_place([(each.node, each.slot) for each in slots], job=it.id, node=node)
        if node is not None and word is not None:
            offered = it.set_devices(node, word, by=f"devices set by {user_name()}")
            notes = offered.notes if offered is not None else ()
            slots = _wait(it, node, word, offered, output).status.slots
        _show(it.id, [each for each in slots if node in (None, each.node)], notes, output)
    return 0


def _wait(job: Job, node: str, word: str, offered: Offered | None, output: Output) -> Glance:
    """Until the node's registration says so; workers of new slots join later by themselves."""
    if offered is None:
        return job.glance()
    wanted = set(offered.slots)

    def is_offered(glance: Glance) -> bool:
        has = {
            slot.slot
            for slot in glance.status.slots
            if slot.node == node and slot.state not in ("gone", "draining")
        }
        return has == wanted

    return wait_until(
        is_offered,
        job=job,
        output=output,
        what=lambda _: f"node {node} to offer {word}",
        limit_s=_LIMIT_S,
    )


def _show(job: str, slots: Sequence[SlotFacts], notes: Sequence[str], output: Output) -> None:
    if output.as_json:
        output.say(devices_json(job, slots, notes))
        return
    output.show(devices_lines(slots, cells=output.cells, glyphs=output.glyphs))
    output.show([line(output.glyphs.prose(note)) for note in notes])
