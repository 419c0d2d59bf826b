"""The end of a script that no launcher runs: what it left undone is done, or said in one line.

An exit function learns of an error that ended the script and of no `sys.exit`, so the loop over
the epochs notes how it was left.
"""

import atexit
import dis
import inspect
import logging
import os
import sys
from collections.abc import Callable
from types import FrameType

from easyscale.errors import IncompleteStep
from easyscale.runtime.training import Training


def note_leaving(training: Training, frame: FrameType | None) -> None:
    """The loop over the epochs is left before its end; `frame` drops it."""
    # Through whatever goes over the epochs on the script's behalf, such as a progress bar.
    while frame is not None and frame.f_code.co_flags & inspect.CO_GENERATOR:
        frame = frame.f_back
    if frame is None:
        return
    training.left_at = (frame.f_code.co_filename, frame.f_lineno)
    operation = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    # `break` and `return` take the iterator off the stack themselves.
    training.left_by_exception = not operation.startswith("POP_")


def finish_at_exit(
    training: Training, *, end: Callable[[], None], is_current: Callable[[], bool]
) -> None:
    """Let python's end do what a launcher does when a script has come to its end."""
    process = os.getpid()

    def at_exit() -> None:
        if os.getpid() == process and is_current():
            _finish(training, end)

    atexit.register(at_exit)


def _finish(training: Training, end: Callable[[], None]) -> None:
    is_over = training.registry is None or training.place.finished
    if is_over or getattr(sys, "last_type", None) is not None:
        return
    if training.left_by_exception:
        file, line = training.left_at or ("", 0)
        training.say(
            f"the loop over the epochs was left by an exception or sys.exit at {file}:{line}: "
            f"training is not finished after step {training.place.step:,}"
        )
        return
    try:
        training.close_step()
    except IncompleteStep as error:
        training.say(f"error: {error.message}")
        training.say(f"try: {error.hint}")
        _leave(error.exit_code)
    end()


def _leave(code: int) -> None:
    """End with an exit code, which an exit function cannot set otherwise."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
