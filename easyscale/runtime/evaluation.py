"""An evaluation: the loader's batches dealt to the logical ranks, results back in sample order.

Results travel as tensors, numbers, strings and nests of them; nothing is unpickled.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, default_collate

from easyscale.errors import FormatError, ScriptError
from easyscale.guide import Paragraph
from easyscale.model import GenerationNumber, Span
from easyscale.runtime import tree
from easyscale.runtime.data import refuse_distributed_sampler
from easyscale.runtime.exchange import Exchange, Note
from easyscale.runtime.feed import Feed, FeedSettings, Request
from easyscale.runtime.group import Wait
from easyscale.runtime.headers import Operation, OperationKind
from easyscale.runtime.loader import Loader
from easyscale.runtime.randomness import key
from easyscale.runtime.record import Record
from easyscale.runtime.training import Training
from easyscale.runtime.untouched import Untouched

if TYPE_CHECKING:
    from easyscale.runtime.team import Team

Function = Callable[[Any], Any]
#: What comes back as it was returned; a subclass of these that is not here is refused.
_SEQUENCES: dict[type, str] = {list: "list", tuple: "tuple", torch.Size: "size"}
_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}
#: Results by the number of their batch, encoded.
Results = dict[int, bytes]


@dataclass(frozen=True, slots=True)
class Batches:
    """What is evaluated: samples by batch, and where they come from."""

    feed: Feed
    samples: list[tuple[int, ...]]
    #: Part of the key of everything random in this evaluation.
    numbers: tuple[int, ...]


class EvaluationWork:
    """The share of one process in an evaluation."""

    kind = OperationKind.EVALUATION

    def __init__(
        self, training: Training, function: Function, batches: Batches, *, ranks: Iterable[int]
    ) -> None:
        self._training = training
        self._function = function
        self._batches = batches
        self._n = training.settings.logical_workers
        self._untouched = Untouched(training)
        self._done: dict[int, Results] = {}
        self._planned = tuple(ranks)
        self.todo = list(self._planned)
        self.is_complete = False
        self.results: Results = {}

    @property
    def held(self) -> tuple[Span, ...]:
        return tree.maximal_subtrees(self._done, self._n)

    def drop(self, spans: Iterable[Span]) -> None:
        for span in spans:
            for rank in range(span.lo, span.hi):
                self._done.pop(rank, None)

    def compute(self, rank: int, *, after_each: Callable[[], None]) -> None:
        """Evaluate every batch of a logical rank."""
        seed = self._training.settings.seed
        results: Results = {}
        for number in self._of_rank(rank):
            batch = self._batches.feed.fetch(
                self._request(rank, number),
                lambda n=number: self._rest(n),  # type: ignore[misc]
            )
            self._training.streams.seed(key(seed, "evaluate", *self._batches.numbers, number))
            results[number] = encode_result(self._function(batch), f"the result of batch {number}")
            self._untouched.keep()
            after_each()
        self._done[rank] = results

    def finish_alone(self) -> None:
        self.results = self._held_results()
        self.is_complete = True

    def exchange(
        self, exchange: Exchange, operation: Operation, *, newest: GenerationNumber, wait: Wait
    ) -> Record:
        payload = msgspec.msgpack.encode(self._held_results())
        return exchange.gather(operation, Note(newest=newest, payload=payload), wait=wait)

    def adopt(self, record: Record) -> None:
        for payload in record.payloads:
            self.results.update(msgspec.msgpack.decode(payload, type=Results))
        self.is_complete = True

    def _held_results(self) -> Results:
        return {number: x for done in self._done.values() for number, x in done.items()}

    def _of_rank(self, rank: int) -> range:
        return range(rank, len(self._batches.samples), self._n)

    def _request(self, rank: int, number: int) -> Request:
        samples = self._batches.samples[number]
        return Request(rank, "evaluate", (*self._batches.numbers, number), samples)

    def _rest(self, first: int) -> Iterator[Request]:
        """Requests in the order of this process, from batch `first` on."""
        order = [(rank, n) for rank in self._planned for n in self._of_rank(rank)]
        here = next((i for i, (_, n) in enumerate(order) if n == first), None)
        if here is None:  # a rank that another process has left behind
            return iter([self._request(first % self._n, first)])
        return (self._request(rank, n) for rank, n in order[here:])


class Evaluator:
    """Carries evaluations out; keeps the loader workers of loaders that it has seen."""

    def __init__(self, training: Training, team: "Team") -> None:
        self._training = training
        self._team = team
        self._feeds: WeakKeyDictionary[DataLoader[Any], Feed] = WeakKeyDictionary()

    def evaluate(self, function: Function, loader: object) -> list[Any]:
        """Return what `function` gives for each batch, on every process, in sample order."""
        training = self._training
        training.require_complete_step()
        modules = training.things.modules.values()
        feed, samples = self._batches_of(loader)
        numbers = (training.place.step, training.evaluations)
        training.evaluations += 1
        together = training.in_operations
        n = training.settings.logical_workers
        ranks = self._team.ranks if together else range(n)
        work = EvaluationWork(training, function, Batches(feed, samples, numbers), ranks=ranks)
        outer = training.streams.capture()
        try:
            with _evaluating(modules), torch.no_grad():
                self._complete(work, together=together)
        finally:
            training.streams.restore(outer)
        device = training.device
        encoded = [work.results[number] for number in range(len(samples))]
        results = [decode_result(data, device) for data in encoded]
        if together and training.recorder is not None:
            # Between two steps the one before has been counted already.
            step = numbers[0] if training.step is not None else numbers[0] - 1
            training.recorder.evaluated(step, numbers[1], encoded, results)
        return results

    def _complete(self, work: EvaluationWork, *, together: bool) -> None:
        if together:
            self._team.begin(work)
            while (rank := self._team.next_rank(work)) is not None:
                work.compute(rank, after_each=self._team.show_awake)
            return
        for rank in work.todo:
            work.compute(rank, after_each=self._team.show_awake)
        work.finish_alone()

    def _batches_of(self, loader: object) -> tuple[Feed, list[tuple[int, ...]]]:
        if isinstance(loader, Loader):
            return loader.evaluation_batches()
        if not isinstance(loader, DataLoader):
            raise ScriptError(
                f"job.evaluate takes a loader; it was given a {type(loader).__name__}",
                hint="job.loader(dataset, batch_size=..., shuffle=False)",
                see=Paragraph.EVALUATION,
            )
        refuse_distributed_sampler(loader)
        if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
            raise ScriptError(
                "job.evaluate takes a loader that makes batches of a map-style dataset: the "
                "batches are dealt by their number",
                hint="job.loader(dataset, batch_size=..., shuffle=False)",
                see=Paragraph.EVALUATION,
            )
        if loader not in self._feeds:
            self._feeds[loader] = self._feed_of(loader)
        return self._feeds[loader], [tuple(batch) for batch in loader.batch_sampler]

    def _feed_of(self, loader: DataLoader[Any]) -> Feed:
        collate = loader.collate_fn
        settings = FeedSettings(
            num_workers=loader.num_workers,
            collate_fn=None if collate is default_collate else collate,
            pin_memory=loader.pin_memory,
            worker_init_fn=loader.worker_init_fn,
            prefetch_factor=loader.prefetch_factor,
            timeout=loader.timeout,
        )
        job = self._training.settings
        return Feed(loader.dataset, settings, seed=job.seed, threads=job.threads_per_worker)


@contextmanager
def _evaluating(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Put modules into eval mode, and each part back into the mode that it was in."""
    parts = [(part, part.training) for module in modules for part in module.modules()]
    for part, _ in parts:
        part.training = False
    try:
        yield
    finally:
        for part, mode in parts:
            part.training = mode


