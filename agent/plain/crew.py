"""The workers of this node's round: started by the keeper, heard through pipes, told of at the end.

Called from the driver's thread and from the threads of keeper and pipes; what it has to say goes
to `post`, as events.
"""

import contextlib
import linecache
import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from easyscale.agent.doors.control import swept_folder
from easyscale.agent.plain import contract, orphans, witness
from easyscale.agent.plain.events import WorkerExited, WorkerStarted
from easyscale.agent.plain.keeper_link import Answer, KeeperLink, Order
from easyscale.agent.plain.kept import Who
from easyscale.agent.plain.settings import NEW_PIPE, PlainSettings
from easyscale.agent.plain.values import Fault, Member, Round
from easyscale.agent.plain.watchdog import Watchdog
from easyscale.agent.plain.worker_logs import RunLogs, Show, WorkerOutput
from easyscale.reports import Source, Stream

Post = Callable[[WorkerStarted | WorkerExited], None]

#: From a worker's end to the end of its pipes, which a process that is none of its own may hold.
_OUTPUT_S = 0.5
_MAX_ERROR_FILE = 1 << 20


@dataclass(slots=True)
class _Worker:
    round: Round
    member: Member
    local_rank: int
    words: list[str]
    output: WorkerOutput
    pid: int | None = None
    #: What waitpid gave, once nothing of it is left.
    status: int | None = None
    is_silent: bool = False
    #: Cuts its output when its pipes stay open.
    timer: threading.Timer | None = None

    @property
    def rank(self) -> int:
        return self.member.first_rank + self.local_rank


