"""What slots this node offers: the operator's word, held against what there is.

`--devices` is read into a choice, of which an inventory makes slots; torchrun's word for a count
is translated first.
"""

import json
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import msgspec

from easyscale.agent.events import Slot
from easyscale.agent.hardware import nvml
from easyscale.agent.hardware.cores import usable_cores
from easyscale.errors import UsageError
from easyscale.kinds import named

#: More CPU slots on one core are a slip of the finger.
MOST_SLOTS_PER_CORE = 64
_PROBE_DEADLINE_S = 5.0
_FORMS = "auto, cuda, cuda:0,2, cpu or cpu:4"


class Device(StrEnum):
    CUDA = "cuda"
    CPU = "cpu"


class DeviceChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for; `device` None: whatever there is."""

    device: Device | None = None
    #: These GPUs, in this order.
    indices: tuple[int, ...] | None = None
    #: So many CPU slots.
    count: int | None = None
    #: How the person wrote it, for messages: `--devices cpu:4`.
    text: str = "--devices auto"


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One NVIDIA device, or one MIG slice of one."""

    index: int
    slice: int | None = None
    uuid: str
    name: str = ""
    capability: str = ""
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    utilization: float | None = None

    @property
    def kind(self) -> str:
        """As far as the driver knows; the worker that runs there completes it."""
        return named(f"nvidia sm-{self.capability}", self.name) if self.capability else self.name


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """The slots, and what the person should know about them."""

    slots: tuple[Slot, ...]
    notes: tuple[str, ...] = ()


class Inventory(Protocol):
    """What a node has; tests bring their own."""

    def gpus(self) -> tuple[Gpu, ...]: ...

    def cores(self) -> int: ...


class Machine:
    """The real inventory; `visible` is CUDA_VISIBLE_DEVICES as the agent was given it."""

    def __init__(self, *, visible: str | None = None) -> None:
        self._visible = visible

    def gpus(self) -> tuple[Gpu, ...]:
        return select_visible(probe_gpus(), self._visible)

    def cores(self) -> int:
        return usable_cores()


def parse_devices(text: str, *, option: str = "--devices") -> DeviceChoice:
    """Read `auto`, `cuda[:LIST]` or `cpu[:COUNT]`."""
    shown = f"{option} {text}"
    word, colon, rest = text.partition(":")
    if text == "auto":
        return DeviceChoice(text=shown)
    if word == Device.CPU and (not colon or rest.isdecimal()):
        return DeviceChoice(device=Device.CPU, count=_at_least_one(rest, shown), text=shown)
    indices = rest.split(",")
    if word == Device.CUDA and (not colon or all(index.isdecimal() for index in indices)):
        return DeviceChoice(
            device=Device.CUDA, indices=_distinct(indices, shown) if rest else None, text=shown
        )
    raise UsageError(f"{shown}: the forms are {_FORMS}", hint=f"{option} auto")


def devices_of_nproc(text: str, *, inventory: Inventory, option: str = "--nproc-per-node") -> str:
    """Say torchrun's word (a number, `auto`, `gpu` or `cpu`) as `--devices` would."""
    shown = f"{option} {text}"
    words = {"auto": "auto", "gpu": "cuda", "cuda": "cuda", "cpu": "cpu"}
    if text in words:
        return words[text]
    if not text.isdecimal():
        raise UsageError(
            f"{shown}: the forms are a number, auto, gpu or cpu", hint=f"{option} auto"
        )
    count = _at_least_one(text, shown)
    assert count is not None
    gpus = len(inventory.gpus())
    if gpus == 0:
        return f"cpu:{count}"
    if count > gpus:
        raise UsageError(
            f"{shown}: this node has {_many(gpus)}",
            hint=f"{option} {gpus}, or --devices cpu:{count}",
        )
    return f"cuda:{','.join(map(str, range(count)))}"


def find_slots(
    devices: str,
    *,
    threads_per_worker: int,
    visible: str | None = None,
    workers_per_device: int = 1,
) -> tuple[tuple[Slot, ...], tuple[str, ...]]:
    """Name the slots of this node, and what the person should know; raises UsageError."""
    offer = resolve(
        parse_devices(devices),
        Machine(visible=visible),
        threads_per_worker=threads_per_worker,
        workers_per_device=workers_per_device,
    )
    return offer.slots, offer.notes


