"""The order of samples is torch's, whatever N; what has no order is refused in a sentence."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset

from easyscale.errors import ScriptError
from easyscale.runtime.data import SampleOrder, checked_dataset, refuse_distributed_sampler


class Lengthy(Dataset[int]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


@example(length=10, ranks=4, batch_size=3, shuffle=True, drop_last=False, seed=0, epoch=0)
@example(length=2, ranks=7, batch_size=1, shuffle=True, drop_last=False, seed=0, epoch=3)
@example(length=16, ranks=16, batch_size=2, shuffle=False, drop_last=True, seed=1, epoch=1)
@given(
    length=st.integers(1, 90),
    ranks=st.integers(1, 17),
    batch_size=st.integers(1, 9),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    seed=st.integers(0, 1000),
    epoch=st.integers(0, 5),
)
def test_every_rank_sees_the_batches_of_torchs_distributed_sampler(  # noqa: PLR0917 - drawn
    length: int,
    ranks: int,
    batch_size: int,
    shuffle: bool,
    drop_last: bool,
    seed: int,
    epoch: int,
) -> None:
    order = SampleOrder(
        length,
        ranks=ranks,
        batch_size=batch_size,
        shuffle=shuffle,
        drop_last=drop_last,
        seed=seed,
    )
    for rank in range(ranks):
        sampler: DistributedSampler[int] = DistributedSampler(
            Lengthy(length),
            num_replicas=ranks,
            rank=rank,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
        )
        sampler.set_epoch(epoch)
        samples = list(sampler)
        batches = [samples[at : at + batch_size] for at in range(0, len(samples), batch_size)]
        if drop_last:
            batches = [batch for batch in batches if len(batch) == batch_size]
        assert [order.batch(epoch, index, rank) for index in range(order.steps)] == batches


def test_the_batches_equal_those_of_a_dataloader_over_the_sampler() -> None:
    sampler: DistributedSampler[int] = DistributedSampler(
        Lengthy(50), num_replicas=3, rank=1, seed=4
    )
    sampler.set_epoch(2)
    loader: DataLoader[Any] = DataLoader(Lengthy(50), batch_size=4, sampler=sampler)
    order = SampleOrder(50, ranks=3, batch_size=4, shuffle=True, drop_last=False, seed=4)
    assert [batch.tolist() for batch in loader] == [
        order.batch(2, index, 1) for index in range(order.steps)
    ]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(())


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        (Stream(), "IterableDataset"),
        (DataLoader(Lengthy(3)), "takes a dataset, and it was given a DataLoader"),
        (Lengthy(0), "is empty"),
        (object(), "__len__ and __getitem__"),
    ],
)
def test_what_has_no_sample_numbers_is_refused(dataset: object, sentence: str) -> None:
    with pytest.raises(ScriptError, match=sentence):
        checked_dataset(dataset)


def test_a_distributed_sampler_is_refused() -> None:
    sampler: DistributedSampler[int] = DistributedSampler(Lengthy(8), num_replicas=2, rank=0)
    with pytest.raises(ScriptError, match="deals samples by process"):
        refuse_distributed_sampler(DataLoader(Lengthy(8), sampler=sampler, batch_size=2))


def test_a_list_and_tensors_are_datasets() -> None:
    checked_dataset([1, 2])
    checked_dataset(TensorDataset(torch.ones(3)))
