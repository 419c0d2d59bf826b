"""Writes down what a worker is given and what comes of it, so that two runs can be compared.

Off by default: nothing but `verify` and `doctor` asks for it. It looks and never touches: a run
that is written down has the digest of one that is not.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from easyscale.errors import EasyScaleError
from easyscale.pulse import Phase
from easyscale.recording import (
    SUFFIX,
    Began,
    Boundary,
    Entry,
    Evaluated,
    Kept,
    Loader,
    MicroStep,
    Point,
    Recording,
    Reduced,
    Run,
    Stage,
    encode_entry,
    read_run,
    result_name,
    state_value,
)
from easyscale.runtime.fingerprint import fingerprint, items_of
from easyscale.runtime.operators import OperatorLog
from easyscale.runtime.outside import Outside, tensor_bytes, value_digest
from easyscale.runtime.registry import Registry

if TYPE_CHECKING:
    from easyscale.runtime.session import Session

#: How long a worker waits at a gate for the generation that is due there.
_GATE_S = 60.0
_LOOK_S = 0.002
#: So many things of a stage are kept whole where a run first differs.
_MOST_KEPT = 3
#: What the files of a run may hold in whole tensors, per process.
_KEPT_BYTES = 256 * 1024 * 1024

Values = Mapping[str, Any]


class GateClosed(EasyScaleError):
    """Raised in a compared run when the change that is due at a step does not come."""

    code = "gate_closed"


class Recorder:
    """One worker's record; every method is called from its main thread."""

    def __init__(
        self,
        settings: Recording,
        *,
        session: "Session",
        registry: Callable[[], Registry],
        user: Mapping[str, Any],
    ) -> None:
        self._settings = settings
        self._session = session
        self._registry = registry
        self._user = user
        self._folder = Path(settings.folder)
        worker = session.worker
        self._stem = f"{worker.node}-{worker.slot}.{worker.spawn}".replace("/", "-")
        self._file = (self._folder / f"{self._stem}{SUFFIX}").open("ab", buffering=0)
        self._reference: Run | None = None
        self._outside: Outside | None = None
        self._told: dict[str, str] = {}
        self._micro_step: MicroStep | None = None
        self._kept_stages: set[Stage] = set()
        self._kept_bytes = 0
        self._began_s = 0.0
        self._operators: OperatorLog | None = None
        script = getattr(sys.modules["__main__"], "__file__", None) or ""
        self._script_folder = Path(script).absolute().parent
        self._write(Began(worker=str(worker), script=script))
        if settings.operators_outside:
            # On from here to the end, and off for a while: what the script enters and leaves
            # itself stands above it.
            self._enter_log()

    # --- what the loop calls ---------------------------------------------------------------------

    def loader_workers(self, asked: int) -> int:
        """How many loader workers serve the script's batches in this run."""
        other = self._settings.other_loader_workers
        used = asked if other is None else (0 if asked else other)
        self._write(Loader(asked_workers=asked, used_workers=used))
        return used

    def begin(self, step: int, rank: int, batch: object) -> None:
        """A micro-step is about to run: its batch is here, its streams are seeded."""
        self._stop_operators()
        if self._outside is None:
            self._outside = Outside(self._registry(), self._script_folder)
        found = self._outside.look(sys._getframe(2))  # noqa: SLF001 - the caller's caller
        texts = {path: thing.text for path, thing in found.items()}
        batches = dict(_tensors(batch, "batch"))
        self._micro_step = MicroStep(
            step=step,
            rank=rank,
            batch=fingerprint(batch),
            reports={},
            gradients={},
            outside=_changes(self._told, texts),
        )
        self._told = texts
        reference = self._reference_of(step, rank)
        if reference is not None and reference.batch != self._micro_step.batch:
            self._keep_first(Stage.BATCH, step, rank, batches)
        tensors = {path: thing.tensor for path, thing in found.items() if thing.tensor is not None}
        self._keep_unequal_outside(step, rank, texts, tensors)
        self._keep_wanted(Stage.BATCH, step, rank, batches)
        self._keep_wanted(Stage.OUTSIDE, step, rank, tensors)
        self._began_s = time.monotonic()
        if self._settings.operators_of == (step, rank):
            self._log_operators(rank=rank)

    def end(self, reports: Mapping[str, str]) -> None:
        """The micro-step that has begun is done; its gradients lie where autograd left them."""
        seconds = time.monotonic() - self._began_s
        self._stop_operators()
        begun, self._micro_step = self._micro_step, None
        assert begun is not None
        gradients = self._gradients()
        digests = {name: fingerprint(value) for name, value in gradients.items()}
        step, rank = begun.step, begun.rank
        reference = self._reference_of(step, rank)
        if reference is not None:
            unequal = [name for name in digests if digests[name] != reference.gradients.get(name)]
            self._keep_first(
                Stage.GRADIENT, step, rank, {name: gradients[name] for name in unequal}
            )
        self._keep_wanted(Stage.GRADIENT, step, rank, gradients)
        self._write(
            MicroStep(
                step=step,
                rank=rank,
                batch=begun.batch,
                reports=dict(reports),
                gradients=digests,
                outside=begun.outside,
                seconds=seconds,
            )
        )
        self._log_outside()

    def micro_steps_done(self, step: int) -> None:
        """Nothing is left to compute of a step here; its sums have not been sent."""
        if self._settings.killed_at == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def reduced(self, step: int) -> None:
        """The mean gradients of a step have been put in place."""
        self._stop_operators()
        gradients = self._gradients()
        digests = {name: fingerprint(value) for name, value in gradients.items()}
        if self._run is not None and step in self._run.reduced:
            expected = self._run.reduced[step].gradients
            unequal = {
                name: gradients[name] for name in digests if digests[name] != expected.get(name)
            }
            self._keep_first(Stage.REDUCED, step, -1, unequal)
        self._keep_wanted(Stage.REDUCED, step, -1, gradients)
        self._write(Reduced(step=step, gradients=digests))
        self._log_outside()

    def evaluated(
        self, step: int, number: int, results: Sequence[bytes], decoded: Sequence[object]
    ) -> None:
        """All members have completed an evaluation; `results` as they travel, in sample order."""
        self._stop_operators()
        state = {path: fingerprint(value) for path, value in _state(self._registry())}
        digests = tuple(map(value_digest, results))
        reference = None if self._run is None else self._run.evaluations.get((step, number))
        expected = digests if reference is None else reference.results
        for batch, value in enumerate(decoded):
            name = result_name(number, batch)
            if digests[batch : batch + 1] != expected[batch : batch + 1]:
                self._keep_first(Stage.EVALUATION, step, -1, dict(_tensors(value, name)))
            self._keep_wanted(Stage.EVALUATION, step, -1, dict(_tensors(value, name)))
        self._write(Evaluated(step=step, number=number, state=state, results=digests))
        self._log_outside()

    def boundary(self, step: int) -> bool:
        """Before a step begins: what the state is now; returns whether training ends here."""
        self._stop_operators()
        state = dict(_state(self._registry()))
        for name, value in self._user.items():
            state.update(_leaves(value, state_value(name)))
        digests = {path: fingerprint(value) for path, value in state.items()}
        if self._run is not None and step in self._run.boundaries:
            expected = self._run.boundaries[step].state
            unequal = {path: state[path] for path in digests if digests[path] != expected.get(path)}
            self._keep_first(Stage.STATE, step - 1, -1, unequal)
        # What stands at a boundary was made in the step before it.
        self._keep_wanted(Stage.STATE, step - 1, -1, state)
        self._write(Boundary(step=step, state=digests))
        if step >= self._settings.last_step:
            return True
        self._pass_gate(step)
        self._log_outside()
        return False

    # --- operators -------------------------------------------------------------------------------

    def _enter_log(self) -> OperatorLog:
        self._operators = OperatorLog(self._script_folder, self._write)
        self._operators.__enter__()  # type: ignore[no-untyped-call]
        return self._operators

    def _log_operators(self, *, rank: int) -> None:
        log = self._operators or self._enter_log()
        log.rank, log.is_on = rank, True

    def _log_outside(self) -> None:
        """What follows is the code around the micro-steps."""
        if self._operators is not None:
            self._operators.rank, self._operators.is_on = -1, True

    def _stop_operators(self) -> None:
        """What follows is our own looking around, or nobody's."""
        if self._operators is None:
            return
        self._operators.is_on = False
        if not self._settings.operators_outside:
            self._operators.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._operators = None

    # --- how -------------------------------------------------------------------------------------

    def _pass_gate(self, step: int) -> None:
        due = max((gate.number for gate in self._settings.gates if gate.step <= step), default=0)
        deadline_s = time.monotonic() + _GATE_S
        if due:
            pulse = self._session.pulse
            pulse.beat(Phase.WAITING, position=pulse.read().position, step=step)
        while (newest := self._session.newest) is None or newest.generation.number < due:
            if time.monotonic() > deadline_s:
                raise GateClosed(
                    f"generation {due} was due at step {step}; none came in {_GATE_S} s"
                )
            time.sleep(_LOOK_S)

    @property
    def _run(self) -> Run | None:
        if self._reference is None and self._settings.reference:
            self._reference = read_run(Path(self._settings.reference))
        return self._reference

    def _reference_of(self, step: int, rank: int) -> MicroStep | None:
        return None if self._run is None else self._run.micro_steps.get((step, rank))

    def _gradients(self) -> dict[str, torch.Tensor | None]:
        return {name: thing.grad for name, thing in self._registry().parameters.items()}

    def _keep_unequal_outside(
        self, step: int, rank: int, texts: Mapping[str, str], tensors: Values
    ) -> None:
        if self._run is None or Stage.OUTSIDE in self._kept_stages:
            return
        expected = self._run.outside.get((step, rank), {})
        unequal = {path: tensors[path] for path in tensors if texts[path] != expected.get(path)}
        # At its end a run may be held against one that did not come so far.
        if expected and unequal:
            for path, value in list(unequal.items())[:_ITEMS_OUTSIDE]:
                self._keep(Point(step, Stage.OUTSIDE, rank, path), value)

    def _keep_first(self, stage: Stage, step: int, rank: int, values: Values) -> None:
        """Keep what differs first of a stage; what differs later follows from it."""
        if stage in self._kept_stages or not values:
            return
        self._kept_stages.add(stage)
        for name, value in list(values.items())[:_MOST_KEPT]:
            self._keep(Point(step, stage, rank, name), value)

    def _keep_wanted(self, stage: Stage, step: int, rank: int, values: Values) -> None:
        for point in self._settings.wanted:
            if (point.step, point.stage, point.rank) != (step, stage, rank):
                continue
            for name, value in values.items():
                if name == point.name or name.startswith(f"{point.name}["):
                    self._keep(Point(step, stage, rank, name), value)

    def _keep(self, point: Point, value: object) -> None:
        if isinstance(value, (bool, int, float)):
            value = torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
        if not isinstance(value, torch.Tensor):
            return
        data = tensor_bytes(value)
        self._kept_bytes += len(data)
        if self._kept_bytes > _KEPT_BYTES:
            return
        file = f"{self._stem}-{point.step}-{point.stage}-{point.rank}-{self._kept_bytes}.raw"
        (self._folder / file).write_bytes(data)
        dtype = str(value.dtype).removeprefix("torch.")
        self._write(Kept(point=point, dtype=dtype, shape=tuple(value.shape), file=file))

    def _write(self, entry: Entry) -> None:
        self._file.write(encode_entry(entry))


