"""How a change that a command asked for is told: by an agent's own event, else as it was seen."""

import time

from easyscale.agent.doors.dialogue import AgentSilent
from easyscale.job_status import Glance
from easyscale.model import GenerationNumber
from easyscale.reports import EventKind, Fact, JobEvent
from easyscale_cli.connection import AgentEnded, Job, OnlyAtTheAgent
from easyscale_cli.output import Output
from easyscale_cli.views.launch import event_lines
from easyscale_cli.views.plain import event_json

#: An agent tells of a change when its workers have entered it: a moment later.
_TOLD_S = 3.0
_LOOK_EVERY_S = 0.1


def told_since(job: Job, before: Glance, kind: str) -> JobEvent:
    """The change with its pause, as an agent told it or as the members recorded it."""
    former = GenerationNumber(before.status.job.era, before.status.job.generation)
    deadline = time.monotonic() + _TOLD_S
    while True:
        told = _told(job, kind, since=before.status.at)
        if told is not None:
            return told
        pause_s = job.pause_s(after=former)
        if pause_s is not None or time.monotonic() >= deadline:
            return _seen(job.glance(), kind, pause_s)
        time.sleep(_LOOK_EVERY_S)


def _told(job: Job, kind: str, *, since: str) -> JobEvent | None:
    try:
        events = job.events(0).events
    except (OnlyAtTheAgent, AgentEnded, AgentSilent):
        return None
    found = (each for each in reversed(events) if each.event.value == kind and each.at >= since)
    return next(found, None)


def _seen(glance: Glance, kind: str, pause_s: float | None) -> JobEvent:
    job = glance.status.job
    facts: dict[str, Fact] = {} if pause_s is None else {"pause_s": pause_s, "steps_lost": 0}
    return JobEvent(
        at=glance.status.at,
        job=job.id,
        event=EventKind(kind),
        step=job.step,
        era=job.era,
        generation=job.generation,
        reason="",
        facts=facts,
    )


def show_event(event: JobEvent, output: Output) -> None:
    if output.as_json:
        output.say(event_json(event))
    else:
        output.show(event_lines(event, output.page))
