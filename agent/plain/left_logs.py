"""The logs that a plain or packed job has left in a folder, found by torchrun's layout.

It names no node, so the folder of the launch stands for it, and no time.
"""

import re
from pathlib import Path

from easyscale.agent.processes.log_files import MOST_BYTES, LogFile, Piece
from easyscale.errors import UsageError
from easyscale.reports import Stream

_NAME = re.compile(r"attempt_(\d{1,9})/(\d{1,9})/(stdout|stderr)")


def left_logs(folder: Path) -> list[LogFile]:
    """What lies there, by launch, round and local rank."""
    found = []
    for path in sorted(folder.glob("*/attempt_*/*/*.log")):
        launch, name = path.parents[2].name, "/".join((*path.parts[-3:-1], path.stem))
        if (parts := _NAME.fullmatch(name)) is not None:
            found.append(
                LogFile(
                    node=launch,
                    slot=f"local:{parts[2]}",
                    spawn=int(parts[1]) + 1,
                    stream=Stream(parts[3]),
                    name=name,
                    size=path.stat().st_size,
                )
            )
    return found


def read_left(folder: Path, file: LogFile, *, offset: int) -> Piece:
    """A part of one of them; raises UsageError for what is none, OSError where it is gone."""
    if _NAME.fullmatch(file.name) is None:
        raise UsageError(f"{file.name!r} is no log of a worker")
    with (folder / file.node / f"{file.name}.log").open("rb") as log:
        log.seek(offset)
        return Piece(offset=offset, data=log.read(MOST_BYTES), marks=())
