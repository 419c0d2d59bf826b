"""Claims about partial sums: any order of pushing gives the same bits, absent ones included."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from easyscale.model import Span
from easyscale.runtime import tree
from easyscale.runtime.partials import Gradients, Partials

SHAPES = ((3, 2), (), (0, 4), (5,))


def bits(tensor: torch.Tensor | None) -> bytes | None:
    return None if tensor is None else tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def gradients(
    rank: int, *, dtype: torch.dtype = torch.float32, absent: Sequence[int] = ()
) -> list[torch.Tensor | None]:
    generator = torch.Generator().manual_seed(rank)
    values: list[torch.Tensor | None] = []
    for index, shape in enumerate(SHAPES):
        value = torch.randn(shape, generator=generator, dtype=torch.complex64) * 10**rank
        value = value.to(dtype) if dtype.is_complex else value.real.to(dtype)
        # A few negative zeros, which adding +0.0 would change.
        value = torch.where(torch.rand(shape, generator=generator) < 0.3, -0.0 * value.abs(), value)
        values.append(None if index in absent else value)
    return values


def expected(leaves: Sequence[Gradients], span: Span) -> list[torch.Tensor | None]:
    """Sum a subtree out of place from zeros where a gradient is absent, None where all are."""
    columns: list[torch.Tensor | None] = []
    for column in zip(*leaves[span.lo : span.hi], strict=True):
        present = [value for value in column if value is not None]
        if not present:
            columns.append(None)
            continue
        full = [torch.zeros_like(present[0]) if value is None else value for value in column]
        held = {
            tree.leaf(rank): torch.view_as_real(value) if value.is_complex() else value
            for rank, value in enumerate(full)
        }
        for merge in tree.merges(held, len(span)):
            held[merge.into] = held[merge.left] + held[merge.right]
        columns.append(held[Span(0, len(span))])
    return columns


def held_bits(partials: Partials) -> dict[Span, list[bytes | None]]:
    return {span: [bits(value) for value in partials.sums(span)] for span in partials.held}


@given(st.data())
def test_any_order_of_pushing_gives_the_bits_of_the_tree(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 12))
    dtype = data.draw(
        st.sampled_from((torch.float32, torch.bfloat16, torch.float64, torch.complex64))
    )
    absent = [data.draw(st.sets(st.integers(0, len(SHAPES) - 1))) for _ in range(n)]
    share = data.draw(st.lists(st.integers(0, n - 1), unique=True))
    partials = Partials(n)
    leaves = [gradients(rank, dtype=dtype, absent=sorted(absent[rank])) for rank in range(n)]
    for rank in share:
        if data.draw(st.booleans()):
            partials.push(rank, gradients(rank, dtype=dtype, absent=sorted(absent[rank])))
        else:
            partials.defer(rank, gradients(rank, dtype=dtype, absent=sorted(absent[rank])))
    assert partials.held == tree.maximal_subtrees(share, n)
    assert partials.presence == tuple(
        any(index not in absent[rank] for rank in share)
        for index in range(len(SHAPES) * bool(share))
    )
    partials.settle()
    for span, sums in held_bits(partials).items():
        assert sums == [bits(value) for value in expected(leaves, span)]


def test_a_negative_zero_beside_an_absent_gradient_becomes_a_positive_one() -> None:
    for pair in ((torch.tensor([-0.0]), None), (None, torch.tensor([-0.0]))):
        partials = Partials(2)
        for rank, gradient in enumerate(pair):
            partials.push(rank, [gradient])
        assert bits(partials.sums(Span(0, 2))[0]) == bits(torch.tensor([0.0]))
    both = Partials(2)
    for rank in range(2):
        both.push(rank, [torch.tensor([-0.0])])
    assert bits(both.sums(Span(0, 2))[0]) == bits(torch.tensor([-0.0]))


def test_the_factor_is_applied_to_each_leaf_before_the_sum() -> None:
    partials = Partials(3)
    leaves = [gradients(rank) for rank in range(3)]
    partials.push(0, gradients(0), factor=1 / 3)
    partials.defer(1, gradients(1), factor=1 / 3)
    partials.push(2, gradients(2), factor=1 / 3)
    partials.settle()
    scaled = [[value * (1 / 3) for value in leaf if value is not None] for leaf in leaves]
    assert held_bits(partials) == {Span(0, 3): [bits(v) for v in expected(scaled, Span(0, 3))]}


def test_deferred_gradients_stay_untouched_until_they_are_settled() -> None:
    partials = Partials(2)
    partials.push(0, gradients(0))
    before = held_bits(partials)
    leaf = gradients(1)
    partials.defer(1, leaf, factor=0.5)
    assert partials.held == (Span(0, 2),)
    assert [bits(value) for value in leaf] == [bits(value) for value in gradients(1)]
    assert [bits(value) for value in partials.sums(Span(0, 1))] == before[Span(0, 1)]


def test_a_dropped_subtree_is_no_longer_held_and_its_ranks_may_come_again() -> None:
    partials = Partials(4)
    for rank in (0, 1, 3):
        partials.push(rank, gradients(rank))
    partials.drop([Span(0, 2)])
    assert partials.held == (Span(3, 4),)
    assert partials.ranks == {3}
    partials.push(2, gradients(2))
    assert partials.held == (Span(2, 4),)
    partials.clear()
    assert partials.ranks == frozenset()
    assert len(partials.presence) == 0


def test_a_rank_is_never_counted_twice() -> None:
    partials = Partials(2)
    partials.push(0, gradients(0))
    with pytest.raises(ValueError, match="logical rank 0 is already held"):
        partials.push(0, gradients(0))
    with pytest.raises(ValueError, match="logical rank 0 is already held"):
        partials.defer(0, gradients(0))


def test_gradients_that_share_memory_are_summed_apart() -> None:
    shared = torch.tensor([1.0, 2.0])
    partials = Partials(2)
    partials.push(0, [shared, shared.view(2, 1), torch.ones(1).expand(3)], factor=0.5)
    partials.push(1, [torch.zeros(2), torch.zeros(2, 1), torch.tensor([0.0, 1.0, 2.0])])
    first, second, third = partials.sums(Span(0, 2))
    assert first is not None
    assert second is not None
    assert third is not None
    assert first.tolist() == [0.5, 1.0]
    assert second.tolist() == [[0.5], [1.0]]
    assert third.tolist() == [0.5, 1.5, 2.5]


def test_the_sums_taken_lie_where_torch_allocates() -> None:
    partials = Partials(1)
    whole = torch.arange(6.0)
    partials.push(0, [whole[:1], whole[1:]])
    first, second = partials.take()
    assert first is not None
    assert second is not None
    assert (first.tolist(), second.tolist()) == ([0.0], [1.0, 2.0, 3.0, 4.0, 5.0])
    assert [one.data_ptr() % 64 for one in (first, second)] == [0, 0]
    assert partials.ranks == frozenset()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_parking_partials_in_host_memory_changes_no_bit() -> None:
    plain, parked = Partials(8), Partials(8, offload=True)
    for rank in range(7):
        for partials in (plain, parked):
            leaf = gradients(rank, absent=[rank % 4])
            partials.push(rank, [None if value is None else value.cuda() for value in leaf])
    for span in plain.held:
        values = list(zip(plain.sums(span), parked.sums(span), strict=True))
        assert {value.device.type for _, value in values if value is not None} == {"cpu"}
        assert all(bits(None if one is None else one.cpu()) == bits(two) for one, two in values)


MB = 1 << 20


def peak_on_device(ranks: int, *, offload: bool) -> int:
    """Megabytes on the GPU at the fullest moment of a step: a rank's gradients come, and go."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    partials = Partials(ranks, offload=offload)
    for rank in range(ranks):
        partials.push(rank, [torch.ones(size * MB // 4, device="cuda") for size in (8, 1, 2)])
    return (torch.cuda.max_memory_allocated() - before) // MB


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("ranks", [2, 4, 16, 64])
def test_parked_partials_let_no_number_of_ranks_take_more_of_the_device(ranks: int) -> None:
    """One set of gradients, 11 MB, and a parameter that comes back to be added to."""
    assert peak_on_device(ranks, offload=True) == 11 + 8


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_partials_on_the_device_take_one_set_for_twice_the_ranks() -> None:
    few, many = (peak_on_device(ranks, offload=False) for ranks in (2, 16))
    assert (few, many) == (2 * 11, 5 * 11)


@pytest.mark.parametrize("factor", [1 / 3, 1 / 16, 1e-30, 7.0, 1e38])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_scaling_gives_the_bits_of_a_product_with_a_number(
    dtype: torch.dtype, factor: float
) -> None:
    exponents = torch.linspace(-45, 38, 500)
    edges = torch.tensor([0.0, -0.0, float("inf"), float("nan"), 1e-45])
    values = torch.cat([10.0**exponents, -(10.0**exponents), edges]).to(dtype)
    expected = values * factor
    partials = Partials(1)
    partials.push(0, [values.clone()], factor=factor)
    assert bits(partials.sums(Span(0, 1))[0]) == bits(expected)
