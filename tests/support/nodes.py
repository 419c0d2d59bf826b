"""A job on several agents of this machine, and the proof that what was done to it changed nothing.

with Job(tmp_path, reference, etcd=server) as job:
    a = job.start("a", slots=2)
    a.sees("started")
    job.start("b").sees("met")
    a.sees("joined")
    job.hurry()
    job.holds(a.finish())
"""

import contextlib
import itertools
import json
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from easyscale.agent.doors.control import run_folder
from easyscale.model import Head, Wish, decode, encode
from easyscale.rendezvous.etcd import connect
from easyscale.rendezvous.keys import JobKeys
from easyscale.rendezvous.store import Put
from tests.support.etcd import Server, wait_until
from tests.support.processes import STEADY, Run, easyscale_command, started

SCRIPT = Path(__file__).parent.parent / "e2e" / "scripts" / "steady.py"
N = 5
#: Generous: two busy cores make a launch take half a minute.
DEADLINE_S = 90.0
#: Long enough to leave the machine to those who train.
POLL_S = 0.05
#: Seconds of a micro-step while a test still has something to do to the job.
SLOW_S = 0.3
#: The same once this share of the steps is behind it.
CRAWL_S = 1.0
CRAWL_FROM = 0.7
Event = Mapping[str, Any]
#: What the script writes that must be the same bytes in every run.
_NOTES = ("batch-*", "step-*", "epoch-*", "checkpoint-*")


@dataclass(frozen=True, slots=True)
class Reference:
    """What the script computes alone, with nothing done to it."""

    digest: str
    notes: Mapping[str, str]
    epochs: int
    #: Further words for the script.
    arguments: tuple[str, ...] = ()

    @property
    def steps(self) -> list[str]:
        return [name for name in self.notes if name.startswith("step-")]

    @classmethod
    def take(cls, out: Path, *, epochs: int, arguments: tuple[str, ...] = ()) -> "Reference":
        command = [sys.executable, str(SCRIPT), str(out), "--epochs", str(epochs), *arguments]
        env = {"EASYSCALE_LOGICAL_WORKERS": str(N)}
        with started(command, env=env, deadline_s=DEADLINE_S) as run:
            assert run.wait() == 0, run.report()
            said = re.search(r"digest ([0-9a-f]{64})$", run.stderr, re.MULTILINE)
            assert said, run.report()
            return cls(said[1], notes_in(out), epochs, arguments)


def notes_in(out: Path) -> dict[str, str]:
    return {path.name: path.read_text() for form in _NOTES for path in out.glob(form)}


@dataclass(frozen=True, slots=True)
class MicroStep:
    """One line of the trail: this process ran this logical worker of this step."""

    pid: int
    step: int
    rank: int


@dataclass(slots=True)
class Node:
    """One `easyscale launch --json` under way."""

    name: str
    run: Run
    job: "Job"

    def events(self, kind: str = "") -> list[Event]:
        lines = [json.loads(line) for line in self.run.stdout.splitlines() if line.startswith("{")]
        return [line for line in lines if kind in ("", line["event"])]

    def sees(self, kind: str, *, times: int = 1, within_s: float = DEADLINE_S) -> Event:
        """Wait for the n-th event of a kind."""
        self.run.wait_for(rf'(?s)("event":"{kind}".*?){{{times}}}', within_s=within_s)
        return self.events(kind)[times - 1]

    def joins(self) -> None:
        """Wait until a worker of this node trains."""
        self.job.until(lambda: self.descendants() & set(self.job.pids()), f"{self.name} joins")

    def descendants(self) -> set[int]:
        """Every living process of this node."""
        return {process.pid for process in self.run.descendants()}

    def finish(self, *, code: int = 0, within_s: float = DEADLINE_S) -> Event:
        """Wait for the end; the last event says how it came."""
        assert self.run.wait(within_s) == code, self.run.report()
        return self.events()[-1]


