"""One agent: what it does on each event, as actions; time is what the test says it is."""

from typing import TypeVar

import msgspec
import pytest
from msgspec.structs import replace

from easyscale.agent import actions, events, machine
from easyscale.agent.outfit import training_members
from easyscale.agent.settings import Identity, LaunchSettings
from easyscale.agent.state import Phase, Stage
from easyscale.balance import ProfilePoint, ProfileRecord
from easyscale.errors import ExitCode
from easyscale.messages import (
    Broken,
    CommitSeen,
    Committed,
    Drained,
    Entered,
    Finished,
    Initialised,
    Lost,
    Planned,
    Ready,
    Registered,
    SnapshotFailed,
    SnapshotWritten,
    StepReport,
)
from easyscale.model import (
    Assignment,
    Cause,
    Commit,
    Ending,
    JobState,
    Mode,
    Occasion,
    Outcome,
    Plan,
    Position,
    ProgressRecord,
    Restored,
    Wish,
    WorkerId,
    decode,
    encode,
)
from easyscale.pulse import Beat
from easyscale.pulse import Phase as Pulse
from easyscale.rendezvous.store import Created, Modified, Put, check_transaction
from easyscale.reports import EventKind, JobEvent, Stream
from tests.support.views import KEYS, Job, commit, job_spec, launch_settings, number, worker
from tests.support.world import failure

W0, W1 = worker("a"), worker("a/1")
OTHER = worker("b")
A = TypeVar("A", bound=actions.Action)


class Agent:
    """Node a with two slots; feed it events, read its actions."""

    def __init__(self, settings: LaunchSettings | None = None, *, slots: int = 2) -> None:
        self.now = 100.0
        identity = Identity(
            node="a", incarnation="a-boot-1", boot_id="boot", host="a", address="a:1"
        )
        self.state = machine.begin(
            settings or launch_settings(), identity, now=machine.Now(s=self.now)
        )
        self.done: list[actions.AgentAction] = []
        self.reasons: list[str] = []
        self.slots = tuple(events.Slot(name=f"cpu:{i}", kind="cpu") for i in range(slots))

    def take(self, *taken: events.AgentEvent) -> list[actions.AgentAction]:
        """Feed events; returns what they made the agent do."""
        before = len(self.done)
        for event in taken:
            now = machine.Now(s=self.now, wall_s=self.now)
            self.state, wanted, reason = machine.step(self.state, event, now)
            self.done += wanted
            self.reasons += [reason] if reason else []
        return self.done[before:]

    def opened(self) -> "Agent":
        """Everything is up: both workers are forked and asked for."""
        self.take(
            events.SlotsFound(slots=self.slots),
            events.ZygoteReady(torch_version="2", cpu_kind="cpu", seconds=1.0),
            events.JobOpened(spec=job_spec(), store="etcd", seconds=0.1),
            events.SnapshotsFound(records=()),
            events.Enrolled(create_revision=5),
        )
        return self

    def registered(self) -> "Agent":
        """Both workers wait in register."""
        self.opened()
        for pid, who in enumerate((W0, W1)[: len(self.slots)], 11):
            self.take(
                events.WorkerForked(worker=who, pid=pid),
                said(who, Initialised(worker=who, pid=pid, torch_version="2", kind="cpu")),
                said(who, Registered(worker=who, address=f"{who.place}.1")),
            )
        return self

    def running(self, job: Job | None = None, *, members: tuple[WorkerId, ...] = ()) -> "Agent":
        """Both workers are members of generation 1 and have entered it."""
        self.registered()
        made = commit(1, members or (W0, W1)[: len(self.slots)])
        self.view((job or Job()).committed(made))
        for who in made.workers:
            if who.node == "a":
                self.take(said(who, entered(1)))
        return self

    def view(self, job: Job, *, complete: bool = False) -> list[actions.AgentAction]:
        return self.take(events.Viewed(view=job.view(), complete=complete))

    def tick(self, beats: dict[WorkerId, Beat] | None = None) -> list[actions.AgentAction]:
        return self.take(events.Ticked(beats=beats or {}, monotonic_s=self.now))

    def exits(self, who: WorkerId, *, code: int | None = None, signal: int | None = None,
              ) -> list[actions.AgentAction]:  # fmt: skip
        return self.take(
            events.WorkerExited(worker=who, pid=1, exit_code=code, signal=signal, last_words="")
        )

    def ending(self, who: WorkerId) -> Ending:
        written = [w for w in of(self.done, actions.Write) if w.key == KEYS.gone_worker(who)]
        assert written, f"nothing was written about {who}"
        return decode(written[-1].value, Ending, source="gone")

    @property
    def announced(self) -> list[JobEvent]:
        return [each.event for each in of(self.done, actions.Announce)]


def of(done: list[actions.AgentAction], kind: type[A]) -> list[A]:
    return [action for action in done if isinstance(action, kind)]


def said(who: WorkerId, message: object) -> events.WorkerSaid:
    return events.WorkerSaid(worker=who, message=message)  # type: ignore[arg-type]


def entered(generation: int, position: int = 0, pause_s: float = 0.0) -> Entered:
    return Entered(
        generation=number(generation), position=Position(position), step=position,
        has_state=True, pause_s=pause_s,
    )  # fmt: skip


def report(step: int, *, micro_step_s: float | None = None) -> StepReport:
    return StepReport(
        position=Position(step), step=step, steps=100, epoch=0, epochs=1,
        metrics={"loss": 1.0 / (step + 1)}, step_s=0.1, micro_step_s=micro_step_s,
        exchange_wait_s=None, data_wait_s=None, samples_per_step=8,
    )  # fmt: skip


def beat(
    phase: Pulse, *, position: int = 3, since_s: float = 100.0, polled_s: float | None = None
) -> Beat:
    return Beat(
        phase=phase, position=position, step=position, rank=1, micro_steps=1, since_s=since_s,
        polled_s=polled_s,
    )  # fmt: skip


def plan(generation: int, *workers: WorkerId) -> Plan:
    return Plan(
        generation=number(generation), mode=Mode.BOUNDARY, main=workers[0], reason="as told",
        assignments=tuple(Assignment(who, ()) for who in workers),
    )  # fmt: skip


# --- starting ----------------------------------------------------------------------------------


def test_workers_are_forked_once_the_zygote_and_the_job_are_there() -> None:
    agent = Agent()
    early = agent.take(
        events.SlotsFound(slots=agent.slots),
        events.ZygoteReady(torch_version="2", cpu_kind="cpu", seconds=1.0),
    )
    assert of(early, actions.Fork) == []
    done = agent.take(events.JobOpened(spec=job_spec(), store="etcd", seconds=0.1))
    assert [fork.worker for fork in of(done, actions.Fork)] == [W0, W1]


def test_a_node_never_runs_more_workers_than_the_job_has_logical_ones() -> None:
    agent = Agent(slots=9)
    assert len(of(agent.opened().done, actions.Fork)) == 4
    spare = Agent(launch_settings(standby=True), slots=9)
    assert len(of(spare.opened().done, actions.Fork)) == 5


def test_the_next_cpu_slot_has_its_process_before_it_is_offered() -> None:
    """With --standby: it starts once ours train, and the slot that comes takes it over."""
    assert Agent().running().state.workers.keys() == {"cpu:0", "cpu:1"}
    agent = Agent(launch_settings(standby=True)).registered()
    assert agent.state.workers.keys() == {"cpu:0", "cpu:1"}, "the start is not held up"
    agent = Agent(launch_settings(standby=True)).running()
    waits = worker("a/2")
    assert [fork.worker for fork in of(agent.done, actions.Fork)] == [W0, W1, waits]
    agent.take(
        events.WorkerForked(worker=waits, pid=13),
        said(waits, Initialised(worker=waits, pid=13, torch_version="2", kind="cpu")),
        said(waits, Registered(worker=waits, address="a/cpu:2.1")),
    )
    record = of(agent.done, actions.Enrol)[-1].record
    assert [slot.slot for slot in record.slots] == ["cpu:0", "cpu:1"]

    three = tuple(events.Slot(name=f"cpu:{i}", kind="cpu") for i in range(3))
    done = agent.take(events.SlotsFound(slots=three, reason="by ann"))
    [added] = of(done, actions.Enrol)[-1].record.slots[2:]
    assert (added.worker, added.state, added.address) == (waits, "standby", "a/cpu:2.1")
    assert [fork.worker for fork in of(done, actions.Fork)] == [worker("a/3")], "and the next one"


