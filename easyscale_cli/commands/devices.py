"""`easyscale devices`: the slots a job's nodes offer, and other ones for a node that runs."""

import time
from collections.abc import Sequence
from typing import Any

import click

from easyscale.errors import UsageError
from easyscale.job_status import Glance, SlotFacts
from easyscale.model import Wish
from easyscale_cli.connection import Job
from easyscale_cli.lookup import check_place, found
from easyscale_cli.options import look_options, store_options, user_name
from easyscale_cli.output import Output
from easyscale_cli.views.devices import devices_json, devices_lines
from easyscale_cli.views.help import PageCommand
from easyscale_cli.views.layout import line
from easyscale_cli.waiting import wait_until

_LIMIT_S = 60.0
#: A wish stands in etcd by then, or has been answered already.
_SEEN_BY_S = 3.0


class DevicesRefused(UsageError):
    """Raised when a node elsewhere has no such devices."""

    code = "devices_refused"


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
    """List the slots of JOB, or those of NODE; --set changes them while training goes on.

    What is set holds until the agent of NODE ends: started again, it offers what its own command
    line or --devices-file says.
    """
    if word is not None and node is None:
        raise UsageError("--set needs the node whose slots change", hint="devices JOB NODE --set")
    output = Output(asked)
    with output.answering(), found(job, asked, command="devices") as it:
        slots = it.glance().status.slots
        notes: tuple[str, ...] = ()
        if node is not None:
            check_place([(each.node, each.slot) for each in slots], job=it.id, node=node)
        if node is not None and word is not None:
            notes = _set(it, node, word, output)
            slots = it.glance().status.slots
        _show(it.id, [each for each in slots if node in (None, each.node)], notes, output)
    return 0


def _set(job: Job, node: str, word: str, output: Output) -> tuple[str, ...]:
    """Until the node offers them; workers of new slots join later by themselves."""
    by = f"devices set by {user_name()}"
    offered = job.set_devices(node, word, by=by)
    if offered is None:
        _wish(job, Wish(kind="devices", node=node, target=word, by=by), output)
        return ()
    wanted = set(offered.slots)

    def are_offered(glance: Glance) -> bool:
        slots = [slot for slot in glance.status.slots if slot.node == node]
        return {slot.slot for slot in slots if slot.state not in ("gone", "draining")} == wanted

    wait_until(
        are_offered,
        job=job,
        output=output,
        what=lambda _: f"node {node} to offer {word}",
        limit_s=_LIMIT_S,
    )
    return offered.notes


def _wish(job: Job, wish: Wish, output: Output) -> None:
    """Ask the agent of a node elsewhere, and wait until it has answered."""
    wish_id = job.wish(wish)
    seen, asked_s = False, time.monotonic()

    def is_answered(glance: Glance) -> bool:
        nonlocal seen
        standing = job.standing(wish_id)
        if standing is not None and standing.refused:
            raise DevicesRefused(
                f"node {wish.node}: {standing.refused}", hint=f"easyscale devices {job.id}"
            )
        seen = seen or standing is not None
        # It may have come true between two looks.
        store = glance.status.store
        missed = (store is None or store.reachable) and time.monotonic() - asked_s > _SEEN_BY_S
        return standing is None and (seen or missed)

    glance = wait_until(
        is_answered,
        job=job,
        output=output,
        what=lambda _: f"the agent of node {wish.node} to offer {wish.target}",
        limit_s=_LIMIT_S,
    )
    if not any(each.node == wish.node and each.state != "gone" for each in glance.status.slots):
        raise DevicesRefused(
            f"node {wish.node} has ended; it offers {wish.target} no more",
            hint=f"easyscale devices {job.id}",
        )


def _show(job: str, slots: Sequence[SlotFacts], notes: Sequence[str], output: Output) -> None:
    if output.as_json:
        output.say(devices_json(job, slots, notes))
        return
    output.show(devices_lines(slots, cells=output.cells, glyphs=output.glyphs))
    output.show([line(output.glyphs.prose(note)) for note in notes])
