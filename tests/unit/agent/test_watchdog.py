"""Who counts as hung when nobody else waits, and who does not any more because it has moved."""

import pytest
from msgspec.structs import replace

from easyscale.agent import actions
from easyscale.agent.settings import LaunchSettings
from easyscale.messages import Broken, Ready
from easyscale.model import Mode, Position, WorkerId
from easyscale.pulse import Phase as Pulse
from easyscale.reports import EventKind
from tests.support.views import Job, commit, launch_settings, number, worker
from tests.unit.agent.test_machine import (
    W0,
    W1,
    Agent,
    beat,
    entered,
    finished,
    of,
    plan,
    report,
    said,
)

OTHER = worker("b")


def pair() -> Agent:
    agent = Agent().running()
    agent.take(said(W0, report(3)), said(W1, report(3)))
    return agent


def dumped(done: list[actions.AgentAction]) -> list[WorkerId]:
    return [dump.worker for dump in of(done, actions.DumpStacks)]


def judged() -> Agent:
    """W1 counts as hung since now: ten seconds late while W0 waits."""
    agent = pair()
    agent.now = 111.0
    done = agent.tick({W0: beat(Pulse.EXCHANGE, polled_s=111.0), W1: beat(Pulse.MICRO_STEP)})
    assert dumped(done) == [W1]
    return agent


# --- a verdict is withdrawn ----------------------------------------------------------------------


def test_one_odd_beat_between_two_healthy_ones_kills_nobody() -> None:
    agent = pair()
    agent.now = 3000.0
    healthy = beat(Pulse.MICRO_STEP, since_s=2999.9)
    zeroed = beat(Pulse.STARTING, position=0, since_s=0.0)
    for seen in (healthy, zeroed, healthy, healthy, healthy):
        agent.now += 0.25
        agent.tick({W0: beat(Pulse.EXCHANGE, polled_s=agent.now), W1: seen})
    assert of(agent.done, actions.KillWorker) == []
    assert not agent.state.workers["cpu:1"].hung


def test_a_worker_that_goes_on_before_the_kill_is_not_killed_and_a_note_says_so() -> None:
    agent = judged()
    agent.now = 111.25
    agent.tick({W1: beat(Pulse.MICRO_STEP, position=3, since_s=111.1)})
    agent.now = 112.0
    agent.tick({W1: beat(Pulse.MICRO_STEP, position=3, since_s=111.1)})
    assert of(agent.done, actions.KillWorker) == []
    note = agent.announced[-1]
    assert note.event is EventKind.NOTE
    assert note.reason.startswith("a/cpu:1 has moved and is not killed; it counted as hung: no pr")


def test_a_worker_that_goes_on_at_the_very_tick_of_the_kill_is_not_killed() -> None:
    agent = judged()
    agent.now = 111.75
    done = agent.tick({W1: beat(Pulse.EXCHANGE, since_s=111.7)})
    assert of(done, actions.KillWorker) == []


def test_a_worker_that_moved_once_and_hangs_again_is_judged_again() -> None:
    agent = judged()
    agent.now = 111.25
    agent.tick({W1: beat(Pulse.MICRO_STEP, since_s=111.1)})
    agent.now = 121.2
    beats = {W0: beat(Pulse.EXCHANGE, polled_s=121.2), W1: beat(Pulse.MICRO_STEP, since_s=111.1)}
    assert dumped(agent.tick(beats)) == [W1]
    agent.now = 121.8
    assert [kill.worker for kill in of(agent.tick(beats), actions.KillWorker)] == [W1]


def test_a_worker_whose_peers_wait_no_more_has_not_moved() -> None:
    agent = judged()
    agent.now = 111.6
    done = agent.tick({W0: beat(Pulse.OUTER_BODY, since_s=111.6), W1: beat(Pulse.MICRO_STEP)})
    assert [kill.worker for kill in of(done, actions.KillWorker)] == [W1]