def test_a_process_that_waits_for_its_slot_ends_with_its_node() -> None:
    agent = Agent(launch_settings(standby=True)).running()
    stopped = of(agent.take(events.Signalled(number=15)), actions.StopWorker)
    assert [each.worker for each in stopped] == [worker("a/2")]


def test_no_process_waits_for_a_slot_whose_device_is_not_known() -> None:
    agent = Agent(launch_settings(standby=True))
    agent.slots = (agent.slots[0], events.Slot(name="cuda:0", kind="cpu", uuid="GPU-1"))
    agent.opened()
    first = of(agent.done, actions.Fork)[0].worker
    agent.take(said(first, entered(1)))
    assert agent.state.workers.keys() == {"cpu:0", "cuda:0"}


def test_the_registration_follows_what_the_workers_are() -> None:
    agent = Agent().opened()
    states = [slot.state for slot in of(agent.done, actions.Enrol)[-1].record.slots]
    assert states == ["starting", "starting"]
    agent.registered()
    record = of(agent.done, actions.Enrol)[-1].record
    assert [(slot.state, slot.address) for slot in record.slots] == [
        ("standby", "a/cpu:0.1"),
        ("standby", "a/cpu:1.1"),
    ]


def test_an_agent_stands_for_election_once_after_its_first_registration() -> None:
    agent = Agent().opened()
    assert len(of(agent.done, actions.Campaign)) == 1
    again = agent.take(events.LeaseEnded(reason="x"), events.Enrolled(create_revision=50))
    assert of(again, actions.Campaign) == []


# --- commits and plans -------------------------------------------------------------------------


def test_a_plan_reaches_its_workers_once_and_their_answer_the_store() -> None:
    agent = Agent().running()
    job = Job().committed(commit(1, [W0, W1])).planned(plan(2, W0, W1, OTHER))
    told = of(agent.view(job), actions.Tell)
    assert [(t.worker, type(t.message)) for t in told] == [(W0, Planned), (W1, Planned)]
    assert of(agent.view(job), actions.Tell) == []
    written = of(agent.take(said(W0, Ready(generation=number(2)))), actions.Write)
    assert [(w.key, w.leased) for w in written] == [(KEYS.ready(number(2), W0), True)]


def test_a_commit_reaches_its_members_and_whoever_it_leaves_out() -> None:
    agent = Agent().running()
    job = Job().committed(commit(2, [W0, OTHER], mode=Mode.BOUNDARY))
    told = of(agent.view(job), actions.Tell)
    assert {t.worker for t in told} == {W0, W1}
    assert all(isinstance(t.message, Committed) for t in told)
    assert agent.state.workers["cpu:1"].phase is Phase.LEAVING


def test_a_commit_that_a_worker_heard_from_a_peer_is_passed_on_while_the_store_is_away() -> None:
    agent = Agent().running()
    agent.take(events.StoreAway(reason="no answer"))
    newer = commit(2, [W0, W1, OTHER], mode=Mode.BOUNDARY)
    done = agent.take(said(W0, CommitSeen(commit=newer)))
    assert W1 in {tell.worker for tell in of(done, actions.Tell)}


def test_an_older_commit_is_ignored() -> None:
    agent = Agent().running()
    agent.view(Job().committed(commit(3, [W0, W1], mode=Mode.NOW)))
    assert of(agent.view(Job().committed(commit(2, [W0], mode=Mode.NOW))), actions.Tell) == []


def test_the_same_number_with_other_content_is_reported_and_never_joined() -> None:
    agent = Agent().running()
    before = len(agent.reasons)
    done = agent.view(Job().committed(commit(1, [W0])))
    assert of(done, actions.Tell) == []
    assert agent.reasons[before] == "gen 1 ignored: same number, other content"


def test_a_worker_that_registers_after_its_commit_hears_of_it() -> None:
    agent = Agent().opened()
    agent.view(Job().committed(commit(1, [W0, W1])))
    done = agent.take(
        events.WorkerForked(worker=W0, pid=1), said(W0, Registered(worker=W0, address="x:1"))
    )
    assert W0 in {tell.worker for tell in of(agent.done, actions.Tell)}
    assert done is not None


def test_an_excluded_worker_that_does_not_leave_its_wait_is_killed_after_a_grace() -> None:
    agent = Agent().running()
    agent.view(Job().committed(commit(2, [W0], mode=Mode.NOW)))
    agent.now += 1.9
    assert of(agent.tick(), actions.KillWorker) == []
    agent.now += 0.2
    assert [kill.worker for kill in of(agent.tick(), actions.KillWorker)] == [W1]


def test_a_drained_worker_has_all_the_time_until_the_boundary() -> None:
    agent = Agent().running()
    agent.view(Job().committed(commit(2, [W0], mode=Mode.BOUNDARY)))
    agent.now += 500.0
    assert of(agent.tick(), actions.KillWorker) == []


@pytest.mark.parametrize("members", [[OTHER], []])
def test_who_leaves_is_told_of_losses_elsewhere_that_it_may_wait_for(
    members: list[WorkerId],
) -> None:
    agent = Agent().running(members=(W0, OTHER))
    job = Job().committed(commit(2, members, mode=Mode.BOUNDARY))
    agent.view(job)
    told = of(agent.view(job.put(KEYS.gone_worker(OTHER), Ending(how="killed"))), actions.Tell)
    assert Lost(workers=(OTHER,)) in [tell.message for tell in told if tell.worker == W0]


def test_entering_is_said_in_the_store_and_to_people_with_the_pause() -> None:
    agent = Agent().running()
    agent.view(Job().committed(commit(2, {W0: range(4)}, mode=Mode.NOW)))
    done = agent.take(said(W0, entered(2, 7, pause_s=0.083)))
    assert KEYS.entry(number(2), W0) in {write.key for write in of(done, actions.Write)}
    line = agent.announced[-1]
    assert line.event is EventKind.RECOVERED
    assert line.facts["pause_s"] == pytest.approx(0.083)
    assert line.facts["ranks_moved"] == (1, 3)


def test_a_broken_report_goes_to_the_store_under_the_lease() -> None:
    agent = Agent().running()
    broken = Broken(
        generation=number(1), position=Position(3), suspects=(OTHER,), reason="connection reset"
    )
    written = of(agent.take(said(W0, broken)), actions.Write)
    assert [(w.key, w.leased) for w in written] == [(KEYS.broken(number(1), W0), True)]


# --- endings of workers ------------------------------------------------------------------------


def test_a_killed_worker_is_proof_news_and_replaced_at_once() -> None:
    agent = Agent().running()
    done = agent.exits(W1, signal=9)
    ending = agent.ending(W1)
    assert (ending.signal, ending.failure is not None, ending.drained) == (9, True, False)
    assert agent.announced[-1].event is EventKind.LOST
    assert agent.announced[-1].facts["signal"] == "SIGKILL"
    assert [fork.worker for fork in of(done, actions.Fork)] == [worker("a/1", 2)]


def test_a_worker_that_raised_is_replaced_a_moment_later_and_longer_each_time() -> None:
    agent = Agent().running()
    agent.take(said(W1, failure(rank=3, step=5)))
    assert of(agent.exits(W1, code=1), actions.Fork) == []
    agent.now += 0.5
    assert [fork.worker for fork in of(agent.tick(), actions.Fork)] == [worker("a/1", 2)]
    agent.take(said(worker("a/1", 2), failure(rank=3, step=5)))
    agent.exits(worker("a/1", 2), code=1)
    agent.now += 0.5
    assert of(agent.tick(), actions.Fork) == []
    assert machine.deadline(agent.state, machine.Now(s=agent.now)) == pytest.approx(agent.now + 0.5)


