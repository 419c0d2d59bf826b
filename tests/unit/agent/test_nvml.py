"""What NVML says of its devices becomes slots, whatever it leaves out."""

# The stand-in has the names of a C library and takes pointers.
# ruff: noqa: N802, ANN401

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from easyscale.agent.hardware.devices import Gpu, resolve
from easyscale.agent.hardware.devices import parse_devices as parse
from easyscale.agent.hardware.nvml import Nvml, NvmlError

NOT_SUPPORTED = 3
TIMED_OUT = 10
LOST = 15
WHOLE = 0xFFFFFFFF


@dataclass(slots=True)
class Card:
    uuid: str
    slices: tuple[str, ...] | None = None
    answers: int = 0
    events: int = 0x2 | 0x8 | 0x4
    is_lost: bool = False


@dataclass(slots=True)
class Library:
    """Stands in for libnvidia-ml: handles are numbers, results go where the caller points."""

    cards: list[Card] = field(default_factory=list)
    init: int = 0
    #: What the driver reports, one by one: type, data, number of the card, GPU instance.
    troubles: list[tuple[int, int, int, int]] = field(default_factory=list)
    registered: list[tuple[int, int]] = field(default_factory=list)

    class nvmlErrorString:  # noqa: N801 - a C function, whose result type the caller sets
        restype: Any = None

        def __new__(cls, code: int) -> bytes:  # type: ignore[misc]
            return b"Driver Not Loaded"

    def nvmlInit_v2(self) -> int:
        return self.init

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.cards)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = 100 * (index + 1)
        return self.cards[index].answers

    def nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> int:
        if self._card(handle).slices is None:
            return NOT_SUPPORTED
        current._obj.value = 1
        return 0

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, most: Any) -> int:
        most._obj.value = 7
        return 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, place: int, part: Any) -> int:
        slices = self._card(handle).slices or ()
        part._obj.value = handle.value + place + 1
        return 0 if place < len(slices) else NOT_SUPPORTED

    def nvmlDeviceGetUUID(self, handle: Any, buffer: Any, size: int) -> int:
        card, place = self._card(handle), handle.value % 100
        buffer.value = ((card.slices or ())[place - 1] if place else card.uuid).encode()
        return 0

    def nvmlDeviceGetName(self, handle: Any, buffer: Any, size: int) -> int:
        buffer.value = b"NVIDIA H200"
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:
        if handle.value % 100:
            return NOT_SUPPORTED
        major._obj.value, minor._obj.value = 9, 0
        return 0

    def nvmlDeviceGetGpuInstanceId(self, handle: Any, instance: Any) -> int:
        instance._obj.value = handle.value % 100
        return 0

    def nvmlEventSetCreate(self, events: Any) -> int:
        events._obj.value = 1
        return 0

    def nvmlDeviceGetSupportedEventTypes(self, handle: Any, known: Any) -> int:
        known._obj.value = self._card(handle).events
        return 0

    def nvmlDeviceRegisterEvents(self, handle: Any, wanted: Any, events: Any) -> int:
        self.registered.append((handle.value, wanted.value))
        return 0

    def nvmlEventSetWait_v2(self, events: Any, event: Any, wait_ms: int) -> int:
        if not self.troubles:
            return TIMED_OUT
        event._obj.type, event._obj.data, card, event._obj.gpu_instance = self.troubles.pop(0)
        event._obj.device = 100 * (card + 1)
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        if self._card(handle).is_lost:
            return LOST
        memory._obj.total, memory._obj.used = 1000, 10
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: Any, busy: Any) -> int:
        busy._obj.gpu = 25
        return NOT_SUPPORTED if handle.value % 100 else 0

    def _card(self, handle: Any) -> Card:
        number: int = handle.value // 100
        return self.cards[number - 1]


def devices(*cards: Card) -> tuple[Gpu, ...]:
    found = Nvml(Library(list(cards))).devices()  # type: ignore[arg-type]
    return tuple(msgspec.convert(device, Gpu) for device in found)


def test_a_device_is_described_by_its_own_name() -> None:
    (gpu,) = devices(Card("GPU-a"))
    assert gpu == Gpu(
        index=0,
        uuid="GPU-a",
        name="NVIDIA H200",
        capability="9.0",
        memory_bytes=1000,
        memory_used_bytes=10,
        utilization=0.25,
    )
    assert gpu.kind == "nvidia sm-9.0 (NVIDIA H200)"


def test_slices_stand_for_their_device() -> None:
    found = devices(Card("GPU-a"), Card("GPU-b", slices=("MIG-1", "MIG-2")))
    assert [(gpu.index, gpu.slice, gpu.uuid) for gpu in found] == [
        (0, None, "GPU-a"),
        (1, 0, "MIG-1"),
        (1, 1, "MIG-2"),
    ]
    assert {gpu.capability for gpu in found} == {"9.0"}
    assert found[1].utilization is None

    @dataclass(frozen=True, slots=True)
    class Node:
        def gpus(self) -> tuple[Gpu, ...]:
            return found

        def cores(self) -> int:
            return 1

    offer = resolve(parse("auto"), Node(), threads_per_worker=1)
    assert [slot.name for slot in offer.slots] == ["cuda:0", "cuda:1/0", "cuda:1/1"]


def test_a_device_in_slices_without_any_is_no_place() -> None:
    assert devices(Card("GPU-a", slices=())) == ()


def test_a_lost_device_leaves_the_others() -> None:
    assert [gpu.uuid for gpu in devices(Card("GPU-a", answers=LOST), Card("GPU-b"))] == ["GPU-b"]


def test_a_driver_that_does_not_start_says_why() -> None:
    with pytest.raises(NvmlError, match="nvmlInit: Driver Not Loaded"):
        Nvml(Library(init=9))  # type: ignore[arg-type]


def test_a_watch_tells_whose_trouble_it_is() -> None:
    cards = [Card("GPU-a"), Card("GPU-b", slices=("MIG-1", "MIG-2"))]
    library = Library(cards, troubles=[(8, 79, 0, WHOLE), (2, 0, 1, WHOLE), (8, 94, 1, 2)])
    watch = Nvml(library).watch()  # type: ignore[arg-type]
    assert [next(watch) for _ in range(4)] == [
        {"what": "xid", "code": 79, "uuids": ["GPU-a"]},
        {"what": "ecc", "uuids": ["GPU-b", "MIG-1", "MIG-2"]},
        {"what": "xid", "code": 94, "uuids": ["MIG-2"]},
        {},
    ]
    assert library.registered == [(100, 0x2 | 0x8), (200, 0x2 | 0x8)]


def test_a_device_that_is_lost_without_any_event_is_told_once() -> None:
    lost = Card("GPU-a", events=0)
    library = Library([lost, Card("GPU-b")])
    watch = Nvml(library).watch()  # type: ignore[arg-type]
    assert next(watch) == {}
    lost.is_lost = True
    assert [next(watch) for _ in range(3)] == [{"what": "lost", "uuids": ["GPU-a"]}, {}, {}]
    assert library.registered == [(200, 0x2 | 0x8)]
