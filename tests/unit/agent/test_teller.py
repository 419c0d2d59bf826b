"""What an agent tells whoever asks, and whom it waits for before it ends."""

import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from easyscale.agent import events
from easyscale.agent.doors.chronicle import Chronicle
from easyscale.agent.doors.elastic import ElasticView
from easyscale.agent.doors.orders import Orders
from easyscale.agent.doors.teller import Teller
from easyscale.agent.opening import Opened
from easyscale.agent.processes.log_files import MarkedLog, Piece, worker_folder
from easyscale.agent.settings import Identity
from easyscale.agent.state import OwnWorker, Phase, State, Story
from easyscale.balance import ProfileRecord
from easyscale.errors import StoreClosed, UsageError
from easyscale.job_status import Glance
from easyscale.model import WorkerId
from easyscale.rendezvous.store import View
from easyscale.reports import EventKind, JobEvent, Stream
from tests.support.views import KEYS, Job, commit, job_spec, launch_settings, worker

A, B = worker("a"), worker("b")


class Nobody:
    """An audience that does not listen."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever is told
        return lambda *_, **__: None


class Asked:
    """A teller of node a, whose state the test changes as it likes."""

    def __init__(self, folder: Path) -> None:
        settings = launch_settings(working_directory=str(folder), log_dir="logs")
        job = Job().node("a", ("in_use", 0.05)).node("b", ("in_use", 0.05))
        self.commit = commit(1, {A: (0, 1), B: (2, 3)})
        view = job.committed(self.commit).progress(120).view()
        self.state = State(
            settings=settings,
            identity=Identity(node="a", incarnation="a-1", boot_id="b", host="a", address="h:1"),
            keys=KEYS,
            began_s=0.0,
            workers={"cpu:0": OwnWorker(A, Phase.MEMBER, 0.0, pid=None)},
            record=view.nodes["a"].record,
            view=view,
            commit=self.commit,
            story=(Story(1.0, "Viewed", "decides", "4 = 2+2"),),
        )
        self.chronicle = Chronicle(Nobody())
        self.posted: list[events.AgentEvent] = []
        self.orders = Orders(
            settings,
            state=lambda: self.state,
            view=lambda: self.view.whole_view(self.state),
            post=self.posted.append,
        )
        self.view = ElasticView(
            settings, self.chronicle, self.orders, state=lambda: self.state, store=lambda: None
        )
        self.teller = Teller(self.view, self.chronicle)

    def __call__(self, request: str, **arguments: Any) -> Any:  # noqa: ANN401 - JSON
        return self.teller.handlers[request](arguments)


@pytest.fixture
def ask(tmp_path: Path) -> Asked:
    return Asked(tmp_path)


def test_an_agent_says_that_it_is_there_and_whether_it_leads(ask: Asked) -> None:
    assert ask("here") == {"node": "a", "leads": False}
    ask.state = replace(ask.state, token=7)
    assert ask("here") == {"node": "a", "leads": True}


def test_the_status_is_of_all_nodes_and_the_slots_of_its_own(ask: Asked) -> None:
    glance = ask("status")
    assert isinstance(glance, Glance)
    assert [slot.node for slot in glance.status.slots] == ["a", "b"]
    assert glance.closing is None
    assert [slot.place for slot in ask("slots")] == ["a/cpu:0"]
    ask.view.close()


def event(number: int) -> JobEvent:
    return JobEvent(
        at=f"t{number:05}", job="job", event=EventKind.LOST, step=number, era=1, generation=1,
        reason="",
    )  # fmt: skip


def test_of_ten_thousand_events_the_newest_are_told_and_numbers_stay(ask: Asked) -> None:
    for number in range(10_000):
        ask.chronicle.event(event(number))
    told = ask("events", after=0)
    assert (len(told["events"]), told["next"]) == (1000, 10_000)
    assert [each.step for each in ask("events", after=9_998)["events"]] == [9_998, 9_999]
    assert ask("events", after=99_999)["events"] == ()
    seen = ask.view.seen()
    assert seen.told == {"lost": 10_000}


def test_a_story_is_of_the_agent_or_of_a_rank(ask: Asked) -> None:
    [line] = ask("story")["lines"]
    assert (line["node"], line["decision"], line["reason"]) == ("a", "decides", "4 = 2+2")
    ask.view.follow(ask.commit, wall_s=0.0)
    [line] = ask("story", rank=3)["lines"]
    assert (line["node"], line["decision"]) == ("b", "rank 3 -> b/cpu:0")
    assert ask("story", rank="0")["lines"][0]["node"] == "a"
    with pytest.raises(ValueError, match="invalid literal"):
        ask("story", rank="x")


def test_logs_are_listed_and_read_and_nothing_else_is(ask: Asked, tmp_path: Path) -> None:
    for node in ("a", "gone"):
        folder = worker_folder(tmp_path / "logs", WorkerId(node, "life", "cpu:0", 1))
        log = MarkedLog(folder, Stream.STDOUT)
        log.write(b"one\n", 3, wall_s=10.0)
        log.close()
    (tmp_path / "secret").write_text("no log")
    files = ask("logs")["files"]
    assert [(file.node, file.size) for file in files] == [("a", 4), ("gone", 4)]
    piece = ask("log", node="gone", name="cpu-0.1/stdout", offset=0)
    assert isinstance(piece, Piece)
    assert (piece.data, piece.marks[0].rank) == (b"one\n", 3)
    assert ask("log", node="a", name="cpu-0.1/stdout", offset=4).data == b""
    for wrong in (
        {"node": "..", "name": "cpu-0.1/stdout"},
        {"node": "b", "name": "cpu-0.1/stdout"},
        {"node": "a", "name": "../../secret"},
        {"node": "a", "name": "cpu-0.2/stdout"},
    ):
        with pytest.raises(UsageError):
            ask("log", **wrong)


class ClosedStore:
    """A store that is read once."""

    def __init__(self, job: Job) -> None:
        self._views = [job.store_view()]

    def read(self, *_: str, timeout_s: float) -> View:
        del timeout_s
        if not self._views:
            raise StoreClosed("the store")
        return self._views.pop()


def test_an_agent_that_ends_still_knows_of_others_what_it_did_not_follow(ask: Asked) -> None:
    """Commands may ask it as long as it is there, and those that follow see few records."""
    whole = Job().node("a", "gone").node("b", ("in_use", 0.05)).committed(ask.commit)
    record = ProfileRecord(
        wish="w", by="", at="", logical_workers=4, planned=1, points=(), done=True
    )
    whole.put(KEYS.profile, record)
    opened = SimpleNamespace(store=ClosedStore(whole))
    ask.view = ElasticView(
        ask.state.settings,
        ask.chronicle,
        ask.orders,
        state=lambda: ask.state,
        store=lambda: cast("Opened", opened),
    )
    ask.teller = Teller(ask.view, ask.chronicle)
    ask.teller.say_last_word(code=0, reason="left")
    assert ask("profile") == record
    plan = ask("plan")
    assert [each.kind for each in plan.assignments] == ["cpu", "cpu"]
    ask.view.close()


def ends(ask: Asked) -> threading.Thread:
    """An agent that says its last word."""
    ending = {"code": 5, "reason": "budget spent"}
    last = threading.Thread(target=ask.teller.say_last_word, kwargs=ending)
    last.start()
    return last


def until_closing(ask: Asked, request: str, **arguments: str) -> Mapping[str, Any]:
    """Ask until the answer says that the agent ends."""
    while True:
        told = ask(request, **arguments)
        if told["closing"]:
            answer: Mapping[str, Any] = told
            return answer


def test_who_watches_hears_how_it_ended_before_it_does(ask: Asked) -> None:
    ask("status", watcher="me")
    last = ends(ask)
    while (closing := ask("status", watcher="me").closing) is None:
        pass
    last.join(10)
    assert not last.is_alive()
    assert (closing.exit_code, closing.reason) == (5, "budget spent")
    ask.view.close()


def test_who_follows_logs_is_waited_for_until_all_was_read(
    ask: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("easyscale.agent.doors.teller._LAST_WORD_S", 10.0)
    ask("logs", watcher="me")
    last = ends(ask)
    until_closing(ask, "logs", watcher="me")
    assert last.is_alive(), "it may still be reading"
    ask("logs", watcher="me", has_all=True)
    last.join(5)
    assert not last.is_alive()


def test_nobody_is_waited_for_where_nobody_watches(ask: Asked) -> None:
    ask("status")
    ask("logs")
    last = ends(ask)
    last.join(2)
    assert not last.is_alive()
    ask.view.close()


def test_the_token_is_the_one_that_the_job_has_now(ask: Asked) -> None:
    """Strangers may take a job over: who knows the former token is answered no more."""
    assert ask.view.token == "", "nobody elsewhere is answered before the job is known"
    for token in ("first", "taken over"):
        spec = replace(job_spec(), token=token)
        ask.state = replace(ask.state, spec=spec)
        assert ask.view.token == token


def test_what_the_user_asks_becomes_an_event_of_the_loop(ask: Asked) -> None:
    handlers = ask.view.obeyed
    told = handlers["wish"]({"kind": "stop", "by": "ann"})
    assert isinstance(told, dict)
    [event] = ask.posted
    assert isinstance(event, events.Asked)
    assert (event.wish_id, event.wish.kind, event.wish.by) == (told["wish"], "stop", "ann")
    assert not handlers.keys() & ask.teller.handlers.keys(), "who is elsewhere is not obeyed"


def test_what_the_user_withdraws_becomes_an_event_of_the_loop(ask: Asked) -> None:
    ask.view.obeyed["withdraw"]({"wish": "w1"})
    assert ask.posted == [events.Withdrawn(wish_id="w1")]
    with pytest.raises(UsageError):
        ask.view.obeyed["withdraw"]({"wish": "../job"})


def test_who_asks_for_a_node_to_leave_means_the_agent_that_it_has_now(ask: Asked) -> None:
    ask.state = replace(ask.state, view=Job().node("b", "in_use", life="7").view())
    ask.view.obeyed["wish"]({"kind": "drain", "node": "b", "by": "ann"})
    [event] = ask.posted
    assert isinstance(event, events.Asked)
    assert event.wish.incarnation == worker("b", life="7").incarnation
