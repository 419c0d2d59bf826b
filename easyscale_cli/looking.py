"""Looks up what a dashboard shows, in a thread of its own: a silent agent stops no key."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import msgspec

from easyscale.agent.doors.dialogue import AgentSilent
from easyscale.errors import EasyScaleError, StoreError
from easyscale.job_status import Closing, Glance, StoreFacts
from easyscale_cli.connection import Job
from easyscale_cli.log_reading import AgentShelf, last_lines
from easyscale_cli.views.watching import Shown, Sight

_EVERY_S = 1.0
#: An agent that does not answer for so long is believed to have ended.
_SILENT_S = 10.0
_LOG_LINES = 500
_CLOSE_S = 1.0

#: What is shown, and of which (node, slot).
_Page = tuple[Shown, tuple[str, str] | None]


class Looker:
    """What was seen last; a new look every second, and at once when the person turns a page."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._shelf = AgentShelf(job, follows=False)
        self._lock = threading.Condition()
        self._page: _Page = (Shown.STATUS, None)
        self._is_over = False
        self._error: EasyScaleError | None = None
        self._woken: Callable[[], None] = lambda: None
        self._glance = job.closely(watches=True)
        self._heard_s = time.monotonic()
        self._sight = Sight(status=self._glance.status)
        self._thread = threading.Thread(target=self._run, name="looking", daemon=True)

    @property
    def sight(self) -> Sight:
        with self._lock:
            return self._sight

    @property
    def closing(self) -> Closing | None:
        """How the job has ended, once it has; raises what ended the looking before."""
        with self._lock:
            if self._error is not None:
                raise self._error
            return self._glance.closing

    @contextlib.contextmanager
    def looking(self, *, woken: Callable[[], None]) -> Iterator[None]:
        """Look until the block ends; `woken` is called after each look."""
        self._woken = woken
        self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._is_over = True
                self._woken = lambda: None
                self._lock.notify()
            self._thread.join(_CLOSE_S)

    def turn_to(self, page: Shown, selected: tuple[str, str] | None) -> None:
        """Look up what this page shows."""
        with self._lock:
            if (page, selected) != self._page:
                self._page = (page, selected)
                self._sight = Sight(status=self._sight.status)
                self._lock.notify()

    # --- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        with self._lock:
            self._lock.wait(_EVERY_S)
        while not self._is_over:
            began_s = time.monotonic()
            page = self._page
            try:
                self._look(page)
            except EasyScaleError as error:
                with self._lock:
                    self._error = error
            with self._lock:
                self._woken()
                if self._error is not None or self._glance.closing is not None:
                    return
                rest_s = began_s + _EVERY_S - time.monotonic()
                if rest_s > 0 and page == self._page and not self._is_over:
                    self._lock.wait(rest_s)

    def _look(self, page: _Page) -> None:
        glance = self._glance_now()
        sight = Sight(status=glance.status)
        if glance.closing is None:
            sight = self._with_page(sight, *page)
        with self._lock:
            self._glance = glance
            # A page that was turned meanwhile must not show the one before.
            self._sight = sight if page == self._page else Sight(status=glance.status)

    def _glance_now(self) -> Glance:
        try:
            glance = self._job.closely(watches=True)
        except AgentSilent:
            if time.monotonic() - self._heard_s > _SILENT_S:
                raise
            return self._glance
        except StoreError:
            return _out_of_reach(self._glance, time.monotonic() - self._heard_s)
        self._heard_s = time.monotonic()
        return glance

    def _with_page(self, sight: Sight, shown: Shown, selected: tuple[str, str] | None) -> Sight:
        try:
            if shown is Shown.PLAN:
                return Sight(status=sight.status, plan=self._job.plan())
            if shown is Shown.LOGS and selected is not None:
                node, slot = selected
                lines = last_lines(self._shelf, node=node, slot=slot, most=_LOG_LINES)
                return Sight(status=sight.status, log=lines)
        except EasyScaleError as error:  # of this page alone: the status says whether it ended
            return Sight(status=sight.status, note=error.message)
        return sight


def _out_of_reach(glance: Glance, silent_s: float) -> Glance:
    """What was known when etcd answered last."""
    store = StoreFacts(reachable=False, silent_s=silent_s)
    return Glance(status=msgspec.structs.replace(glance.status, store=store))