def quarantined(agent: Agent, *, failures: int = 3) -> list[actions.AgentAction]:
    """Slot cpu:1 fails so often in a row; what the last time made the agent do."""
    done: list[actions.AgentAction] = []
    for spawn in range(1, failures + 1):
        agent.now += 8.0
        agent.tick()
        done = agent.exits(worker("a/1", spawn), signal=11)
    return done


def test_a_slot_that_fails_again_and_again_while_others_train_rests_and_it_is_said() -> None:
    agent = Agent().running()
    said_last = of(quarantined(agent), actions.Announce)[-1].event
    assert said_last.event is EventKind.NOTE
    assert said_last.reason.startswith(
        "a/cpu:1 is in quarantine for 60 s: 3 failures in a row while others train, the last: "
    )
    assert agent.state.record is not None
    assert [slot.state for slot in agent.state.record.slots] == ["in_use", "gone"]
    agent.now += 59.9
    assert of(agent.tick(), actions.Fork) == []
    agent.now += 0.1
    assert [fork.worker for fork in of(agent.tick(), actions.Fork)] == [worker("a/1", 4)]
    again = of(agent.exits(worker("a/1", 4), signal=11), actions.Announce)[-1].event
    assert "quarantine for 120 s: 4 failures" in again.reason


def test_a_slot_is_forgiven_after_some_steps_of_its_worker_and_not_after_one() -> None:
    agent = Agent().running()
    for spawn, steps in ((1, 3), (2, 9), (3, 40)):
        agent.now += 8.0
        agent.tick()
        who = worker("a/1", spawn)
        agent.take(events.WorkerForked(worker=who, pid=spawn), said(who, report(steps)))
        agent.exits(who, signal=11)
    assert agent.state.respawns["cpu:1"].failures == 1
    agent.now += 8.0
    assert len(of(agent.tick(), actions.Fork)) <= 1
    assert "cpu:1" in agent.state.workers


def test_a_quarantine_ends_when_nobody_else_trains_any_more() -> None:
    agent = Agent().running()
    quarantined(agent)
    assert "cpu:1" not in agent.state.workers
    agent.exits(W0, signal=9)
    agent.tick()
    assert "cpu:1" in agent.state.workers


def test_a_lone_slot_is_in_no_quarantine_the_budget_decides() -> None:
    agent = Agent(slots=1).running()
    for spawn in range(1, 4):
        agent.now += 8.0
        agent.tick()
        agent.exits(worker("a", spawn), signal=11)
    agent.now += 8.0
    agent.tick()
    assert "cpu:0" in agent.state.workers


def test_a_slot_that_was_taken_away_and_given_again_is_in_no_quarantine() -> None:
    agent = Agent().running()
    quarantined(agent)
    agent.take(events.SlotsFound(slots=agent.slots[:1], reason="asked for"))
    agent.take(events.SlotsFound(slots=agent.slots, reason="asked for"))
    assert "cpu:1" in agent.state.workers


def test_a_script_that_can_never_work_is_not_started_again() -> None:
    agent = Agent().opened()
    agent.take(events.WorkerForked(worker=W0, pid=1))
    agent.exits(W0, code=0)
    agent.now += 1000.0
    assert of(agent.tick(), actions.Fork) == []
    assert agent.ending(W0).failure is not None


def test_a_drained_worker_counts_as_no_failure_and_its_slot_gets_a_standby() -> None:
    agent = Agent().running()
    agent.view(Job().committed(commit(2, [W0], mode=Mode.BOUNDARY)))
    agent.take(said(W1, Drained(generation=number(2), step=9)))
    done = agent.exits(W1, code=0)
    ending = agent.ending(W1)
    assert ending.drained
    assert ending.failure is None
    assert ending.step == 9
    assert len(of(done, actions.Fork)) == 1
    assert EventKind.LOST not in {line.event for line in agent.announced}


def test_a_finished_worker_ends_in_order_and_nobody_takes_its_place() -> None:
    agent = Agent().running()
    agent.take(said(W0, finished()))
    done = agent.exits(W0, code=0)
    assert agent.ending(W0).finished
    assert agent.ending(W0).is_main
    assert agent.ending(W0).digest == "ab"
    assert of(done, actions.Fork) == []


def test_main_failing_after_the_end_of_training_is_a_failure() -> None:
    agent = Agent().running()
    agent.take(said(W0, finished()), said(W0, failure(rank=None, step=9)))
    agent.exits(W0, code=1)
    assert not agent.ending(W0).finished
    assert agent.ending(W0).failure is not None


def test_somebody_else_failing_after_the_end_of_training_is_not() -> None:
    agent = Agent().running()
    agent.take(said(W1, finished(is_main=False)))
    agent.exits(W1, signal=15)
    assert agent.ending(W1).finished
    assert agent.ending(W1).is_main is False


def test_a_main_that_nobody_followed_at_the_last_boundary_fails_as_main() -> None:
    agent = Agent().running()
    planned = commit(2, [W1], mode=Mode.BOUNDARY)
    agent.view(Job().committed(commit(1, [W0, W1])).committed(planned, entered=False))
    agent.take(said(W0, finished()), said(W1, finished(is_main=False)))
    agent.exits(W1, code=1)
    agent.exits(W0, code=1)
    assert agent.ending(W1).finished
    assert not agent.ending(W0).finished
    assert agent.ending(W0).failure is not None


def test_who_finished_starts_again_where_all_have_ended_and_main_not_in_order() -> None:
    agent = Agent().running(members=(OTHER, W0, W1))
    for who in (W0, W1):
        agent.take(said(who, finished(is_main=False)))
        agent.exits(who, code=0)
    job = Job().committed(commit(1, [OTHER, W0, W1]))
    job.gone(W0, finished=True, is_main=False).gone(W1, finished=True, is_main=False)
    agent.view(job)
    assert of(agent.tick(), actions.Fork) == []
    agent.view(job.gone(OTHER))
    agent.tick()
    assert {w.id for w in agent.state.workers.values()} == {worker("a/0", 2), worker("a/1", 2)}


def test_nobody_starts_again_where_main_has_ended_in_order() -> None:
    agent = Agent().running(members=(OTHER, W0, W1))
    for who in (W0, W1):
        agent.take(said(who, finished(is_main=False)))
        agent.exits(who, code=0)
    job = Job().committed(commit(1, [OTHER, W0, W1])).gone(OTHER, finished=True, is_main=True)
    job.gone(W0, finished=True, is_main=False).gone(W1, finished=True, is_main=False)
    agent.view(job)
    assert of(agent.tick(), actions.Fork) == []


def finished(*, is_main: bool = True) -> Finished:
    return Finished(
        position=Position(9), step=9, digest="ab", is_main=is_main, metrics={}, epochs=1
    )


def test_a_death_is_told_where_it_happened_and_not_where_the_last_tick_saw_it() -> None:
    agent = Agent().running()
    last = Beat(
        phase=Pulse.MICRO_STEP, position=7, step=7, rank=1, micro_steps=9, since_s=1, polled_s=None
    )
    agent.take(
        events.WorkerExited(worker=W1, pid=1, exit_code=None, signal=9, last_words="", beat=last)
    )
    failure = agent.ending(W1).failure
    assert failure is not None
    assert (failure.step, failure.rank) == (7, 1)


def test_words_of_a_worker_that_has_ended_are_nobodys() -> None:
    agent = Agent().running()
    agent.exits(W1, signal=9)
    assert of(agent.take(said(W1, entered(1))), actions.Write) == []


LOST = events.ZygoteLost(reason="signal SIGKILL")
READY = events.ZygoteReady(torch_version="2", cpu_kind="cpu", seconds=1.0)


