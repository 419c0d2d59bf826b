"""What turns a fork of the zygote into a worker: its own group, streams, environment, session.

The order matters: first what ties its life to the zygote's, then where errors are seen, then the
rest, so that whatever goes wrong is a traceback in the worker's own stderr.
"""

import atexit
import faulthandler
import io
import os
import signal
import socket
import sys
from collections.abc import Callable

import torch

from easyscale.baseline import baseline
from easyscale.messages import STACKS_SIGNAL, ForkRequest
from easyscale.model import Determinism
from easyscale.pulse import Pulse
from easyscale.runtime import kinship, script, session

#: torchrun's words for a worker's place. They would go stale with the next generation.
_STALE = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_USE_AGENT_STORE",
)


def live(
    request: ForkRequest,
    descriptors: tuple[int, int, int, int],
    *,
    zygote: int,
    close_inherited: Callable[[], None],
) -> int:
    """Be the worker that was asked for, until its script ends; returns the exit code."""
    os.setpgid(0, 0)
    kinship.die_with_parent(zygote, by=signal.SIGKILL)
    _reset_signals()
    close_inherited()
    session_socket, stdout, stderr, page = descriptors
    _take_streams(stdout, stderr)
    _take_environment(request)
    kinship.tie_forks()
    torch.set_num_threads(request.settings.threads_per_worker)
    if request.settings.recording is not None:
        from easyscale.runtime import controls  # noqa: PLC0415 - most workers have none

        controls.take(request.settings.recording, request.script)
    # What the script does to its own descriptors 1 and 2 is no matter of the pulse.
    pulse = Pulse.attach(page, pipes=(stdout, stderr))
    os.close(page)
    conversation = session.adopt(socket.socket(fileno=session_socket), request.settings, pulse)
    # What was said last is heard before the process ends, whichever way the script ends.
    atexit.register(conversation.flush)
    exit_code = script.run(request.script, failed=conversation.fail, exited=conversation.note_exit)
    if exit_code == 0:
        # What is left of the job's end, and answers for peers that have not come so far.
        exit_code = conversation.complete()
    return exit_code


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _take_streams(stdout: int, stderr: int) -> None:
    for descriptor, place in ((stdout, 1), (stderr, 2)):
        os.dup2(descriptor, place)
        os.set_inheritable(descriptor, False)
    # A person watches: lines come when they are written, also where a pipe is buffered by default.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    faulthandler.enable(file=sys.stderr)
    faulthandler.register(STACKS_SIGNAL, file=sys.stderr, all_threads=True)


def _take_environment(request: ForkRequest) -> None:
    worker = request.settings.worker
    os.environ.update(request.environment)
    if request.settings.determinism is Determinism.HETEROGENEOUS:
        # Some libraries look at their first call only: the person's own word would stand by then.
        os.environ.update(baseline())
    os.environ.update(
        EASYSCALE_JOB_ID=request.settings.job_id,
        EASYSCALE_LOGICAL_WORKERS=str(request.settings.logical_workers),
        EASYSCALE_NODE=worker.node,
        EASYSCALE_SLOT=worker.slot,
        EASYSCALE_WORKER=str(worker),
    )
    for name in _STALE:
        os.environ.pop(name, None)
    os.chdir(request.working_directory)
