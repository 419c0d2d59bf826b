"""Fetches batches by key, in this process or in loader workers that all local ranks share.

A request names everything that decides about the bytes of a batch, down to the random numbers its
augmentation draws; so it makes no difference which process serves it, or how far ahead.
"""

import ctypes
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate
from torch.utils.data._utils.pin_memory import pin_memory

from easyscale.runtime.determinism import pin_threads
from easyscale.runtime.randomness import key, seed_host

_PR_SET_PDEATHSIG = 1


class Request(NamedTuple):
    """One batch: its samples in order, and the first part of the key of their randomness."""

    rank: int
    purpose: str
    numbers: tuple[int, ...]
    samples: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSettings:
    """How batches are made; what a script passes to `job.loader`."""

    num_workers: int = 0
    collate_fn: Callable[[list[Any]], Any] | None = None
    pin_memory: bool = False
    worker_init_fn: Callable[[int], None] | None = None
    prefetch_factor: int | None = None
    timeout: float = 0


class KeyedSamples(Dataset[Any]):
    """A dataset whose every sample starts from random streams of its own."""

    def __init__(self, dataset: Dataset[Any], *, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed

    def __getitem__(self, request: Request) -> list[Any]:
        dataset, seed = self._dataset, self._seed
        items = []
        for sample in request.samples:
            seed_host(key(seed, request.purpose, *request.numbers, sample))
            items.append(dataset[sample])
        return items

    # torch's fetcher hands a whole batch of indices to __getitems__; ours is one request.
    __getitems__ = __getitem__


class TensorRows(Dataset[Any]):
    """A TensorDataset whose batches are cut out whole: it draws nothing, the bytes are equal."""

    def __init__(self, dataset: TensorDataset) -> None:
        self._tensors = dataset.tensors

    def __getitem__(self, request: Request) -> list[torch.Tensor]:
        rows = torch.tensor(request.samples)
        return [tensor[rows] for tensor in self._tensors]

    __getitems__ = __getitem__


class Feed:
    """Serves requests; what is asked for in the planned order was prepared ahead."""

    def __init__(
        self, dataset: Dataset[Any], settings: FeedSettings, *, seed: int, threads: int
    ) -> None:
        self._settings = settings
        self._samples: Dataset[Any] = KeyedSamples(dataset, seed=seed)
        self._collate: Callable[[Any], Any] = settings.collate_fn or default_collate
        if isinstance(dataset, TensorDataset) and _is_plain(dataset, settings):
            self._samples, self._collate = TensorRows(dataset), _as_it_is
        self._threads = threads
        self._ahead = _Ahead(self._open_loader) if settings.num_workers else None

    def fetch(self, request: Request, rest: Callable[[], Iterable[Request]]) -> Any:  # noqa: ANN401
        """Return the batch; `rest` gives the planned requests from this one on, this one first."""
        if self._ahead is not None:
            return self._ahead.fetch(request, rest)
        return self.fetch_here(request)

    def fetch_here(self, request: Request) -> Any:  # noqa: ANN401 - whatever collate_fn makes
        """Return the batch without disturbing what is prepared ahead."""
        batch = self._collate(self._samples[request])
        if self._settings.pin_memory and torch.cuda.is_available():
            batch = pin_memory(batch)  # type: ignore[no-untyped-call]
        return batch

    def close(self) -> None:
        """End the loader workers."""
        if self._ahead is not None:
            self._ahead.close()

    def _open_loader(self, requests: Iterable[Request]) -> DataLoader[Any]:
        settings = self._settings
        return DataLoader(
            self._samples,
            batch_sampler=requests,  # type: ignore[arg-type]  # one request stands for a batch
            num_workers=settings.num_workers,
            collate_fn=self._collate,
            pin_memory=settings.pin_memory and torch.cuda.is_available(),
            worker_init_fn=_WorkerStart(os.getpid(), self._threads, settings.worker_init_fn),
            prefetch_factor=settings.prefetch_factor,
            # Forked for each pass: they see the dataset as the script has made it by then.
            persistent_workers=False,
            timeout=settings.timeout,
            # Its workers' base seed would be drawn from the script's own stream.
            generator=torch.Generator(),
        )


def _is_plain(dataset: TensorDataset, settings: FeedSettings) -> bool:
    """Whether nobody's code stands between the tensors and the batch."""
    return type(dataset) is TensorDataset and settings.collate_fn is None


def _as_it_is(batch: Any) -> Any:  # noqa: ANN401 - a batch of tensors
    return batch


class _Ahead:
    """A DataLoader whose sampler plays requests; started anew when the order changes."""

    def __init__(self, open_loader: Callable[[Iterable[Request]], DataLoader[Any]]) -> None:
        self._open_loader = open_loader
        self._loader: DataLoader[Any] | None = None
        self._batches: Iterator[Any] = iter(())
        self._upcoming: Iterator[Request] = iter(())
        self._issued: deque[Request] = deque()

    def fetch(self, request: Request, rest: Callable[[], Iterable[Request]]) -> Any:  # noqa: ANN401
        if request not in self._issued:
            self._restart(rest())
        while True:
            batch = next(self._batches)
            if self._issued.popleft() == request:
                return batch

    def __iter__(self) -> Iterator[Request]:
        """What the DataLoader takes for its batch sampler."""
        for request in self._upcoming:
            self._issued.append(request)
            yield request

    def close(self) -> None:
        self._batches, self._loader = iter(()), None

    def _restart(self, requests: Iterable[Request]) -> None:
        self._issued.clear()
        self._upcoming = iter(requests)
        if self._loader is None:
            self._loader = self._open_loader(self)
        self._batches = iter(self._loader)


@dataclass(frozen=True, slots=True)
class _WorkerStart:
    """Runs first in a loader worker: dies with its parent, computes with its parent's threads."""

    parent: int
    threads: int
    then: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux alone has it
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self.parent:  # it died before the line above
            os._exit(1)
        pin_threads(self.threads)
        if self.then is not None:
            self.then(worker)
