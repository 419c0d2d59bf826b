"""The logs of a job's workers, read where they lie: by the agents of its nodes, or in a folder."""

import contextlib
import heapq
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from easyscale.agent.doors.dialogue import AgentRefused, AgentSilent
from easyscale.agent.plain.left_logs import left_logs, read_left
from easyscale.agent.processes.log_files import (
    LogFile,
    Piece,
    log_files,
    nodes_with_logs,
    read_piece,
)
from easyscale.errors import StoreError
from easyscale_cli.connection import AgentEnded, Job
from easyscale_cli.roads import Road, ask_all
from easyscale_cli.views.log_lines import LineMaker, LogLine, of_rank


class Shelf(Protocol):
    """Where logs lie."""

    def files(self) -> list[LogFile]: ...

    def piece(self, file: LogFile, *, offset: int, since_s: float | None) -> Piece | None:
        """A part of one; None where it cannot be read any more."""

    def thank(self) -> None:
        """All that `files` named was read."""


@dataclass(slots=True)
class FolderShelf:
    """A folder of logs on this machine."""

    folder: Path

    def files(self) -> list[LogFile]:
        nodes = nodes_with_logs(self.folder)
        elastic = [file for node in nodes for file in log_files(self.folder, node)]
        return elastic or left_logs(self.folder)

    def piece(self, file: LogFile, *, offset: int, since_s: float | None) -> Piece | None:
        try:
            if file.name.startswith("attempt_"):
                return read_left(self.folder, file, offset=offset)
            return read_piece(self.folder / file.node, file.name, offset=offset, since_s=since_s)
        except OSError:
            return None

    def thank(self) -> None:
        """Nobody waits for it."""


class AgentShelf:
    """The agents of a job: each has its own logs, and may see those of nodes that have left."""

    def __init__(self, job: Job, *, follows: bool) -> None:
        self._job = job
        self._me = secrets.token_hex(4) if follows else ""
        self._roads: Sequence[Road] = ()
        #: Node -> who has its logs.
        self._of: dict[str, Road] = {}
        self._closing: list[Road] = []

    def files(self) -> list[LogFile]:
        """What there is now; raises AgentEnded, or AgentSilent where no agent answers."""
        with contextlib.suppress(StoreError):  # the agents are asked where they were
            self._roads = self._job.roads()
        if not self._roads:
            raise AgentEnded(f"the agents of job {self._job.id!r} have ended")
        answers = ask_all(self._roads, "logs", {"watcher": self._me})
        if not answers:
            raise AgentSilent(f"none of the agents of job {self._job.id!r} answers")
        self._closing = [road for road, answer in answers if answer["closing"]]
        found: dict[str, list[LogFile]] = {}
        for road, answer in answers:
            by_node: dict[str, list[LogFile]] = {road.node: []}
            for file in msgspec.convert(answer["files"], list[LogFile]):
                by_node.setdefault(file.node, []).append(file)
            for node, files in by_node.items():
                if node == road.node or node not in found:
                    found[node], self._of[node] = files, road
        return [file for files in found.values() for file in files]

    def piece(self, file: LogFile, *, offset: int, since_s: float | None) -> Piece | None:
        asked = {"node": file.node, "name": file.name, "offset": offset, "since_s": since_s}
        try:
            return msgspec.convert(self._of[file.node].ask("log", asked), Piece)
        except (AgentSilent, AgentRefused):
            return None

    def thank(self) -> None:
        """Let agents go that wait to end until all of their logs were read."""
        ask_all(self._closing, "logs", {"watcher": self._me, "has_all": True})


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which lines are asked for."""

    node: str | None = None
    slot: str | None = None
    rank: int | None = None
    since_s: float | None = None

    def holds(self, file: LogFile) -> bool:
        return self.node in (None, file.node) and self.slot in (None, file.slot)


class LogReading:
    """Reads what there is, then what has come since, again and again."""

    def __init__(self, shelf: Shelf, wanted: Wanted) -> None:
        self._shelf = shelf
        self._wanted = wanted
        self._makers: dict[tuple[str, str], LineMaker] = {}

    def files(self) -> list[LogFile]:
        """The logs that hold what is asked for, as they are now."""
        return [file for file in self._shelf.files() if self._wanted.holds(file)]

    def lines(self, files: Sequence[LogFile]) -> Iterator[LogLine]:
        """What these logs have beyond what was read of them, in the order of time."""
        return heapq.merge(*map(self._lines, files), key=lambda line: line.order)

    def thank(self) -> None:
        """What was named was read."""
        self._shelf.thank()

    def rest(self) -> list[LogLine]:
        """The lines whose ends have not been printed; nothing more is read."""
        rest = [line for maker in self._makers.values() for line in maker.finish()]
        return sorted(of_rank(rest, self._wanted.rank), key=lambda line: line.order)

    def _lines(self, file: LogFile) -> Iterator[LogLine]:
        key = (file.node, file.name)
        since_s = self._wanted.since_s if key not in self._makers else None
        maker = self._makers.setdefault(key, LineMaker(file))
        while since_s is not None or maker.next < file.size:
            piece = self._shelf.piece(file, offset=maker.next, since_s=since_s)
            if piece is None or (not piece.data and since_s is None):
                return
            lines = maker.feed(piece)
            yield from of_rank(self._since(lines), self._wanted.rank)
            since_s = None

    def _since(self, lines: Sequence[LogLine]) -> Sequence[LogLine]:
        """A mark may begin before the time that is asked for; a line without a time is kept."""
        least_s = self._wanted.since_s
        if least_s is None:
            return lines
        return [line for line in lines if line.at_s is None or line.at_s >= least_s - _MARK_S]


#: A mark tells of the time within this.
_MARK_S = 0.2
_TAIL_BYTES = 32 << 10


def last_lines(shelf: Shelf, *, node: str, slot: str, most: int) -> list[LogLine]:
    """The newest lines of the newest process of a slot, on both streams."""
    files = [file for file in shelf.files() if (file.node, file.slot) == (node, slot)]
    newest = max((file.spawn for file in files), default=0)
    lines: list[LogLine] = []
    for file in files:
        if file.spawn == newest:
            lines += _tail(shelf, file)
    return sorted(lines, key=lambda line: line.order)[-most:]


def _tail(shelf: Shelf, file: LogFile) -> list[LogLine]:
    begin = max(0, file.size - _TAIL_BYTES)
    piece = shelf.piece(file, offset=begin, since_s=None)
    if piece is None:
        return []
    maker = LineMaker(file, next=begin)
    lines = maker.feed(piece) + maker.finish()
    return lines[1:] if begin else lines  # the first may have begun before
