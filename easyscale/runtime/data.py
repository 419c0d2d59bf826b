"""Which samples a logical rank sees when: exactly torch's DistributedSampler over logical ranks.

The place in the data is (epoch, step index) and nothing else, so any process can continue anywhere.
"""

import math
from collections.abc import Mapping, Sized
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from easyscale.errors import ScriptError
from easyscale.guide import Paragraph

#: Arguments of torch's DataLoader that job.loader cannot take, and what does their work here.
_OF_TORCH = {
    "sampler": "samples are dealt to logical ranks, the same in every layout",
    "batch_sampler": "batches are dealt to logical ranks, the same in every layout",
    "generator": "the order of the samples follows from the job's seed",
    "persistent_workers": "its loader workers are forked anew for each epoch",
    "multiprocessing_context": "its loader workers are forked where that is safe",
    "in_order": "batches come in order, whoever fetches them",
}


class SampleOrder:
    """The sample indices of every (epoch, step index, logical rank)."""

    def __init__(
        self, length: int, *, ranks: int, batch_size: int, shuffle: bool, drop_last: bool, seed: int
    ) -> None:
        self.length = length
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.drop_last = drop_last
        self._ranks = ranks
        self._seed = seed
        short = drop_last and length % ranks != 0
        self.per_rank = math.ceil((length - ranks) / ranks if short else length / ranks)
        whole, rest = divmod(self.per_rank, batch_size)
        self.steps = whole if drop_last else whole + (rest > 0)
        self._epoch: int | None = None
        self._samples: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def batch(self, epoch: int, index: int, rank: int) -> list[int]:
        """Return the samples of one micro-step."""
        if epoch != self._epoch:
            self._samples, self._epoch = self._permuted(epoch), epoch
        first = index * self.batch_size
        last = min(first + self.batch_size, self.per_rank)
        start = rank + first * self._ranks
        samples: list[int] = self._samples[start : last * self._ranks : self._ranks].tolist()
        return samples

    def _permuted(self, epoch: int) -> npt.NDArray[np.int64]:
        """All samples of an epoch, dealt round robin: padded, or cut, to equal shares."""
        if self.shuffle:
            generator = torch.Generator()
            generator.manual_seed(self._seed + epoch)
            samples = torch.randperm(self.length, generator=generator).numpy()
        else:
            samples = np.arange(self.length)
        # np.resize repeats from the start, which is how DistributedSampler pads.
        return np.resize(samples, self.per_rank * self._ranks).astype(np.int64, copy=False)


def is_number(value: object, *, least: int) -> bool:
    """Whether a script passed a whole number of at least so much; NumPy's own count as well."""
    return isinstance(value, Integral) and int(value) >= least


def require_number(name: str, value: object, *, least: int) -> None:
    """Raise ScriptError for an argument of `job.loader` that is no such number."""
    if not is_number(value, least=least):
        raise ScriptError(
            f"job.loader({name}={value!r}): it takes a whole number of at least {least}"
        )


def checked_dataset(dataset: Any) -> Dataset[Any]:  # noqa: ANN401 - what a script passes is checked here
    """Refuse what has no sample number: the order could not be told from the layout."""
    if isinstance(dataset, DataLoader):
        raise ScriptError(
            "job.loader takes a dataset, and it was given a DataLoader",
            hint="job.loader(dataset, batch_size=..., shuffle=True): it deals the samples itself",
            see=Paragraph.SAMPLERS,
        )
    if isinstance(dataset, IterableDataset):
        raise ScriptError(
            f"{type(dataset).__name__} is an IterableDataset: without sample numbers its order "
            "would depend on the number of processes",
            hint="a map-style dataset, with __len__ and __getitem__",
            see=Paragraph.DATASETS,
        )
    if not (isinstance(dataset, Sized) and hasattr(dataset, "__getitem__")):
        raise ScriptError(
            f"job.loader takes a dataset with __len__ and __getitem__; "
            f"{type(dataset).__name__} has not both",
            see=Paragraph.DATASETS,
        )
    if len(dataset) == 0:
        raise ScriptError(f"the dataset ({type(dataset).__name__}) is empty")
    return dataset  # type: ignore[return-value]


def refuse_distributed_sampler(loader: DataLoader[Any]) -> None:
    """Refuse a loader that deals its samples by process."""
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if isinstance(sampler, DistributedSampler):
        raise ScriptError(
            "a DistributedSampler deals samples by process, and processes come and go",
            hint="job.loader(dataset, batch_size=...): it deals them by logical rank",
            see=Paragraph.SAMPLERS,
        )


def refuse_arguments(given: Mapping[str, object]) -> None:
    """Refuse what torch's DataLoader takes and job.loader does not; TypeError for what neither."""
    for name in given:
        if name not in _OF_TORCH:
            raise TypeError(f"job.loader() got an unexpected keyword argument {name!r}")
        raise ScriptError(
            f"job.loader takes no {name}: {_OF_TORCH[name]}",
            hint=f"leave out {name}=",
            see=Paragraph.SAMPLERS,
        )