def test_a_worker_that_wakes_in_its_wait_is_not_killed() -> None:
    agent = pair()
    for second in range(1, 12):
        agent.now = 100.0 + second
        agent.tick({W0: beat(Pulse.EXCHANGE, polled_s=agent.now), W1: beat(Pulse.EXCHANGE)})
    assert agent.state.workers["cpu:1"].hung
    agent.now += 0.6
    done = agent.tick({who: beat(Pulse.EXCHANGE, polled_s=agent.now) for who in (W0, W1)})
    assert of(done, actions.KillWorker) == []


def test_to_wake_is_no_answer_to_a_commit() -> None:
    agent = pair()
    agent.view(Job().committed(commit(2, [W0, W1], mode=Mode.NOW)))
    agent.take(said(W0, entered(2)))
    agent.now += 5.5
    awake = {who: beat(Pulse.EXCHANGE, polled_s=agent.now) for who in (W0, W1)}
    assert dumped(agent.tick(awake)) == [W1]
    agent.now += 0.6
    awake = {who: beat(Pulse.EXCHANGE, polled_s=agent.now) for who in (W0, W1)}
    assert [kill.worker for kill in of(agent.tick(awake), actions.KillWorker)] == [W1]


def test_who_says_that_the_new_generation_is_broken_has_answered_and_waits_for_the_next() -> None:
    agent = pair()
    agent.view(Job().committed(commit(2, [W0, W1], mode=Mode.NOW)))
    broken = Broken(generation=number(2), position=Position(3), suspects=(), reason="reset")
    agent.take(said(W0, broken))
    agent.now += 60.0
    broke_s = agent.now - 59.0
    seen = {W0: beat(Pulse.BROKEN, since_s=broke_s, polled_s=agent.now)}
    assert dumped(agent.tick(seen)) == []
    agent.view(Job().committed(commit(3, [W0, W1], mode=Mode.NOW)))
    agent.now += 6.0
    assert dumped(agent.tick({W0: beat(Pulse.BROKEN, since_s=broke_s, polled_s=agent.now)})) == [W0]


# --- nobody else waits ---------------------------------------------------------------------------


def lone(*others: WorkerId, settings: LaunchSettings | None = None) -> Agent:
    """Node a has one worker, whose steps take 0.1 s; the others of the commit are elsewhere."""
    agent = Agent(settings, slots=1).running(members=(W0, *others))
    agent.take(said(W0, report(3)))
    return agent


def late(agent: Agent, silent_s: float, *, is_stopped: bool = False) -> list[WorkerId]:
    """Who counts as hung when W0 has been in one micro-step for so long."""
    agent.now = 100.0 + silent_s
    seen = replace(beat(Pulse.MICRO_STEP), is_stopped=is_stopped)
    return dumped(agent.tick({W0: seen}))


def test_the_only_member_may_take_long_for_one_micro_step() -> None:
    agent = lone()
    assert late(agent, 14.0) == []
    assert late(agent, 599.0) == []
    assert late(agent, 600.0) == [W0]


def test_the_only_member_has_as_long_as_the_person_says() -> None:
    agent = lone(settings=launch_settings(hang_timeout_s=12.0))
    assert late(agent, 11.9) == []
    assert late(agent, 12.0) == [W0]


def test_the_only_member_is_found_soon_where_it_was_stopped() -> None:
    assert late(lone(), 9.9, is_stopped=True) == []
    assert late(lone(), 10.0, is_stopped=True) == [W0]


def test_a_lone_member_that_is_let_go_on_before_the_kill_is_not_killed() -> None:
    agent = lone()
    assert late(agent, 10.0, is_stopped=True) == [W0]
    late(agent, 10.6)
    assert of(agent.done, actions.KillWorker) == []


def test_members_on_other_nodes_wait_too() -> None:
    agent = lone(OTHER)
    assert late(agent, 9.9) == []
    assert late(agent, 10.0) == [W0]


def test_a_member_elsewhere_waits_also_where_its_node_is_out_of_sight() -> None:
    # A follower sees neither registrations nor entries of others.
    agent = lone(OTHER)
    agent.view(Job().committed(commit(1, [W0, OTHER]), entered=False))
    assert late(agent, 10.0) == [W0]


def test_whoever_has_ended_waits_no_more() -> None:
    agent = lone(OTHER)
    agent.view(Job().committed(commit(1, [W0, OTHER])).gone(OTHER))
    assert late(agent, 14.0) == []


