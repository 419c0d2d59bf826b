"""The kind of a CPU slot, as one string."""

import os

import pytest

from easyscale.baseline import baseline
from easyscale.runtime.kind import cpu_kind


@pytest.fixture(autouse=True)
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*baseline(), "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"):
        monkeypatch.delenv(name, raising=False)


def test_threads_make_another_kind() -> None:
    assert cpu_kind(threads=1) != cpu_kind(threads=2)


def test_a_library_that_was_told_its_kernels_is_of_another_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MKL alone, told otherwise, gave another digest under one kind."""
    before = cpu_kind(threads=1)
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert cpu_kind(threads=1) != before
    assert "MKL_CBWR=COMPATIBLE" in cpu_kind(threads=1)


@pytest.mark.skipif(not baseline(), reason="this architecture has no pinned baseline")
def test_all_pins_together_leave_the_processor_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in baseline().items():
        monkeypatch.setitem(os.environ, name, value)
    assert " baseline " in cpu_kind(threads=1)
