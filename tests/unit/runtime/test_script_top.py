"""The top of a script, of an epoch and of a step counts once, whenever a state of it is taken."""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from easyscale.errors import ScriptError
from easyscale.model import Determinism
from easyscale.runtime.job import Job
from easyscale.runtime.randomness import Streams
from easyscale.runtime.settings import JobSettings
from easyscale.runtime.state import Moment, State
from easyscale.runtime.step import StepWork
from easyscale.runtime.team import Alone, Work
from easyscale.runtime.training import Training

CPU = torch.device("cpu")
#: Torch says so of a process that has not come to its first step, and is right.
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """More of them take longer for a few numbers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Average:
    """A moving average that goes on with the tensors that it is given, and writes them in place."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.values = [parameter.detach().clone() for parameter in model.parameters()]
        self.updates = 0

    def step(self) -> None:
        self.updates += 1
        for value, parameter in zip(self.values, self._model.parameters(), strict=True):
            value.lerp_(parameter.detach(), 0.3)

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values, self.updates = state["values"], state["updates"]


@dataclass
class Parts:
    """What a script registers, and what it holds on to."""

    model: Any
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    average: Average
    group: dict[str, Any]
    job: Job


Write = Callable[[Parts], object]


def nothing(_: Parts) -> None:
    pass


def step_the_scheduler(parts: Parts) -> None:
    parts.scheduler.step()


def average_weights(parts: Parts) -> None:
    parts.average.step()


def lower_the_rate(parts: Parts) -> None:
    parts.group["lr"] *= 0.9


@torch.no_grad()
def add_noise(parts: Parts) -> None:
    parts.model[0].weight.add_(0.1 * torch.rand(()))


def replace_weights(parts: Parts) -> None:
    parts.model[0].weight.data = parts.model[0].weight.data * 1.1


def replace_a_buffer(parts: Parts) -> None:
    parts.model[1].running_mean = parts.model[1].running_mean + 1


@torch.no_grad()
def slow_down(parts: Parts) -> None:
    for state in parts.optimizer.state.values():
        state["momentum_buffer"].mul_(0.5)


def write_through_data(parts: Parts) -> None:
    parts.model[0].weight.data.mul_(1.1)
    for state in parts.optimizer.state.values():
        state["momentum_buffer"].data.mul_(0.5)


def write_through_numpy(parts: Parts) -> None:
    parts.model[1].running_mean.numpy()[0] += 1


def forget_momentum(parts: Parts) -> None:
    parts.optimizer.state.clear()


def freeze_and_thaw(parts: Parts) -> None:
    bias = parts.model[0].bias
    bias.requires_grad_(not bias.requires_grad)


def freeze_the_norm_for_good(parts: Parts) -> None:
    if parts.job._training.place.epoch == 1:
        parts.model[1].eval()


def evaluate_and_step_the_scheduler(parts: Parts) -> None:
    rows = DataLoader(TensorDataset(torch.ones(5, 4)), batch_size=2)
    parts.job.evaluate(lambda batch: parts.model(batch[0]), rows)
    parts.scheduler.step()


