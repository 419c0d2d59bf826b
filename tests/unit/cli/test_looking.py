"""A dashboard looks things up beside its keys: silence, ends and turned pages reach it in order."""

import threading
from collections.abc import Callable

import msgspec
import pytest

from easyscale.agent.doors.dialogue import AgentSilent
from easyscale.errors import StoreUnreachable
from easyscale.job_status import Closing, Glance
from easyscale.plan_facts import PlanFacts
from easyscale_cli import looking
from easyscale_cli.connection import AgentEnded
from easyscale_cli.looking import Looker
from easyscale_cli.roads import Road
from easyscale_cli.views.watching import Shown
from tests.unit.views import list_states
from tests.unit.views import status_states as states

STATUS = states.two_by_four("█▇▆▅▄▃▂▁")


class Watched:
    """A job that answers as the test says."""

    id = "resnet50"

    def __init__(self) -> None:
        self.answer: Callable[[], Glance] = lambda: Glance(status=STATUS)
        self.plans = 0

    def closely(self, *, watches: bool = False) -> Glance:
        assert watches, "or the end is not told"
        return self.answer()

    def plan(self) -> PlanFacts:
        self.plans += 1
        return list_states.PLAN

    def roads(self) -> list[Road]:
        raise AgentEnded("the agent of job 'resnet50' has ended")

    def fails(self, error: Exception) -> None:
        def answer() -> Glance:
            raise error

        self.answer = answer


class Looked:
    """A looker at work; `until` waits for its next looks."""

    def __init__(self, job: Watched) -> None:
        self.job = job
        self.looker = Looker(job)  # type: ignore[arg-type]
        self._news = threading.Condition()

    def woken(self) -> None:
        with self._news:
            self._news.notify_all()

    def until(self, is_so: Callable[[], bool]) -> None:
        with self._news:
            assert self._news.wait_for(is_so, 10)


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Looked:
    monkeypatch.setattr(looking, "_EVERY_S", 0.001)
    return Looked(Watched())


def at_step(step: int) -> Glance:
    job = msgspec.structs.replace(STATUS.job, step=step)
    return Glance(status=msgspec.structs.replace(STATUS, job=job))


def test_what_is_new_is_seen_and_said(looked: Looked) -> None:
    assert looked.looker.sight.status == STATUS
    with looked.looker.looking(woken=looked.woken):
        looked.job.answer = lambda: at_step(7_000)
        looked.until(lambda: looked.looker.sight.status.job.step == 7_000)


def test_a_page_is_looked_up_only_while_it_is_shown(looked: Looked) -> None:
    with looked.looker.looking(woken=looked.woken):
        looked.looker.turn_to(Shown.PLAN, None)
        looked.until(lambda: looked.looker.sight.plan is not None)
        looked.looker.turn_to(Shown.STATUS, None)
        assert looked.looker.sight.plan is None
        looked.job.answer = lambda: at_step(7_000)
        looked.until(lambda: looked.looker.sight.status.job.step == 7_000)
        plans = looked.job.plans
        looked.job.answer = lambda: at_step(7_001)
        looked.until(lambda: looked.looker.sight.status.job.step == 7_001)
        assert looked.job.plans == plans


def test_why_a_page_is_empty_is_said_and_the_status_goes_on(looked: Looked) -> None:
    with looked.looker.looking(woken=looked.woken):
        looked.looker.turn_to(Shown.LOGS, ("a", "cuda:0"))
        looked.until(lambda: "has ended" in looked.looker.sight.note)
        assert looked.looker.closing is None


def test_the_end_of_the_job_is_seen(looked: Looked) -> None:
    with looked.looker.looking(woken=looked.woken):
        ended = Glance(status=STATUS, closing=Closing(exit_code=0, reason="script ended"))
        looked.job.answer = lambda: ended
        looked.until(lambda: looked.looker.closing is not None)


def test_an_agent_may_be_silent_for_a_while_and_no_longer(
    looked: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    with looked.looker.looking(woken=looked.woken):
        looked.job.fails(AgentSilent("silent"))
        for _ in range(3):
            looked.until(lambda: looked.looker.closing is None)
        assert looked.looker.sight.status == STATUS, "what was known stands"
        monkeypatch.setattr(looking, "_SILENT_S", 0.0)
        looked.until(lambda: _raises(looked.looker, AgentSilent))


def test_an_agent_that_has_ended_ends_the_screen_at_once(looked: Looked) -> None:
    with looked.looker.looking(woken=looked.woken):
        looked.job.fails(AgentEnded("it has ended"))
        looked.until(lambda: _raises(looked.looker, AgentEnded))


def test_an_etcd_that_is_away_is_shown_and_nothing_ends(looked: Looked) -> None:
    with looked.looker.looking(woken=looked.woken):
        looked.job.fails(StoreUnreachable("away"))
        looked.until(lambda: not _reaches_etcd(looked))
        looked.job.answer = lambda: at_step(7_000)
        looked.until(lambda: _reaches_etcd(looked))


def _reaches_etcd(looked: Looked) -> bool:
    store = looked.looker.sight.status.store
    return store is not None and store.reachable


def _raises(looker: Looker, error: type[Exception]) -> bool:
    try:
        return looker.closing is not None
    except error:
        return True
