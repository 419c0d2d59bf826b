"""Ties the life of a process to its parent's, through the Linux kernel.

The whole chain hangs on it: agent, zygote, worker, loader workers. Nobody outlives who asked
for it.
"""

import ctypes
import os
import signal
import threading

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int, *, by: signal.Signals) -> None:
    """Have the kernel send `by` when the parent ends; leave at once if it already has."""
    _prctl(_PR_SET_PDEATHSIG, int(by))
    if os.getppid() != parent:
        os._exit(128 + by)


def adopt_orphans() -> None:
    """Become the parent of every orphan below this process, so that all can be waited for."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def tie_forks() -> None:
    """Let what this process forks from now on (loader workers) end with it.

    The kernel ties a child to the *thread* that forked it, so only forks by the main thread are:
    a child of a thread that ends would end with the thread.
    """
    parent = os.getpid()
    in_main_thread = threading.local()

    def note_thread() -> None:
        in_main_thread.value = threading.get_native_id() == parent

    def tie() -> None:
        # A grandchild is its own parent's affair: it may be meant to stay (a daemon).
        if in_main_thread.value and os.getppid() == parent:
            die_with_parent(parent, by=signal.SIGKILL)

    os.register_at_fork(before=note_thread, after_in_child=tie)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")
