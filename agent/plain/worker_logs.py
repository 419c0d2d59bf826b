"""Where the output of a round's workers goes: torchrun's folders, pipes, console and filters.

    <log_dir>/<job>_<random>/attempt_<n>/<local rank>/{stdout.log,stderr.log,error.json}

n counts rounds, so that no change of membership ever takes an earlier round's logs away.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from easyscale.agent.plain.kept import KeptLogs, KeptStream, Who
from easyscale.agent.plain.settings import LogSettings, Std
from easyscale.agent.processes.pipes import CHUNK_BYTES, PipeReader, PipeReading
from easyscale.reports import Source, Stream

#: Of stderr, for the traceback that explains a failure.
_TAIL_BYTES = 65_536
#: Of `runs/JOB/logs`.
_OWN_LEVELS = 3
_STD = {Stream.STDOUT: Std.OUT, Stream.STDERR: Std.ERR}

#: What the console is given; no bytes are the end of a worker's stream.
Show = Callable[[Source, Stream, bytes], None]


class WorkerOutput:
    """One worker's streams: what it is given to write to, and what is kept of it."""

    def __init__(
        self, folder: Path, *, ended: Callable[[], None], lost: Callable[[Stream, OSError], None]
    ) -> None:
        self.folder = folder
        self.ended = ended
        #: A stream's log ends before the stream.
        self.lost = lost
        #: What the worker gets as its standard output and error; closed once it has started.
        self.theirs: dict[Stream, int] = {}
        #: Our ends, until they are read; and what is read of them.
        self.pipes: dict[Stream, int] = {}
        self.readings: dict[Stream, PipeReading] = {}
        #: The streams of which more may come.
        self.open: set[Stream] = set()
        self.files: dict[Stream, int] = {}
        self.redirected: dict[Stream, Path] = {}
        #: What is kept for who asks later.
        self.kept: dict[Stream, KeptStream] = {}
        self._tail = b""

    @property
    def error_file(self) -> Path:
        return self.folder / "error.json"

    @property
    def stderr_log(self) -> Path | None:
        """Where its stderr is kept, if it is."""
        path = self.folder / "stderr.log"
        return path if path.exists() else None

    def keep(self, stream: Stream, data: bytes) -> None:
        if stream is Stream.STDERR:
            self._tail = (self._tail + data)[-_TAIL_BYTES:]
        self.kept[stream].add(data, wall_s=time.time())
        if (file := self.files.get(stream)) is None:
            return
        try:
            _write_all(file, data)
        except OSError as error:  # a full disk costs the log, never the training
            os.close(self.files.pop(stream))
            self.lost(stream, error)

    def end(self, stream: Stream) -> None:
        self.open.discard(stream)
        if (file := self.files.pop(stream, None)) is not None:
            os.close(file)
        if not self.open:
            self.ended()

    def last_stderr(self) -> str:
        """The end of what it wrote to stderr, also where that went to a file only."""
        path = self.redirected.get(Stream.STDERR)
        if path is None:
            return self._tail.decode(errors="replace")
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
        return ""

    def close_theirs(self) -> None:
        for descriptor in self.theirs.values():
            os.close(descriptor)
        self.theirs.clear()


