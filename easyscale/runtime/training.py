"""The replicated part of a job in one process: what is registered, where training is, its streams.

Every process holds all of it; at a boundary it is the same in each of them, bit for bit.
"""

import marshal
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from easyscale.errors import IncompleteStep, JobConflict, ScriptError
from easyscale.guide import Paragraph
from easyscale.runtime.outer_body import OuterBody
from easyscale.runtime.randomness import OuterStream, Streams
from easyscale.runtime.registry import Registry
from easyscale.runtime.settings import JobSettings
from easyscale.runtime.state import Place, State, captured, passed_values, plain_value, restore
from easyscale.runtime.timing import Timing
from easyscale.runtime.versions import Versions

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
    #: As it was at the boundary, before what the script does at the top of the step.
    stream: OuterStream
    user: "_Kept"
    complete: bool = False


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
    #: What `register` returned with, until the first step: nothing of it may be written.
    _registered: "_Registered | None" = None
    _passed: dict[str, Any] = field(default_factory=dict)
    #: Set when a state was restored. Until it is put back the script's top runs as it would in a
    #: fresh process.
    _pending: "_Pending | None" = None

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
        return self.epoch_open and self._pending is None

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

    def note_registered(self) -> None:
        """`register` returns: what is written until the first step would be lost elsewhere."""
        self._registered = _Registered.of(self.things)

    # --- the way through the job -----------------------------------------------------------------

    def open_epoch(self) -> None:
        """Begin an epoch: what was captured between epochs is due before what it does first."""
        self.epoch_open, self.pass_open = True, False
        if self._pending is not None and self._pending.is_between_epochs:
            self._put_back(self._pending)

    def _put_back(self, pending: "_Pending") -> None:
        """Values of this script alone, which the state does not know, stay."""
        self.streams.restore(pending.stream)
        self.user.update(_copied(pending.user))
        self._pending = None

    def open_step(self, began_at: SourcePlace) -> OpenStep:
        """Begin the next step: the safe point has been passed."""
        if self._registered is not None:
            self._registered.refuse_writes()
            self._registered = None
        self.things.refuse_new_groups()
        if self._pending is not None:
            self._put_back(self._pending)
        self.evaluations = 0
        self.step = OpenStep(
            self.place.step, began_at, stream=self.streams.capture(), user=_Kept.of(self.user)
        )
        return self.step

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

    def close_epoch(self, epoch: int) -> None:
        self.close_step()
        if self._registered is not None and not self.pass_open:
            self._registered.refuse_training_without_steps(epoch)
        self.place = replace(self.place, epoch=epoch + 1, index=0)
        self.pass_open = False

    def count_operation(self, *, finished: bool = False) -> None:
        """One more operation is complete: its result is held here."""
        place = self.place
        self.place = replace(place, position=place.position + 1, finished=finished)

    # --- the state -------------------------------------------------------------------------------

    def capture(self) -> State:
        """Copy everything at a boundary."""
        registry = self.things
        pending = self._pending
        return State(
            place=self.place,
            fixed=self.fixed,
            objects=captured(registry),
            trainable={
                path: parameter.requires_grad for path, parameter in registry.parameters.items()
            },
            passed=dict(self._passed),
            user=_copied(self.user if pending is None else self.user | pending.user),
            metrics=dict(self.metrics),
            outer_stream=(self.streams.capture() if pending is None else pending.stream).to_plain(),
            data=dict(self.data),
        )

    def restore(self, state: State, *, override: Iterable[str] = ()) -> None:
        """Become what `state` says; a difference in what the script passes now is named."""
        self._refuse_other_job(state)
        registry = self.things
        kept = _Overrides(registry, tuple(override))
        restore(registry, state.objects)
        for path, trainable in state.trainable.items():
            if path in registry.parameters and registry.parameters[path].is_leaf:
                registry.parameters[path].requires_grad_(trainable)
        self._name_differences(state.passed, kept)
        kept.apply()
        self._passed = {
            **state.passed,
            **{name: self._passed[name] for name in kept.names(self._passed)},
        }
        self.user.clear()
        self.user.update(state.user)
        self.metrics.clear()
        self.metrics.update(state.metrics)
        self.data = dict(state.data)
        self.place = state.place
        self.step = None
        self._pending = _Pending(
            OuterStream.from_plain(state.outer_stream),
            _copied(state.user),
            is_between_epochs=state.place.finished,
        )

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

    def _name_differences(self, before: dict[str, Any], kept: "_Overrides") -> None:
        for name, value in self._passed.items():
            if name in before and before[name] != value and not kept.has(name):
                self.say(
                    f"{name}: the restored value stands; the job began with {before[name]}, the "
                    f'script passes {value}. register(..., override=["{name}"]) takes it'
                )


