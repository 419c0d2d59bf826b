"""Claims about flat buckets: every parameter lies in one, last ones first, and comes back whole."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from easyscale.runtime.buckets import TensorLayout, TensorSpec, plan_buckets
from easyscale.runtime.partials import real

DTYPES = (torch.float32, torch.bfloat16, torch.complex64, torch.float64)


@st.composite
def tensors(draw: st.DrawFn) -> list[torch.Tensor]:
    found = []
    for _ in range(draw(st.integers(1, 8))):
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        tensor = torch.randn(shape, dtype=torch.float64).to(draw(st.sampled_from(DTYPES)))
        if draw(st.booleans()):
            tensor = tensor.T.contiguous().T if tensor.dim() == 2 else tensor
        found.append(tensor)
    return found


def layout_of(values: list[torch.Tensor]) -> TensorLayout:
    return TensorLayout.of([(str(index), value) for index, value in enumerate(values)], [])


@given(tensors(), st.integers(1, 40))
def test_what_is_filled_into_buckets_comes_back(values: list[torch.Tensor], elements: int) -> None:
    seen = []
    for bucket in plan_buckets(layout_of(values), elements):
        flat = torch.full((bucket.numel,), 7.0, dtype=bucket.dtype)
        views = bucket.views(flat)
        reals: list[torch.Tensor | None] = [real(value) for value in values]
        bucket.fill(views, bucket.of(reals))
        for piece, view in zip(bucket.pieces, views, strict=True):
            seen.append(piece.index)
            assert torch.equal(view, real(values[piece.index]))
        indices = [piece.index for piece in bucket.pieces]
        assert indices == sorted(indices, reverse=True)
        # A bucket is closed as soon as it is full.
        assert bucket.pieces[-1].offset < elements
    assert sorted(seen) == list(range(len(values)))


def test_an_absent_gradient_is_written_as_zeros() -> None:
    (bucket,) = plan_buckets(layout_of([torch.ones(2), torch.ones(3)]))
    flat = torch.full((5,), 7.0)
    bucket.fill(bucket.views(flat), [None, torch.full((2,), -0.0)])
    assert flat.tolist() == [0.0] * 5
    assert flat.signbit().tolist() == [False, False, False, True, True]


def test_a_parameter_with_gaps_gets_a_contiguous_gradient_as_in_autograd() -> None:
    parameter = torch.nn.Parameter(torch.zeros(4, 6)[:, ::2])
    torch.autograd.backward((parameter * 2).sum())
    assert parameter.grad is not None
    assert TensorSpec.of("p", parameter).stride == parameter.grad.stride()


def test_a_transposed_parameter_gets_a_gradient_of_its_own_strides() -> None:
    parameter = torch.nn.Parameter(torch.zeros(4, 6).T)
    torch.autograd.backward((parameter * 2).sum())
    assert parameter.grad is not None
    assert TensorSpec.of("p", parameter).stride == parameter.grad.stride() == (1, 6)


def test_layouts_that_differ_in_anything_but_the_device_have_other_digests() -> None:
    base = layout_of([torch.zeros(2, 3)])
    others = (
        layout_of([torch.zeros(3, 2)]),
        layout_of([torch.zeros(2, 3, dtype=torch.float64)]),
        layout_of([torch.zeros(3, 2).T]),
        layout_of([torch.zeros(2, 3), torch.zeros(1)]),
        TensorLayout.of([("other", torch.zeros(2, 3))], []),
        TensorLayout.of([], [("0", torch.zeros(2, 3))]),
    )
    assert all(other.digest != base.digest for other in others)
    assert layout_of([torch.zeros(2, 3, device="meta")]).digest == base.digest
    assert TensorLayout.read(base.description) == base


def test_the_first_difference_is_named_with_both_forms() -> None:
    ours = TensorLayout.of([("a", torch.zeros(2))], [("b", torch.zeros(3))])
    theirs = TensorLayout.of([("a", torch.zeros(2))], [])
    assert ours.first_difference(theirs.description) == (
        "buffer 0: 'b' float32[3] with strides [1] here, none there"
    )
