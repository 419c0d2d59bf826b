"""A worker like a user's own: says who it is, does what its first word says."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

RANK = int(os.environ["RANK"])
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def until_told(number, frame):
    say("told", signal.Signals(number).name)
    Path(f"saved-{RANK}").write_text(signal.Signals(number).name)
    sys.exit(0)


def wait():
    time.sleep(60)


def main(what):
    if what == "env":
        say("rank", RANK, "of", os.environ["WORLD_SIZE"], "try", ATTEMPT)
    elif what == "until":
        say("rank", RANK, "of", os.environ["WORLD_SIZE"], "group", os.environ["GROUP_RANK"],
            "try", ATTEMPT, "port", os.environ["MASTER_PORT"])  # fmt: skip
        while not Path("enough").exists():
            if Path(f"fail-{RANK}-{ATTEMPT}").exists():
                raise ValueError(f"told to fail, try {ATTEMPT}")
            time.sleep(0.05)
    elif what == "sleep":
        say("up", RANK)
        wait()
    elif what == "save":
        signal.signal(signal.SIGTERM, until_told)
        child = os.fork()  # like a loader worker
        if child == 0:
            signal.signal(signal.SIGTERM, lambda *_: Path(f"loader-told-{RANK}").touch())
            say("loader", RANK)
            while True:
                wait()
        say("up", RANK)
        wait()
    elif what == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen(SLEEP, start_new_session=True)
        say("up", RANK)
        wait()
    elif what == "usr1":
        signal.signal(signal.SIGUSR1, lambda *_: Path(f"usr1-{RANK}").touch())
        say("up", RANK)
        while not Path(f"usr1-{RANK}").exists():
            time.sleep(0.02)
    elif what == "once":
        if RANK == 1 and ATTEMPT == 0:
            raise ValueError("only the first time")
        say("rank", RANK, "try", ATTEMPT)
        if ATTEMPT == 0:
            wait()
    elif what == "late":
        from torch.distributed.elastic import timer

        path = os.environ["TORCHELASTIC_TIMER_FILE"]
        timer.configure(timer.FileTimerClient(path))
        with timer.expires(after=0.2):
            wait()
    elif what == "fail":
        if RANK == 1:
            raise ValueError("target 11 is out of bounds")
        wait()
    elif what == "die":
        if RANK == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        wait()
    elif what == "leave-behind":
        subprocess.Popen(SLEEP)
        subprocess.Popen(SLEEP, start_new_session=True)
        if RANK == 1:
            sys.exit(17)
        wait()


main(sys.argv[1])