@dataclass(frozen=True, slots=True)
class _Pending:
    """What the script's top must not change: who was there at the boundary had run it before.

    Captured at a boundary of an epoch, it is due at the next step; at the end of the loop over
    epochs, before the next epoch: whatever that one does first has been done by nobody.
    """

    #: What the outer code draws from.
    stream: OuterStream
    #: `job.state`.
    user: dict[str, Any]
    is_between_epochs: bool


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


@dataclass(frozen=True, slots=True)
class _Registered:
    """The registered state as `register` returned with it."""

    registry: Registry
    versions: Versions
    passed: dict[str, Any]

    @classmethod
    def of(cls, registry: Registry) -> "_Registered":
        return cls(registry, Versions(registry.trained_tensors), passed_values(registry))

    def first_written(self) -> str | None:
        written = self.versions.first_written()
        if written is None:
            now = passed_values(self.registry)
            written = next((name for name in now if now[name] != self.passed.get(name)), None)
        return written

    def refuse_training_without_steps(self, epoch: int) -> None:
        """Raise ScriptError where an epoch trained with a loop that is none of the job's."""
        written = self.first_written()
        if written is not None:
            raise ScriptError(
                f"{written} was written in epoch {epoch}, which went through no loader of this "
                "job: every process has trained on all of the data, and no step was counted",
                hint="for step in job.loader(dataset, batch_size=...), in place of a DataLoader",
                see=Paragraph.LOOPS,
            )

    def refuse_writes(self) -> None:
        """Raise ScriptError where the script has written between `register` and the first step."""
        written = self.first_written()
        if written is not None:
            raise ScriptError(
                f"{written} was written between job.register and the first step: a process that "
                "joins or goes on from a snapshot has its value by then, and would lose it",
                hint="do it before job.register",
                see=Paragraph.STATE,
            )


class _Overrides:
    """Values of the script that win over the restored ones: `override=["optimizer.lr"]`."""

    def __init__(self, registry: Registry, names: tuple[str, ...]) -> None:
        self._registry = registry
        self._names = names
        self._fields: list[tuple[Any, str, Any]] = []
        for name in names:
            owner, _, key = name.partition(".")
            if owner in registry.optimizers and key:
                self._keep_groups(owner, key, name)
            elif owner in registry.stateful and key in registry.stateful[owner].state_dict():
                thing = registry.stateful[owner]
                self._fields.append((thing, key, thing.state_dict()[key]))
            else:
                raise ScriptError(
                    f"register(override=[{name!r}]) names no value of a registered optimizer or "
                    "scheduler",
                    hint='override=["optimizer.lr"]',
                )

    def has(self, name: str) -> bool:
        return name.partition("[")[0] in self._names

    def names(self, passed: dict[str, Any]) -> list[str]:
        return [name for name in passed if self.has(name)]

    def apply(self) -> None:
        for thing, key, value in self._fields:
            thing.load_state_dict({**thing.state_dict(), key: value})

    def _keep_groups(self, owner: str, key: str, name: str) -> None:
        # load_state_dict makes new group dicts, hence the index instead of the dict.
        optimizer = self._registry.optimizers[owner]
        for index, group in enumerate(optimizer.param_groups):
            if key not in group:
                raise ScriptError(f"register(override=[{name!r}]): {owner} has no value {key!r}")
            self._fields.append((_Group(optimizer, index), key, group[key]))
            if key == "lr" and "initial_lr" in group:
                self._fields.append((_Group(optimizer, index), "initial_lr", group["initial_lr"]))
        for thing in self._registry.stateful.values():
            # A scheduler goes on from the rate that it began with, so it must begin anew.
            if key == "lr" and getattr(thing, "optimizer", None) is optimizer:
                state = thing.state_dict()
                self._fields += [
                    (thing, "base_lrs", state[own]) for own in state if own == "base_lrs"
                ]


@dataclass(frozen=True, slots=True)
class _Group:
    """One parameter group, with the two methods that values are set through."""

    optimizer: torch.optim.Optimizer
    index: int

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.param_groups[self.index]

    def load_state_dict(self, values: dict[str, Any]) -> None:
        self.optimizer.param_groups[self.index].update(values)
