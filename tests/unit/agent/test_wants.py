"""Whom a wish is about: the agent that had the name when it was asked, not who has it later."""

import pytest

from easyscale.agent import actions, events, wants, wishes
from easyscale.agent.leader import decide
from easyscale.agent.memory import Memory
from easyscale.agent.verdicts import Standpoint, Verdict
from easyscale.model import Wish, WorkerId
from easyscale.rendezvous.agreement import Propose, Tidy
from easyscale.rendezvous.store import Delete
from tests.support.views import KEYS, Job, commit, job_spec, launch_settings, worker
from tests.unit.agent.test_machine import Agent

OLD, NEW, OTHER = worker("a"), worker("a", life="2"), worker("b")


def decided(job: Job) -> Verdict:
    """Once everything has settled."""

    def at(now: float) -> Standpoint:
        return Standpoint(
            view=job.view(), now=now, settings=launch_settings(), keys=KEYS, spec=job_spec(),
            since_revision=1,
        )  # fmt: skip

    return decide(at(101.0), decide(at(100.0), Memory()).memory)


def after_a_restart(incarnation: str) -> Job:
    """Both train, node a under a new agent; a wish to drain one life of a stands."""
    job = Job().leads().node("a", "in_use", life="2").node("b", "in_use")
    job.committed(commit(1, [NEW, OTHER]))
    return job.put(KEYS.wish("drain-a"), Wish(kind="drain", node="a", incarnation=incarnation))


def test_the_wish_of_an_agent_that_was_killed_is_tidied_and_moves_nothing() -> None:
    decision = decided(after_a_restart(OLD.incarnation)).decision
    assert decision == Tidy((KEYS.wish("drain-a"),))


@pytest.mark.parametrize("incarnation", [NEW.incarnation, ""])
def test_a_wish_about_who_is_there_drains_it(incarnation: str) -> None:
    decision = decided(after_a_restart(incarnation)).decision
    assert isinstance(decision, Propose)
    assert decision.plan.workers == (OTHER,)


@pytest.mark.parametrize(("life", "stands"), [(OLD, False), (NEW, True), (None, True)])
def test_other_slots_are_asked_of_one_agent_and_tidied_with_it(
    life: WorkerId | None, *, stands: bool
) -> None:
    job = Job().leads().node("a", "in_use", life="2").node("b", "in_use")
    incarnation = life.incarnation if life is not None else ""
    wish = Wish(kind="devices", node="a", incarnation=incarnation, target="cpu:3")
    job.committed(commit(1, [NEW, OTHER])).put(KEYS.wish("w"), wish)
    tidied = decided(job).decision == Tidy((KEYS.wish("w"),))
    assert tidied is not stands


@pytest.mark.parametrize("kind", ["drain", "migrate", "devices"])
def test_who_asks_something_of_a_node_means_the_agent_that_it_has_now(kind: str) -> None:
    view = Job().node("a", "in_use").view()
    asked = Wish(kind=kind, node="a", slots=("cpu:0",))
    kept = wishes.addressed(asked, view)
    assert kept.incarnation == OLD.incarnation
    assert wishes.addressed(kept, Job().node("a", life="2").view()) == kept
    said = {who: wishes.concerns(kept, who) for who in (OLD, NEW, worker("a/1"), OTHER)}
    assert said == {OLD: True, NEW: False, worker("a/1"): False, OTHER: False}


@pytest.mark.parametrize(
    ("wish", "who"),
    [(Wish(kind="fence", node="a"), OLD), (Wish(kind="drain", node="c"), OTHER)],
)
def test_what_names_no_agent_is_kept_as_it_is(wish: Wish, who: WorkerId) -> None:
    assert wishes.addressed(wish, Job().node(who.node).view()) == wish


def test_a_profile_goes_on_when_another_one_is_asked_for() -> None:
    job = Job().leads().node("a", "in_use").committed(commit(1, [OLD]))
    job.put(KEYS.wish("z"), Wish(kind="profile", by="ann"))
    job.put(KEYS.wish("a"), Wish(kind="profile", by="bob"))
    view = job.view()
    assert view.base is not None
    assert list(view.wishes) == ["z", "a"]
    found = wants.wanted(view, view.base, launch_settings()).profile
    assert found is not None
    assert (found[0], found[1].by) == ("z", "ann")


def test_who_withdraws_a_wish_has_it_deleted() -> None:
    done = Agent().opened().take(events.Withdrawn(wish_id="w1"))
    [deleted] = [each for each in done if isinstance(each, actions.Transact)]
    assert deleted.operations == (Delete(KEYS.wish("w1")),)
