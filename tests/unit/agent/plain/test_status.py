"""A plain or packed job as status shows it: what its nodes have said, and nothing invented."""

import json
from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest

from easyscale.agent.doors.chronicle import Chronicle
from easyscale.agent.doors.readings import together
from easyscale.agent.hardware.meter import Reading
from easyscale.agent.plain import events
from easyscale.agent.plain.kept import KeptLogs
from easyscale.agent.plain.meeting import LocalMeeting
from easyscale.agent.plain.slot_finder import SlotFinder
from easyscale.agent.plain.status import Own, status_of
from easyscale.agent.plain.values import Outcome, Sight
from easyscale.agent.plain.view import PlainView
from easyscale.agent.plain.wishes import NotInThisMode
from easyscale.errors import UsageError
from easyscale.job_status import JobStatus, SlotFacts
from easyscale.model import JobState, Wish
from easyscale.reports import Fact, FirstCause, JobEvent, Progress, Source, Stream, Summary
from easyscale_cli.views.job_status import status_json
from tests.support.plain import Agent, fault, offer, round_of, settings, terms

A, B = offer("a"), offer("b", life="2")
WALL_S = 1_000.0


class Nobody:
    """An audience that does not listen."""

    def open(self, *, job: str, facts: Mapping[str, Fact]) -> None: ...
    def event(self, event: JobEvent) -> None: ...
    def progress(self, progress: Progress) -> None: ...
    def output(self, source: Source, stream: Stream, data: bytes, rank: int | None) -> None: ...
    def fail(self, cause: FirstCause) -> None: ...
    def finish(self, summary: Summary) -> None: ...
    def close(self) -> None: ...


def running(*nodes: str, packed: int | None = None) -> Sight:
    offers = tuple({"a": A, "b": B}[node] for node in nodes)
    sight = Sight(offers=offers)
    return replace(sight, round=round_of(sight, terms(len(nodes), 3, packed=packed)), revision=1)


def agent_of(sight: Sight, **changes: object) -> Agent:
    """An agent on node a whose workers 100, 101, ... run."""
    agent = Agent(settings(**changes))
    agent.feed(events.Met(store="", seconds=0.0, address=""))
    agent.feed(events.Seen(sight=sight, leads=True))
    for local_rank in agent.state.workers:
        started = events.WorkerStarted(round=1, local_rank=local_rank, pid=100 + local_rank)
        agent.feed(started, after_s=1.0)
    return agent


def seen(agent: Agent, sight: Sight | None = None) -> JobStatus:
    chronicle = Chronicle(Nobody())
    own = Own(state=agent.state, now_s=agent.now, told=chronicle.told, user="ann")
    packed = agent.state.settings.logical_workers
    return status_of(
        "job", sight or agent.state.sight, terms(packed=packed), wall_s=WALL_S, own=own
    )


def slots(status: JobStatus) -> list[tuple[str, str, tuple[int, ...], int | None]]:
    return [(each.place, each.state, tuple(each.ranks), each.pid) for each in status.slots]


def test_a_running_plain_job_shows_its_workers_and_no_step_that_nobody_knows() -> None:
    status = seen(agent_of(running("a")))
    assert (status.job.state, status.job.mode, status.job.generation) == (
        JobState.RUNNING, "plain", 1,
    )  # fmt: skip
    assert slots(status) == [
        ("a/local:0", "in_use", (0,), 100),
        ("a/local:1", "in_use", (1,), 101),
    ]
    told = json.loads(status_json(status))
    job = told["job"]
    unknown = ("step", "steps", "epoch", "epochs", "digest", "determinism", "logical_workers")
    assert [job[name] for name in unknown] == [None] * len(unknown)
    assert (told["changes"]["paused_s"], told["changes"]["steps_lost"]) == (None, None)
    assert (told["snapshot"], told["store"]) == (None, None)
    assert told["slots"][0]["micro_step_s"] is None


def test_several_ranks_of_one_slot_have_no_process_that_stands_for_it() -> None:
    agent = agent_of(running("a", packed=5), logical_workers=5)
    status = seen(agent)
    assert (status.job.mode, status.job.logical_workers) == ("packed", 5)
    assert slots(status) == [
        ("a/local:0", "in_use", (0, 1, 2), None),
        ("a/local:1", "in_use", (3, 4), None),
    ]


def test_a_node_without_ranks_stands_by_and_a_newcomer_too() -> None:
    sight = running("a")
    status = seen(agent_of(replace(sight, offers=(A, B))))
    assert slots(status)[2:] == [
        ("b/local:0", "standby", (), None),
        ("b/local:1", "standby", (), None),
    ]


def test_a_worker_that_has_not_begun_is_starting_and_one_that_ended_holds_nothing() -> None:
    agent = Agent(settings())
    agent.feed(events.Met(store="", seconds=0.0, address=""))
    agent.feed(events.Seen(sight=running("a"), leads=True))
    assert seen(agent).job.state is JobState.STARTING
    assert {each.state for each in seen(agent).slots} == {"starting"}
    agent = agent_of(running("a"))
    agent.feed(events.WorkerExited(round=1, local_rank=1, fault=None))
    assert slots(seen(agent))[1] == ("a/local:1", "standby", (), None)