def encode_result(value: Any, path: str) -> bytes:  # noqa: ANN401 - checked by name below
    """Write a result as bytes; raises ScriptError that names what cannot travel."""
    return msgspec.msgpack.encode(_tagged(value, path))


def decode_result(data: bytes, device: torch.device) -> Any:  # noqa: ANN401 - as above
    """Read a result; tensors that were on a device come back on this process's."""
    return _untagged(msgspec.msgpack.decode(data), device)


def _tagged(value: Any, path: str) -> Any:  # noqa: ANN401
    match value:
        case torch.Tensor() if value.layout is torch.strided and not value.is_quantized:
            host = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
            raw = host.reshape(-1).view(torch.uint8).numpy().tobytes()
            dtype = str(value.dtype).removeprefix("torch.")
            return ["tensor", dtype, list(value.shape), value.device.type != "cpu", raw]
        case np.generic() if not isinstance(number := value.item(), np.generic):
            return _tagged(number, path)
        case int() if not isinstance(value, bool) and not -(2**63) <= value < 2**63:
            return ["int", str(int(value))]
        case complex():
            return ["complex", value.real, value.imag]
        case None | bool() | int() | float() | str() | bytes():
            return value
        case list() | tuple() if type(value) in _SEQUENCES:
            kind = _SEQUENCES[type(value)]
            return [kind, [_tagged(item, f"{path}[{n}]") for n, item in enumerate(value)]]
        case dict() if type(value) in _MAPPINGS:
            pairs = [
                [_tagged(name, path), _tagged(item, f"{path}[{name!r}]")]
                for name, item in value.items()
            ]
            return [_MAPPINGS[type(value)], pairs]
        case _:
            raise ScriptError(
                f"job.evaluate: {path} is a {_kind(value)}; results are dense tensors, numbers, "
                "strings and lists or dicts of them",
                hint=_plain_form(value),
                see=Paragraph.EVALUATION,
            )


def _kind(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"tensor of layout {str(value.layout).removeprefix('torch.')}"
    return type(value).__name__


def _plain_form(value: object) -> str:
    match value:
        case torch.Tensor():
            return "return value.dequantize()" if value.is_quantized else "return value.to_dense()"
        case tuple() if hasattr(value, "_asdict"):
            return "return value._asdict()"
        case tuple() | list() | dict():
            plain = next(kind for kind in (tuple, list, dict) if isinstance(value, kind))
            return f"return {plain.__name__}(value)"
        case _:
            return "return numbers or tensors, and build the rest from the list of results"


def _untagged(value: Any, device: torch.device) -> Any:  # noqa: ANN401
    match value:
        case ["tensor", str(dtype), list(shape), bool(on_device), bytes(raw)]:
            kind = getattr(torch, dtype)
            flat = (
                torch.frombuffer(bytearray(raw), dtype=kind) if raw else torch.empty(0, dtype=kind)
            )
            return flat.reshape(shape).to(device if on_device else "cpu")
        case ["int", str(text)]:
            return int(text)
        case ["complex", float(real), float(imaginary)]:
            return complex(real, imaginary)
        case [str(kind), list(items)] if kind in _SEQUENCES.values():
            make = next(cls for cls, name in _SEQUENCES.items() if name == kind)
            return make([_untagged(item, device) for item in items])
        case [str(kind), list(pairs)] if kind in _MAPPINGS.values():
            make = next(cls for cls, name in _MAPPINGS.items() if name == kind)
            return make({_untagged(key, device): _untagged(item, device) for key, item in pairs})
        case list():
            raise FormatError(f"an evaluation's result has the unknown form {value[:1]}")
        case _:
            return value
