"""What a node gives its processes: shared memory, open files, cores. Read, never changed."""

import os
import resource
from pathlib import Path

#: Loader workers hand their batches over in /dev/shm; docker gives 64 MB where nobody asks.
SMALL_SHM_BYTES = 256_000_000
SHM = Path("/dev/shm")  # noqa: S108 - it is measured, nothing is put there


def shm_bytes(folder: Path = SHM) -> int | None:
    """How much shared memory there is; None where there is none to measure."""
    try:
        facts = os.statvfs(folder)
    except OSError:
        return None
    return facts.f_blocks * facts.f_frsize


def open_files() -> tuple[int, int]:
    """How many files a process may have open: as it is, and as far as it may be raised."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def processors() -> int:
    """Processors of the machine, whether this process may use them or not."""
    return os.cpu_count() or 1


def notes(*, shm: int | None) -> tuple[str, ...]:
    """What a person who launches here should know before loader workers fail."""
    if shm is None or shm >= SMALL_SHM_BYTES:
        return ()
    told = (
        f"{SHM} holds {shm / 1e6:.0f} MB, in which loader workers hand over their batches: "
        "docker run --shm-size 2g, or num_workers=0"
    )
    return (told,)