def test_a_job_that_waits_for_nodes_says_for_how_many() -> None:
    status = status_of("job", Sight(offers=(A,)), terms(2, 2), wall_s=WALL_S)
    assert (status.job.state, status.job.note) == (JobState.WAITING, "1 of 2 nodes are there")
    assert {each.state for each in status.slots} == {"starting"}
    assert status.job.started is None, "what nobody told is not known"


@pytest.mark.parametrize(
    ("outcome", "state", "note"),
    [
        (Outcome(exit_code=0, reason=""), JobState.FINISHED, None),
        (
            Outcome(exit_code=0, reason="stopped by x", is_stop=True),
            JobState.STOPPED,
            "stopped by x",
        ),
        (
            Outcome(exit_code=1, reason="a worker failed", fault=fault(1)),
            JobState.FAILED,
            "ValueError: no; a worker failed",
        ),
    ],
)
def test_a_job_that_has_ended_says_how(outcome: Outcome, state: JobState, note: str | None) -> None:
    status = status_of("job", Sight(outcome=outcome), terms(), wall_s=WALL_S)
    assert (status.job.state, status.job.note, status.job.exit_code) == (
        state, note, outcome.exit_code,
    )  # fmt: skip
    assert status.slots == ()


def test_nodes_that_meet_have_a_store_that_may_be_silent() -> None:
    agent = agent_of(running("a"), meets=True)
    status = seen(agent)
    assert status.store is not None
    assert status.store.reachable
    agent.feed(events.StoreAway(reason="no answer"))
    agent.now += 5.0
    away = seen(agent).store
    assert away is not None
    assert (away.reachable, away.silent_s, away.refuses) == (False, 5.0, "")
    agent.feed(events.StoreBack(silent_s=5.0))
    agent.feed(events.StoreAway(reason="x", refuses="no room"))
    refused = seen(agent).store
    assert refused is not None
    assert (refused.reachable, refused.refuses) == (False, "no room")


# --- the view ----------------------------------------------------------------------------------


class Asked:
    """The doors' view of an agent of one node."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.posted: list[events.PlainEvent] = []
        meeting = LocalMeeting(self.posted.append, node="a")
        meeting.offer(A)
        self.posted.clear()
        finder = SlotFinder(
            agent.state.settings,
            see=lambda _: None,
            post=self.posted.append,
            tell=lambda _: None,
        )
        self.view = PlainView(
            Chronicle(Nobody()),
            KeptLogs("a"),
            meeting,
            finder,
            state=lambda: self.agent.state,
            post=self.posted.append,
        )

    def __call__(self, request: str, **arguments: object) -> object:
        return {**self.view.told, **self.view.obeyed}[request](arguments)


def test_every_question_of_an_elastic_job_is_answered_or_refused_by_name() -> None:
    ask = Asked(agent_of(running("a")))
    for what in ("plan", "profile", "snapshots"):
        with pytest.raises(NotInThisMode, match=f"is plain, which knows no {what}"):
            ask(what)
    with pytest.raises(NotInThisMode, match="no story of a rank"):
        ask("story", rank=0)
    assert ask("store") == {"endpoints": "", "embedded": False}
    assert ask("wishes") == {}


def test_the_story_is_what_the_agent_decided() -> None:
    ask = Asked(agent_of(running("a")))
    ask.view.note("Seen", "leader: round 1")
    told = ask("story")
    assert isinstance(told, dict)
    [line] = told["lines"]
    assert (line["node"], line["event"], line["decision"]) == ("a", "Seen", "leader: round 1")
    assert told["leads"]


def test_a_wish_becomes_an_event_of_the_loop_and_what_cannot_be_is_refused_at_once() -> None:
    ask = Asked(agent_of(running("a")))
    told = ask("wish", **msgspec.to_builtins(Wish(kind="stop", by="ann")))
    [event] = ask.posted
    assert isinstance(event, events.Asked)
    assert told == {"wish": event.wish_id}
    with pytest.raises(UsageError, match="its number of workers is fixed"):
        ask("devices", devices="cpu:4")
    assert len(ask.posted) == 1


def test_other_slots_of_a_packed_node_are_offered_and_named() -> None:
    ask = Asked(agent_of(running("a", packed=4), logical_workers=4))
    told = ask("devices", devices="cpu:2", by="ann")
    assert isinstance(told, dict)
    assert told["slots"] == ["cpu:0", "cpu:1"]
    assert ask.posted == [events.SlotsChanged(places=("cpu:0", "cpu:1"), reason="ann")]


def test_the_slots_of_a_node_are_read_closely_and_only_its_own() -> None:
    ask = Asked(agent_of(running("a")))
    found = list(ask.view.own_slots())
    assert [(each.place, each.pid) for each in found] == [("a/local:0", 100), ("a/local:1", 101)]
    assert all(isinstance(each, SlotFacts) for each in found)
    assert ask.view.status().job.user


def test_the_processes_of_one_place_are_read_together() -> None:
    one = Reading(utilization=0.5, memory_used_bytes=100)
    assert together([one]) == one
    assert together([one, one]) == Reading(utilization=1.0, memory_used_bytes=200)
    first = Reading(memory_used_bytes=50)  # its use is known from the second look on
    assert together([one, first]) == Reading(utilization=None, memory_used_bytes=150)
    assert together([]) == Reading()
