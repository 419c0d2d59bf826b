"""Lines of a worker's log, each with who printed it when: pieces in, lines out; pure."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from easyscale.agent.processes.log_files import LogFile, Mark, Piece
from easyscale_cli.views.slots import natural
from easyscale_cli.views.worker_lines import LONGEST_PARTIAL, last_state


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of one worker process."""

    file: LogFile
    #: When it was printed or soon after, since 1970; None where no mark tells.
    at_s: float | None
    #: The logical rank whose micro-step printed it.
    rank: int | None
    text: str

    @property
    def order(self) -> tuple[object, ...]:
        """By time, then by place; the lines of one stream stay as they were."""
        file = self.file
        return self.at_s or 0.0, natural(file.node), natural(file.slot), file.spawn, file.stream


@dataclass(slots=True)
class LineMaker:
    """Turns the pieces of one log into lines; what is unfinished waits for the next piece."""

    file: LogFile
    next: int = 0
    _tail: bytes = b""
    _marks: list[Mark] = field(default_factory=list)

    def feed(self, piece: Piece) -> list[LogLine]:
        """The lines that a piece completes; it follows the one before."""
        if piece.offset != self.next:
            self._tail = b""  # what lay between is not asked for
        begin = piece.offset - len(self._tail)
        known = self._marks[-1].offset if self._marks else -1
        self._marks += [mark for mark in piece.marks if mark.offset > known]
        self.next = piece.next
        *whole, self._tail = (self._tail + piece.data).split(b"\n")
        lines = []
        for text in whole:
            lines.append(self._line(text, begin))
            begin += len(text) + 1
        # What is unfinished keeps the mark of its beginning, however long its end takes.
        del self._marks[: max(self._mark_at(begin), 0)]
        if len(self._tail) > LONGEST_PARTIAL:
            lines += self.finish()
        return lines

    def finish(self) -> list[LogLine]:
        """The line whose end has not been printed, where there is one."""
        text, self._tail = self._tail, b""
        return [self._line(text, self.next - len(text))] if text else []

    def _mark_at(self, offset: int) -> int:
        return bisect_right(self._marks, offset, key=lambda mark: mark.offset) - 1

    def _line(self, text: bytes, begin: int) -> LogLine:
        at = self._mark_at(begin)
        mark = self._marks[at] if at >= 0 else None
        text = text.removesuffix(b"\r")
        if b"\r" in text:
            text = last_state(text)  # a progress bar, as it stood at its end
        return LogLine(
            file=self.file,
            at_s=mark.at_s if mark is not None else None,
            rank=mark.rank if mark is not None else None,
            text=text.decode("utf-8", "backslashreplace"),
        )


def of_rank(lines: Iterable[LogLine], rank: int | None) -> list[LogLine]:
    """Those that a rank printed; all of them where none is named."""
    return [line for line in lines if rank is None or line.rank == rank]