def test_the_only_one_that_holds_the_state_has_long_while_others_have_yet_to_take_it() -> None:
    made = commit(2, [W0, OTHER], mode=Mode.BOUNDARY)
    job = Job().node("a", "in_use").node("b", "standby").committed(commit(1, [W0]))
    agent = lone()
    agent.view(job.committed(made, entered=False))
    assert late(agent, 14.0) == []
    agent.view(job.entered(made, OTHER))
    assert late(agent, 14.0) == [W0]


def test_the_only_holder_of_the_state_has_long_also_where_its_agent_does_not_lead() -> None:
    made = commit(2, [W0, OTHER], mode=Mode.BOUNDARY)
    job = Job().committed(commit(1, [W0]), entered=False).committed(made, entered=False)
    agent = lone()
    agent.view(job)  # without registrations and entries: these only a leader sees
    assert late(agent, 14.0) == []
    agent.take(said(W0, entered(2)))
    assert late(agent, 14.0) == [W0], "it has given the state to the other one"


def test_a_member_of_two_generations_ago_is_known_by_what_it_entered() -> None:
    job = Job().committed(commit(1, [W0]), entered=False)
    for later in (2, 3):
        made = commit(later, [W0, OTHER], mode=Mode.BOUNDARY)
        job.committed(made, entered=False)
        agent = lone()
        agent.view(job)
        assert late(agent, 14.0) == [], later


def test_who_waits_in_the_generation_before_counts_until_it_is_left() -> None:
    both = Job().committed(commit(1, [W0, OTHER]))
    agent = lone(OTHER)
    agent.view(both.committed(commit(2, [W0], mode=Mode.BOUNDARY), entered=False))
    assert late(agent, 10.0) == [W0]
    agent = lone(OTHER)
    agent.view(both)
    agent.take(said(W0, entered(2)))
    assert late(agent, 14.0) == []


@pytest.mark.parametrize("phase", (Pulse.EXCHANGE, Pulse.FORMING))
def test_a_lone_worker_that_does_not_wake_in_a_wait_is_found(phase: Pulse) -> None:
    agent = lone()
    found: list[WorkerId] = []
    for second in range(1, 12):
        agent.now = 100.0 + second
        found += dumped(agent.tick({W0: beat(phase, polled_s=100.5)}))
    assert found == [W0]


# --- all workers of a node are late --------------------------------------------------------------


def both_late(agent: Agent, silent_s: float, *, is_stopped: bool) -> list[WorkerId]:
    """Who counts as hung when W0 and, half a second later, W1 went silent in a micro-step."""
    agent.now = 100.0 + silent_s
    beats = {
        who: replace(beat(Pulse.MICRO_STEP, since_s=since_s), is_stopped=is_stopped)
        for who, since_s in ((W0, 100.0), (W1, 100.5))
    }
    return dumped(agent.tick(beats))


def test_where_all_are_stopped_the_one_that_is_silent_longest_is_hung() -> None:
    agent = pair()
    assert both_late(agent, 10.4, is_stopped=True) == []
    assert both_late(agent, 10.5, is_stopped=True) == [W0]
    assert both_late(agent, 10.9, is_stopped=True) == [], "one after the other"
    both_late(agent, 11.1, is_stopped=True)
    assert [kill.worker for kill in of(agent.done, actions.KillWorker)] == [W0]
    agent.exits(W0, signal=9)
    agent.view(Job().committed(commit(1, [W0, W1])).gone(W0))
    assert both_late(agent, 11.5, is_stopped=True) == [W1]


def test_the_person_s_word_holds_where_all_are_stopped() -> None:
    agent = Agent(launch_settings(hang_timeout_s=6.0)).running()
    assert both_late(agent, 6.0, is_stopped=True) == []
    assert both_late(agent, 6.5, is_stopped=True) == [W0]


def test_where_all_compute_for_long_and_nobody_waits_elsewhere_they_have_long() -> None:
    agent = pair()
    assert both_late(agent, 599.0, is_stopped=False) == []
    assert both_late(agent, 600.5, is_stopped=False) == [W0]


