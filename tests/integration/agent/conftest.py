"""A supervisor with real workers, and what a test may ask of it, each wait with a deadline."""

import os
import queue
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from easyscale.agent import events
from easyscale.agent.processes.supervisor import Supervisor, SupervisorSettings
from easyscale.agent.processes.zygote_link import ZygoteSettings
from easyscale.messages import ForkRequest, ScriptTarget, WorkerSettings
from easyscale.model import Determinism, WorkerId
from easyscale.reports import Source, Stream

DEADLINE_S = 45.0
E = TypeVar("E", bound=events.Event)


def worker_settings(worker: WorkerId) -> WorkerSettings:
    return WorkerSettings(
        worker=worker,
        job_id="job",
        token="secret",
        local_host="127.0.0.1",
        logical_workers=4,
        seed=0,
        determinism=Determinism.SAME_KIND,
        threads_per_worker=1,
        partials="device",
        snapshot_dir="unused",
        snapshot_every_steps=None,
        snapshot_every_s=None,
        forming_timeout_s=5.0,
        exchange_deadline_s=5.0,
        linger_timeout_s=5.0,
    )


class Nursery:
    """Forks workers for tests and keeps what they did."""

    def __init__(
        self,
        folder: Path,
        *,
        preload: tuple[str, ...] = (),
        workers: int = 1,
        quiet_s: float = 600.0,
    ) -> None:
        self.log_dir = folder / "logs"
        self._events: queue.SimpleQueue[events.Event] = queue.SimpleQueue()
        self._kept: list[events.Event] = []
        self._news = threading.Condition()
        self._output: dict[tuple[str, Stream], bytearray] = defaultdict(bytearray)
        self._spawned = 0
        self.before_output: Callable[[], None] = lambda: None
        self.ranks: list[int | None] = []
        self.supervisor = Supervisor(
            SupervisorSettings(
                zygote=ZygoteSettings(
                    python=sys.executable,
                    environment=dict(os.environ),
                    log_file=self.log_dir / "node" / "zygote.log",
                    threads_per_worker=1,
                    determinism=Determinism.SAME_KIND,
                    workers=workers,
                    preload=preload,
                    quiet_s=quiet_s,
                ),
                log_dir=self.log_dir,
                asked_s=0.3,
                terminated_s=0.5,
            ),
            self._take,
            self._take_output,
        )

    def fork(
        self,
        folder: Path,
        text: str,
        *arguments: str,
        module: str = "",
        environment: dict[str, str] | None = None,
        working_directory: str = "",
    ) -> WorkerId:
        """Ask for a worker that runs this script; returns its id at once."""
        script = folder / "script.py"
        if not script.exists() or script.read_text() != text:  # an earlier worker may be reading it
            script.write_text(text)
        self._spawned += 1
        worker = WorkerId("node", "life", "cpu:0", self._spawned)
        target = ScriptTarget.of(module or "script.py", is_module=bool(module), arguments=arguments)
        self.supervisor.fork(
            ForkRequest(
                settings=worker_settings(worker),
                script=target,
                environment=environment or {},
                working_directory=working_directory or str(folder),
            )
        )
        return worker

    def pid(self, worker: WorkerId) -> int:
        return self.wait(events.WorkerForked, worker).pid

    def exit(self, worker: WorkerId, *, within_s: float = DEADLINE_S) -> events.WorkerExited:
        return self.wait(events.WorkerExited, worker, within_s=within_s)

    def wait(
        self, kind: type[E], worker: WorkerId | None = None, *, within_s: float = DEADLINE_S
    ) -> E:
        """The first such event, whether it came already or is still to come."""
        deadline = time.monotonic() + within_s
        seen = 0
        while True:
            for event in self._kept[seen:]:
                if isinstance(event, kind) and getattr(event, "worker", None) == worker:
                    return event
            seen = len(self._kept)
            try:
                self._kept.append(self._events.get(timeout=max(0, deadline - time.monotonic())))
            except queue.Empty:
                story = "\n".join(map(str, self._kept[-20:]))
                raise AssertionError(f"no {kind.__name__} of {worker}; seen:\n{story}") from None

    def story(self) -> tuple[events.Event, ...]:
        """What was waited for and what came before it, in the order it came."""
        return tuple(self._kept)

    def output(self, worker: WorkerId, stream: Stream = Stream.STDOUT) -> str:
        """All that was delivered by now."""
        with self._news:
            return self._output[str(self.pid(worker)), stream].decode()

    def wait_output(self, worker: WorkerId, text: str, stream: Stream = Stream.STDOUT) -> None:
        pid = self.pid(worker)
        with self._news:
            key = (str(pid), stream)
            arrived = self._news.wait_for(lambda: text.encode() in self._output[key], DEADLINE_S)
        assert arrived, f"{text!r} never came; this did: {self._output[key]!r}"

    def log(self, worker: WorkerId, stream: Stream) -> bytes:
        return (self.log_dir / f"node/cpu-0.{worker.spawn}/{stream.value}.log").read_bytes()

    def close(self) -> None:
        self.supervisor.close(deadline_s=5)

    def _take(self, event: events.Event) -> None:
        self._events.put(event)

    def _take_output(self, source: Source, stream: Stream, data: bytes, rank: int | None) -> None:
        self.before_output()
        with self._news:
            self.ranks.append(rank)
            self._output[str(source.pid), stream] += data
            self._news.notify_all()


def lives(pid: int) -> bool:
    """Whether the process runs; one that only waits to be reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_gone(*pids: int, within_s: float) -> list[int]:
    """Wait until none of them lives; returns those that still do."""
    deadline = time.monotonic() + within_s
    while (left := [pid for pid in pids if lives(pid)]) and time.monotonic() < deadline:
        time.sleep(0.005)
    return left


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """One zygote for all tests of a file: its import of torch is the slowest part."""
    nursery = Nursery(tmp_path_factory.mktemp("nursery"))
    nursery.supervisor.start()
    yield nursery
    nursery.close()
