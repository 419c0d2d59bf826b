"""A job reached through its etcd: its agents are asked where they can be, else records stand."""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from easyscale.agent.doors.dialogue import AgentRefused, AgentSilent
from easyscale.agent.processes.log_files import LogFile, Piece
from easyscale.errors import FormatError, StoreUnreachable
from easyscale.job_status import Glance, SlotFacts
from easyscale.model import NodeRecord, Wish, encode
from easyscale.rendezvous.memory import MemoryServer, MemoryStore
from easyscale.rendezvous.store import Put
from easyscale.reports import EventKind, JobEvent, Stream
from easyscale_cli import roads
from easyscale_cli.closely import seen_closely
from easyscale_cli.connection import AgentEnded, Listening, NodeUnknown, OnlyAtTheAgent, story_of
from easyscale_cli.log_reading import AgentShelf, LogReading, Wanted
from easyscale_cli.roads import Road, ask_all, ask_first, remote_roads
from easyscale_cli.stored import StoredJob
from tests.support.views import KEYS, Job, commit, worker

A, B = worker("a"), worker("b")


class Agent:
    """An agent that answers from a table, or is silent."""

    def __init__(self, node: str, **answers: Any) -> None:  # noqa: ANN401 - JSON
        self.node = node
        self.answers = answers
        self.asked: list[tuple[str, Mapping[str, Any] | None]] = []

    def ask(
        self,
        request: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = 5.0,
    ) -> Any:  # noqa: ANN401 - JSON
        if request == "here" and self.answers:
            return {"node": self.node, "leads": False}
        self.asked.append((request, arguments))
        if request not in self.answers:
            raise AgentSilent(f"{self.node} is silent")
        answer = self.answers[request]
        return answer(arguments) if callable(answer) else json.loads(msgspec.json.encode(answer))


def node_record(name: str, address: str) -> NodeRecord:
    return NodeRecord(
        node=name, incarnation=f"{name}-1", boot_id="b", host=name, address=address, slots=()
    )


def store_of(job: Job, **further: str) -> MemoryStore:
    """A store that holds this job, and raw values besides."""
    store = MemoryServer(clock=lambda: 0.0).client()
    values = {key: entry.value for key, entry in job.entries.items()} | further
    store.transact([], [Put(key, value) for key, value in values.items()], timeout_s=1)
    return store


def two_nodes() -> Job:
    job = Job().node("a", ("in_use", 0.05)).node("b", ("in_use", 0.05))
    job.committed(commit(1, {A: (0, 1), B: (2, 3)})).progress(120)
    for name in ("a", "b"):
        record = job.view().nodes[name].record
        changed = msgspec.structs.replace(record, address=f"10.0.0.{ord(name)}:7000")
        job.put(KEYS.node(name), changed)
    return job


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> dict[str, Agent]:
    """Who answers at which address."""
    agents: dict[str, Agent] = {}

    def ask_at(
        address: str,
        token: str,
        request: str,
        arguments: Mapping[str, Any] | None,
        *,
        timeout_s: float,
    ) -> Any:  # noqa: ANN401 - JSON
        assert token == "t"
        if address not in agents:
            raise AgentSilent(f"the agent at {address} did not answer")
        return agents[address].ask(request, arguments, timeout_s=timeout_s)

    monkeypatch.setattr(roads, "ask_at", ask_at)
    return agents


def glance_of(job: StoredJob) -> Glance:
    return job.glance()


# --- roads -------------------------------------------------------------------------------------


def test_the_roads_of_a_job_lead_to_all_nodes_with_an_address() -> None:
    job = two_nodes().node("old")
    found = StoredJob("job", store_of(job)).roads()
    assert [road.node for road in found] == ["a", "b"]
    assert remote_roads([("a", "h:1")], token="") == []


def test_a_torn_record_of_one_node_costs_that_node_only() -> None:
    for torn in ('{"version":1,"node":"b","inc', "", "null", "[]", '{"version":99}'):
        job = StoredJob("job", store_of(two_nodes(), **{KEYS.node("b"): torn}))
        assert [road.node for road in job.roads()] == ["a"]
        assert glance_of(job).status.job.step == 120


def test_a_job_of_a_newer_version_is_named_and_left_alone() -> None:
    newer = json.loads(encode(two_nodes().view().spec))
    for changed in (newer | {"version": 99}, {"version": 99, "all": "new"}):
        job = StoredJob("job", store_of(two_nodes(), **{KEYS.job: json.dumps(changed)}))
        for ask in (job.closely, job.roads, job.story, lambda: job.events(0)):  # noqa: B023
            with pytest.raises(FormatError) as met:
                ask()
            assert "pip install -U easyscale-torch" in met.value.hint