def test_where_all_compute_for_long_members_on_other_nodes_wait() -> None:
    agent = Agent().running(members=(W0, W1, OTHER))
    agent.take(said(W0, report(3)), said(W1, report(3)))
    assert both_late(agent, 10.4, is_stopped=False) == []
    assert both_late(agent, 10.5, is_stopped=False) == [W0]


def test_one_that_is_not_late_is_waited_for_before_another_is_hung() -> None:
    agent = pair()
    agent.now = 130.0
    beats = {W0: beat(Pulse.OUTER_BODY, since_s=100.0), W1: beat(Pulse.MICRO_STEP, since_s=100.0)}
    assert dumped(agent.tick(beats)) == []


# --- outside the loop ----------------------------------------------------------------------------


def held(agent: Agent, phase: Pulse, seconds: int) -> list[WorkerId]:
    """Who counts as hung while W1 is stopped by a signal in this phase for so long."""
    found: list[WorkerId] = []
    began_s = agent.now
    for second in range(seconds + 1):
        agent.now = began_s + second
        frozen = replace(beat(phase, since_s=50.0), is_stopped=True)
        healthy = beat(Pulse.OUTER_BODY, since_s=agent.now)
        found += dumped(agent.tick({W0: healthy, W1: frozen}))
    return found


@pytest.mark.parametrize(
    "phase",
    (
        Pulse.WAITING,
        Pulse.STARTING,
        Pulse.OUTER_BODY,
        Pulse.FINISHED,
        Pulse.FORMING,
        Pulse.BROKEN,
    ),
)
def test_whoever_is_stopped_outside_the_loop_is_hung_by_then(phase: Pulse) -> None:
    assert held(pair(), phase, 9) == []
    assert held(pair(), phase, 10) == [W1]


def test_whoever_takes_or_reads_the_state_has_the_long_limit() -> None:
    agent = pair()
    agent.now = 700.0
    healthy = beat(Pulse.OUTER_BODY, since_s=699.0)
    loads = beat(Pulse.FORMING, since_s=101.0)
    assert dumped(agent.tick({W0: healthy, W1: loads})) == []
    waits = beat(Pulse.FORMING, since_s=101.0, polled_s=701.0)
    agent.now = 701.5
    assert dumped(agent.tick({W0: healthy, W1: waits})) == []
    assert dumped(agent.tick({W0: healthy, W1: loads})) == [W1]


def test_how_long_it_is_silent_is_counted_from_the_signal_and_not_from_its_wait() -> None:
    agent = pair()
    held(agent, Pulse.WAITING, 10)
    told = agent.announced[-1]
    assert told.event is EventKind.HUNG
    assert (told.facts["silent_s"], told.facts["phase"]) == (10.0, "wait for ranks")


def test_a_worker_that_was_let_go_on_is_stopped_anew() -> None:
    agent = pair()
    assert held(agent, Pulse.WAITING, 9) == []
    agent.now += 1.0
    agent.tick({W1: beat(Pulse.WAITING, since_s=50.0)})
    agent.now += 1.0
    assert held(agent, Pulse.WAITING, 9) == []


def test_a_worker_that_waits_for_ranks_may_wait_for_ever() -> None:
    agent = Agent().registered()
    agent.now = 1100.0
    assert dumped(agent.tick({W1: beat(Pulse.WAITING, since_s=100.0)})) == []


def test_a_worker_that_waits_for_ranks_and_does_not_answer_is_hung() -> None:
    agent = Agent(slots=2).registered()
    job = Job().node("a", "standby", "standby").committed(commit(1, [OTHER]))
    waits = {W0: beat(Pulse.WAITING, since_s=99.0), W1: beat(Pulse.WAITING, since_s=99.0)}
    found: list[WorkerId] = []
    for generation in (2, 3, 4):
        agent.view(job.planned(plan(generation, OTHER, W0, W1)))
        agent.take(said(W0, Ready(generation=number(generation))))
        for _ in range(4):
            agent.now += 1.0
            found += dumped(agent.tick(waits))
    assert found == [W1]
    assert agent.now < 113.0


