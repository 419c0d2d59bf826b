"""One global step: its logical workers in turn, then the mean of their gradients.

The inner loop of a script is this file: each `next()` takes the gradients of the micro-step before
and seeds the next one; the last `next()` puts the reduced gradients in place.
"""

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from easyscale.errors import ScriptError
from easyscale.guide import Paragraph
from easyscale.model import GenerationNumber, Span
from easyscale.runtime.exchange import Exchange, Note
from easyscale.runtime.group import Wait
from easyscale.runtime.headers import Operation, OperationKind
from easyscale.runtime.metrics import Means, RankReport, Reports, Scalar, checked
from easyscale.runtime.outer_body import Asked
from easyscale.runtime.overlap import Overlap
from easyscale.runtime.partials import Partials, divide
from easyscale.runtime.randomness import OuterStream, key
from easyscale.runtime.record import Record
from easyscale.runtime.registry import refuse_sparse
from easyscale.runtime.state import Moment, State
from easyscale.runtime.steering import steering_text
from easyscale.runtime.training import OpenStep, SourcePlace, Training
from easyscale.runtime.versions import Versions

if TYPE_CHECKING:
    from easyscale.runtime.team import Team

#: Serves the batch of a logical rank.
Fetch = Callable[[int], Any]


class StepWork:
    """What this process holds of a step until the mean is known."""

    kind = OperationKind.STEP

    def __init__(self, training: Training, *, shared: bool) -> None:
        registry = training.things
        self._training = training
        self._n = training.settings.logical_workers
        self._parameters = list(registry.parameters.values())
        self._slots = registry.buffers
        self.todo: list[int] = []
        self.is_complete = False
        self.partials = Partials(self._n, offload=training.settings.offload_partials)
        self.reports = Reports()
        #: Buffers as they were at the boundary, which every micro-step starts from.
        self.boundary_buffers: list[torch.Tensor] | None = None
        #: Logical rank 0's, which are kept.
        self.kept_buffers: list[torch.Tensor] | None = None
        self.outer_stream: OuterStream = training.streams.capture()
        #: Watches the last micro-step here, whose backward hides the exchange.
        self._overlap: Overlap | None = None
        self.means: Means | None = None
        #: Whether any logical worker left a gradient; known with the result.
        self.has_gradients = False
        self._checked_layout = False
        self._versions = Versions(registry.parameters)
        self._forms = [_form(slot.tensor) for slot in self._slots]
        if self._slots and (shared or self._n > 1):
            self.boundary_buffers = [slot.tensor.clone() for slot in self._slots]
        self.clear_gradients()

    @property
    def held(self) -> tuple[Span, ...]:
        return self.partials.held

    def drop(self, spans: Iterable[Span]) -> None:
        spans = tuple(spans)
        self.partials.drop(spans)
        ranks = {rank for span in spans for rank in range(span.lo, span.hi)}
        self.reports.drop(ranks)
        if 0 in ranks:
            self.kept_buffers = None

    @property
    def is_watched(self) -> bool:
        """Whether the exchange knows of the last micro-step here."""
        return self._overlap is not None

    def watch(self, exchange: Exchange, operation: Operation, rank: int | None) -> None:
        """Let the exchange begin while the last micro-step here runs, where all members do."""
        self._overlap = exchange.overlap(
            operation,
            self.partials,
            rank=rank,
            factor=1.0 / self._n,
            parameters=self._parameters,  # type: ignore[arg-type]  # leaf tensors have the hooks too
        )
        self._overlap.__enter__()

    def at_boundary(self, state: State) -> State:
        """Put back what the script has changed since, in a state that was captured.

        Buffers in the micro-steps; `job.state` and the random stream at the top of the step, too.
        What was written there to anything registered stays in it: see `Moment.STEP`.
        """
        step = self._training.step
        assert step is not None
        before = step.before_top
        assert before is not None, "asked for by others, so shared with them"
        objects = dict(state.objects)
        for slot, value in zip(self._slots, self.boundary_buffers or (), strict=False):
            name, _, path = slot.path.partition(".")
            objects[name] = {**objects[name], path: value.detach().to("cpu", copy=True)}
        return replace(
            state,
            objects=objects,
            outer_stream=before.stream.to_plain(),
            user=before.user.values(),
            moment=Moment.STEP,
        )

    def clear_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def finish(self, rank: int) -> None:
        """Take what a micro-step left: its gradients, and logical rank 0's buffers."""
        if not self._checked_layout:
            refuse_sparse(self._training.things.parameters)
            self._checked_layout = True
        if not self.todo:
            self._refuse_writes()
        self._refuse_new_forms()
        gradients = [parameter.grad for parameter in self._parameters]
        self.clear_gradients()
        weight = self.reports.weight(rank)
        factor = 1.0 / self._n if weight is None else weight
        if self._overlap is not None and self._overlap.rank == rank:
            self._overlap.__exit__(None, None, None)
            # Given away with the factor of an unweighted step: it is exchanged again then.
            self._overlap.is_dirty |= weight is not None
            self.partials.defer(rank, gradients, factor=factor)
        else:
            self.partials.push(rank, gradients, factor=factor)
        if self.boundary_buffers is not None:
            if rank == 0:
                self.kept_buffers = [slot.tensor.clone() for slot in self._slots]
            self._set_buffers(self.boundary_buffers)

    def _refuse_writes(self) -> None:
        """Refuse what each process would do for its own micro-steps only."""
        written = self._versions.first_written()
        if written is not None:
            raise ScriptError(
                f"{written} was written in the inner loop of step {self._training.place.step}, "
                "of which each process runs only its own micro-steps",
                hint="optimizer.step() after `for batch in step`, once for all logical workers",
                see=Paragraph.LOOPS,
            )

    def _refuse_new_forms(self) -> None:
        for slot, before in zip(self._slots, self._forms, strict=True):
            if (form := _form(slot.tensor)) != before:
                raise ScriptError(
                    f"the buffer {slot.path} was {_words(before)} when step "
                    f"{self._training.place.step} began and is {_words(form)} now: a buffer keeps "
                    "its form, since every process holds it",
                    hint="give it its final size from the start, or keep it out of the buffers",
                    see=Paragraph.STATE,
                )

    def finish_alone(self) -> None:
        means = Means(self.reports.settle(range(self._n)), self._n)
        gradients = self.partials.take()
        if means.weighted:
            divide(gradients, means.total_weight)
        self.publish(
            gradients=gradients,
            buffers=self.kept_buffers,
            means=means,
        )

    def exchange(
        self, exchange: Exchange, operation: Operation, *, newest: GenerationNumber, wait: Wait
    ) -> Record:
        ranks = self.partials.ranks
        said = self.reports.settle(ranks)
        note = Note(
            newest=newest,
            weighted=any(report.weight is not None for report in said),
            steering=self._steering(),
            payload=msgspec.json.encode(said),
        )
        buffers = self.kept_buffers if 0 in ranks else None
        return exchange.step(operation, self.partials, note, buffers=buffers, wait=wait)

    def _steering(self) -> bytes:
        # Where runs are compared, a difference is to be looked into and not refused.
        training = self._training
        if training.recorder is not None:
            return b""
        return steering_text(training.things, step=training.place.step)

    def adopt(self, record: Record) -> None:
        said = [
            report
            for payload in record.payloads
            for report in msgspec.json.decode(payload, type=list[RankReport])
        ]
        means = Means(said, self._n)
        if means.weighted:
            record.divide_(means.total_weight)
        self.partials.clear()
        self.publish(
            gradients=record.gradients([parameter.device for parameter in self._parameters]),
            buffers=record.buffers([slot.tensor.device for slot in self._slots]),
            means=means,
        )

    def publish(
        self,
        *,
        gradients: list[torch.Tensor | None],
        buffers: list[torch.Tensor] | None,
        means: Means,
    ) -> None:
        """Put the reduced mean and rank 0's buffers where the outer body finds them."""
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
            self.has_gradients |= gradient is not None
        if buffers:
            self._set_buffers(buffers)
        self.means = means
        self.is_complete = True
        self._training.streams.restore(self.outer_stream)
        self._training.metrics.clear()
        self._training.metrics.update(means.values)
        if self._training.recorder is not None:
            self._training.recorder.reduced(self._training.place.step)

    def _set_buffers(self, values: list[torch.Tensor]) -> None:
        with torch.no_grad():
            torch._foreach_copy_([slot.tensor for slot in self._slots], values)