#: Of what differs outside so many tensors are kept each time: the cause is seldom the first.
_ITEMS_OUTSIDE = 8


def _tensors(value: object, path: str) -> Iterable[tuple[str, Any]]:
    """The parts of a nest that can be kept whole, by their path."""
    match value:
        case torch.Tensor() | bool() | int() | float():
            yield path, value
        case Mapping() | list() | tuple():
            for key, item in items_of(value):
                yield from _tensors(item, f"{path}[{key}]")
        case _:
            return


def _state(registry: Registry) -> Iterable[tuple[str, Any]]:
    """What is registered, by the names of a digest; nothing is copied."""
    for name, module in registry.modules.items():
        for path, value in {**dict(module.named_buffers()), **module.state_dict()}.items():
            yield f"{name}.{path}", value
    for name, thing in (*registry.optimizers.items(), *registry.stateful.items()):
        yield from _leaves(thing.state_dict(), name)
    for name, tree in registry.tensors.items():
        yield from _leaves(tree, name)


def _leaves(value: object, path: str) -> Iterable[tuple[str, Any]]:
    if isinstance(value, (Mapping, list, tuple)) and value:
        for key, item in items_of(value):
            yield from _leaves(item, f"{path}.{key}")
    else:
        yield path, value


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    changed = {path: text for path, text in now.items() if before.get(path) != text}
    return changed | {path: "" for path in before if path not in now}
