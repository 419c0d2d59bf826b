"""The kind of a slot, as one string."""

import os
from dataclasses import dataclass

import pytest
import torch

from easyscale.baseline import baseline
from easyscale.kinds import bits_of, short_kind
from easyscale.runtime.job import _kind
from easyscale.runtime.kind import cpu_kind, kind_of_gpu, libraries


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


@pytest.mark.skipif(not baseline(), reason="this architecture has no pinned baseline")
def test_at_the_baseline_another_processor_has_another_name_and_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in baseline().items():
        monkeypatch.setitem(os.environ, name, value)
    kinds = []
    for processor in ("AuthenticAMD+avx2+fma", "GenuineIntel+avx2+fma+avx512f+avx512vnni"):
        monkeypatch.setattr("easyscale.runtime.kind._processor", lambda told=processor: told)
        kinds.append(cpu_kind(threads=1))
    assert [short_kind(each) for each in kinds] == ["cpu avx2", "cpu avx512"]
    assert bits_of(kinds[0]) == bits_of(kinds[1])


@dataclass(frozen=True, kw_only=True)
class Properties:
    """What `torch.cuda.get_device_properties` gives, as far as it is asked for."""

    name: str = "NVIDIA H200"
    major: int = 9
    minor: int = 0
    multi_processor_count: int = 132
    max_threads_per_multi_processor: int = 2048
    total_memory: int = 150_000_000_000


LIBRARIES = {"torch": "2.13.0", "cuda": "13.0", "cudnn": "92000", "nccl": "2.29.7"}


def kind(facts: Properties, versions: dict[str, str] = LIBRARIES, *, is_amd: bool = False) -> str:
    return bits_of(kind_of_gpu(facts, versions, is_amd=is_amd))


def test_a_gpu_is_of_the_kind_that_its_processors_and_its_libraries_make() -> None:
    told = kind_of_gpu(Properties(), LIBRARIES, is_amd=False)
    assert told == (
        "nvidia sm-9.0 132-sms 2048-threads torch-2.13.0 cuda-13.0 cudnn-92000 nccl-2.29.7"
        " (NVIDIA H200)"
    )
    assert short_kind(told) == "H200"


@pytest.mark.parametrize(
    "other",
    [
        Properties(major=10),
        Properties(minor=1),
        Properties(multi_processor_count=114),
        Properties(max_threads_per_multi_processor=1536),
    ],
)
def test_whatever_divides_the_work_makes_another_kind(other: Properties) -> None:
    assert kind(other) != kind(Properties())


def test_neither_the_name_nor_the_memory_makes_another_kind() -> None:
    same = Properties(name="NVIDIA H100 80GB HBM3", total_memory=80_000_000_000)
    assert kind(same) == kind(Properties())
    assert kind_of_gpu(same, LIBRARIES, is_amd=False) != kind_of_gpu(
        Properties(), LIBRARIES, is_amd=False
    )


@pytest.mark.parametrize("library", [*LIBRARIES, "triton"])
def test_another_version_of_any_library_makes_another_kind(library: str) -> None:
    assert kind(Properties(), {**LIBRARIES, library: "0"}) != kind(Properties())


def test_the_vendor_makes_another_kind() -> None:
    assert kind(Properties(), is_amd=True) != kind(Properties())


def test_a_gpu_of_amd_is_named_by_its_architecture_and_its_modes() -> None:
    @dataclass(frozen=True, kw_only=True)
    class OfAmd(Properties):
        name: str = "AMD Instinct MI300X"
        multi_processor_count: int = 304
        gcnArchName: str = "gfx942:sramecc+:xnack-"  # noqa: N815 - torch's name

    versions = {"torch": "2.13.0", "hip": "7.0", "miopen": "3005000"}
    told = kind_of_gpu(OfAmd(), versions, is_amd=True)
    assert told == (
        "amd gfx942:sramecc+:xnack- 304-cus 2048-threads torch-2.13.0 hip-7.0 miopen-3005000"
        " (AMD Instinct MI300X)"
    )
    assert short_kind(told) == "Instinct MI300X"


def test_the_libraries_at_hand_are_named_with_their_versions() -> None:
    found = libraries()
    assert found["torch"] == str(torch.__version__)
    assert "None" not in found.values()


def test_a_worker_says_the_kind_of_the_device_that_it_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties())
    told = _kind(torch.device("cuda", 0), 1)
    assert told == kind_of_gpu(Properties(), libraries(), is_amd=False)
    assert _kind(torch.device("cpu"), 2) == cpu_kind(threads=2)