def test_a_standby_that_answers_before_the_kill_is_not_killed() -> None:
    agent = Agent(slots=2).registered()
    job = Job().node("a", "standby", "standby").committed(commit(1, [OTHER]))
    agent.view(job.planned(plan(2, OTHER, W0, W1)))
    waits = {who: beat(Pulse.WAITING, since_s=99.0) for who in (W0, W1)}
    found: list[WorkerId] = []
    while not found:
        agent.now += 0.25
        found = dumped(agent.tick(waits))
    for who in (W0, W1):
        agent.take(said(who, Ready(generation=number(2))))
    agent.now += 1.0
    agent.tick(waits)
    assert of(agent.done, actions.KillWorker) == []


def test_a_standby_is_not_blamed_for_the_sleep_of_its_agent() -> None:
    agent = Agent(slots=2).registered()
    job = Job().node("a", "standby", "standby").committed(commit(1, [OTHER]))
    waits = {who: beat(Pulse.WAITING, since_s=99.0) for who in (W0, W1)}
    agent.tick(waits)
    agent.view(job.planned(plan(2, OTHER, W0, W1)))
    agent.now += 60.0
    assert dumped(agent.tick(waits)) == []


def finished_pair() -> Agent:
    agent = pair()
    agent.take(said(W0, finished()), said(W1, finished(is_main=False)))
    return agent


def test_main_may_take_as_long_for_its_script_s_end_as_it_wants() -> None:
    agent = finished_pair()
    agent.now = 5000.0
    done = agent.tick({W0: beat(Pulse.FINISHED), W1: beat(Pulse.FINISHED, since_s=4401.0)})
    assert dumped(done) == []


def test_another_one_has_the_long_limit_while_main_is_at_its_script_s_end() -> None:
    agent = finished_pair()
    agent.now = 699.0
    silent = {W0: beat(Pulse.FINISHED, since_s=100.0), W1: beat(Pulse.FINISHED, since_s=100.0)}
    assert dumped(agent.tick(silent)) == []
    agent.now = 700.0
    assert dumped(agent.tick(silent)) == [W1]


def test_once_main_has_ended_the_others_are_ended_soon_and_the_job_has_not_failed() -> None:
    agent = finished_pair()
    agent.now = 200.0
    agent.exits(W0, code=0)
    agent.view(Job().committed(commit(1, [W0, W1])).gone(W0, how="", finished=True))
    tail = {W1: beat(Pulse.FINISHED, since_s=100.0)}
    assert dumped(agent.tick(tail)) == []
    agent.now = 259.0
    assert dumped(agent.tick(tail)) == []
    agent.now = 260.0
    assert dumped(agent.tick(tail)) == [W1]
    agent.now = 261.0
    assert [kill.worker for kill in of(agent.tick(tail), actions.KillWorker)] == [W1]
    agent.exits(W1, signal=9)
    assert agent.ending(W1).finished
    assert agent.ending(W1).failure is None


def test_who_was_main_to_the_end_is_main_although_a_drain_of_it_was_planned() -> None:
    agent = finished_pair()
    agent.now = 200.0
    planned = commit(2, [W1], mode=Mode.BOUNDARY)
    agent.view(Job().committed(commit(1, [W0, W1])).committed(planned, entered=False))
    agent.exits(W1, code=0)
    job = Job().committed(commit(1, [W0, W1])).committed(planned, entered=False)
    agent.view(job.gone(W1, how="", finished=True, is_main=False))
    tail = {W0: beat(Pulse.FINISHED, since_s=100.0)}
    agent.tick(tail)
    agent.now = 500.0
    assert dumped(agent.tick(tail)) == []


def test_the_others_are_ended_after_the_main_that_came_to_the_end_whatever_was_planned() -> None:
    agent = finished_pair()
    agent.now = 200.0
    agent.exits(W0, code=0)
    planned = commit(2, [W1], mode=Mode.BOUNDARY)
    job = Job().committed(commit(1, [W0, W1])).committed(planned, entered=False)
    agent.view(job.gone(W0, how="", finished=True, is_main=True))
    tail = {W1: beat(Pulse.FINISHED, since_s=100.0)}
    assert dumped(agent.tick(tail)) == []
    agent.now = 260.0
    assert dumped(agent.tick(tail)) == [W1]
