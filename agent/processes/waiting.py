"""Says where the threads of a process stand, as the kernel has it: what a stack of Python lacks.

A process that was stopped, or that waits in a driver or a file system, dumps no stacks of its own.
"""

import contextlib
from collections import Counter
from pathlib import Path

_STATES = {
    "R": "runs",
    "S": "sleeps",
    "D": "waits in the kernel without an interrupt",
    "T": "is stopped by a signal",
    "t": "is stopped by a debugger",
    "Z": "has ended",
    "X": "has ended",
}
#: Processes of a large model have hundreds of threads, most of them alike.
_MOST_LINES = 40


def where_it_waits(pid: int, *, proc: Path = Path("/proc")) -> str:
    """A line for each thread, those alike in one; empty where the process is gone."""
    found: Counter[str] = Counter()
    for task in sorted(proc.joinpath(str(pid), "task").glob("*"), key=lambda path: int(path.name)):
        with contextlib.suppress(OSError):  # a thread may end meanwhile
            found[_describe(task)] += 1
    lines = [
        f"  {f'{count} threads: ' if count > 1 else ''}{line}" for line, count in found.items()
    ]
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES:] = [f"  and {len(lines) - _MOST_LINES} more"]
    return "\n".join([f"Process {pid} in the kernel:", *lines, ""]) if lines else ""


def has_ended(pid: int, *, proc: Path = Path("/proc")) -> bool:
    """None of its threads runs any more, whether or not its parent has asked how it ended."""
    tasks = proc.joinpath(str(pid), "task").glob("*")
    return all(_letter(task) in ("", "Z", "X") for task in tasks)


def status_of_ended(pid: int, *, proc: Path = Path("/proc")) -> int | None:
    """What its parent would be told of its end, which it has not asked for; None while it lives."""
    task = proc / str(pid)
    if _letter(task) != "Z" or not has_ended(pid, proc=proc):
        return None
    # The last field, of which the kernel shows 0 to strangers; a child of our child is none.
    return int(_read(task / "stat").rpartition(" ")[2] or 0)


def is_stopped(pid: int, *, proc: Path = Path("/proc")) -> bool:
    """By a signal or a debugger: it does nothing until somebody lets it go on."""
    return _letter(proc / str(pid)) in ("T", "t")


def _letter(task: Path) -> str:
    """Its state; empty where it is gone."""
    return "".join(_read(task / "stat").rpartition(")")[2].split()[:1])


def _describe(task: Path) -> str:
    name = task.joinpath("comm").read_text().strip()
    # The name in this file may hold anything; what follows it does not.
    letter = task.joinpath("stat").read_text().rpartition(")")[2].split()[0]
    parts = [f"{name} {_STATES.get(letter, letter)}"]
    if (place := _read(task / "wchan")) not in {"", "0"}:
        parts.append(f"in {place}")
    if (call := _read(task / "syscall").partition(" ")[0]).isdecimal():
        parts.append(f"system call {call}")
    return ", ".join(parts)


def _read(path: Path) -> str:
    """What the kernel shows of it to this user, if anything."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
