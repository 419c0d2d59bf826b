"""What a GPU's trouble means for its slot, and what the agent does about it."""

import json

import pytest

from easyscale.agent import actions, events, machine
from easyscale.agent.hardware.gpu_health import Trouble, judge
from easyscale.agent.hardware.gpu_watch import GpuWatch
from easyscale.agent.settings import Identity
from easyscale.messages import Initialised, Registered
from easyscale.model import WorkerId
from easyscale.reports import EventKind
from tests.support.views import job_spec, launch_settings

SLOTS = tuple(events.Slot(name=f"cuda:{i}", kind="H200", uuid=f"GPU-{i}") for i in (0, 1))


@pytest.mark.parametrize(
    ("what", "code", "trouble"),
    [
        ("lost", None, Trouble.LOST),
        ("xid", 79, Trouble.LOST),
        ("ecc", None, Trouble.DRAIN),
        ("xid", 48, Trouble.DRAIN),
        ("xid", 119, Trouble.DRAIN),
        ("xid", 63, Trouble.TELL),
        ("xid", 4711, Trouble.TELL),
        ("xid", 13, Trouble.NONE),
        ("xid", 94, Trouble.NONE),
        ("", None, Trouble.NONE),
    ],
)
def test_a_fault_of_the_process_is_none_of_the_device(
    what: str, code: int | None, trouble: Trouble
) -> None:
    found, reason = judge(what, code)
    assert found is trouble
    assert bool(reason) == (trouble is not Trouble.NONE)


def test_the_watch_posts_what_matters_and_survives_what_it_cannot_read() -> None:
    posted: list[events.DeviceTroubled] = []
    watch = GpuWatch(posted.append)
    lines = [
        {"what": "xid", "code": 79, "uuids": ["GPU-0"]},
        {"what": "xid", "code": 13, "uuids": ["GPU-0"]},
        {},
        {"error": "nvmlInit: Driver Not Loaded"},
        {"what": "lost", "uuids": ["GPU-1"]},
    ]
    for line in [*(json.dumps(one).encode() for one in lines), b"\xff", b"[]", b'{"code": "x"}']:
        watch._take(line)
    assert [(one.uuids, one.trouble) for one in posted] == [
        (("GPU-0",), Trouble.LOST),
        (("GPU-1",), Trouble.LOST),
    ]


class Agent:
    """A node with two GPUs and a waiting worker on each."""

    def __init__(self) -> None:
        identity = Identity(node="a", incarnation="i", boot_id="b", host="a", address="")
        self.state = machine.begin(launch_settings(), identity, now=machine.Now(s=1.0))
        made = self.take(
            events.SlotsFound(slots=SLOTS),
            events.ZygoteReady(torch_version="2", cpu_kind="cpu", seconds=1.0),
            events.JobOpened(spec=job_spec(), store="etcd", seconds=0.1),
            events.SnapshotsFound(records=()),
            events.Enrolled(create_revision=5),
        )
        self.workers = [a.worker for a in made if isinstance(a, actions.Fork)]
        for worker in self.workers:
            hello = Initialised(worker=worker, pid=1, torch_version="2", kind="H200")
            self.take(
                events.WorkerForked(worker=worker, pid=1),
                events.WorkerSaid(worker=worker, message=hello),
                events.WorkerSaid(worker=worker, message=Registered(worker=worker, address="x:1")),
            )

    def take(self, *taken: events.AgentEvent) -> list[actions.AgentAction]:
        done: list[actions.AgentAction] = []
        for event in taken:
            self.state, wanted, _ = machine.step(self.state, event, machine.Now(s=1.0))
            done += wanted
        return done

    def troubled(self, trouble: Trouble, *uuids: str) -> list[actions.AgentAction]:
        return self.take(events.DeviceTroubled(uuids=uuids, trouble=trouble, reason="XID 79"))


def told(done: list[actions.AgentAction]) -> list[str]:
    return [
        a.event.reason
        for a in done
        if isinstance(a, actions.Announce) and a.event.event is EventKind.NOTE
    ]


def ended(done: list[actions.AgentAction]) -> list[WorkerId]:
    return [a.worker for a in done if isinstance(a, actions.KillWorker | actions.StopWorker)]


def test_a_lost_device_takes_its_slot_and_its_worker_and_no_other() -> None:
    agent = Agent()
    done = agent.troubled(Trouble.LOST, "GPU-0")
    assert told(done) == ["a/cuda:0: XID 79; the slot is lost"]
    assert set(ended(done)) == {agent.workers[0]}
    assert any(isinstance(a, actions.KillWorker) for a in done)
    assert agent.state.withdrawn == {"cuda:0"}
    assert told(agent.troubled(Trouble.LOST, "GPU-0")) == [], "it is told once"
    exited = events.WorkerExited(
        worker=agent.workers[0], pid=1, exit_code=None, signal=9, last_words=""
    )
    made = agent.take(exited)
    assert not [a for a in made if isinstance(a, actions.Fork)], "nothing starts on it again"


def test_a_device_that_needs_a_reset_is_emptied() -> None:
    agent = Agent()
    done = agent.troubled(Trouble.DRAIN, "GPU-1", "MIG-of-nobody")
    assert agent.state.withdrawn == {"cuda:1"}
    assert not any(isinstance(a, actions.KillWorker) for a in done)
    assert told(done) == [
        "a/cuda:1: XID 79; the slot is emptied at the next step, the GPU needs a reset"
    ]


def test_what_is_only_told_changes_nothing() -> None:
    agent = Agent()
    done = agent.troubled(Trouble.TELL, "GPU-0")
    assert told(done) == ["a/cuda:0: XID 79"]
    assert agent.state.withdrawn == frozenset()
    assert told(agent.troubled(Trouble.TELL, "GPU-of-another-job")) == []


def test_a_slot_that_is_given_again_is_used_again() -> None:
    agent = Agent()
    agent.troubled(Trouble.DRAIN, "GPU-1")
    agent.take(events.SlotsFound(slots=SLOTS))
    assert agent.state.withdrawn == frozenset()