def slot_environment(slot: Slot) -> dict[str, str]:
    """What lets a worker see this device and no other."""
    if slot.name.startswith(Device.CPU):
        return {"CUDA_VISIBLE_DEVICES": ""}
    return {"CUDA_VISIBLE_DEVICES": slot.uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def resolve(
    choice: DeviceChoice,
    inventory: Inventory,
    *,
    threads_per_worker: int,
    workers_per_device: int = 1,
) -> Offer:
    """Make slots of a choice; raises UsageError when this node cannot grant it."""
    gpus = () if choice.device is Device.CPU else inventory.gpus()
    if choice.device is Device.CPU or (choice.device is None and not gpus):
        offer = _cpu_slots(choice, inventory.cores(), threads_per_worker)
    else:
        offer = _gpu_slots(choice, gpus)
    return _shared(offer, workers_per_device)


def _shared(offer: Offer, workers: int) -> Offer:
    """Several slots on each device, `cuda:3/0` and `cuda:3/1`: its workers take turns there."""
    if workers == 1:
        return offer
    slots = tuple(
        msgspec.structs.replace(slot, name=f"{slot.name}/{index}")
        for slot in offer.slots
        for index in range(workers)
    )
    return Offer(slots=slots, notes=offer.notes)


def _gpu_slots(choice: DeviceChoice, gpus: tuple[Gpu, ...]) -> Offer:
    if not gpus:
        raise UsageError(f"{choice.text}: there is no GPU on this node", hint="--devices cpu")
    chosen = range(len(gpus)) if choice.indices is None else choice.indices
    if beyond := [index for index in chosen if index >= len(gpus)]:
        raise UsageError(
            f"{choice.text}: this node has {_many(len(gpus))} and no cuda:{beyond[0]}",
            hint=f"--devices cuda:{','.join(map(str, range(len(gpus))))}",
        )
    names = _slot_names(gpus)
    slots = tuple(
        Slot(name=names[index], kind=gpus[index].kind, uuid=gpus[index].uuid) for index in chosen
    )
    return Offer(slots=slots)


def _slot_names(gpus: tuple[Gpu, ...]) -> list[str]:
    """Number devices as CUDA does, among those that are visible; slices count within theirs."""
    numbers: dict[int, int] = {}
    names = []
    for gpu in gpus:
        number = numbers.setdefault(gpu.index, len(numbers))
        names.append(f"cuda:{number}" if gpu.slice is None else f"cuda:{number}/{gpu.slice}")
    return names


def _cpu_slots(choice: DeviceChoice, cores: int, threads: int) -> Offer:
    count = choice.count if choice.count is not None else max(1, cores // threads)
    if count > MOST_SLOTS_PER_CORE * cores:
        most = MOST_SLOTS_PER_CORE * cores
        raise UsageError(
            f"{choice.text}: {count:,} CPU slots on {_cores(cores)}; the most is {most:,}",
            hint=f"--devices cpu:{max(1, cores // threads)}",
        )
    slots = tuple(Slot(name=f"cpu:{index}") for index in range(count))
    busy = count * threads
    if busy <= cores:
        return Offer(slots=slots)
    what = f"{count} CPU slots" if count > 1 else "1 CPU slot"
    each = f" of {threads} threads" if threads > 1 else ""
    return Offer(slots=slots, notes=(f"{what}{each} on {_cores(cores)}: each runs slower",))


def probe_gpus(*, python: str = sys.executable) -> tuple[Gpu, ...]:
    """Ask NVML in a child; a driver that does not answer in time has no device for us."""
    if not has_driver():
        return ()
    process = start_probe(python)
    try:
        answer, _ = process.communicate(timeout=_PROBE_DEADLINE_S)
    except subprocess.TimeoutExpired:
        # It may be stuck in the driver beyond any signal: it is not waited for.
        process.kill()
        return ()
    return read_probe(answer)


def has_driver() -> bool:
    """Whether an NVIDIA driver is there at all; without it no child is started."""
    return any(
        Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg", "/proc/driver/nvidia")
    )


def start_probe(python: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [python, "-I", "-S", str(Path(nvml.__file__).resolve())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def read_probe(answer: bytes) -> tuple[Gpu, ...]:
    try:
        found = json.loads(answer)["devices"]
        return tuple(msgspec.convert(device, Gpu) for device in found)
    except (ValueError, KeyError, msgspec.ValidationError):
        return ()


def select_visible(gpus: tuple[Gpu, ...], visible: str | None) -> tuple[Gpu, ...]:
    """Keep what CUDA_VISIBLE_DEVICES allows, in its order; like CUDA, stop at the first unknown."""
    if visible is None:
        return gpus
    chosen: list[Gpu] = []
    for word in (part.strip() for part in visible.split(",")):
        found = [gpu for gpu in gpus if _is_meant(gpu, word)]
        if not found:
            break
        chosen += [gpu for gpu in found if gpu not in chosen]
    return tuple(chosen)


def _is_meant(gpu: Gpu, word: str) -> bool:
    if word.isdecimal():
        return gpu.index == int(word)
    return bool(word) and gpu.uuid.startswith(word)


def _at_least_one(digits: str, shown: str) -> int | None:
    if not digits:
        return None
    if int(digits) == 0:
        raise UsageError(f"{shown}: a node takes part with at least 1 slot", hint="--devices auto")
    return int(digits)


def _distinct(indices: list[str], shown: str) -> tuple[int, ...]:
    numbers = tuple(int(index) for index in indices)
    if len(set(numbers)) != len(numbers):
        twice = next(number for number in numbers if numbers.count(number) > 1)
        raise UsageError(f"{shown}: cuda:{twice} is named twice", hint="--devices cuda")
    return numbers


def _many(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"
