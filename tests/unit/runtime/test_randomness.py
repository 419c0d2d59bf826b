"""What is drawn depends on the key alone, and the outer stream comes back as it was."""

import random

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from easyscale.runtime.randomness import OuterStream, Streams, key


def drawn() -> tuple[float, float, float, float]:
    return (
        float(torch.rand(())),
        float(np.random.rand()),  # noqa: NPY002 - what scripts draw from
        float(np.random.randn()),  # noqa: NPY002
        random.gauss(0, 1),
    )


@given(st.integers(0, 2**31), st.integers(0, 10**9), st.integers(0, 4096))
def test_a_key_depends_on_each_of_its_parts(seed: int, step: int, rank: int) -> None:
    here = key(seed, "compute", step, rank)
    assert 0 <= here < 2**64
    assert here == key(seed, "compute", step, rank)
    others = {
        key(seed + 1, "compute", step, rank),
        key(seed, "sample", step, rank),
        key(seed, "compute", step + 1, rank),
        key(seed, "compute", step, rank + 1),
        key(seed, "compute", int(f"{step}{rank}")),
    }
    assert here not in others


def test_equal_keys_draw_equal_numbers_whatever_was_drawn_before() -> None:
    streams = Streams(torch.device("cpu"))
    streams.seed(17)
    first = drawn()
    drawn()
    streams.seed(17)
    assert drawn() == first
    streams.seed(18)
    assert drawn() != first


def test_the_outer_stream_goes_on_where_it_was() -> None:
    streams = Streams(torch.device("cpu"))
    streams.seed(1)
    np.random.randn()  # noqa: NPY002 - leaves a second normal number in NumPy's hands
    random.gauss(0, 1)
    outer = streams.capture()
    expected = drawn()
    streams.seed(99)
    streams.restore(outer)
    assert drawn() == expected


def test_an_outer_stream_survives_as_plain_values() -> None:
    streams = Streams(torch.device("cpu"))
    streams.seed(5)
    np.random.randn()  # noqa: NPY002
    random.gauss(0, 1)
    plain = streams.capture().to_plain()
    expected = drawn()
    streams.restore(OuterStream.from_plain(plain))
    assert drawn() == expected
