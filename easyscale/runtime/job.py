"""The user's API: `init` and what it returns.

The job is defined by its N logical workers; which processes run them, and how many there are, is
the launcher's affair and reaches neither this API nor the trained weights.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import Dataset

from easyscale.errors import ScriptError
from easyscale.messages import Initialised, Note
from easyscale.pulse import Phase
from easyscale.runtime import determinism as switches
from easyscale.runtime import session as sessions
from easyscale.runtime.data import (
    SampleOrder,
    checked_dataset,
    is_number,
    refuse_arguments,
    require_number,
)
from easyscale.runtime.evaluation import Evaluator
from easyscale.runtime.feed import Feed, FeedSettings
from easyscale.runtime.kind import cpu_kind, gpu_kind
from easyscale.runtime.loader import Loader
from easyscale.runtime.memory import keep_freed_memory
from easyscale.runtime.randomness import Streams, key
from easyscale.runtime.registry import refuse_process_group
from easyscale.runtime.room import free_bytes
from easyscale.runtime.script_end import finish_at_exit, note_leaving
from easyscale.runtime.session import Session
from easyscale.runtime.settings import Arguments, JobSettings, alone, launched, read_arguments
from easyscale.runtime.state import captured, digest, plain_value
from easyscale.runtime.stock import refuse_stock_parallelism
from easyscale.runtime.team import Alone, Team
from easyscale.runtime.timing import Timing
from easyscale.runtime.together import Together
from easyscale.runtime.training import Training

_job: "Job | None" = None


def init(
    *,
    logical_workers: int | None = None,
    seed: int | None = None,
    determinism: str | None = None,
    threads_per_worker: int | None = None,
) -> "Job":
    """Begin the job of this script; what the command line or `EASYSCALE_*` names wins."""
    global _job  # noqa: PLW0603 - a process has one job
    if _job is not None:
        raise ScriptError("easyscale.init was called a second time; a script has one job")
    refuse_process_group()
    arguments = read_arguments(
        logical_workers=logical_workers,
        seed=seed,
        determinism=determinism,
        threads_per_worker=threads_per_worker,
    )
    session = sessions.current()
    refuse_stock_parallelism()
    _job = _alone(arguments) if session is None else _launched(arguments, session)
    return _job


class UserState:
    """Plain values that survive whatever happens to a process: `state.best = 0.9`."""

    def __init__(self, values: dict[str, Any]) -> None:
        object.__setattr__(self, "_values", values)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the script put there
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"job.state has no {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401
        self._values[name] = plain_value(name, value)

    def __repr__(self) -> str:
        return f"job.state({', '.join(f'{k}={v!r}' for k, v in self._values.items())})"


class Job:
    """One training run, as its script sees it."""

    def __init__(self, training: Training, team: Team) -> None:
        self._training = training
        self._team = team
        self._evaluator = Evaluator(training, team)
        self._feeds: list[Feed] = []

    @property
    def logical_workers(self) -> int:
        return self._training.settings.logical_workers

    @property
    def seed(self) -> int:
        return self._training.settings.seed

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self._training.device

    @property
    def is_main(self) -> bool:
        """Whether this process does what is done once, such as printing and saving."""
        return self._team.is_main

    @property
    def metrics(self) -> dict[str, float]:
        """The means over all logical workers of what the last completed step reported."""
        return self._training.metrics

    @property
    def digest(self) -> str:
        """Names the training state, the same in every layout; hashes all of it."""
        return digest(captured(self._training.things))

    def register(self, *, override: Iterable[str] = (), **objects: object) -> None:
        """Name everything that is trained; returns with the state that training goes on from.

        Modules, optimizers, schedulers, whatever has state_dict and load_state_dict, tensors and
        lists or dicts of them. `override=["optimizer.lr"]` lets the script's value win over a
        restored one.
        """
        refuse_process_group()
        self._training.register(objects)
        self._training.things.prepare(self.device)
        self._team.enter(tuple(override))
        self._training.note_registered()

    def loader(
        self,
        dataset: Dataset[Any],
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        num_workers: int = 0,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        worker_init_fn: Callable[[int], None] | None = None,
        prefetch_factor: int | None = None,
        timeout: float = 0,
        **of_torch: Any,  # noqa: ANN401 - refused by name
    ) -> Loader:
        """Deal a map-style dataset to the logical workers; `batch_size` is that of one of them."""
        refuse_arguments(of_torch)
        require_number("batch_size", batch_size, least=1)
        require_number("num_workers", num_workers, least=0)
        checked = checked_dataset(dataset)
        settings = self._training.settings
        if self._training.recorder is not None:
            num_workers = self._training.recorder.loader_workers(num_workers)
        order = SampleOrder(
            len(dataset),  # type: ignore[arg-type]  # checked_dataset has seen __len__
            ranks=settings.logical_workers,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            seed=settings.seed,
        )
        feed = Feed(
            checked,
            FeedSettings(
                num_workers=num_workers,
                collate_fn=collate_fn,
                pin_memory=pin_memory,
                worker_init_fn=worker_init_fn,
                prefetch_factor=prefetch_factor,
                timeout=timeout,
            ),
            seed=settings.seed,
            threads=settings.threads_per_worker,
        )
        return Loader(dataset, training=self._training, team=self._team, order=order, feed=feed)

    def epochs(self, count: int) -> Iterator[int]:
        """Go through the epochs that are left; after the last of them training is complete."""
        training = self._training
        _ = training.things  # refuses a script that has not registered
        if not is_number(count, least=0):
            raise ScriptError(f"job.epochs({count!r}) is no number of epochs: it takes 0 or more")
        if training.epochs is not None:
            raise ScriptError("job.epochs is called a second time; a job has one loop over epochs")
        training.epochs = count
        return self._run_epochs(count)

    def _run_epochs(self, count: int) -> Iterator[int]:
        training = self._training
        try:
            for epoch in range(training.place.epoch, count):
                training.open_epoch()
                yield epoch
                training.close_epoch(epoch)
        except GeneratorExit:
            # A `break` ends training early; a `sys.exit` in the loop is told apart by its line.
            note_leaving(training, sys._getframe().f_back)  # noqa: SLF001 - who drops this generator
            raise
        finally:
            training.epoch_open = False
        training.close_epochs()
        if training.recorder is None:
            self._team.end()
            return
        training.recorder.boundary(training.place.step)
        self._team.end()
        raise SystemExit(0)  # as in the loader: what follows would leave files behind

    def state(self, **defaults: Any) -> UserState:  # noqa: ANN401 - checked by plain_value
        """Plain values that survive; a restored value wins over the default given here."""
        values = self._training.user
        for name, value in defaults.items():
            values.setdefault(name, plain_value(name, value))
        return UserState(values)

    def evaluate(self, function: Callable[[Any], Any], loader: object) -> list[Any]:
        """Return `[function(batch) for batch in loader]` on every process, computed by all of them.

        Registered modules are in eval mode and gradients off while it runs.
        """
        return self._evaluator.evaluate(function, loader)


def _alone(arguments: Arguments) -> Job:
    def say(text: str) -> None:
        print(f"easyscale: {text}", file=sys.stderr)  # noqa: T201 - there is no agent to tell

    settings = alone(arguments, os.environ, say)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    training = begin_training(settings, device=device, say=say)
    team = Alone(training)
    job = Job(training, team)
    finish_at_exit(training, end=team.end, is_current=lambda: _job is job)
    return job


def _launched(arguments: Arguments, session: Session) -> Job:
    def say(text: str) -> None:
        session.say(Note(text=text))

    worker = session.settings
    settings = launched(arguments, worker, os.environ, say)
    session.pulse.beat(Phase.STARTING, position=0, step=0)
    is_cuda = worker.worker.slot.startswith("cuda")
    device = torch.device("cuda", 0) if is_cuda else torch.device("cpu")
    training = begin_training(settings, device=device, say=say)
    session.say(
        Initialised(
            worker=worker.worker,
            pid=os.getpid(),
            torch_version=str(torch.__version__),
            kind=_kind(device, settings.threads_per_worker),
            free_bytes=free_bytes(device),
        )
    )
    if worker.recording is not None:
        from easyscale.runtime.recorder import Recorder  # noqa: PLC0415 - most workers have none

        training.recorder = Recorder(
            worker.recording,
            session=session,
            registry=lambda: training.things,
            user=training.user,
        )
    return Job(training, Together(training, session))


def _kind(device: torch.device, threads: int) -> str:
    """What two slots must share to give the same bits, and what a person calls the device."""
    return cpu_kind(threads=threads) if device.type == "cpu" else gpu_kind(device)


def begin_training(
    settings: JobSettings, *, device: torch.device, say: Callable[[str], None]
) -> Training:
    """Set the switches and the script's random streams."""
    switches.switch_on(settings.determinism, threads=settings.threads_per_worker)
    keep_freed_memory()
    streams = Streams(device)
    streams.seed(key(settings.seed, "script"))
    timing = Timing(device_mark=_cuda_mark if device.type == "cuda" else None)
    return Training(settings=settings, device=device, say=say, streams=streams, timing=timing)


def _cuda_mark() -> torch.cuda.Event:
    """Where the stream is now: the host runs ahead of it, so its own clock measures nothing."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