def test_a_lost_zygote_takes_its_workers_and_is_started_again() -> None:
    agent = Agent().running()
    done = agent.take(LOST)
    assert {w.key for w in of(done, actions.Write)} >= {
        KEYS.gone_worker(W0),
        KEYS.gone_worker(W1),
    }
    assert len(of(done, actions.StartZygote)) == 1
    assert of(done, actions.Fork) + of(done, actions.Exit) == []
    assert "signal SIGKILL" in agent.announced[-1].reason
    assert [fork.worker.slot for fork in of(agent.take(READY), actions.Fork)] == ["cpu:0", "cpu:1"]


def test_a_zygote_that_never_started_ends_the_agent_with_its_words() -> None:
    agent = Agent()
    agent.take(events.SlotsFound(slots=agent.slots))
    done = agent.take(events.ZygoteLost(reason="exit code 1: No module named 'nosuchmod'"))
    assert of(done, actions.StartZygote) == []
    assert "No module named 'nosuchmod'" in of(done, actions.ReportCause)[0].cause.headline
    assert of(done, actions.Exit)[0].code == 1


def test_a_zygote_lost_again_and_again_without_a_step_ends_the_agent() -> None:
    agent = Agent().running()
    limit = agent.state.settings.max_restarts
    for _ in range(limit):
        assert len(of(agent.take(LOST, READY), actions.StartZygote)) == 1
    done = agent.take(LOST)
    assert of(done, actions.StartZygote) == []
    assert f"{limit + 1} times without a step" in of(done, actions.ReportCause)[0].cause.why_ended
    assert of(done, actions.Exit)[0].code == 1


def test_a_node_that_leaves_needs_no_new_zygote() -> None:
    agent = Agent().running()
    agent.take(events.Signalled(number=15))
    assert of(agent.take(LOST), actions.StartZygote) == []


# --- the store ---------------------------------------------------------------------------------


def test_an_outage_of_the_store_touches_no_worker() -> None:
    agent = Agent().running()
    done = agent.take(events.StoreAway(reason="no answer"), events.StoreBack(silent_s=21.7))
    assert of(done, actions.StopWorker) + of(done, actions.KillWorker) == []
    assert [line.event for line in agent.announced[-2:]] == [
        EventKind.STORE_AWAY,
        EventKind.STORE_BACK,
    ]


def test_after_a_lost_lease_the_agent_offers_what_it_knows_and_says_everything_again() -> None:
    agent = Agent().running()
    agent.exits(W1, signal=9)
    record = of(agent.take(events.LeaseEnded(reason="the store ended it")), actions.Enrol)[0].record
    assert record.commit == commit(1, [W0, W1])
    assert record.formed == number(1)
    again = of(agent.take(events.Enrolled(create_revision=77)), actions.Write)
    assert {w.key for w in again} == {KEYS.entry(number(1), W0), KEYS.gone_worker(W1)}
    confirmed = agent.view(Job().committed(commit(1, [W0, W1])))
    assert of(confirmed, actions.Enrol)[-1].record.commit is None  # the store knows it


def test_a_cry_for_help_is_repeated_when_its_lease_is_lost() -> None:
    agent = Agent().running()
    broken = Broken(generation=number(1), position=Position(3), suspects=(), reason="reset")
    agent.take(said(W0, broken), events.LeaseEnded(reason="x"))
    again = of(agent.take(events.Enrolled(create_revision=77)), actions.Write)
    assert KEYS.broken(number(1), W0) in {write.key for write in again}
    agent.view(Job().committed(commit(2, [W0, W1], mode=Mode.NOW)))
    agent.take(said(W0, entered(2)), events.LeaseEnded(reason="x"))
    answered = of(agent.take(events.Enrolled(create_revision=99)), actions.Write)
    assert KEYS.broken(number(1), W0) not in {write.key for write in answered}


def test_progress_is_recorded_once_a_second_under_the_fence_by_mains_agent() -> None:
    agent = Agent().running()
    job = Job().committed(commit(1, [W0, W1]))
    agent.view(job)
    agent.now += 2.0
    done = agent.take(said(W0, report(3)), said(W0, report(4)))
    txn = of(done, actions.Transact)
    assert len(txn) == 1
    assert txn[0].compares == (
        Modified(KEYS.head, job.view().head_revision),
        Created(KEYS.node("a"), 5),
    )
    put = txn[0].operations[0]
    assert isinstance(put, Put)
    assert decode(put.value, ProgressRecord, source="progress").step == 3


def test_reports_that_come_with_a_tick_are_shown_and_recorded_and_registered_at_once() -> None:
    agent = Agent().running()
    agent.view(Job().committed(commit(1, [W0, W1])))
    agent.now += 2.0
    reports = {W0: report(3, micro_step_s=0.02), W1: report(4, micro_step_s=0.03)}
    done = agent.take(events.Ticked(beats={}, monotonic_s=agent.now, reports=reports))
    assert [one.progress.step for one in of(done, actions.ShowProgress)] == [3]
    assert [one.name for one in of(done, actions.Transact)] == ["progress"]
    (enrolled,) = of(done, actions.Enrol)
    assert [slot.micro_step_s for slot in enrolled.record.slots] == [0.02, 0.03]
    assert agent.state.step == 4


def test_a_tick_with_the_report_of_a_worker_that_has_ended_changes_nothing() -> None:
    agent = Agent().running()
    agent.exits(W0, code=1)
    before = agent.state.last_report
    agent.take(events.Ticked(beats={}, monotonic_s=agent.now, reports={W0: report(9)}))
    assert agent.state.last_report == before
    assert agent.state.step == 0


def test_nothing_is_recorded_under_the_head_of_another_group() -> None:
    agent = Agent().running()
    foreign = Job().committed(commit(1, [OTHER]))
    agent.view(foreign)
    agent.now += 2.0
    said_now = agent.take(said(W0, report(3)), said(W0, written(30)))
    assert of(said_now, actions.Transact) == []


def test_nobody_but_mains_agent_records_progress() -> None:
    agent = Agent().running(members=(OTHER, W0))
    agent.view(Job().committed(commit(1, [OTHER, W0])))
    agent.now += 2.0
    assert of(agent.take(said(W0, report(3))), actions.Transact) == []


def written(step: int) -> SnapshotWritten:
    return SnapshotWritten(
        name=f"step-{step:08}", step=step, epoch=0, digest="d", bytes=9, generation=number(1),
        pause_s=0.0, seconds=0.1, last=False,
    )  # fmt: skip


def test_a_snapshot_is_registered_and_what_it_supersedes_is_marked_first_then_deleted() -> None:
    agent = Agent(launch_settings(snapshot_keep=2)).running()
    job = Job().committed(commit(1, [W0, W1])).snapshot(10).snapshot(20)
    agent.view(job)
    done = agent.take(said(W0, written(30)))
    txn = of(done, actions.Transact)[0]
    assert [put.key for put in txn.operations if isinstance(put, Put)] == [
        KEYS.snapshot("step-00000030"),
        KEYS.snapshot("step-00000010"),
    ]
    assert of(done, actions.DeleteSnapshots) == []
    agent.take(events.Transacted(name=txn.name, succeeded=True))
    marked = Job().committed(commit(1, [W0, W1])).snapshot(10, superseded=True).snapshot(20)
    assert of(agent.view(marked), actions.DeleteSnapshots)[0].names == ("step-00000010",)


def test_more_snapshots_than_fit_into_a_transaction_are_marked_with_those_that_follow() -> None:
    agent = Agent(launch_settings(snapshot_keep=3)).running()
    job = Job().committed(commit(1, [W0, W1]))
    for step in range(1, 201):
        job.snapshot(step)
    agent.view(job)
    marked = []
    for step in (201, 202):
        [txn] = of(agent.take(said(W0, written(step))), actions.Transact)
        check_transaction(txn.compares, txn.operations)
        for put in txn.operations:
            assert isinstance(put, Put)
            job.put(put.key, put.value)
            marked += [put.key] if '"superseded":true' in put.value else []
        agent.take(events.Transacted(name=txn.name, succeeded=True))
        agent.view(job)
    assert marked == [KEYS.snapshot(f"step-{step:08}") for step in range(1, 200)]


