"""Starts the zygote and its workers, hears them, stops them, and leaves nothing of them.

One thread serves all sockets and deadlines, another (logs.py) all output. The one place that ends
processes: a stop climbs message, SIGTERM, SIGKILL, each rung once and with a deadline.
"""

import contextlib
import logging
import os
import selectors
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from easyscale.agent import events
from easyscale.agent.hardware.kernel_kills import KernelKills
from easyscale.agent.processes.logs import Output, Pump
from easyscale.agent.processes.waiting import (
    has_ended,
    is_stopped,
    status_of_ended,
    where_it_waits,
)
from easyscale.agent.processes.worker_process import Rung, WorkerProcess, prepare
from easyscale.agent.processes.zygote_link import ZygoteLink, ZygoteSettings
from easyscale.errors import FormatError
from easyscale.messages import (
    STACKS_SIGNAL,
    Exited,
    Forked,
    ForkRefused,
    ForkRequest,
    FromZygote,
    Imported,
    Stop,
    ToWorker,
)
from easyscale.model import WorkerId
from easyscale.pulse import Beat
from easyscale.reports import Source, Stream

log = logging.getLogger(__name__)

Post = Callable[
    [
        events.ZygoteReady
        | events.ZygoteLost
        | events.WorkerForked
        | events.ForkFailed
        | events.WorkerSaid
        | events.WorkerExited
        | events.LogEnded
    ],
    None,
]


class SupervisorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where things go and how long each rung of a stop may take."""

    zygote: ZygoteSettings
    log_dir: Path
    #: From the Stop message to SIGTERM.
    asked_s: float = 2.0
    #: From SIGTERM to SIGKILL.
    terminated_s: float = 5.0
    #: From SIGKILL, or from an end, to the group being gone: what takes longer is said.
    killed_s: float = 5.0
    #: From a worker's end to the end of its pipes, which a process outside its group may hold.
    output_s: float = 0.5


#: What an agent gives all its processes to end in, when it ends itself.
CLOSE_TIMEOUT_S = 10.0
#: The zygote tells of an end at once; one that is stopped tells nothing.
_UNTOLD_S = 2.0
#: The kernel is asked only of a worker that has shown nothing of itself for so long.
_SILENT_S = 1.0


class Supervisor:
    """All processes below one agent; `post` and `output` are called from its threads."""

    def __init__(self, settings: SupervisorSettings, post: Post, output: Output) -> None:
        self._settings = settings
        self._post = post
        self._pump = Pump(output)
        self._workers: dict[WorkerId, WorkerProcess] = {}
        self._kernel_kills = KernelKills()
        self._zygote: ZygoteLink | None = None
        self._lost_reason = ""
        #: Ends that the zygote's own end brought: told behind it, all at once.
        self._ended_with_zygote: list[events.WorkerExited | events.ForkFailed] = []
        self._is_closing = False
        self._all_gone = threading.Event()
        self._orders: deque[Callable[[], None]] = deque()
        self._selector = selectors.DefaultSelector()
        self._wakeup, self._waker = socket.socketpair()
        self._waker.settimeout(0)
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="easyscale-supervisor", daemon=True)
        self._thread.start()

    # --- called by the driver ------------------------------------------------------------------

    def start(self) -> None:
        """Start the zygote, from the main thread; again after it was lost."""
        self._zygote = ZygoteLink.spawn(self._settings.zygote)
        self._order(self._adopt)

    @property
    def zygote_pid(self) -> int | None:
        """Known from `start` on, None once it was lost."""
        return None if self._zygote is None else self._zygote.pid

    def fork(self, request: ForkRequest) -> None:
        """Ask for a worker; WorkerForked or ForkFailed follows."""
        worker = request.settings.worker
        try:
            process, theirs = prepare(
                worker,
                self._settings.log_dir,
                ended=self._wake,
                lost=lambda stream, reason: self._tell_log(process, stream, reason),
            )
        except OSError as error:
            reason = f"{error.strerror}: {error.filename or 'pipes'}"
            self._post(events.ForkFailed(worker=worker, reason=reason))
            return
        self._order(lambda: self._ask(request, process, theirs))

    def send(self, worker: WorkerId, message: ToWorker) -> None:
        self._order(lambda: self._with(worker, lambda process: self._say(process, message)))

    def beat(self, worker: WorkerId) -> Beat | None:
        """Where the worker is, read from its page; None once it has ended."""
        process = self._workers.get(worker)
        try:
            beat = None if process is None else process.pulse.read()
        except ValueError:  # closed since
            return None
        if beat is None or process is None or process.pid is None:
            return beat
        silent_s = time.monotonic() - max(beat.since_s, beat.polled_s or 0.0)
        if silent_s >= _SILENT_S and is_stopped(process.pid):
            return msgspec.structs.replace(beat, is_stopped=True)
        return beat

    def stop(self, worker: WorkerId, *, reason: str) -> None:
        self._order(lambda: self._with(worker, lambda process: self._ask_to_stop(process, reason)))

    def kill(self, worker: WorkerId, *, reason: str) -> None:
        self._order(lambda: self._with(worker, lambda process: self._kill(process, reason)))

    def dump_stacks(self, worker: WorkerId) -> None:
        """Have it written into the worker's log where it is: by the kernel's word and its own."""
        self._order(lambda: self._with(worker, self._dump))

    def _dump(self, process: WorkerProcess) -> None:
        if process.is_alive:
            assert process.pid is not None
            if told := where_it_waits(process.pid):
                self._pump.note(process.capture, told)
            process.signal(STACKS_SIGNAL)

    def close(self, *, deadline_s: float) -> None:
        """End all workers and the zygote; nothing of them is left when it returns."""
        deadline = time.monotonic() + deadline_s
        self._order(self._begin_close)
        if not self._all_gone.wait(deadline_s / 2):
            self._order(lambda: self._kill_all("the agent ends"))
            self._all_gone.wait(max(0.1, deadline - time.monotonic()))
        self._order(self._finish)
        self._thread.join(max(1.0, deadline - time.monotonic() + self._settings.killed_s))
        self._pump.close(deadline_s=max(0.1, deadline - time.monotonic()))

    # --- the thread ----------------------------------------------------------------------------

    def _order(self, order: Callable[[], None]) -> None:
        self._orders.append(order)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"!")

    def _run(self) -> None:
        while not self._selector_is_closed():
            for key, _ in self._selector.select(self._time_left_s()):
                if key.fileobj is self._wakeup:
                    self._wakeup.recv(4096)
                else:
                    key.data()
            while self._orders:
                self._orders.popleft()()
            if not self._selector_is_closed():
                self._keep_time(time.monotonic())

    def _selector_is_closed(self) -> bool:
        return self._selector.get_map() is None

    def _time_left_s(self) -> float | None:
        held = [process for process in self._workers.values() if process.pid is not None]
        due = [at for process in held for at in (process.deadline, process.untold)]
        due += [process.deadline for process in self._workers.values() if process.pid is None]
        deadlines = [at for at in due if at is not None]
        if not deadlines:
            return None
        left_s = min(deadlines) - time.monotonic()
        ended = any(process.status is not None for process in held)
        return max(0.0, min(left_s, 0.01) if ended else left_s)

    def _keep_time(self, now: float) -> None:
        for process in list(self._workers.values()):
            if process.status is not None:
                self._settle(process, now)
            elif process.pid is None:
                self._give_up_fork(process, now)
            elif process.untold is not None and now >= process.untold:
                self._ask_kernel(process, now)
            elif process.is_alive and process.deadline is not None and now >= process.deadline:
                self._climb(process, now)
        if self._lost_reason and not self._workers:
            reason, self._lost_reason = self._lost_reason, ""
            ends, self._ended_with_zygote = self._ended_with_zygote, []
            self._post(events.ZygoteLost(reason=reason))
            for end in ends:
                self._post(end)
        if self._is_closing and not self._workers:
            self._all_gone.set()

    def _ask_kernel(self, process: WorkerProcess, now: float) -> None:
        """Its end is the zygote's to tell, but nothing may wait for one that stands still."""
        assert process.pid is not None
        process.untold = now + _UNTOLD_S
        if (status := status_of_ended(process.pid)) is not None:
            log.error("worker %s: %s", process.worker, self._why_not_ended(process))
            self._end(process, status)

    def _give_up_fork(self, process: WorkerProcess, now: float) -> None:
        """Who is to stop before it was forked waits for a zygote that works, and for no other."""
        if process.deadline is None or now < process.deadline:
            return
        process.deadline = now + _UNTOLD_S
        zygote = self.zygote_pid
        if zygote is not None and is_stopped(zygote):
            self._refuse(process, f"the zygote, process {zygote}, is stopped")

    def _climb(self, process: WorkerProcess, now: float) -> None:
        match process.rung:
            case Rung.ASKED:
                process.climb(Rung.TERMINATED, now=now, limit_s=self._settings.terminated_s)
            case Rung.TERMINATED:
                process.climb(Rung.KILLED, now=now, limit_s=self._settings.killed_s)
            case Rung.KILLED | Rung.RUNNING:
                process.deadline = None
                log.error(
                    "worker %s did not end within %g s of SIGKILL: %s",
                    process.worker,
                    self._settings.killed_s,
                    self._why_not_ended(process),
                )

    def _why_not_ended(self, process: WorkerProcess) -> str:
        """Its end is the zygote's to tell: one that stands still holds back what has ended."""
        assert process.pid is not None
        if not has_ended(process.pid):
            return "it is stuck in the kernel"
        zygote = self.zygote_pid
        if zygote is not None and is_stopped(zygote):
            return f"it has ended, but the zygote, process {zygote}, is stopped and does not say so"
        return "it has ended, but the zygote does not say so"

    # --- the zygote ----------------------------------------------------------------------------

    def _adopt(self) -> None:
        assert self._zygote is not None
        self._selector.register(self._zygote.control, selectors.EVENT_READ, self._hear_zygote)

    def _ask(self, request: ForkRequest, process: WorkerProcess, theirs: tuple[int, ...]) -> None:
        if self._zygote is None or self._is_closing:
            for descriptor in theirs:
                os.close(descriptor)
            process.close()
            if not self._lost_reason:  # else ZygoteLost follows, which ends all workers
                self._post(events.ForkFailed(worker=process.worker, reason="there is no zygote"))
            return
        self._workers[process.worker] = process
        self._zygote.ask(request, theirs)
        self._flush_zygote()

    def _flush_zygote(self) -> None:
        assert self._zygote is not None
        # Broken: what it said before it ended is still to be read, and then its end is.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._zygote.flush()
        both = selectors.EVENT_READ | selectors.EVENT_WRITE
        mask = both if self._zygote.has_outgoing else selectors.EVENT_READ
        self._selector.modify(self._zygote.control, mask, self._hear_zygote)

    def _hear_zygote(self) -> None:
        if self._zygote is None:
            return
        messages, is_open = self._zygote.read()
        for message in messages:
            self._handle(message)
        if is_open:
            self._flush_zygote()
        else:
            self._lose_zygote(self._zygote)

    def _handle(self, message: FromZygote) -> None:
        match message:
            case Imported():
                self._post(
                    events.ZygoteReady(
                        torch_version=message.torch_version,
                        cpu_kind=message.cpu_kind,
                        seconds=message.seconds,
                    )
                )
            case Forked():
                self._with(message.worker, lambda process: self._begin(process, message.pid))
            case Exited():
                self._with(message.worker, lambda process: self._end(process, message.status))
            case ForkRefused():
                self._with(message.worker, lambda process: self._refuse(process, message.reason))

    def _lose_zygote(self, link: ZygoteLink) -> None:
        self._selector.unregister(link.control)
        self._zygote = None
        reason = link.end(deadline_s=1.0)
        if not self._is_closing:
            self._lost_reason = reason
        for process in list(self._workers.values()):
            if process.pid is None:
                self._refuse(process, f"the zygote ended by {reason}")
            elif process.status is None:
                self._kill(process, f"the zygote ended by {reason}")
                self._end(process, int(signal.SIGKILL))

    # --- one worker ----------------------------------------------------------------------------

    def _with(self, worker: WorkerId, action: Callable[[WorkerProcess], None]) -> None:
        """Do it to the worker unless it has ended meanwhile."""
        if (process := self._workers.get(worker)) is not None:
            action(process)

    def _begin(self, process: WorkerProcess, pid: int) -> None:
        process.pid = pid
        self._kernel_kills.look()
        process.capture.source = Source(process.worker.node, process.worker.slot, pid)
        self._pump.add(process.capture)
        self._selector.register(
            process.session, selectors.EVENT_READ, lambda: self._converse(process)
        )
        self._post(events.WorkerForked(worker=process.worker, pid=pid))
        if process.rung is Rung.KILLED:
            process.signal_group(signal.SIGKILL)
        if process.rung is not Rung.RUNNING:  # asked for before there was anything to stop
            process.deadline = time.monotonic() + self._settings.asked_s
        self._converse(process)

    def _refuse(self, process: WorkerProcess, reason: str) -> None:
        del self._workers[process.worker]
        process.close()
        self._post_end(events.ForkFailed(worker=process.worker, reason=reason))

    def _say(self, process: WorkerProcess, message: ToWorker) -> None:
        process.say(message)
        self._converse(process)

    def _converse(self, process: WorkerProcess) -> None:
        """Read and send what goes without waiting."""
        if process.pid is None or not process.is_talking:
            return
        try:
            for message in process.read():
                self._post(events.WorkerSaid(worker=process.worker, message=message))
            process.flush()
        except FormatError as error:
            log.error("%s", error.message)  # noqa: TRY400 - the fact, not where it was seen
            self._kill(process, error.message)
            process.is_talking = False
        if not process.is_talking:
            self._selector.unregister(process.session)
            process.untold = time.monotonic() + _UNTOLD_S
            return
        both = selectors.EVENT_READ | selectors.EVENT_WRITE
        mask = both if process.has_outgoing else selectors.EVENT_READ
        self._selector.modify(process.session, mask, lambda: self._converse(process))

    def _ask_to_stop(self, process: WorkerProcess, reason: str) -> None:
        if process.rung is not Rung.RUNNING or process.status is not None:
            return
        process.reason = reason
        process.climb(Rung.ASKED, now=time.monotonic(), limit_s=self._settings.asked_s)
        self._say(process, Stop(reason=reason))

    def _kill(self, process: WorkerProcess, reason: str) -> None:
        if process.status is not None:
            return
        process.reason = reason
        process.climb(Rung.KILLED, now=time.monotonic(), limit_s=self._settings.killed_s)

    def _end(self, process: WorkerProcess, status: int) -> None:
        """It was waited for: hear its last words, then let `_settle` tell of its end."""
        self._converse(process)
        if process.is_talking:
            self._selector.unregister(process.session)
            process.is_talking = False
        process.status, process.untold = status, None
        process.signal_group(signal.SIGKILL)
        process.deadline = time.monotonic() + self._settings.output_s
        self._settle(process, time.monotonic())

    def _settle(self, process: WorkerProcess, now: float) -> None:
        """Tell of a worker's end once all its output is delivered and its group is gone."""
        assert process.status is not None
        assert process.deadline is not None
        is_late = now >= process.deadline
        if not process.capture.is_over or process.has_living_group():
            if not is_late:
                return
            if not process.is_cut:
                process.is_cut = True
                process.deadline = now + self._settings.killed_s
                self._pump.cut(process.capture)
                return
            log.error("worker %s ended, but its group or its output did not", process.worker)
        self._tell_end(process, process.status)

    def _tell_end(self, process: WorkerProcess, status: int) -> None:
        del self._workers[process.worker]
        process.session.close()
        beat = process.pulse.read()
        process.pulse.close()
        code = os.waitstatus_to_exitcode(status)
        by_others = code == -signal.SIGKILL and process.rung is not Rung.KILLED
        assert process.pid is not None
        self._post_end(
            events.WorkerExited(
                worker=process.worker,
                pid=process.pid,
                exit_code=code if code >= 0 else None,
                signal=-code if code < 0 else None,
                last_words=process.capture.last_words,
                beat=beat,
                killed_for=self._kernel_kills.explain(process.pid) if by_others else "",
            )
        )

    def _post_end(self, end: events.WorkerExited | events.ForkFailed) -> None:
        """One by one, the first would seem to have left others that could go on without it."""
        if self._lost_reason:
            self._ended_with_zygote.append(end)
        else:
            self._post(end)

    def _tell_log(self, process: WorkerProcess, stream: Stream, reason: str) -> None:
        """Called from the pump's thread."""
        pid = process.capture.source.pid
        self._post(events.LogEnded(worker=process.worker, stream=stream, pid=pid, reason=reason))

    # --- the end -------------------------------------------------------------------------------

    def _begin_close(self) -> None:
        self._is_closing = True
        now = time.monotonic()
        for process in list(self._workers.values()):
            if process.pid is None:
                continue
            process.reason = process.reason or "the agent ends"
            if process.status is None:
                process.climb(Rung.TERMINATED, now=now, limit_s=self._settings.terminated_s)

    def _kill_all(self, reason: str) -> None:
        for process in list(self._workers.values()):
            self._kill(process, reason)

    def _finish(self) -> None:
        if self._zygote is not None:
            self._selector.unregister(self._zygote.control)
            self._zygote.stop(deadline_s=2.0)
            self._zygote = None
        for process in self._workers.values():
            process.signal_group(signal.SIGKILL)
            process.close()
        self._workers.clear()
        self._selector.close()
        self._wakeup.close()
        self._waker.close()
