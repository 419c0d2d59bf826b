"""Runs the command line as a person does, with a deadline, and ends exactly what it started.

with launched("launch", str(script), "--logical-workers", "4") as run:
    run.wait_for("step 3")
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

ROOT = Path(__file__).parent.parent.parent
DEADLINE_S = 100.0
#: How long what is left gets between SIGTERM and SIGKILL when a test is over.
GRACE_S = 5.0


#: For launches whose changes are counted: a busy machine's slots look unlike, and ranks would move.
STEADY = ("--least-gain", "1", "--slow-from", "1000")


class DeadlineMissed(AssertionError):
    """Raised when a command did not do in time what a test expects; holds all it said."""


@dataclass(slots=True)
class Run:
    """One command under way: what it says, how it ends, and every process below it."""

    name: str
    process: subprocess.Popen[str]
    deadline_s: float
    _lines: dict[str, list[str]] = field(default_factory=lambda: {"stdout": [], "stderr": []})
    _news: threading.Condition = field(default_factory=threading.Condition)
    _readers: list[threading.Thread] = field(default_factory=list)
    _seen: dict[int, psutil.Process] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stdout(self) -> str:
        with self._news:
            return "".join(self._lines["stdout"])

    @property
    def stderr(self) -> str:
        with self._news:
            return "".join(self._lines["stderr"])

    def descendants(self) -> list[psutil.Process]:
        """Every living process below the command, parents first."""
        try:
            found = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        self._seen.update((process.pid, process) for process in found)
        return found

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command itself, as `kill` would; its children hear nothing."""
        self.process.send_signal(number)

    def wait(self, within_s: float | None = None) -> int:
        """Wait for the end and return the exit code; a signal counts as 128 + its number."""
        limit_s = self.deadline_s if within_s is None else within_s
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise self._missed(f"{self.name} did not end within {limit_s:g} s") from None
        for reader in self._readers:
            reader.join(GRACE_S)
        return code if code >= 0 else 128 - code

    def wait_for(self, pattern: str, within_s: float | None = None) -> re.Match[str]:
        """Wait until either stream matches the regular expression; return the match."""
        limit_s = self.deadline_s if within_s is None else within_s
        deadline = time.monotonic() + limit_s
        with self._news:
            while True:
                for lines in self._lines.values():
                    if match := re.search(pattern, "".join(lines), re.MULTILINE):
                        return match
                left_s = deadline - time.monotonic()
                ended = self.process.poll() is not None and not self._reading()
                if left_s <= 0 or ended:
                    break
                self._news.wait(min(left_s, 0.2))
        why = f"ended with {self.process.returncode}" if ended else f"waited {limit_s:g} s"
        raise self._missed(f"{self.name} never said {pattern!r} ({why})")

    def report(self) -> str:
        """All that was collected, for the message of a failing test."""
        tree = [f"  {p.pid} {' '.join(_cmdline(p))[:160]}" for p in self.descendants()]
        alive = "\n".join(tree) or "  none"
        return f"--- processes\n{alive}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"

    def end(self) -> None:
        """End the command and all that was ever seen below it: SIGTERM, a grace, SIGKILL."""
        self.descendants()
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE_S)
        self.descendants()
        for process in self._seen.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
                process.wait(GRACE_S)  # an orphan came to us: nobody else reaps it
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(GRACE_S)
        for reader in self._readers:
            reader.join(GRACE_S)

    def _missed(self, what: str) -> "DeadlineMissed":
        return DeadlineMissed(f"{what}\n{self.report()}")

    def _reading(self) -> bool:
        return any(reader.is_alive() for reader in self._readers)

    def _read(self, stream: IO[str], name: str) -> None:
        with stream:
            for line in stream:
                with self._news:
                    self._lines[name].append(line)
                    self._news.notify_all()


@contextlib.contextmanager
def launched(
    *arguments: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    deadline_s: float = DEADLINE_S,
) -> Iterator[Run]:
    """Start `easyscale ARGUMENTS`; whatever happens in the block, nothing of it is left."""
    with started(
        [*easyscale_command(), *arguments], cwd=cwd, env=env, deadline_s=deadline_s
    ) as run:
        yield run


@contextlib.contextmanager
def started(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    deadline_s: float = DEADLINE_S,
) -> Iterator[Run]:
    """Start any command in a process group of its own, without a terminal and without input."""
    process = subprocess.Popen(
        list(command),
        cwd=cwd,
        env=dict(os.environ) | {"PYTHONUNBUFFERED": "1"} | dict(env or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    run = Run(name=" ".join(command)[-120:], process=process, deadline_s=deadline_s)
    for name, stream in (("stdout", process.stdout), ("stderr", process.stderr)):
        assert stream is not None
        reader = threading.Thread(target=run._read, args=(stream, name), daemon=True)
        reader.start()
        run._readers.append(reader)
    try:
        yield run
    finally:
        run.end()


@dataclass(frozen=True, slots=True)
class Outcome:
    """A command that has ended by itself."""

    code: int
    stdout: str
    stderr: str


def run_easyscale(
    *arguments: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    deadline_s: float = DEADLINE_S,
) -> Outcome:
    """Run `easyscale ARGUMENTS` to its end."""
    with launched(*arguments, cwd=cwd, env=env, deadline_s=deadline_s) as run:
        code = run.wait()
        return Outcome(code=code, stdout=run.stdout, stderr=run.stderr)


def easyscale_command() -> list[str]:
    """The command that a person types, from the environment that runs the tests."""
    beside = Path(sys.executable).parent / "easyscale"
    return [str(beside)] if beside.exists() else [sys.executable, "-m", "easyscale_cli.main"]


def _cmdline(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return process.cmdline()
    return ["(ended)"]