def test_snapshots_that_a_restore_passed_over_push_none_of_the_new_ones_out() -> None:
    agent = Agent(launch_settings(snapshot_keep=3), slots=1).registered()
    led = (Restored(number(2), 100),)
    job = Job().committed(msgspec.structs.replace(commit(2, [W0]), restores=led)).snapshot(100)
    for step in (140, 150, 160):
        job.snapshot(step, nodes=("b",))
    agent.view(job)
    agent.take(said(W0, entered(2)))
    marked = []
    for step in (110, 120, 130):
        new = msgspec.structs.replace(written(step), generation=number(2))
        [txn] = of(agent.take(said(W0, new)), actions.Transact)
        for put in txn.operations:
            assert isinstance(put, Put)
            job.put(put.key, put.value)
            marked += [put.key] if '"superseded":true' in put.value else []
        agent.take(events.Transacted(name=txn.name, succeeded=True))
        agent.view(job)
    assert marked == [KEYS.snapshot("step-00000100")], "three newer ones count"


def test_a_new_era_is_shown_the_snapshots_that_the_store_has_forgotten() -> None:
    agent = Agent().running(Job().snapshot(10))
    assert [s.step for s in agent.state.found] == [10]
    made = commit("2.1", [W0, W1], mode=Mode.NOW)
    agent.take(said(W0, CommitSeen(commit=made)))
    txn = of(agent.view(Job().committed(made)), actions.Transact)
    assert [each.name for each in txn] == ["snapshot step-00000010"]
    agent.take(events.Transacted(name=txn[0].name, succeeded=True))
    assert of(agent.view(Job().committed(made)), actions.Transact) == [], "once in an era"


def test_a_snapshot_waits_for_a_store_that_is_away() -> None:
    agent = Agent().running()
    agent.take(events.StoreAway(reason="x"))
    assert of(agent.take(said(W0, written(30))), actions.Transact) == []
    agent.take(events.StoreBack(silent_s=9.0))
    assert of(agent.tick(), actions.Transact)[0].name == "snapshot step-00000030"


def test_a_snapshot_that_was_not_written_is_a_line_and_no_end() -> None:
    agent = Agent().running()
    agent.take(said(W0, SnapshotFailed(step=66, reason="disk full on a, 0 B free")))
    assert agent.announced[-1].event is EventKind.SNAPSHOT_FAILED
    assert agent.announced[-1].step == 66


# --- leading -----------------------------------------------------------------------------------


def leading() -> Agent:
    agent = Agent().registered()
    agent.take(events.Elected(token=9))
    return agent


def other_word() -> Job:
    """The job as somebody else has written it into a store that came back empty."""
    return Job(replace(job_spec(), token="other"))


def test_whoever_has_not_entered_is_started_anew_where_the_job_goes_on_by_another_word() -> None:
    agent = Agent().registered()
    agent.view(Job().committed(commit(1, [W0, W1]), entered=()))
    stopped = of(agent.view(other_word()), actions.StopWorker)
    assert [stop.worker for stop in stopped] == [W0, W1]


def test_whoever_has_entered_keeps_the_word_by_which_it_trains() -> None:
    agent = Agent().running()
    assert of(agent.view(other_word()), actions.StopWorker) == []


def registered_job() -> Job:
    return Job().put(KEYS.leader, "a").node("a", "standby", "standby")


def test_a_leader_decides_on_a_complete_view_and_only_once() -> None:
    agent = leading()
    assert of(agent.view(registered_job()), actions.Transact) == []
    done = agent.view(registered_job(), complete=True)
    txn = of(done, actions.Transact)
    assert len(txn) == 1
    assert txn[0].compares[0] == Created(KEYS.leader, 9)
    assert of(agent.view(registered_job(), complete=True), actions.Transact) == []


def test_a_decision_that_was_refused_is_thought_over_with_the_next_view() -> None:
    agent = leading()
    txn = of(agent.view(registered_job(), complete=True), actions.Transact)[0]
    agent.take(events.Transacted(name=txn.name, succeeded=False))
    fresh = registered_job().node("b", "starting").drop(KEYS.node("b"))
    assert len(of(agent.view(fresh, complete=True), actions.Transact)) == 1


def test_a_leader_does_not_decide_on_a_view_that_lacks_what_it_has_just_written() -> None:
    agent = leading()
    job = registered_job()
    txn = of(agent.view(job, complete=True), actions.Transact)[0]
    job.node("b", "starting").drop(KEYS.node("b"))
    assert of(agent.view(job, complete=True), actions.Transact) == [], "one is under way"
    written = job.view().revision + 1
    agent.take(events.Transacted(name=txn.name, succeeded=True, revision=written))
    agent.now += 10.0
    assert of(agent.tick(), actions.Transact) == []
    job.node("b", "starting").drop(KEYS.node("b"))
    assert job.view().revision >= written
    assert len(of(agent.view(job, complete=True), actions.Transact)) == 1


def test_whoever_was_deposed_decides_nothing_more() -> None:
    agent = leading()
    agent.take(events.Deposed(reason="the lease was not renewed for 4.1 s"))
    assert of(agent.view(registered_job(), complete=True), actions.Transact) == []


# --- hangs -------------------------------------------------------------------------------------


def test_a_worker_that_is_late_while_its_peer_waits_is_dumped_then_killed() -> None:
    agent = Agent().running()
    agent.take(said(W0, report(3)), said(W1, report(3)))
    agent.now = 111.0
    beats = {W0: beat(Pulse.EXCHANGE), W1: beat(Pulse.MICRO_STEP)}
    done = agent.tick(beats)
    assert [dump.worker for dump in of(done, actions.DumpStacks)] == [W1]
    assert of(done, actions.KillWorker) == []
    agent.now += 0.5
    assert [kill.worker for kill in of(agent.tick(beats), actions.KillWorker)] == [W1]
    agent.exits(W1, signal=9)
    ending = agent.ending(W1)
    assert ending.failure is not None
    assert ending.failure.type == "hung"


def test_when_all_are_slow_alike_nobody_is_hung() -> None:
    agent = Agent().running()
    agent.take(said(W0, report(3)), said(W1, report(3)))
    agent.now = 200.0
    done = agent.tick({W0: beat(Pulse.MICRO_STEP), W1: beat(Pulse.MICRO_STEP)})
    assert of(done, actions.DumpStacks) == []


def test_main_may_write_a_checkpoint_for_minutes() -> None:
    agent = Agent().running()
    agent.take(said(W0, report(3)), said(W1, report(3)))
    agent.now = 100.0 + 599.0
    beats = {W0: beat(Pulse.OUTER_BODY), W1: beat(Pulse.EXCHANGE)}
    assert of(agent.tick(beats), actions.DumpStacks) == []
    agent.now += 2.0
    assert len(of(agent.tick(beats), actions.DumpStacks)) == 1


def test_the_first_step_has_ten_minutes() -> None:
    agent = Agent().running()
    agent.now = 300.0
    beats = {W0: beat(Pulse.EXCHANGE), W1: beat(Pulse.MICRO_STEP)}
    assert of(agent.tick(beats), actions.DumpStacks) == []


def test_the_persons_own_hang_timeout_wins() -> None:
    agent = Agent(launch_settings(hang_timeout_s=2.0)).running()
    agent.now = 102.5
    beats = {W0: beat(Pulse.EXCHANGE), W1: beat(Pulse.MICRO_STEP)}
    assert len(of(agent.tick(beats), actions.DumpStacks)) == 1