class Step:
    """One global step; iterating over it goes through this process's logical workers.

    `number` counts the steps of the whole job from 0, `index` those of the epoch; `rank` is the
    logical rank of the micro-step that runs.
    """

    def __init__(
        self, *, training: Training, team: "Team", index: int, opened: OpenStep, fetch: Fetch
    ) -> None:
        self.number = opened.number
        self.index = index
        self._training = training
        self._team = team
        self._opened = opened
        self._fetch = fetch
        self._work: StepWork | None = None
        self._rank: int | None = None
        self._asked = Asked()

    @property
    def rank(self) -> int:
        if self._rank is None:
            raise ScriptError("step.rank is known inside the inner loop: `for batch in step`")
        return self._rank

    def report(self, **values: Scalar) -> None:
        """Say numbers of this micro-step; their means are known when the inner loop has ended."""
        checked(values)
        self._running("step.report").reports.add(
            self.rank, {name: _kept(value) for name, value in values.items()}
        )

    def weight(self, weight: float | torch.Tensor) -> None:
        """Let this micro-step count `weight` times, as with a mean over tokens."""
        number = float(weight)
        if not (math.isfinite(number) and number >= 0):
            raise ScriptError(f"step.weight({number}) is no weight: it takes a number from 0 up")
        self._running("step.weight").reports.weigh(self.rank, number)

    def mean(self, name: str) -> float:
        """The mean over all logical workers of what was reported under `name`."""
        means = None if self._work is None else self._work.means
        if means is None:
            raise ScriptError(f"step.mean({name!r}) is known once the inner loop has ended")
        if name not in means.values:
            known = ", ".join(means.values) or "nothing"
            raise ScriptError(f"step.mean({name!r}): this step reported {known}")
        return means.values[name]

    def __iter__(self) -> Iterator[Any]:
        if self._work is not None:
            raise ScriptError(f"step {self.number} is iterated over a second time")
        self._opened.began_at = SourcePlace.of_caller()
        self._training.begin_inner_loop()
        self._work = StepWork(self._training, shared=self._team.is_launched)
        self._team.begin(self._work)
        return self

    def __next__(self) -> Any:  # noqa: ANN401 - whatever the dataset and collate_fn make
        work = self._work
        if work is None:
            raise ScriptError(f"step {self.number} is gone through with `for batch in step`")
        if self._opened.complete:
            raise StopIteration
        self._asked.note(sys._getframe(1))  # noqa: SLF001 - which instruction of the script asks
        training = self._training
        timing, recorder = training.timing, training.recorder
        if self._rank is not None:
            if recorder is not None:
                recorder.end(work.reports.settle((self._rank,))[0].values)
            work.finish(self._rank)
            self._rank = None
            if recorder is not None and not work.todo:
                recorder.micro_steps_done(self.number)
            timing.end_micro_step()
        rank = self._team.next_rank(work)
        if rank is None:
            self._opened.complete = True
            timing.end_step()
            if not work.has_gradients:
                training.watch_outer_body(by_a_loop=self._asked.is_by_a_loop)
            raise StopIteration
        began_s = time.monotonic()
        batch = self._fetch(rank)
        timing.add_data(time.monotonic() - began_s)
        timing.begin_micro_step()
        training.streams.seed(key(training.settings.seed, "compute", self.number, rank))
        self._rank = rank
        if recorder is not None:
            recorder.begin(self.number, rank, batch)
        return batch

    def _running(self, call: str) -> StepWork:
        if self._work is None or self._rank is None:
            raise ScriptError(f"{call} belongs into the inner loop: `for batch in step`")
        return self._work


def _form(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


def _words(form: tuple[torch.Size, torch.dtype]) -> str:
    shape, dtype = form
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


def _kept(value: Scalar) -> Scalar:
    """A number now on a CPU; on a device a copy, so that nobody waits for it here."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.item() if value.device.type == "cpu" else value.detach().clone()
