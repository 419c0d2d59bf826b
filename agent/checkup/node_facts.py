"""What one node tells of itself for a checkup: read and probed here, judged by `doctor.py`.

Nothing stays of the probes; torch is described from its own version file, without importing it.
"""

import contextlib
import importlib.util
import os
import platform
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from easyscale.agent.hardware import surroundings
from easyscale.agent.hardware.cores import usable_cores
from easyscale.agent.hardware.devices import Machine, has_driver
from easyscale.model import FORMAT_VERSION, Record
from easyscale.rendezvous.formats import our_release

#: As many random ports as a node with many slots listens at.
_PORTS = 20
MARK_PREFIX = ".easyscale-doctor-"


class TorchFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The build of torch that workers here would import; version empty: there is none."""

    version: str = ""
    cuda: str = ""


class FolderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Where snapshots would go on this node."""

    path: str
    #: Why nothing can be written there; empty: it can.
    fault: str = ""
    free_bytes: int | None = None


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """How this node reached another one."""

    node: str
    fault: str = ""
    round_trip_s: float | None = None
    #: How much later its clock is than ours.
    clock_s: float | None = None


class NodeFacts(Record, frozen=True, kw_only=True):
    """Everything that one node brings to a checkup."""

    node: str
    #: Where it listens for the others; empty: it is alone.
    address: str = ""
    release: str = ""
    format: int = FORMAT_VERSION
    python: str = ""
    torch: TorchFacts = TorchFacts()
    gpus: tuple[str, ...] = ()
    #: Of NVIDIA's; empty: there is none.
    driver: str = ""
    cores: int = 1
    processors: int = 1
    open_files: int = 0
    most_open_files: int = 0
    shm_bytes: int | None = None
    ports_fault: str = ""
    folder: FolderFacts
    #: What it found of the others; None until it has met all of them.
    reached: tuple[Reached, ...] | None = None
    #: The nodes whose marks it sees in its own snapshot folder.
    sees: tuple[str, ...] = ()


def gather(node: str, folder: Path) -> NodeFacts:
    """Probe this node; takes a moment where there are GPUs."""
    soft, hard = surroundings.open_files()
    return NodeFacts(
        node=node,
        release=our_release(),
        python=platform.python_version(),
        torch=torch_facts(),
        gpus=tuple(gpu.name for gpu in Machine(visible=_visible()).gpus()),
        driver=driver_version(),
        cores=usable_cores(),
        processors=surroundings.processors(),
        open_files=soft,
        most_open_files=hard,
        shm_bytes=surroundings.shm_bytes(),
        ports_fault=ports_fault(),
        folder=folder_facts(folder),
    )


def _visible() -> str | None:
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def torch_facts() -> TorchFacts:
    """Read torch's version file; importing torch would take a second and tell no more."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return TorchFacts()
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return TorchFacts()
    return read_torch_version(text)


def read_torch_version(text: str) -> TorchFacts:
    found = dict(re.findall(r"^(\w+)(?:\s*:[^=\n]+)?\s*=\s*'([^'\n]*)'", text, re.MULTILINE))
    return TorchFacts(version=found.get("__version__", ""), cuda=found.get("cuda", ""))


def driver_version(root: Path = Path("/")) -> str:
    """The kernel's NVIDIA driver, whether or not it has a device."""
    if root == Path("/") and not has_driver():
        return ""
    try:
        text = (root / "proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return found[1] if found else ""


def ports_fault() -> str:
    """Why workers could not listen here; empty: they can."""
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(_PORTS):
                listener = stack.enter_context(socket.socket())
                listener.bind(("", 0))
                listener.listen()
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def folder_facts(folder: Path) -> FolderFacts:
    """Write to the folder as a snapshot would; it is there afterwards only if it was before."""
    path = str(folder)
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"easyscale")
            os.fsync(probe.fileno())
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return FolderFacts(path=path, fault=(error.strerror or str(error)).lower())
    finally:
        for each in made:
            with contextlib.suppress(OSError):
                each.rmdir()
    return FolderFacts(path=path, free_bytes=free)


@contextlib.contextmanager
def marked(folder: Path, node: str) -> Iterator[None]:
    """Leave a mark in the folder while others look for it."""
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    mark = folder / f"{MARK_PREFIX}{node}"
    try:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            mark.touch()
        yield
    finally:
        with contextlib.suppress(OSError):
            mark.unlink(missing_ok=True)
        for each in made:
            with contextlib.suppress(OSError):
                each.rmdir()


def marks_in(folder: Path) -> tuple[str, ...]:
    """Whose marks are there."""
    try:
        return tuple(
            sorted(path.name.removeprefix(MARK_PREFIX) for path in folder.glob(f"{MARK_PREFIX}*"))
        )
    except OSError:
        return ()
