"""Who counts as hung when nobody else waits, and who does not any more because it has moved."""

import pytest
from msgspec.structs import replace

from easyscale.agent import actions
from easyscale.agent.settings import LaunchSettings
from easyscale.model import Mode, WorkerId
from easyscale.pulse import Phase as Pulse
from easyscale.reports import EventKind
from tests.support.views import Job, commit, launch_settings, worker
from tests.unit.agent.test_machine import W0, W1, Agent, beat, entered, of, report, said

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
