"""Waits of a command until a job has done what was asked: with a name, a deadline and a display."""

import time
from collections.abc import Callable

from easyscale.agent.doors.dialogue import AgentSilent
from easyscale.errors import EasyScaleError, StoreUnreachable
from easyscale.job_status import Glance
from easyscale_cli.connection import Job
from easyscale_cli.output import Output

_EVERY_S = 0.2
#: An agent or etcd that does not answer for so long is believed to have ended.
_SILENT_S = 10.0


class NotInTime(EasyScaleError):
    """Raised when what was asked for has not happened by the deadline; it may still happen."""

    code = "not_in_time"


def wait_until(
    done: Callable[[Glance], bool],
    *,
    job: Job,
    output: Output,
    what: Callable[[Glance], str],
    limit_s: float,
) -> Glance:
    """Look at the job until it is so, or until it has ended; `what` names what is waited for."""
    began_s = heard_s = time.monotonic()
    glance: Glance | None = None
    while True:
        try:
            glance = job.glance(watches=True)
            heard_s = time.monotonic()
        except (AgentSilent, StoreUnreachable):
            if glance is None or time.monotonic() - heard_s > _SILENT_S:
                raise
        if glance.closing is not None or done(glance):
            return glance
        waited_s = time.monotonic() - began_s
        if waited_s >= limit_s:
            raise NotInTime(
                f"waited {limit_s:g} s for {what(glance)}; what was asked for stands",
                hint=f"easyscale status {job.id}",
            )
        output.wait_for(what(glance), waited_s=waited_s, limit_s=limit_s)
        time.sleep(_EVERY_S)
