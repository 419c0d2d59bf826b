"""The replicated part of a job in one process: what is registered, where training is, its streams.

Every process holds all of it; at a boundary it is the same in each of them, bit for bit.
"""

import itertools
import marshal
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from easyscale.errors import IncompleteStep, JobConflict, ScriptError
from easyscale.guide import Paragraph
from easyscale.runtime.outer_body import OuterBody
from easyscale.runtime.overrides import Overrides
from easyscale.runtime.randomness import OuterStream, Streams
from easyscale.runtime.registry import Registry
from easyscale.runtime.script_top import Fresh, Taken, modes, set_modes, told, trainable
from easyscale.runtime.settings import JobSettings
from easyscale.runtime.state import (
    Moment,
    Place,
    State,
    captured,
    passed_values,
    plain_value,
    restore,
)
from easyscale.runtime.timing import Timing

if TYPE_CHECKING:
    from easyscale.runtime.recorder import Recorder


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """A line of the user's script."""

    file: str
    line: int

    @classmethod
    def of_caller(cls, depth: int = 2) -> "SourcePlace":
        frame = sys._getframe(depth)  # noqa: SLF001 - `inspect.stack` reads files, milliseconds
        return cls(frame.f_code.co_filename, frame.f_lineno)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(slots=True)
class OpenStep:
    """The step that the script is in, from its begin at the boundary to the next one."""

    number: int
    began_at: SourcePlace
    #: None where nobody will ask for it.
    before_top: "BeforeTop | None" = None
    complete: bool = False


@dataclass(frozen=True, slots=True)
class BeforeTop:
    """What the top of a step may change, as it was at the boundary."""

    stream: OuterStream
    user: "_Kept"