@pytest.mark.parametrize("phase", (Pulse.EXCHANGE, Pulse.FORMING))
def test_a_worker_that_is_stopped_inside_a_wait_is_found_by_its_silence(phase: Pulse) -> None:
    agent = Agent().running()
    for second in range(1, 11):
        agent.now = 100.0 + second
        beats = {W0: beat(phase, polled_s=agent.now), W1: beat(phase, polled_s=100.5)}
        assert of(agent.tick(beats), actions.DumpStacks) == []
    agent.now = 111.1
    done = agent.tick({W0: beat(phase, polled_s=agent.now), W1: beat(phase, polled_s=100.5)})
    assert [dump.worker for dump in of(done, actions.DumpStacks)] == [W1]
    assert agent.reasons[-1].startswith("a/cpu:1 is hung: does not wake for 10.1 s: a/cpu:1 waits")


def test_a_worker_that_is_stopped_on_its_way_into_the_exchange_is_found_too() -> None:
    agent = Agent().running()
    done: list[actions.AgentAction] = []
    for second in range(1, 12):
        agent.now = 100.0 + second
        beats = {W0: beat(Pulse.EXCHANGE, polled_s=agent.now), W1: beat(Pulse.EXCHANGE)}
        done = agent.tick(beats)
    assert [dump.worker for dump in of(done, actions.DumpStacks)] == [W1]


def test_a_wait_however_long_that_polls_is_no_hang() -> None:
    agent = Agent(launch_settings(hang_timeout_s=2.0)).running()
    for second in range(1, 400):
        agent.now = 100.0 + second
        beats = {who: beat(Pulse.EXCHANGE, polled_s=agent.now) for who in (W0, W1)}
        assert of(agent.tick(beats), actions.DumpStacks) == []


def test_nobody_is_stopped_for_a_time_in_which_the_agent_was_stopped_too() -> None:
    agent = Agent().running()
    agent.tick({who: beat(Pulse.EXCHANGE, polled_s=100.0) for who in (W0, W1)})
    agent.now = 190.0
    frozen = {who: beat(Pulse.EXCHANGE, polled_s=100.0) for who in (W0, W1)}
    assert of(agent.tick(frozen), actions.DumpStacks) == []


def test_a_stopped_worker_that_nobody_waits_for_yet_is_left_alone() -> None:
    agent = Agent().running()
    for second in range(1, 30):
        agent.now = 100.0 + second
        beats = {W0: beat(Pulse.MICRO_STEP), W1: beat(Pulse.EXCHANGE, polled_s=100.0)}
        assert W1 not in {dump.worker for dump in of(agent.tick(beats), actions.DumpStacks)}


def test_a_waiting_worker_that_ignores_a_commit_is_hung() -> None:
    agent = Agent().running()
    agent.view(Job().committed(commit(2, [W0, W1], mode=Mode.NOW)))
    agent.take(said(W0, entered(2)))
    agent.now += 5.5
    done = agent.tick({W0: beat(Pulse.EXCHANGE), W1: beat(Pulse.EXCHANGE)})
    assert [dump.worker for dump in of(done, actions.DumpStacks)] == [W1]


# --- leaving -----------------------------------------------------------------------------------


def test_a_signal_asks_for_a_boundary_and_touches_no_member() -> None:
    agent = Agent().running()
    done = agent.take(events.Signalled(number=15, sender="slurmstepd"))
    assert of(done, actions.StopWorker) == []
    wish = next(w for w in of(done, actions.Write) if w.key == KEYS.wish("drain-a"))
    asked = decode(wish.value, Wish, source="wish")
    assert asked.by == "SIGTERM from slurmstepd, 30 s grace"
    assert asked.incarnation == W0.incarnation
    record = of(done, actions.Enrol)[-1].record
    assert {slot.state for slot in record.slots} == {"draining"}


def test_the_line_of_a_joiner_says_the_step_that_it_joins_at() -> None:
    agent = Agent(slots=1).registered()
    others = commit(1, [worker("b")])
    agent.view(Job().committed(others))
    joined = commit(2, [worker("b"), W0], mode=Mode.BOUNDARY)
    agent.view(Job().committed(others).committed(joined, entered=False))
    agent.take(said(W0, entered(2, position=7)))
    assert [(line.event, line.step) for line in agent.announced if line.event == "joined"] == [
        ("joined", 7)
    ]


def test_a_signal_on_the_only_node_is_one_line_though_the_job_pauses_by_it() -> None:
    agent = Agent().running()
    agent.take(events.Signalled(number=2))
    pause = Commit(
        generation=number(2), mode=Mode.BOUNDARY, members=(), main=None, reason="node a (SIGINT)"
    )
    agent.view(Job().committed(commit(1, (W0, W1))).committed(pause, entered=False))
    told = [line.reason for line in agent.announced if line.event == "draining"]
    assert told == ["draining this node at step 0; ctrl-c again kills its 2 workers"]


def test_a_second_signal_kills_and_exits_with_128_and_its_number() -> None:
    agent = Agent().running()
    agent.take(events.Signalled(number=2))
    agent.now += 1.0
    done = agent.take(events.Signalled(number=2))
    assert {kill.worker for kill in of(done, actions.KillWorker)} == {W0, W1}
    agent.exits(W0, signal=9)
    done = agent.exits(W1, signal=9)
    assert of(done, actions.Exit)[0].code == 130


def test_a_signal_that_reaches_the_process_and_its_group_drains_as_one() -> None:
    agent = Agent().running()
    agent.take(events.Signalled(number=15))
    agent.now += 0.1
    assert agent.take(events.Signalled(number=15)) == []


def test_the_grace_ends_hard() -> None:
    agent = Agent().running()
    agent.take(events.Signalled(number=15))
    assert machine.deadline(agent.state, machine.Now(s=agent.now)) == pytest.approx(115.0)
    agent.now = 115.0
    (told,) = of(agent.tick(), actions.Enrol)
    assert told.record.hurries, "half of it is over"
    assert machine.deadline(agent.state, machine.Now(s=agent.now)) == pytest.approx(130.0)
    agent.now = 130.0
    assert len(of(agent.tick(), actions.KillWorker)) == 2


def test_a_signal_before_anything_runs_ends_at_once() -> None:
    agent = Agent().registered()
    done = agent.take(events.Signalled(number=2))
    assert {stop.worker for stop in of(done, actions.StopWorker)} == {W0, W1}
    agent.exits(W0, signal=15)
    assert of(agent.exits(W1, signal=15), actions.Exit)[0].code == 130


def test_a_node_whose_job_goes_on_elsewhere_leaves_with_0() -> None:
    agent = Agent().running(members=(W0, W1, OTHER))
    agent.take(events.Signalled(number=15))
    agent.view(Job().committed(commit(2, [OTHER], mode=Mode.BOUNDARY)))
    for who in (W0, W1):
        agent.take(said(who, Drained(generation=number(2), step=8)))
    agent.exits(W0, code=0)
    done = agent.exits(W1, code=0)
    assert [type(action) for action in done][-3:] == [
        actions.Resign,
        actions.Leave,
        actions.Exit,
    ]
    assert of(done, actions.Exit)[0].code == 0


def test_the_outcome_of_a_paused_job_is_waited_for() -> None:
    agent = Agent().running()
    agent.take(events.Signalled(number=15))
    pause = msgspec.structs.replace(commit(2, [W0], mode=Mode.BOUNDARY), members=(), main=None)
    job = Job().committed(commit(1, [W0, W1])).committed(pause)
    agent.view(job)
    for who in (W0, W1):
        agent.take(said(who, report(8)), said(who, Drained(generation=number(2), step=8)))
    agent.exits(W0, code=0)
    assert of(agent.exits(W1, code=0), actions.Exit) == []
    outcome = Outcome(state=JobState.STOPPED, exit_code=0, reason="node a (SIGTERM)", step=8)
    done = agent.view(job.outcome(outcome))
    assert of(done, actions.Exit)[0].code == 143
    summary = of(done, actions.Conclude)[0].summary
    assert (summary.step, summary.epochs) == (8, None)  # those of the whole job are not over


