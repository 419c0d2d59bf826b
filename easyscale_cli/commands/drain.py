"""`easyscale drain`: a node or a slot leaves at the next step; nothing is lost."""

import time
from typing import Any

import click

from easyscale.agent.doors.dialogue import AgentSilent
from easyscale.errors import UsageError
from easyscale.job_status import Glance, SlotFacts
from easyscale.model import GenerationNumber, Wish
from easyscale.reports import EventKind, Fact, JobEvent
from easyscale_cli.commands.stop import show_ending
from easyscale_cli.connection import AgentEnded, Job, OnlyAtTheAgent
from easyscale_cli.lookup import check_place, found
from easyscale_cli.options import look_options, store_options, user_name
from easyscale_cli.output import Output
from easyscale_cli.parameters import NumberRange
from easyscale_cli.views import numbers
from easyscale_cli.views.help import PageCommand
from easyscale_cli.views.launch import event_lines
from easyscale_cli.views.plain import event_json
from easyscale_cli.waiting import wait_until

#: The surviving agent tells of the change when its workers have entered it: a moment later.
_TOLD_S = 3.0
_LOOK_EVERY_S = 0.1


@click.command(cls=PageCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("job")
@click.argument("place", metavar="NODE[/SLOT]")
@click.option(
    "--timeout",
    "limit_s",
    type=NumberRange(min=0.0),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait so long until it has left.",
)
@store_options
@look_options
def command(job: str, place: str, *, limit_s: float, **asked: Any) -> int:
    """Have NODE, or one slot of it, leave JOB at the next step; the last node stops the job."""
    node, _, slot = place.partition("/")
    if not node or place.endswith("/"):
        raise UsageError(f"{place!r} is no place", hint="NODE or NODE/SLOT, as status shows them")
    output = Output(asked)
    with output.answering(), found(job, asked, command="drain", apart_from=node) as it:
        before = it.glance()
        offered = [(each.node, each.slot) for each in before.status.slots]
        check_place(offered, job=it.id, node=node, slot=slot)
        slots = (slot,) if slot else ()
        it.wish(Wish(kind="drain", node=node, slots=slots, by=f"asked by {user_name()}"))
        glance = wait_until(
            lambda glance: has_left(glance, node, slot),
            job=it,
            output=output,
            what=lambda glance: awaited(glance, node, slot),
            limit_s=limit_s,
        )
        if glance.closing is not None:
            show_ending(glance, glance.closing, output)
            return glance.closing.exit_code
        _show(_change(it, before, node, slot), output)
    return 0


def has_left(glance: Glance, node: str, slot: str) -> bool:
    """Nothing of the place is left, and somebody goes on; the last one ends the job instead."""
    others = any(each.state == "in_use" for each in glance.status.slots)
    return others and not _remaining(glance, node, slot)


def _remaining(glance: Glance, node: str, slot: str) -> list[SlotFacts]:
    """What is still there of the place."""
    return [
        each
        for each in glance.status.slots
        if each.node == node and slot in ("", each.slot) and each.state != "gone"
    ]


def awaited(glance: Glance, node: str, slot: str) -> str:
    place = f"{node}/{slot}" if slot else f"node {node}"
    held = sorted(rank for each in _remaining(glance, node, slot) for rank in each.ranks)
    if held and glance.status.job.step is None:
        return f"{place} to give up {numbers.counted(len(held), 'rank')}: all workers start again"
    if held:
        step = numbers.count(glance.status.job.step)
        return f"{place} to give up {len(held)} logical ranks after step {step}"
    if _remaining(glance, node, slot):
        return f"{place} to end its workers"
    return "the job's end: nothing else takes part"


def _change(it: Job, before: Glance, node: str, slot: str) -> JobEvent:
    """The change with its pause, as an agent told it or as the members recorded it."""
    held = any(each.ranks for each in _remaining(before, node, slot))
    former = GenerationNumber(before.status.job.era, before.status.job.generation)
    deadline = time.monotonic() + (_TOLD_S if held else 0.0)
    while True:
        told = _told(it, node, slot, since=before.status.at)
        if told is not None:
            return told
        pause_s = it.pause_s(after=former)
        if pause_s is not None or time.monotonic() >= deadline:
            return _seen(it.glance(), node, slot, pause_s if held else None)
        time.sleep(_LOOK_EVERY_S)


def _told(it: Job, node: str, slot: str, *, since: str) -> JobEvent | None:
    try:
        events = it.events(0).events
    except (OnlyAtTheAgent, AgentEnded, AgentSilent):
        return None
    for event in reversed(events):
        facts = event.facts
        is_it = event.event is EventKind.DRAINED and facts.get("node") == node
        if is_it and event.at >= since and (not slot or facts.get("slot") == slot):
            return event
    return None


def _seen(glance: Glance, node: str, slot: str, pause_s: float | None) -> JobEvent:
    job = glance.status.job
    facts: dict[str, Fact] = {"node": node}
    if slot:
        facts["slot"] = slot
    if pause_s is not None:
        facts |= {"pause_s": pause_s, "steps_lost": 0}
    return JobEvent(
        at=glance.status.at,
        job=job.id,
        event=EventKind.DRAINED,
        step=job.step,
        era=job.era,
        generation=job.generation,
        reason="",
        facts=facts,
    )


def _show(event: JobEvent, output: Output) -> None:
    if output.as_json:
        output.say(event_json(event))
    else:
        output.show(event_lines(event, output.page))