def test_the_first_that_answers_is_believed_and_all_are_asked_at_once() -> None:
    silent, a, b = Agent("s"), Agent("a", who=1), Agent("b", who=2)
    assert ask_first([silent, a, b], "who") == 1
    assert [(road.node, said) for road, said in ask_all([silent, a, b], "who")] == [
        ("a", 1),
        ("b", 2),
    ]
    with pytest.raises(AgentSilent, match="no agent answers of s"):
        ask_first([silent], "who")
    with pytest.raises(AgentSilent, match="no agent that can be asked"):
        ask_first([], "who")


# --- status ------------------------------------------------------------------------------------


def test_an_agent_tells_more_than_the_records_and_each_node_its_own(
    network: dict[str, Agent],
) -> None:
    job = StoredJob("job", store_of(two_nodes()))
    recorded = glance_of(job)
    [of_a, of_b] = recorded.status.slots
    told = msgspec.structs.replace(
        recorded,
        status=msgspec.structs.replace(
            recorded.status, slots=(msgspec.structs.replace(of_a, pid=11), of_b)
        ),
    )
    own = msgspec.structs.replace(of_b, pid=22, utilisation_share=0.5, micro_step_s=9.0, hung=True)
    network["10.0.0.97:7000"] = Agent("a", status=told)
    network["10.0.0.98:7000"] = Agent("b", slots=(own,))
    [seen_a, seen_b] = job.closely().status.slots
    assert (seen_a.pid, seen_b.pid, seen_b.utilisation_share, seen_b.hung) == (11, 22, 0.5, True)
    assert seen_b.micro_step_s == of_b.micro_step_s, "what is recorded for all stands"


def test_records_stand_where_no_agent_answers_and_while_the_agent_answers_etcd_may_be_away(
    network: dict[str, Agent],
) -> None:
    store = store_of(two_nodes())
    job = StoredJob("job", store)
    assert job.closely().status.job.step == 120
    status = msgspec.structs.replace(
        glance_of(job).status, job=msgspec.structs.replace(glance_of(job).status.job, step=130)
    )
    network["10.0.0.98:7000"] = Agent("b", status=Glance(status=status))
    assert job.closely().status.job.step == 130
    store.cut()
    assert job.closely().status.job.step == 130
    network.clear()
    with pytest.raises(StoreUnreachable):
        job.closely()


def test_a_slot_that_nobody_tells_of_stays_as_it_is_recorded() -> None:
    glance = StoredJob("job", store_of(two_nodes())).glance()
    assert seen_closely(glance, {}) == glance
    other = SlotFacts(node="z", slot="cpu:9", kind="", state="in_use", pid=1)
    assert seen_closely(glance, {("z", "cpu:9"): other}) == glance


# --- events and stories ------------------------------------------------------------------------


def event(number: int) -> JobEvent:
    return JobEvent(
        at=f"2026-10-04T14:00:{number:02}.000Z", job="job", event=EventKind.NOTE, step=number,
        era=1, generation=1, reason=f"{number}",
    )  # fmt: skip