class RunLogs:
    """All output of one launch."""

    def __init__(
        self,
        settings: LogSettings,
        *,
        job_id: str,
        node: str,
        role: str,
        show: Show,
        tell: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._tell = tell
        self.kept = KeptLogs(node)
        self._show = show
        self._filters = {
            Stream.STDOUT: _Filter(settings.stdout_filters, role, tell=tell),
            Stream.STDERR: _Filter(settings.stderr_filters, role, tell=tell),
        }
        self._reader = PipeReader()
        self.folder = Path(
            tempfile.mkdtemp(prefix=f"{job_id}_", dir=_writable(Path(settings.folder)))
        ).absolute()

    def begin_round(self, number: int) -> Path:
        """The folder of a round; what filters copy goes to files beside its workers'."""
        attempt = self.folder / f"attempt_{number - 1}"
        attempt.mkdir(exist_ok=True)
        for stream, filter_ in self._filters.items():
            filter_.open(attempt / f"filtered_{stream.value}.log")
        return attempt

    def prepare(self, attempt: Path, who: Who, *, ended: Callable[[], None]) -> WorkerOutput:
        """Make what a worker writes to."""
        local_rank = who.local_rank
        folder = attempt / str(local_rank)
        folder.mkdir(exist_ok=True)
        made = WorkerOutput(folder, ended=ended, lost=partial(self._tell_lost, who))
        redirects, tee = self._settings.redirects.of(local_rank), self._settings.tee.of(local_rank)
        for stream, bit in _STD.items():
            path = folder / f"{stream.value}.log"
            if redirects & bit and not tee & bit:
                made.theirs[stream] = _open(path)
                made.redirected[stream] = path
                continue
            made.pipes[stream], made.theirs[stream] = os.pipe2(os.O_CLOEXEC)
            made.open.add(stream)
            if tee & bit:
                made.files[stream] = _open(path)
        whole = {stream: folder / f"{stream.value}.log" for stream in made.files}
        made.kept = self.kept.open(who, {**whole, **made.redirected})
        return made

    def begin(self, output: WorkerOutput, source: Source) -> None:
        """The worker runs: carry what it writes. Its slot is its local rank."""
        output.close_theirs()
        if not output.pipes:
            output.ended()
        pipes, output.pipes = output.pipes, {}
        for stream, pipe in pipes.items():
            output.readings[stream] = self._reader.add(
                pipe,
                take=partial(self._take, output, source, stream),
                ended=partial(self._end, output, source, stream),
            )

    def cut(self, output: WorkerOutput) -> None:
        """Its worker has ended: what others still hold of its pipes is not waited for."""
        for reading in tuple(output.readings.values()):
            self._reader.cut(reading)

    def discard(self, output: WorkerOutput) -> None:
        """Its worker never began."""
        output.close_theirs()
        for descriptor in (*output.pipes.values(), *output.files.values()):
            os.close(descriptor)
        output.pipes.clear()

    def close(self, *, deadline_s: float) -> None:
        self._reader.close(deadline_s=deadline_s)
        for filter_ in self._filters.values():
            filter_.close()

    def remove_empty(self) -> None:
        """Leave no folders of this launch in which nothing lies."""
        above = list(self.folder.parents)[:_OWN_LEVELS] if self._settings.is_default else []
        for folder in (*sorted(self.folder.rglob("*"), reverse=True), self.folder, *above):
            if folder.is_dir():
                with contextlib.suppress(OSError):
                    folder.rmdir()

    def _tell_lost(self, who: Who, stream: Stream, error: OSError) -> None:
        self._tell(_lost(f"the {stream} log of rank {who.rank}", error))

    def _take(self, output: WorkerOutput, source: Source, stream: Stream, pipe: int) -> bool:
        """Called from the reader's thread."""
        data = os.read(pipe, CHUNK_BYTES)
        if data:
            output.keep(stream, data)
            if self._settings.tee.of(int(source.slot)) & _STD[stream]:
                self._filters[stream].feed(source, data)
            self._show_if_asked(source, stream, data)
        return bool(data)

    def _end(self, output: WorkerOutput, source: Source, stream: Stream) -> None:
        self._show_if_asked(source, stream, b"")
        output.end(stream)

    def _show_if_asked(self, source: Source, stream: Stream, data: bytes) -> None:
        shown = self._settings.shown_ranks
        if shown is None or int(source.slot) in shown:
            self._show(source, stream, data)


class _Filter:
    """Copies lines that hold one of some words to a file of their own."""

    def __init__(self, words: tuple[str, ...], role: str, *, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._words = [word.encode() for word in words]
        self._role = role
        self._rests: dict[Source, bytes] = {}
        self._file: int | None = None

    def open(self, path: Path) -> None:
        if self._words:
            self.close()
            self._file = _open(path)

    def feed(self, source: Source, data: bytes) -> None:
        if self._file is None:
            return
        *lines, self._rests[source] = (self._rests.get(source, b"") + data).split(b"\n")
        tag = f"[{self._role}{source.slot}]:".encode()
        found = [tag + line + b"\n" for line in lines if any(word in line for word in self._words)]
        try:
            _write_all(self._file, b"".join(found))
        except OSError as error:  # a full disk costs the copy, never the job
            self.close()
            self._tell(_lost("the filtered copy of the logs", error))

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _open(path: Path) -> int:
    """A file of this user's alone, to be appended to."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _writable(folder: Path) -> Path:
    """The folder, or a temporary one where this one cannot be written to."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.mkdtemp(prefix="easyscale-"))


def _lost(what: str, error: OSError) -> str:
    return f"{what} ends here: {(error.strerror or str(error)).lower()}; training goes on"


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
