"""Ends, freezes or delays this process at a named moment of training, each fault once per job.

FAULTS="kill@backward:step=5:rank=2 sleep=3@checkpoint:step=11" in the environment; the process
that meets a fault first leaves the file `fault-<number>` with its PID and the time.
"""

import itertools
import os
import signal
import sys
import threading
import time
from pathlib import Path

#: Moments that no line of a script passes: seen from a thread, by the code that runs.
_INSIDE = {
    "exchange": ("runtime/exchange.py", ""),
    "forming": ("runtime/together.py", "_form"),
    "snapshot": ("runtime/snapshots.py", ""),
}


class Fault:
    def __init__(self, text, number, out):
        what, _, where = text.partition("@")
        self.action, _, self.value = what.partition("=")
        self.moment, *conditions = where.split(":")
        self.conditions = {name: int(value) for name, value in (c.split("=") for c in conditions)}
        self.mark = out / f"fault-{number}"
        self.watch = None

    def holds(self, **facts):
        return all(facts.get(name) == value for name, value in self.conditions.items())

    def strike(self):
        """Do it, unless it has been done."""
        try:
            mark = os.open(self.mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return
        os.write(mark, f"{os.getpid()} {time.monotonic()}\n".encode())
        os.close(mark)
        match self.action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "sleep":
                time.sleep(float(self.value))
            case "raise":
                raise RuntimeError(self.value)


class Faults:
    """`at` is called at every moment; most of the time it does nothing."""

    def __init__(self, out):
        words = os.environ.get("FAULTS", "").split()
        self._faults = [Fault(word, number, out) for number, word in enumerate(words)]
        self._main_thread = threading.get_ident()
        for number in itertools.count(1):
            try:
                os.close(os.open(out / f"start-{number}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            # The n-th process of the job, for harm to joiners.
            self.watch(nth=number)
            break

    def at(self, moment, **facts):
        for fault in self._faults:
            if fault.moment == moment and fault.holds(**facts):
                fault.strike()

    def watch(self, **facts):
        """From here on, strike once this process is inside of what the moment names."""
        for fault in self._faults:
            if fault.moment in _INSIDE and fault.watch is None and fault.holds(**facts):
                fault.watch = threading.Thread(target=self._look, args=(fault,), daemon=True)
                fault.watch.start()

    def _look(self, fault):
        while not fault.mark.exists():
            frames = sys._current_frames()
            if fault.moment != "snapshot":
                frames = {0: frames.get(self._main_thread)}
            if any(_is_inside(frame, *_INSIDE[fault.moment]) for frame in frames.values()):
                fault.strike()
            time.sleep(0.0005)


def _is_inside(frame, file, function):
    while frame is not None:
        code = frame.f_code
        if code.co_filename.endswith(file) and function in {"", code.co_name}:
            return True
        frame = frame.f_back
    return False


class Pace:
    """How long a micro-step takes at least; a test writes another number while training goes on."""

    def __init__(self, out):
        self._file = Path(out) / "pace"

    def keep(self):
        if self._file.exists():
            time.sleep(float(self._file.read_text()))
