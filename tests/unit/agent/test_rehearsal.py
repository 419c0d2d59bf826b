"""A planned run, with workers that are played as well: what is committed when."""

import queue
from pathlib import Path

import msgspec
import pytest

from easyscale.agent import events
from easyscale.agent.events import Slot
from easyscale.agent.verify.rehearsal import Outcome, Rehearsal, RehearsalSettings, RunFailed
from easyscale.agent.verify.scenes import Change, Scene
from easyscale.messages import (
    Committed,
    Entered,
    Finished,
    ForkRequest,
    Message,
    Registered,
    ScriptTarget,
)
from easyscale.model import Determinism, GenerationNumber, Mode, Position, WorkerId
from easyscale.pulse import Beat, Phase
from easyscale.recording import Gate, Recording

IN_PLACE = Scene(name="changing", shares=((0,), (1,)), changes=(Change(1, ((0, 1), None)),))


class Workers:
    """Both hosts and all workers: they enter a generation a while after they hear of it."""

    names = ("a", "b")

    def __init__(self, settings: RehearsalSettings, *, digests: tuple[str, ...]) -> None:
        self.settings = settings
        self.inbox: queue.SimpleQueue[events.Event] = queue.SimpleQueue()
        self.requests: list[ForkRequest] = []
        self.commits: dict[int, Mode] = {}
        #: Workers that had entered generation n - 1 when generation n was committed.
        self.entered_before: dict[int, set[WorkerId]] = {}
        self._digests = digests
        self._entered: dict[WorkerId, int] = {}
        self._looks: dict[WorkerId, int] = {}

    def of(self, worker: WorkerId) -> "Workers":
        return self

    def fork(self, request: ForkRequest) -> None:
        self.requests.append(request)
        worker = request.settings.worker
        self._say(worker, Registered(worker=worker, address="127.0.0.1:1"))

    def send(self, worker: WorkerId, message: Committed) -> None:
        number = message.commit.generation.number
        if number not in self.commits:
            self.entered_before[number] = {
                each for each, entered in self._entered.items() if entered == number - 1
            }
        self.commits[number] = message.commit.mode
        self._looks[worker] = 0

    def beat(self, worker: WorkerId) -> Beat:
        """A worker moves when it is looked at: it enters, and after the last change it ends."""
        looks = self._looks[worker] = self._looks.get(worker, 0) + 1
        newest = max(self.commits, default=0)
        if looks == 3 and newest:
            self._entered[worker] = newest
            generation = GenerationNumber(1, newest)
            self._say(
                worker,
                Entered(
                    generation=generation, position=Position(0), step=0, has_state=True, pause_s=0.0
                ),
            )
        if looks == 5 and newest == 2:
            self._end(worker)
        return Beat(
            phase=Phase.WAITING, position=0, step=0, rank=None, micro_steps=looks, since_s=0.0
        )

    def kill(self, worker: WorkerId, *, reason: str) -> None:
        self._exit(worker)

    def _end(self, worker: WorkerId) -> None:
        number = [each.settings.worker for each in self.requests].index(worker)
        digest = self._digests[number % len(self._digests)]
        if digest:
            self._say(
                worker,
                Finished(
                    position=Position(9),
                    step=8,
                    digest=digest,
                    is_main=number == 0,
                    metrics={},
                    epochs=1,
                ),
            )
        self._exit(worker)

    def _exit(self, worker: WorkerId) -> None:
        ended = events.WorkerExited(worker=worker, pid=1, exit_code=0, signal=None, last_words="")
        self.inbox.put(ended)

    def _say(self, worker: WorkerId, message: Message) -> None:
        self.inbox.put(events.WorkerSaid(worker=worker, message=message))  # type: ignore[arg-type]


def workers(folder: Path, *digests: str) -> Workers:
    settings = RehearsalSettings(
        script=ScriptTarget(path="train.py"),
        python="python",
        environment={},
        working_directory=folder,
        folder=folder,
        logical_workers=2,
        seed=None,
        determinism=Determinism.SAME_KIND,
        threads_per_worker=1,
        partials="device",
        preload=(),
        slots=(Slot(name="cpu:0"),),
    )
    return Workers(settings, digests=digests or ("d",))


def play(played: Workers, scene: Scene, folder: Path) -> Outcome:
    recording = Recording(folder=str(folder / "run"), last_step=8)
    return Rehearsal(played, scene, recording, number=1).play(lambda step: None)  # type: ignore[arg-type]


def test_a_change_waits_until_the_generation_before_it_was_entered_by_all(tmp_path: Path) -> None:
    """Both wait before step 0 already when they have only registered."""
    played = workers(tmp_path)
    play(played, IN_PLACE, tmp_path)
    assert played.commits == {1: Mode.RESTORE, 2: Mode.BOUNDARY}
    assert len(played.entered_before[2]) == 2


def test_workers_hear_of_the_gate_before_the_step_in_which_headers_agree(tmp_path: Path) -> None:
    played = workers(tmp_path)
    play(played, IN_PLACE, tmp_path)
    recordings = [request.settings.recording for request in played.requests]
    assert [each.gates for each in recordings if each is not None] == [(Gate(0, 2),)] * 2


def test_workers_are_shared_out_to_hosts_whose_sets_have_another_order(tmp_path: Path) -> None:
    played = workers(tmp_path)
    play(played, IN_PLACE, tmp_path)
    assert [request.settings.worker.node for request in played.requests] == ["a", "b"]
    again = workers(tmp_path)
    play(again, msgspec.structs.replace(IN_PLACE, on_other_host=True), tmp_path)
    assert [request.settings.worker.node for request in again.requests] == ["b", "a"]


def test_workers_that_disagree_give_all_their_digests(tmp_path: Path) -> None:
    assert play(workers(tmp_path, "x", "y"), IN_PLACE, tmp_path).digests == ("x", "y")


def test_a_script_that_ends_before_its_training_is_a_run_that_failed(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="ended before its training did"):
        play(workers(tmp_path, ""), IN_PLACE, tmp_path)