@pytest.mark.parametrize(("is_named", "words"), [(True, ""), (False, " with --job-id job")])
def test_a_paused_job_says_by_what_command_it_goes_on(*, is_named: bool, words: str) -> None:
    agent = Agent(launch_settings(job_is_named=is_named)).running()
    agent.take(events.Signalled(number=15))
    for who in (W0, W1):
        agent.take(said(who, Drained(generation=number(2), step=8)))
        agent.exits(who, code=0)
    outcome = Outcome(state=JobState.STOPPED, exit_code=0, reason="node a (SIGTERM)", step=8)
    job = Job().committed(commit(1, [W0, W1])).snapshot(8).outcome(outcome)
    summary = of(agent.view(job), actions.Conclude)[0].summary
    assert summary.goes_on == f"the same command{words} goes on from step 8"


def test_a_signal_in_the_scripts_tail_exits_with_0_where_the_job_finished() -> None:
    agent = Agent().running()
    agent.take(said(W0, finished()), said(W1, finished(is_main=False)), events.Signalled(number=15))
    told = [line.reason for line in agent.announced if line.event == EventKind.DRAINING]
    assert told == ["all steps are done, the script's end is awaited (SIGTERM, 30 s grace)"]
    agent.exits(W0, code=0)
    agent.exits(W1, code=0)
    outcome = Outcome(
        state=JobState.FINISHED, exit_code=0, reason="script ended", digest="ab", step=9
    )
    done = agent.view(Job().committed(commit(1, [W0, W1])).outcome(outcome))
    assert of(done, actions.Exit)[0].code == 0
    assert of(done, actions.Conclude)[0].summary.digest == "ab"


def test_a_job_that_finishes_while_etcd_is_away_closes_with_its_digest() -> None:
    agent = Agent().running()
    agent.take(events.StoreAway(reason="no answer"))
    agent.take(said(W0, finished()), said(W1, finished(is_main=False)))
    agent.exits(W0, code=0)
    agent.exits(W1, code=0)
    assert of(agent.tick(), actions.Exit) == []
    agent.now += agent.state.settings.timeouts.evict_after_s
    done = agent.tick()
    assert of(done, actions.Exit)[0].code == 0
    summary = of(done, actions.Conclude)[0].summary
    assert (summary.finished, summary.step, summary.digest) == (True, 9, "ab")
    notes = [line.reason for line in agent.announced if line.event == EventKind.NOTE]
    assert notes == ["etcd is away, so the outcome is not recorded"]


def test_a_wish_drains_this_node_without_a_grace() -> None:
    agent = Agent().running(members=(W0, W1, OTHER))
    agent.view(Job().committed(commit(1, [W0, W1, OTHER])).wish("drain", "a", by="ann"))
    assert agent.state.stage is Stage.LEAVING
    assert agent.state.leave_by_s is None
    agent.take(events.Signalled(number=2))
    assert agent.state.leave_by_s == pytest.approx(130.0)


@pytest.mark.parametrize("others_end", [False, True])
def test_a_drained_node_says_that_the_job_goes_on_only_where_others_do(others_end: bool) -> None:
    agent = Agent(slots=1).running(members=(W0, OTHER))
    job = Job().committed(commit(1, [W0, OTHER])).wish("drain", "a")
    agent.view(job)
    job.committed(commit(2, [OTHER], mode=Mode.BOUNDARY), entered=False)
    agent.view(job)
    agent.view(job.gone(OTHER) if others_end else job)
    agent.exits(W0, code=0)
    told = {line.reason for line in agent.announced}
    assert ("the job goes on without this node" in told) is not others_end


def test_who_was_named_before_the_drain_and_left_out_before_it_formed_ends() -> None:
    agent = Agent().registered()
    job = Job().committed(commit(1, [OTHER])).committed(commit(2, [OTHER, W0, W1]))
    agent.view(job)
    agent.view(job.wish("drain", "a"))
    assert of(agent.done, actions.StopWorker) == [], "at the next boundary"
    done = agent.view(job.committed(commit(3, [OTHER], mode=Mode.NOW)))
    assert [stop.worker for stop in of(done, actions.StopWorker)] == [W0, W1]


def test_one_slot_that_is_drained_leaves_the_others_alone() -> None:
    agent = Agent().running()
    agent.view(Job().committed(commit(1, [W0, W1])).wish("drain", "a", "cpu:1"))
    assert agent.state.stage is Stage.RUNNING
    record = of(agent.done, actions.Enrol)[-1].record
    assert [slot.state for slot in record.slots] == ["in_use", "draining"]


def test_a_device_that_goes_away_is_drained_and_one_that_comes_gets_a_worker() -> None:
    agent = Agent().running()
    kept, new = agent.slots[0], events.Slot(name="cpu:7", kind="cpu")
    done = agent.take(events.SlotsFound(slots=(kept, new), reason="cpu:1 was taken"))
    assert [fork.worker.slot for fork in of(done, actions.Fork)] == ["cpu:7"]
    states = {slot.slot: slot.state for slot in of(done, actions.Enrol)[-1].record.slots}
    assert states == {"cpu:0": "in_use", "cpu:1": "draining", "cpu:7": "starting"}


# --- the end -----------------------------------------------------------------------------------


def test_a_failed_job_stops_the_workers_then_shows_the_first_cause() -> None:
    agent = Agent().running(members=(W0, W1, OTHER))
    dead = Agent().running()
    dead.take(said(W0, failure(rank=3, step=5)))
    dead.exits(W0, code=1)

    culprit = dead.ending(W0).failure
    assert culprit is not None
    cause = Cause(
        worker=OTHER, failure=culprit, why_ended="rank 3 failed on 3 slots", blames="script",
        also_on=(), victims=2,
    )  # fmt: skip
    outcome = Outcome(state=JobState.FAILED, exit_code=1, reason="x", cause=cause)
    job = Job().committed(commit(1, [W0, W1, OTHER]))
    done = agent.view(job.outcome(outcome))
    assert {stop.worker for stop in of(done, actions.StopWorker)} == {W0, W1}
    agent.exits(W0, signal=15)
    done = agent.exits(W1, signal=15)
    assert of(done, actions.ReportCause)[0].cause.headline.startswith("ValueError")
    assert of(done, actions.Exit)[0].code == 1
    assert agent.ending(W0).failure is None  # stopped by us is no failure


def test_an_outcome_of_an_earlier_launch_ends_nobody() -> None:
    agent = Agent().registered()
    agent.state = replace(agent.state, first_revision=500)
    old = Job().committed(commit(1, [OTHER]))
    old.outcome(Outcome(state=JobState.FINISHED, exit_code=0, reason="x"))
    assert of(agent.view(old), actions.StopWorker) == []
    assert agent.state.stage is Stage.RUNNING


def test_progress_is_shown_thinly() -> None:
    agent = Agent().running()
    for step in range(20):
        agent.now += 0.1
        agent.take(said(W0, report(step)))
    shown = of(agent.done, actions.ShowProgress)
    assert 3 <= len(shown) <= 5
    assert shown[-1].progress.metric == "loss"
    assert shown[-1].progress.slots == 2


def test_the_story_is_bounded_and_holds_event_decision_and_reason() -> None:
    agent = Agent().running()
    for i in range(600):
        agent.take(events.LeaseEnded(reason=f"time {i}"))
    assert len(agent.state.story) == 500
    last = agent.state.story[-1]
    assert (last.event, last.decision, last.reason) == (
        "LeaseEnded",
        "registers again",
        "time 599",
    )


def test_a_step_is_a_pure_function_of_its_arguments() -> None:
    agent = Agent().running()
    event = events.WorkerExited(worker=W1, pid=1, exit_code=None, signal=9, last_words="")
    now = machine.Now(s=200.0)
    assert machine.step(agent.state, event, now) == machine.step(agent.state, event, now)


