"""Waits of a command until a job has done what was asked: with a name, a deadline and a display."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from easyscale.agent.doors.dialogue import AgentSilent
from easyscale.errors import EasyScaleError, StoreUnreachable
from easyscale.job_status import Glance
from easyscale.model import Wish
from easyscale_cli.connection import Job
from easyscale_cli.output import Output

_EVERY_S = 0.2
#: An agent or etcd that does not answer for so long is believed to have ended.
_SILENT_S = 10.0
#: A wish goes in the transaction that grants it: the next look shows what has come of it.
_LOOKS = 2
_WITHDRAWN_S = 5.0


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
    at_end: Callable[[], str] = lambda: "what was asked for stands",
) -> Glance:
    """Look at the job until it is so, or until it has ended; `what` names what is waited for.

    At the deadline `at_end` does what is then to be done, and says it.
    """
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
                f"waited {limit_s:g} s for {what(glance)}; {at_end()}",
                hint=f"easyscale status {job.id}",
            )
        output.wait_for(what(glance), waited_s=waited_s, limit_s=limit_s)
        time.sleep(_EVERY_S)


class Asking:
    """A wish of ours for as long as we wait: whoever stops waiting withdraws it and says so."""

    def __init__(
        self, job: Job, wish: Wish, output: Output, *, name: str, joins: str | None = None
    ) -> None:
        #: That of somebody else, who asked the same: it is not ours to withdraw.
        self._is_ours = joins is None
        self.id = joins or job.wish(wish)
        self._job = job
        self._output = output
        self._name = name
        self._asked_s = time.monotonic()
        self._is_seen = False
        self._missed = 0

    def is_gone(self) -> bool:
        """It was withdrawn, or its etcd has lost it: some looks show it, since it may come true."""
        is_there = self._job.standing(self.id) is not None
        self._is_seen = self._is_seen or is_there
        is_due = self._is_seen or time.monotonic() - self._asked_s > _SILENT_S
        self._missed = self._missed + 1 if is_due and not is_there else 0
        return self._missed > _LOOKS

    def withdraw(self) -> str:
        """Take it back; what became of that, as the end of a sentence."""
        if not self._is_ours:
            return f"{self._name} stands, since somebody else asked for it"
        began_s = time.monotonic()
        try:
            self._job.withdraw(self.id)
            while self._job.standing(self.id) is not None:
                if time.monotonic() - began_s > _WITHDRAWN_S:
                    return f"{self._name} stands, since nobody has answered its withdrawal"
                time.sleep(_EVERY_S)
        except EasyScaleError as error:
            return f"{self._name} could not be withdrawn: {error.message}"
        return f"{self._name} is withdrawn"

    @contextmanager
    def waited_for(self) -> Iterator[None]:
        """Ctrl-C, a signal that ends us, or a terminal that closes ends the wish as well."""
        before = {
            number: signal.signal(number, _leave)
            for number in (signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(number) is signal.SIG_DFL
        }
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            self._output.remark(self.withdraw())
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _leave(number: int, _: object) -> None:
    raise SystemExit(128 + number)