@dataclass(slots=True)
class Training:
    """What boundary, step, evaluation and snapshot all work on."""

    settings: JobSettings
    device: torch.device
    say: Callable[[str], None]
    streams: Streams
    place: Place = field(default_factory=Place)
    registry: Registry | None = None
    user: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    #: None outside of steps.
    step: OpenStep | None = None
    #: Inside `job.epochs`, and after the training loader was begun in the running epoch.
    epoch_open: bool = False
    pass_open: bool = False
    #: The line at which the script left the loop over the epochs before its end, if it did.
    left_at: tuple[str, int] | None = None
    #: It was an exception or `sys.exit`, not `break` or `return`.
    left_by_exception: bool = False
    #: What `epochs` was called with, and the length of the loader: None until known.
    epochs: int | None = None
    steps_per_epoch: int | None = None
    batch_size: int | None = None
    #: Evaluations since the last boundary: part of the key of their randomness.
    evaluations: int = 0
    timing: Timing = field(default_factory=Timing)
    #: Writes down what happens, where runs are compared.
    recorder: "Recorder | None" = None
    _said: set[str] = field(default_factory=set)
    _outer_body: OuterBody | None = None
    #: From the begin of `register` until it returns.
    _in_register: bool = False
    #: What `register` returned with, until the first step: nothing of it may be written.
    _fresh: Fresh | None = None
    _passed: dict[str, Any] = field(default_factory=dict)
    #: Set when a state was taken. Until it is put back the script's top runs as it would in a
    #: fresh process.
    _taken: Taken | None = None

    @property
    def things(self) -> Registry:
        """What is registered; raises ScriptError before `register`."""
        if self.registry is None:
            raise ScriptError(
                "training begins before job.register: there is nothing to keep equal",
                hint="job.register(model=model, optimizer=optimizer) before the loop",
            )
        return self.registry

    @property
    def fixed(self) -> dict[str, Any]:
        settings = self.settings
        return {
            "logical_workers": settings.logical_workers,
            "seed": settings.seed,
            "determinism": settings.determinism.value,
            "threads_per_worker": settings.threads_per_worker,
        }

    @property
    def in_operations(self) -> bool:
        """Whether an evaluation is something that all members complete together.

        Not before the first step that this process takes part in: one that restored or joined runs
        the top of the script, which the others have left behind. Not after the loop either.
        """
        return self.epoch_open and self._taken is None

    @property
    def total_steps(self) -> int | None:
        if self.epochs is None or self.steps_per_epoch is None:
            return None
        return self.epochs * self.steps_per_epoch

    def say_once(self, text: str) -> None:
        """Say a line that would be the same each time."""
        if text not in self._said:
            self._said.add(text)
            self.say(text)

    def register(self, objects: dict[str, object]) -> None:
        """Take in what the script trains; raises ScriptError for what cannot be kept equal."""
        if self.registry is not None:
            raise ScriptError(
                "job.register was called a second time; the state is restored by the first call",
                hint="name everything in one job.register(...)",
            )
        self.registry = Registry.of(objects)
        self._passed = passed_values(self.registry)
        self._in_register = True

    def note_registered(self) -> None:
        """`register` returns: in a start nothing of it is written until the first step."""
        self._in_register = False
        if self._taken is None:
            self._fresh = Fresh.of(self.things)

    # --- the way through the job -----------------------------------------------------------------

    def open_epoch(self) -> None:
        """Begin an epoch: what was captured between epochs is due before what it does first."""
        self.epoch_open, self.pass_open = True, False
        if self._taken is not None and self._taken.is_between_epochs:
            self._put_back(self._taken)

    def _put_back(self, taken: Taken) -> None:
        """Values of this script alone, which the state does not know, stay."""
        self._put_back_registered(taken)
        self.streams.restore(taken.stream)
        _set_in_place(self.user, self.user | _copied(taken.user))
        self._taken = None

    def _put_back_registered(self, taken: Taken, *, top: bool = False) -> None:
        written = taken.put_back(self.things)
        if written is not None and taken.tells:
            self.say(told(written, self.things, top=top))
            taken.tells = False

    def open_step(self, began_at: SourcePlace, *, is_shared: bool = True) -> OpenStep:
        """Begin the next step: the safe point has been passed.

        Others may ask for the state of this boundary while it goes on, where it `is_shared`.
        """
        if self._fresh is not None:
            self._fresh.refuse_writes()
            self._fresh = None
        self.things.refuse_new_groups()
        if (taken := self._taken) is not None:
            self._put_back(taken)
            if taken.moment is Moment.STEP:  # what the top of this step does is in it already
                self._taken = taken
        self.evaluations = 0
        self.step = OpenStep(self.place.step, began_at)
        if is_shared:
            self.step.before_top = BeforeTop(self.streams.capture(), _Kept.of(self.user))
        return self.step

    def begin_inner_loop(self) -> None:
        """The top of the open step is over."""
        if (taken := self._taken) is not None:
            self._put_back_registered(taken, top=True)
            self._taken = None

    def require_complete_step(self) -> None:
        """Raise IncompleteStep where the script left the inner loop before its end."""
        if self.step is not None and not self.step.complete:
            raise IncompleteStep(
                f"step {self.step.number} is incomplete: its inner loop at {self.step.began_at} "
                "was left before its last micro-step",
                hint="let `for batch in step` run to its end, and leave the outer loop after it",
            )

    def watch_outer_body(self, *, by_a_loop: bool) -> None:
        """No micro-step of the open step left a gradient; `by_a_loop` as in `Asked`."""
        assert self.step is not None
        self._outer_body = OuterBody(
            self.things.parameters.values(),
            loop=f"step {self.step.number}, the inner loop at {self.step.began_at},",
            by_a_loop=by_a_loop,
            say=self.say,
        )

    def close_step(self) -> None:
        """Count the step that the script has gone through, outer body included."""
        self.require_complete_step()
        if self._outer_body is not None:
            self._outer_body.close()
            self._outer_body = None
        if self.step is not None:
            self.step = None
            place = self.place
            self.place = replace(place, step=place.step + 1, index=place.index + 1)

    def close_pass(self) -> None:
        """The loader has no more steps in this epoch; who took a state at its end had none here."""
        self.close_step()
        if self._taken is not None:
            self._put_back(self._taken)

    def close_epoch(self, epoch: int) -> None:
        self.close_step()
        if self._fresh is not None and not self.pass_open:
            self._fresh.refuse_training_without_steps(epoch)
        self.place = replace(self.place, epoch=epoch + 1, index=0)
        self.pass_open = False

    def close_epochs(self) -> None:
        """The loop over epochs is over: who took a state by then had none of them."""
        if self._taken is not None:
            self._put_back(self._taken)

    def refuse_end_at_top(self) -> None:
        """Raise ScriptError where the script ends its loop before the step that it joined for."""
        taken = self._taken
        if taken is None or taken.tells or self.place.finished or taken.moment is Moment.END:
            return
        raise ScriptError(
            f"the loop was left at the top of epoch {self.place.epoch}, before step "
            f"{self.place.step}, which the others have come to: a process that joins runs that top "
            "again",
            hint="what ends the loop is counted at the end of an epoch's body",
            see=Paragraph.STATE,
        )

    def count_operation(self, *, finished: bool = False) -> None:
        """One more operation is complete: its result is held here."""
        place = self.place
        self.place = replace(place, position=place.position + 1, finished=finished)

    # --- the state -------------------------------------------------------------------------------

    def capture(self) -> State:
        """Copy everything at a boundary; what was taken is passed on as long as it is not due."""
        registry, taken = self.things, self._taken
        return State(
            place=self.place,
            fixed=self.fixed,
            objects=captured(registry) if taken is None else taken.objects,
            trainable=trainable(registry) if taken is None else taken.trainable,
            passed=dict(self._passed),
            user=_copied(self.user if taken is None else self.user | taken.user),
            metrics=dict(self.metrics),
            outer_stream=(self.streams.capture() if taken is None else taken.stream).to_plain(),
            data=dict(self.data),
            moment=self._moment,
            modes=modes(registry) if taken is None else taken.modes,
        )

    @property
    def _moment(self) -> Moment:
        if self._taken is not None:
            return self._taken.moment
        if self._in_register:
            return Moment.START
        is_over = self.epochs is not None and not self.epoch_open
        return Moment.END if is_over else Moment.BOUNDARY

    def restore(
        self, state: State, *, override: Iterable[str] = (), is_joining: bool = False
    ) -> None:
        """Become what `state` says; a difference in what the script passes now is named."""
        self._refuse_other_job(state)
        registry = self.things
        kept = Overrides(registry, tuple(override))
        restore(registry, state.objects)
        for path, is_trained in state.trainable.items():
            if path in registry.parameters and registry.parameters[path].is_leaf:
                registry.parameters[path].requires_grad_(is_trained)
        set_modes(registry, state.modes)
        self._name_differences(state.passed, kept)
        kept.apply()
        self._passed = {
            **state.passed,
            **{name: self._passed[name] for name in kept.names(self._passed)},
        }
        _set_in_place(self.user, _copied(state.user))
        self.metrics.clear()
        self.metrics.update(state.metrics)
        self.data = dict(state.data)
        self.place = state.place
        self.step = None
        self._fresh, self._taken = None, None
        if state.moment is Moment.START:  # the top is run by everybody, from here on
            self.streams.restore(OuterStream.from_plain(state.outer_stream))
        else:
            self._taken = Taken.of(state, registry, overridden=kept.owners, tells=not is_joining)

    def keep_data_equal(self, data: dict[str, Any]) -> None:
        """Refuse a loader that gives other samples than the one the job began with."""
        for name, value in data.items():
            before = self.data.get(name, value)
            if before != value:
                raise ScriptError(
                    f"the training loader has {name} = {value}; this job began with {before}, and "
                    "its place in the data would not mean the same",
                    hint=f"{name}={before}, or a new job: --job-id NAME",
                )
        self.data = data

    def _refuse_other_job(self, state: State) -> None:
        flags = {
            "threads_per_worker": "--threads-per-worker",
            "logical_workers": "--logical-workers",
        }
        for name, value in self.fixed.items():
            before = state.fixed[name]
            if before != value:
                flag = flags.get(name, f"--{name}")
                label = name.replace("_", " ")
                raise JobConflict(
                    f"this job has {label} {before} for life; {value} would change its bits",
                    hint=f"{flag} {before}, or a new job: --job-id NAME",
                )

    def _name_differences(self, before: dict[str, Any], kept: Overrides) -> None:
        for name, value in self._passed.items():
            if name in before and before[name] != value and not kept.has(name):
                self.say(
                    f"{name}: the restored value stands; the job began with {before[name]}, the "
                    f'script passes {value}. register(..., override=["{name}"]) takes it'
                )


@dataclass(frozen=True, slots=True)
class _Kept:
    """A copy of `job.state`, made in each step and hardly ever looked at: mostly as bytes."""

    copy: bytes | dict[str, Any]

    @classmethod
    def of(cls, user: dict[str, Any]) -> "_Kept":
        try:
            return cls(marshal.dumps(user))
        except ValueError:  # values of NumPy and enums: they become plain
            return cls(_copied(user))

    def values(self) -> dict[str, Any]:
        if isinstance(self.copy, bytes):
            return _copied(marshal.loads(self.copy))  # noqa: S302 - never left this process
        return _copied(self.copy)


def _copied(user: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plain_value(name, value) for name, value in user.items()}


def _set_in_place(value: Any, to: Any) -> Any:  # noqa: ANN401 - a value of `job.state`
    """Make `value` equal `to`; lists and dicts stay those that the script may hold on to."""
    match value, to:
        case dict(), dict():
            new = {key: _set_in_place(value.get(key), each) for key, each in to.items()}
            value.clear()
            value.update(new)
        case list(), list():
            pairs = itertools.zip_longest(value[: len(to)], to)
            value[:] = [_set_in_place(own, each) for own, each in pairs]
        case _:
            return to
    return value