class Crew:
    """All workers below one agent."""

    def __init__(
        self, settings: PlainSettings, *, post: Post, show: Show, tell: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._post = post
        self._lock = threading.RLock()
        self._workers: dict[int, _Worker] = {}
        self._next = 0
        self.logs = RunLogs(
            settings.logs,
            job_id=settings.job_id,
            node=settings.node_name,
            role=settings.role,
            show=show,
            tell=tell,
        )
        orphans.adopt_orphans()
        self._watchdog = self._open_watchdog(tell) if settings.watchdog else None
        self._keeper = self._spawn_keeper()

    @property
    def keeper_pid(self) -> int:
        return self._keeper.pid

    def start(self, round_: Round, member: Member) -> None:
        """Start all workers of a round; WorkerStarted and WorkerExited follow for each."""
        if self._keeper.is_lost:
            self._keeper.close()
            self._keeper = self._spawn_keeper()
        attempt = self.logs.begin_round(round_.number)
        for local_rank in range(member.workers):
            with self._lock:
                name = self._next
                self._next += 1
            who = Who(
                round=round_.number,
                local_rank=local_rank,
                rank=member.first_rank + local_rank,
                slot=member.places[local_rank],
                workers=member.workers,
            )
            output = self.logs.prepare(attempt, who, ended=partial(self._fall_silent, name))
            worker = _Worker(
                round=round_,
                member=member,
                local_rank=local_rank,
                words=contract.words(self._settings, local_rank),
                output=output,
            )
            with self._lock:
                self._workers[name] = worker
            self._keeper.start(
                Order(
                    worker=name,
                    words=worker.words,
                    environment=contract.environment(
                        self._settings,
                        round_,
                        member,
                        local_rank=local_rank,
                        error_file=str(output.error_file),
                        timer_file=self._watchdog.path if self._watchdog else "",
                    ),
                    folder=self._settings.working_directory,
                    cores=self._settings.cores[local_rank] if self._settings.cores else (),
                ),
                stdout=output.theirs[Stream.STDOUT],
                stderr=output.theirs[Stream.STDERR],
            )
        if self._keeper.is_lost:  # while it was asked: whoever it has not heard of never began
            self._lose("a loss while they started")

    def _open_watchdog(self, tell: Callable[[str], None]) -> Watchdog:
        given = self._settings.watchdog
        mark = str(self.logs.folder)
        return Watchdog(
            path="" if given == NEW_PIPE else given,
            is_ours=lambda pid: orphans.has_mark(pid, mark),
            tell=tell,
        )

    def _spawn_keeper(self) -> KeeperLink:
        sockets = swept_folder(self._settings.environment)
        return KeeperLink(hear=self._hear, lost=self._lose, sockets=sockets)

    def see_slots(self, environments: Mapping[str, Mapping[str, str]]) -> None:
        """What workers on these slots see from the next round on."""
        self._settings = msgspec.structs.replace(self._settings, slot_environments=environments)

    def signal(self, local_ranks: tuple[int, ...], number: int) -> None:
        for name in self._named(local_ranks):
            self._keeper.signal(name, number)

    def kill(self, local_ranks: tuple[int, ...]) -> None:
        for name in self._named(local_ranks):
            self._keeper.kill(name)

    def close(self) -> None:
        """End whatever still runs; nothing of it is left when this returns."""
        self._keeper.close()
        if self._watchdog is not None:
            self._watchdog.close()
        with self._lock:
            left = list(self._workers.values())
        for worker in left:
            if worker.timer is not None:
                worker.timer.cancel()
            self.logs.cut(worker.output)
        self.logs.close(deadline_s=_OUTPUT_S)

    def _named(self, local_ranks: tuple[int, ...]) -> list[int]:
        with self._lock:
            return [n for n, worker in self._workers.items() if worker.local_rank in local_ranks]

    # --- what the keeper says -----------------------------------------------------------------

    def _hear(self, answer: Answer) -> None:
        if answer.started is not None:
            self._begin(answer.started, answer.pid)
        elif answer.refused is not None:
            self._refuse(answer.refused, answer.reason, is_hopeless=True)
        elif answer.exited is not None:
            self._end(answer.exited, answer.status)

    def _begin(self, name: int, pid: int) -> None:
        with self._lock:
            worker = self._workers[name]
            worker.pid = pid
        source = Source(self._settings.node_name, str(worker.local_rank), pid)
        self._post(WorkerStarted(round=worker.round.number, local_rank=worker.local_rank, pid=pid))
        self.logs.begin(worker.output, source)

    def _refuse(self, name: int, reason: str, *, is_hopeless: bool) -> None:
        with self._lock:
            worker = self._workers.pop(name, None)
        if worker is None:
            return
        self.logs.discard(worker.output)
        fault = witness.could_not_start(
            reason, words=worker.words, rank=worker.rank, node=self._settings.node_name
        )
        self._tell_end(worker, msgspec.structs.replace(fault, is_hopeless=is_hopeless))

    def _end(self, name: int, status: int) -> None:
        with self._lock:
            worker = self._workers.get(name)
            if worker is None or worker.status is not None:
                return
            worker.status = status
            if not worker.is_silent:
                worker.timer = threading.Timer(_OUTPUT_S, self.logs.cut, [worker.output])
                worker.timer.daemon = True
                worker.timer.start()
        self._settle(name)

    def _fall_silent(self, name: int) -> None:
        with self._lock:
            if (worker := self._workers.get(name)) is None:
                return
            worker.is_silent = True
        self._settle(name)

    def _settle(self, name: int) -> None:
        """Tell of an end once it has come and all output before it was delivered."""
        with self._lock:
            worker = self._workers.get(name)
            if worker is None or worker.status is None or not worker.is_silent:
                return
            del self._workers[name]
        if worker.timer is not None:
            worker.timer.cancel()
        self._tell_end(worker, self._fault(worker, worker.status))

    def _tell_end(self, worker: _Worker, fault: Fault | None) -> None:
        self._post(
            WorkerExited(round=worker.round.number, local_rank=worker.local_rank, fault=fault)
        )

    def _fault(self, worker: _Worker, status: int) -> Fault | None:
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            return None
        assert worker.pid is not None
        log = worker.output.stderr_log
        return witness.fault_of(
            witness.Evidence(
                error_file=_read(worker.output.error_file),
                stderr=worker.output.last_stderr(),
                read_line=linecache.getline,
                folder=self._settings.working_directory,
            ),
            rank=worker.rank,
            node=self._settings.node_name,
            pid=worker.pid,
            code=code if code > 0 else None,
            number=-code if code < 0 else None,
            log=witness.from_folder(str(log), self._settings.working_directory) if log else "",
            error_file=str(worker.output.error_file),
        )

    def _lose(self, reason: str) -> None:
        """The keeper ended, and by the kernel's word all workers with it."""
        orphans.end_orphans(str(self.logs.folder))  # its error files lie there
        with self._lock:
            left = dict(self._workers)
        for name, worker in left.items():
            if worker.pid is None:
                why = f"the parent of the workers ended by {reason}"
                self._refuse(name, why, is_hopeless=False)
            else:
                self._end(name, int(signal.SIGKILL))


def _read(path: Path) -> bytes:
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(_MAX_ERROR_FILE)
    return b""