def test_a_snapshot_that_cannot_be_read_is_remembered_and_not_registered() -> None:
    view = Job().snapshot(40, rejected="torn").snapshot(20).view()
    torn, good = (view.snapshots[name] for name in sorted(view.snapshots, reverse=True))
    assert (torn.rejected, good.rejected) == ("torn", "")
    agent = Agent().opened()
    agent.take(events.SnapshotsFound(records=(torn, good)))
    agent.view(Job().node("a"))
    assert {record.step for record in agent.state.found} == {40, 20}
    assert {record.step for record in agent.state.unregistered} == {20}


def test_a_log_that_ends_early_is_a_line_of_the_stream() -> None:
    agent = Agent().registered()
    full = events.LogEnded(
        worker=W1, stream=Stream.STDERR, pid=12, reason="No space left on device"
    )
    (said_so,) = [act for act in agent.take(full) if isinstance(act, actions.Announce)]
    told = said_so.event
    assert (told.event, dict(told.facts)) == (
        EventKind.NOTE,
        {"node": "a", "slot": "cpu:1", "pid": 12},
    )
    assert told.reason == (
        "the stderr log of a/cpu:1 ends here: no space left on device; training goes on"
    )


@pytest.mark.parametrize(
    ("stood_s", "ticks", "is_believed"), [(1.0, 1, False), (4.0, 4, True), (4.0, 1, False)]
)
def test_a_new_leader_knows_since_when_its_own_worker_has_stood_still(
    stood_s: float, ticks: int, is_believed: bool
) -> None:
    agent = Agent(slots=1)
    job = Job().node("a", "in_use").node("b", "in_use").progress(2)
    agent.running(job, members=(W0, OTHER))
    agent.tick({W0: beat(Pulse.EXCHANGE, position=2, since_s=agent.now)})
    # An agent that did not tick meanwhile was stopped itself and has not seen it stand.
    for _ in range(ticks):
        agent.now += stood_s / ticks
        agent.tick()
    # The node that led is silent, and its lease has just ended.
    agent.take(events.Elected(token=9))
    found = agent.view(job.drop(KEYS.node("b")).leads(), complete=True)
    plans = [each.name for each in of(found, actions.Transact) if "ran again" in each.name]
    assert bool(plans) == is_believed, (found, agent.reasons)


def test_a_leader_finds_no_survivors_among_its_own_workers_that_the_store_still_knows() -> None:
    """A zygote takes all of them with it, and the store takes their endings one by one."""
    job = Job().node("a", "in_use", "in_use")
    agent = Agent().running(job)
    job.leads()
    agent.take(events.Elected(token=9))
    agent.view(job.progress(7), complete=True)
    agent.take(LOST)
    done = agent.view(job.put(KEYS.gone_worker(W0), agent.ending(W0)), complete=True)
    made = [each.name for each in of(done, actions.Transact)]
    assert not any(name.startswith("decision ") for name in made), made
    assert agent.reasons[-1].endswith("waits for the workers to reach register"), agent.reasons


# --- a profile -----------------------------------------------------------------------------------


def profile_record(logical_workers: int = 4) -> ProfileRecord:
    point = ProfilePoint(
        slots={"cpu": 1}, counts=(4,), step_s=0.4, micro_steps_per_s=10.0, predicted_s=0.4
    )
    return ProfileRecord(
        wish="w", by="ann", at="t", logical_workers=logical_workers, planned=1, points=(point,),
        done=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kept", "is_known"),
    [(profile_record(), True), (profile_record(logical_workers=5), False), (None, False)],
)
def test_a_store_that_began_empty_learns_the_profile_that_was_kept(
    kept: ProfileRecord | None, is_known: bool
) -> None:
    agent = Agent(slots=1)
    agent.opened()
    agent.take(events.SnapshotsFound(records=(), profile=kept))
    job = Job().node("a", "in_use")
    agent.view(job.committed(commit(1, (W0,))))
    agent.take(events.Elected(token=9))
    done = agent.view(job.leads(), complete=True)
    written = [each.operations for each in of(done, actions.Transact) if "profile" in each.name]
    assert written == ([(Put(KEYS.profile, encode(kept)),)] if is_known and kept else [])


def test_a_profile_that_is_complete_is_kept_beside_the_snapshots_once() -> None:
    agent = Agent(slots=1).running(job := Job().node("a", ("in_use", 0.1)).progress(100))
    agent.take(events.Elected(token=9))
    job.put(KEYS.wish("w"), Wish(kind="profile", by="ann")).leads()
    kept = []
    for position in (100, 130, 131, 132):
        agent.now += 1.0
        for each in agent.view(job.progress(position), complete=True):
            if isinstance(each, actions.KeepProfile):
                kept.append(each.record)
            elif isinstance(each, actions.Transact) and "profile" in each.name:
                (put,) = each.operations
                assert isinstance(put, Put)
                job.put(KEYS.profile, put.value)
    assert [len(each.points) for each in kept] == [1]


@pytest.mark.parametrize(
    ("occasion", "is_told"), [(Occasion.PROFILE, True), (Occasion.REBALANCE, False)]
)
def test_while_a_profile_is_made_small_changes_of_speed_are_passed_on_at_once(
    occasion: Occasion, is_told: bool
) -> None:
    agent = Agent(slots=1).registered()
    agent.view(Job().committed(msgspec.structs.replace(commit(1, (W0,)), occasion=occasion)))
    agent.take(said(W0, entered(1)))
    agent.now += 1.0
    agent.take(said(W0, report(5, micro_step_s=0.1)))
    agent.now += 1.0
    agent.take(said(W0, report(9, micro_step_s=0.109)))
    agent.tick()
    (slot,) = of(agent.done, actions.Enrol)[-1].record.slots
    assert slot.micro_step_s == (0.109 if is_told else 0.1)


def refused_on_the_way_in(agent: Agent, *slots: WorkerId) -> list[actions.AgentAction]:
    done = []
    for who in slots:
        said_so = replace(failure(rank=None, step=0, kind="ScriptError"), refused=True)
        agent.take(said(who, said_so))
        done = agent.exits(who, code=1)
    return done


def test_a_node_whose_script_does_not_fit_the_running_job_ends_and_says_why() -> None:
    agent = Agent().registered()
    agent.view(Job().committed(commit(1, (OTHER,))))
    assert of(refused_on_the_way_in(agent, W1), actions.Exit) == [], "the other slot may yet fit"
    (end,) = of(refused_on_the_way_in(agent, W0), actions.Exit)
    assert end.code == ExitCode.USAGE
    assert end.reason == (
        "the job goes on without this node, which does not fit it: "
        "ScriptError: target 11 is out of bounds"
    )
    assert agent.ending(W0).failure is not None


def test_a_script_refused_before_its_first_step_has_not_come_in_though_it_has_entered() -> None:
    agent = Agent(slots=1).registered()
    made = commit(2, (OTHER, W0), mode=Mode.BOUNDARY)
    agent.view(Job().committed(made, entered=False))
    agent.take(said(W0, entered(2)))
    (end,) = of(refused_on_the_way_in(agent, W0), actions.Exit)
    assert end.code == ExitCode.USAGE
    failed = agent.ending(W0).failure
    assert failed is not None
    assert (failed.refused, failed.generation) == (True, None)


@pytest.mark.parametrize("members", [(W0, W1, OTHER), (W0, W1)])
def test_a_script_refused_where_nobody_has_come_further_is_the_leaders_to_judge(
    members: tuple[WorkerId, ...],
) -> None:
    agent = Agent().registered()
    agent.view(Job().committed(commit(1, members), entered=False))
    assert of(refused_on_the_way_in(agent, W0, W1), actions.Exit) == []


def test_a_newcomer_is_told_a_few_members_that_live_to_ask_what_they_train() -> None:
    agent = Agent(slots=1).registered()
    assert training_members(agent.state) == ()
    others = tuple(worker(name) for name in "bcdef")
    agent.view(Job().committed(commit(1, others)).gone(others[0]))
    assert training_members(agent.state) == ("c/cpu:0.1", "d/cpu:0.1", "e/cpu:0.1")