def teller(node: str, events: Sequence[JobEvent]) -> Agent:
    def answer(arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
        said = {"events": events[arguments["after"] :], "next": len(events), "closing": False}
        return json.loads(msgspec.json.encode(said))

    return Agent(node, events=answer)


def test_events_go_on_with_another_agent_when_theirs_ends() -> None:
    first, second = teller("a", [event(1), event(2)]), teller("b", [event(2), event(3)])
    there: list[Road] = [first, second]
    listening = Listening(lambda: there)
    told = listening.events(0)
    assert [each.step for each in told.events] == [1, 2]
    first.answers.clear()
    there.remove(first)
    told = listening.events(told.next)
    assert [each.step for each in told.events] == [3], "what was heard is not told again"
    assert listening.events(told.next).events == ()
    there.clear()
    second.answers.clear()
    with pytest.raises(AgentSilent):
        listening.events(told.next)


def test_who_cannot_be_asked_is_said_with_what_to_do(network: dict[str, Agent]) -> None:
    job = StoredJob("job", store_of(two_nodes()))
    with pytest.raises(OnlyAtTheAgent) as met:
        job.events(0)
    assert "no agent answers of a, b" in met.value.message
    assert met.value.hint == "on a: easyscale events job"
    ended = StoredJob("job", store_of(Job()))
    with pytest.raises(OnlyAtTheAgent, match="all have ended"):
        ended.story()


LINES = [{"at": "t", "node": "b", "event": "e", "decision": "d", "reason": "r"}]


def test_a_story_is_the_leaders_or_of_whom_it_is_asked() -> None:
    a = Agent("a", story={"leads": False, "lines": []})
    b = Agent("b", story={"leads": True, "lines": LINES})
    assert story_of("job", [a, b], node=None, rank=None) == LINES
    assert story_of("job", [a, b], node="b", rank=None) == LINES
    assert story_of("job", [b, a], node=None, rank=3) == LINES
    assert b.asked[-1] == ("story", {"rank": 3})
    with pytest.raises(NodeUnknown, match="has no node 'c' that can be asked; it has a, b"):
        story_of("job", [a, b], node="c", rank=None)
    with pytest.raises(NodeUnknown, match="no logical rank 99"):
        story_of("job", [a], node=None, rank=99)


# --- logs --------------------------------------------------------------------------------------


def log(node: str, name: str, text: bytes) -> tuple[LogFile, bytes]:
    slot, _, stream = name.partition("/")
    place = slot.partition(".")[0].replace("-", ":")
    file = LogFile(node=node, slot=place, spawn=1, stream=Stream(stream), name=name, size=len(text))
    return file, text


def shelf_of(*agents: Agent, follows: bool = False) -> AgentShelf:
    class Reached:
        id = "job"

        def roads(self) -> Sequence[Road]:
            return agents

    return AgentShelf(Reached(), follows=follows)  # type: ignore[arg-type]


def keeper(node: str, *logs: tuple[LogFile, bytes], closing: bool = False) -> Agent:
    def piece(asked: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
        texts = {(file.node, file.name): text for file, text in logs}
        text = texts[asked["node"], asked["name"]][asked["offset"] :][:5]
        return json.loads(msgspec.json.encode(Piece(offset=asked["offset"], data=text, marks=())))

    files = {"files": [file for file, _ in logs], "closing": closing}
    return Agent(node, logs=files, log=piece)


def test_each_node_is_read_at_its_own_agent_and_those_that_left_where_they_are_seen() -> None:
    of_a, of_b = log("a", "cpu-0.1/stdout", b"from a\n"), log("b", "cpu-0.1/stdout", b"from b\n")
    stale = log("b", "cpu-0.1/stdout", b"st")
    left = log("gone", "cpu-0.1/stderr", b"last words\n")
    a, b = keeper("a", of_a, stale, left), keeper("b", of_b)
    reading = LogReading(shelf_of(a, b), Wanted())
    assert [line.text for line in reading.lines(reading.files())] == [
        "from a", "from b", "last words",
    ]  # fmt: skip
    reading = LogReading(shelf_of(a, b), Wanted(node="gone", slot="cpu:0"))
    assert [line.text for line in reading.lines(reading.files())] == ["last words"]


def test_what_is_unfinished_waits_and_a_silent_agent_costs_its_own_lines_only() -> None:
    a = keeper("a", log("a", "cpu-0.1/stdout", b"one\ntw"))
    reading = LogReading(shelf_of(a, Agent("b")), Wanted())
    assert [line.text for line in reading.lines(reading.files())] == ["one"]
    assert [line.text for line in reading.rest()] == ["tw"]
    with pytest.raises(AgentSilent):
        shelf_of(Agent("b")).files()
    with pytest.raises(AgentEnded):
        shelf_of().files()


def test_an_agent_that_ends_is_let_go_once_its_logs_were_read() -> None:
    a = keeper("a", log("a", "cpu-0.1/stdout", b"one\n"), closing=True)
    shelf = shelf_of(a, keeper("b"), follows=True)
    shelf.files()
    shelf.thank()
    last = a.asked[-1][1]
    assert last is not None
    assert last["has_all"] is True
    assert last["watcher"]


def test_a_log_that_is_refused_ends_there() -> None:
    def refuse(arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
        raise AgentRefused("gone", hint="", code="usage", exit_code=2)

    a = keeper("a", log("a", "cpu-0.1/stdout", b"one\n"))
    a.answers["log"] = refuse
    reading = LogReading(shelf_of(a), Wanted())
    assert list(itertools.islice(reading.lines(reading.files()), 5)) == []


def test_a_wish_written_to_etcd_is_about_the_agent_that_the_node_has_now() -> None:
    job = StoredJob("job", store_of(two_nodes()))
    kept = job.standing(job.wish(Wish(kind="drain", node="b")))
    assert kept is not None
    assert kept.incarnation == B.incarnation