@dataclass
class Script:
    """Trains for a while; `at_epoch` and `at_step` stand at the top of all but the first."""

    at_epoch: Write = nothing
    at_step: Write = nothing
    epochs: int = 2
    lr: float = 0.1
    after_register: Write = nothing
    #: Breaks out of the first epoch after so many steps.
    leaves_after: int | None = None

    def run(self, job: Job) -> str:
        model: Any = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        optimizer = torch.optim.SGD(model.parameters(), lr=self.lr, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        average = Average(model)
        job.register(model=model, optimizer=optimizer, scheduler=scheduler, average=average)
        parts = Parts(model, optimizer, scheduler, average, optimizer.param_groups[0], job)
        self.after_register(parts)
        model[1].bias.requires_grad_(False)
        shift = float(torch.rand(()))
        rows = torch.randn(8, 4, generator=torch.Generator().manual_seed(2))
        loader = job.loader(TensorDataset(rows), batch_size=2)
        kept = job.state(epochs=0, total=0.0, ended=-1, steps=[], lists={"epochs": [[0]]})
        steps, last = kept.steps, kept.lists["epochs"][0]
        for epoch in job.epochs(self.epochs):
            kept.epochs += 1
            last[0] += 1
            if epoch:
                self.at_epoch(parts)
            for step in loader:
                if step.number:
                    self.at_step(parts)
                # A value of this process alone, drawn where the others had drawn it.
                factor = shift + float(torch.rand(()))
                if self.at_step is nothing:
                    factor *= parts.group["lr"]
                for (x,) in step:
                    (factor * model(x).square().sum()).backward()
                optimizer.step()
                kept.total += factor
                steps.append(step.number)
                if step.number + 1 == self.leaves_after:
                    break
            if self.leaves_after is not None:
                break
            kept.ended = epoch
        return f"{job.digest} {kept}"


class Taking(Alone):
    """A process alone that takes a state in `register`, and notes those that it would serve."""

    is_launched = True

    def __init__(self, training: Training, *, state: State | None, is_joining: bool) -> None:
        super().__init__(training)
        self._state = state
        self._is_joining = is_joining
        self.served: list[State] = []

    def enter(self, override: tuple[str, ...]) -> None:
        self.served.append(self._training.capture())
        if self._state is not None:
            self._training.restore(self._state, override=override, is_joining=self._is_joining)
            self.served.append(self._training.capture())

    def boundary(self) -> None:
        self.served.append(self._training.capture())

    def next_rank(self, work: Work) -> int | None:
        if isinstance(work, StepWork) and work.todo == [1]:
            self.served.append(work.at_boundary(self._training.capture()))
        return super().next_rank(work)

    def end(self) -> None:
        self.served.append(self._training.capture())
        self._training.count_operation(finished=True)
        self.served.append(self._training.capture())


@dataclass
class Life:
    """One process that runs a script to its end."""

    script: Script
    state: State | None = None
    is_joining: bool = True
    notes: list[str] = field(default_factory=list)
    served: list[State] = field(default_factory=list)
    end: str = ""

    def live(self, **registered: Any) -> "Life":  # noqa: ANN401 - as `Job.register`
        settings = JobSettings(
            logical_workers=2, seed=7, determinism=Determinism.SAME_KIND, threads_per_worker=1
        )
        streams = Streams(CPU)
        streams.seed(11)
        training = Training(settings=settings, device=CPU, say=self.notes.append, streams=streams)
        team = Taking(training, state=self.state, is_joining=self.is_joining)
        job = Job(training, team)
        if registered:
            register = job.register
            job.register = lambda **things: register(**things, **registered)  # type: ignore[method-assign]
        self.end = self.script.run(job)
        self.served = team.served
        if self.script.leaves_after is not None:
            training.close_step()
            team.end()
        return self


def through_file(state: State) -> State:
    file = io.BytesIO()
    state.write(file)
    file.seek(0)
    return State.read(file, source="a test")


WRITES = [
    step_the_scheduler,
    average_weights,
    lower_the_rate,
    add_noise,
    replace_weights,
    replace_a_buffer,
    slow_down,
    write_through_data,
    write_through_numpy,
    forget_momentum,
    freeze_and_thaw,
    freeze_the_norm_for_good,
]
THRICE = (lower_the_rate, freeze_the_norm_for_good)
STEP_WRITES = [step_the_scheduler, add_noise, write_through_data, freeze_and_thaw]
TOPS = [
    # Three, since what is put back in the second must be what the script holds on to in the third.
    *(Script(at_epoch=write, epochs=3 if write in THRICE else 2) for write in WRITES),
    *(Script(at_step=write) for write in STEP_WRITES),
    Script(at_epoch=step_the_scheduler, at_step=average_weights),
    Script(at_epoch=evaluate_and_step_the_scheduler),
]


def named(value: object) -> str:
    assert isinstance(value, Script)
    return f"{value.at_epoch.__name__}-{value.at_step.__name__}"


@pytest.mark.parametrize("script", TOPS, ids=named)
def test_whoever_takes_a_state_of_a_run_ends_as_the_run_does(script: Script) -> None:
    whole = Life(script).live()
    assert {state.moment for state in whole.served} == set(Moment)
    for number, state in enumerate(whole.served):
        is_joining = number % 3 > 0
        taker = Life(script, through_file(state), is_joining).live()
        where = f"{state.moment} {state.place}"
        assert taker.end == whole.end, where
        if not state.place.finished:
            assert taker.served[-1].place == whole.served[-1].place, where
        # As it was, also where it is asked for again before it was put back.
        again = taker.served[1]
        assert (again.digest, again.moment, again.user) == (state.digest, state.moment, state.user)
        by_place = {(each.moment, each.place): each.digest for each in whole.served}
        for each in taker.served[2:]:
            assert each.digest == by_place.get((each.moment, each.place), each.digest), where
        assert len(taker.notes) <= (0 if is_joining else 1), where


def test_more_epochs_run_the_top_of_the_next_one_once() -> None:
    script = Script(at_epoch=step_the_scheduler, at_step=average_weights)
    whole = Life(replace(script, epochs=3)).live()
    for moment in (-1, -2):  # finished, and while the others were still to come there
        state = Life(script).live().served[moment]
        assert state.is_between_epochs
        assert Life(replace(script, epochs=3), through_file(state)).live().end == whole.end


@pytest.mark.parametrize("steps", [1, 2])
def test_the_top_of_an_epoch_that_was_left_early_counts_once(steps: int) -> None:
    """Also where none of its steps was left, only its end."""
    script = Script(at_epoch=step_the_scheduler)
    whole = Life(script).live()
    state = Life(replace(script, leaves_after=steps)).live().served[-1]
    assert (state.place.finished, state.place.index) == (True, steps)
    assert Life(script, through_file(state)).live().end == whole.end


def test_what_stands_after_register_counts_once_after_a_snapshot() -> None:
    script = Script()
    whole = Life(script).live()
    for state in whole.served[1:]:
        again = replace(script, after_register=average_weights)
        restored = Life(again, through_file(state), is_joining=False).live()
        assert restored.end == whole.end
        (note,) = restored.notes
        assert note.startswith("average.updates: the restored value stands; it was written between")
        assert "override" not in note


def test_an_override_outlives_what_the_top_writes() -> None:
    script = Script(at_epoch=step_the_scheduler)
    state = next(each for each in Life(script).live().served if each.place.step == 3)
    other = replace(script, lr=0.3)
    once = Life(other, state, is_joining=False).live(override=["optimizer.lr"])
    assert once.served[1].objects["optimizer"]["param_groups"][0]["lr"] == 0.3
    assert once.served[2].digest == once.served[1].digest
    assert state.objects["optimizer"]["param_groups"][0]["lr"] == 0.1
    assert [note.partition(":")[0] for note in once.notes] == ["scheduler.last_epoch"]
    # Whoever takes it from there has it, too, without a word of its own.
    assert Life(script, through_file(once.served[2])).live().end == once.end


def test_weights_that_are_initialised_after_register_are_so_once() -> None:
    """Through `.data` even a start does not see it."""
    script = Script(after_register=write_through_data)
    whole = Life(script).live()
    for state in whole.served[1:]:
        assert Life(script, state).live().end == whole.end


class CountsAtTop(Script):
    """Ends by what it counts at the top of an epoch."""

    def run(self, job: Job) -> str:
        model = nn.Linear(4, 3)
        job.register(model=model)
        kept = job.state(epochs=0)
        loader = job.loader(TensorDataset(torch.ones(8, 4)), batch_size=2)
        for _ in job.epochs(5):
            kept.epochs += 1
            if kept.epochs > 2:
                break
            for step in loader:
                for (x,) in step:
                    model(x).sum().backward()
        job._training.refuse_end_at_top()
        return job.digest


def test_a_joiner_whose_top_ends_the_loop_again_is_refused_before_the_others_hear_of_it() -> None:
    whole = Life(CountsAtTop()).live()
    first, second = [s for s in whole.served if s.moment is Moment.BOUNDARY and not s.place.index]
    assert Life(CountsAtTop(), first).live().end == whole.end
    with pytest.raises(ScriptError, match="left at the top of epoch 1, before step 2"):
        Life(CountsAtTop(), second).live()
    # All that go on from a snapshot end alike.
    assert Life(CountsAtTop(), second, is_joining=False).live().end


def test_a_rate_that_is_set_too_late_is_told_with_what_takes_it() -> None:
    state = Life(Script()).live().served[3]
    for is_joining, expected in ((False, 1), (True, 0)):
        life = Life(Script(after_register=lower_the_rate), state, is_joining).live()
        assert len(life.notes) == expected
        assert all('Set before job.register, register(..., override=["optimizer.lr"]) takes it'
                   in note for note in life.notes)  # fmt: skip


@pytest.mark.parametrize(
    ("write", "name"),
    [(step_the_scheduler, "scheduler.last_epoch"), (average_weights, "average.updates")],
)
def test_a_start_may_not_count_before_its_first_step(write: Write, name: str) -> None:
    with pytest.raises(ScriptError, match=f"{name} was written between job.register") as caught:
        Life(Script(after_register=write)).live()
    owner = name.partition(".")[0]
    assert caught.value.hint.startswith(
        f"do it before job.register, or {owner}.step() at the end of the epoch's body"
    )


def test_a_state_of_an_older_version_is_one_of_a_boundary() -> None:
    file = io.BytesIO()
    Life(Script()).live().served[3].write(file)
    file.seek(0)
    values = torch.load(file, weights_only=True)
    assert values.pop("moment") == "boundary"
    assert values.pop("modes")["model.1"] is True
    older = io.BytesIO()
    torch.save(values, older)
    older.seek(0)
    state = State.read(older, source="a test")
    assert state.moment is Moment.BOUNDARY
    # It does not say which parts were in eval mode: the script's own word stands.
    frozen = Script(after_register=lambda parts: parts.model[1].eval())
    whole = Life(frozen).live()
    assert Life(frozen, replace(whole.served[3], modes={})).live().end == whole.end