@dataclass(slots=True)
class Job:
    """A job's folder, its agents and its etcd; leaves nothing, whatever happens."""

    folder: Path
    reference: Reference
    etcd: Server | None = None
    name: str = "proof"
    faults: str = ""
    options: tuple[str, ...] = ()
    #: Of the script.
    arguments: tuple[str, ...] = ()
    pace_s: float = SLOW_S
    nodes: list[Node] = field(default_factory=list)
    _crawls: bool = False
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> Self:
        self.out.mkdir(parents=True, exist_ok=True)
        self.pace(self.pace_s)
        self._crawls = self.pace_s == 0
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            print(self.report(), file=sys.stderr)
        self._stack.close()

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def where(self) -> tuple[str, ...]:
        """How commands find the job's etcd; one of the agent's own needs no word."""
        return () if self.etcd is None else ("--etcd", str(self.etcd.endpoint))

    def start(self, name: str = "a", *, slots: int = 1, within: tuple[str, ...] = ()) -> Node:
        """Launch the script on a node, unnamed where the name is empty; `within` goes before."""
        named = ("--node-name", name) if name else ()
        command = [
            *within, *easyscale_command(), "launch", "--json", "--job-id", self.name,
            *named, *self.where, "--logical-workers", str(N),
            "--devices", f"cpu:{slots}", *STEADY, *self.options,
            str(SCRIPT), str(self.out), "--epochs", str(self.reference.epochs),
            *self.reference.arguments, *self.arguments,
        ]  # fmt: skip
        env = {"FAULTS": self.faults}
        run = self._stack.enter_context(
            started(command, cwd=self.folder, env=env, deadline_s=DEADLINE_S)
        )
        node = Node(name, run, self)
        self.nodes.append(node)
        return node

    # --- the pace --------------------------------------------------------------------------------

    def pace(self, seconds: float) -> None:
        partial = self.out / ".pace"
        partial.write_text(str(seconds))
        partial.rename(self.out / "pace")

    def hurry(self) -> None:
        """Nothing more is done to the job: let it come to its end."""
        self._crawls = True
        self.pace(0)

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition, but not for a job that has ended."""

        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if not self._crawls and self.step() >= CRAWL_FROM * len(self.reference.steps):
                # A slow machine must not let the job end before all was done to it.
                self._crawls = True
                self.pace(CRAWL_S)
            assert any(node.run.process.poll() is None for node in self.nodes), f"ended: {what}"
            assert time.monotonic() < deadline, f"waited {DEADLINE_S:g} s in vain: {what}"
            time.sleep(POLL_S)

    def waits(self, seconds: float) -> None:
        """Let time pass in which nothing is to happen."""
        time.sleep(seconds)

    def trains_on(self, processes: int) -> None:
        """Wait until a step was computed by so many processes."""

        def of_last_steps() -> bool:
            trail, step = self.trail(), self.step()
            steps = (step, step - 1)
            return any(len({m.pid for m in trail if m.step == s}) == processes for s in steps)

        self.until(of_last_steps, f"{processes} processes train")

    # --- what the script has left ----------------------------------------------------------------

    def trail(self) -> list[MicroStep]:
        path = self.out / "trail"
        lines = path.read_text().splitlines() if path.exists() else []
        return [MicroStep(*map(int, line.split())) for line in lines]

    def step(self) -> int:
        """The newest step that somebody has begun."""
        return max((it.step for it in self.trail()), default=-1)

    def pids(self, *, since_step: int = 0) -> list[int]:
        """Processes that ran micro-steps, in the order of their first."""
        return list(dict.fromkeys(it.pid for it in self.trail() if it.step >= since_step))

    def reaches(self, step: int) -> None:
        self.until(lambda: self.step() >= step, f"step {step} begins")

    def goes_on(self, steps: int = 2) -> None:
        self.reaches(self.step() + steps)

    def longest_gap(self, since: float, until: float) -> float:
        """Seconds between two completed steps, at most, of those that ended in this time."""
        times = [path.stat().st_mtime for path in self.out.glob("step-*")]
        found = [since, *sorted(at for at in times if since < at < until), until]
        return max(after - before for before, after in itertools.pairwise(found))

    # --- what etcd holds -------------------------------------------------------------------------

    def stored(self, key: str) -> str:
        assert self.etcd is not None
        store = connect(self.etcd.settings, timeout_s=DEADLINE_S)
        try:
            entry = store.read(key, timeout_s=DEADLINE_S).get(key)
        finally:
            store.close()
        assert entry is not None, key
        return entry.value

    def stands_by(self, node: str) -> None:
        """Wait until a worker of this node waits for ranks."""
        key = JobKeys.of(self.name).node(node)

        def waits() -> bool:
            try:
                return '"standby"' in self.stored(key)
            except AssertionError:  # it has yet to register
                return False

        self.until(waits, f"{node} stands by")

    def wish(self, wish: Wish) -> None:
        """Ask for it as a command does, but without the time that one takes to start."""
        assert self.etcd is not None
        store = connect(self.etcd.settings, timeout_s=DEADLINE_S)
        try:
            put = Put(JobKeys.of(self.name).wish("of-a-test"), encode(wish))
            store.transact([], [put], timeout_s=DEADLINE_S)
        finally:
            store.close()

    def head(self) -> Head:
        keys = JobKeys.of(self.name)
        return decode(self.stored(keys.head), Head, source=keys.head)

    def leader(self) -> str:
        """The node whose agent leads."""
        return self.stored(JobKeys.of(self.name).leader).partition("/")[0]

    def struck(self, number: int = 0) -> int:
        """Wait until a fault has struck; the PID of whom it struck."""
        mark = self.out / f"fault-{number}"
        self.until(lambda: mark.exists() and mark.read_text(), f"fault {number} strikes")
        return int(mark.read_text().split()[0])

    # --- the claims ------------------------------------------------------------------------------

    def holds(self, end: Event, *, steps_lost: int = 0, unwritten: tuple[str, ...] = ()) -> None:
        """The job has finished with the bits of the undisturbed run, in all that it wrote."""
        assert end["event"] == "finished", self.report()
        assert [path.name for path in self.out.glob("conflict-*")] == [], self.report()
        expected = dict(self.reference.notes)
        for name in unwritten:
            del expected[name]
        assert notes_in(self.out) == expected, self.report()
        assert end["digest"] == self.reference.digest
        assert end["steps_lost"] == steps_lost, self.report()

    def repeated_only(self, *victims: int) -> None:
        """A micro-step ran twice only where the process that had run it is gone."""
        trail = self.trail()
        times = Counter((it.step, it.rank) for it in trail)
        ran = Counter((it.pid, it.step, it.rank) for it in trail)
        assert all(count == 1 for count in ran.values()), self.report()
        twice = {place for place, count in times.items() if count > 1}
        of_victims = {(it.step, it.rank) for it in trail if it.pid in victims}
        assert twice <= of_victims, f"{twice - of_victims} ran again\n{self.report()}"

    def report(self) -> str:
        logs = [
            f"--- {path}\n{path.read_text(errors='replace')[-3000:]}"
            for path in sorted(self.folder.glob("runs/*/logs/*/*/std*.log"))
        ]
        return "\n".join([*(f"=== {n.name}\n{n.run.report()}" for n in self.nodes), *logs])


def freeze(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def thaw(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(pids: list[int], *, within_s: float = 15.0) -> None:
    wait_until(lambda: not any(map(is_alive, pids)), f"{pids} end", deadline_s=within_s)


def no_doors() -> None:
    """No agent's socket is left on this machine, and nobody had to look for that."""
    folder = run_folder(os.environ)
    wait_until(lambda: not list(folder.glob("*.sock")), f"{folder} is empty")
