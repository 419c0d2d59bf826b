"""A user's script that writes down what its launcher gave it, and does what its first word says."""

import json
import os
import signal
import sys
import time
from pathlib import Path

OUT = Path(os.environ["OUT"])
RANK, ATTEMPT = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
KEYS = ("RANK", "WORLD", "MASTER", "LOCAL", "GROUP", "ROLE", "TORCHELASTIC", "TORCH_NCCL", "OMP",
        "CUDA_VISIBLE")  # fmt: skip


def note(**facts):
    """Say everything at once, so that a reader never sees half of it."""
    path = OUT / f"seen-{RANK}-{ATTEMPT}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(facts))
    partial.rename(path)


def await_other(name):
    """Else the other worker might be ended before it has said anything."""
    deadline = time.monotonic() + 30
    while not (OUT / name).exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def seen():
    env = {name: value for name, value in os.environ.items() if name.startswith(KEYS)}
    note(env=env, argv=sys.argv[1:], name=__name__, cwd=Path.cwd() == OUT, stdin=sys.stdin.read())


def told(number, frame):
    note(told=signal.Signals(number).name)
    sys.exit(0)


def recorded():
    from torch.distributed.elastic.multiprocessing.errors import record

    @record
    def main():
        if RANK == "1":
            raise ValueError("rank 1 has had enough")
        time.sleep(60)

    main()


def reduced():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    note(total=total.item(), world=dist.get_world_size())
    dist.destroy_process_group()


def main(what):
    if what == "seen":
        seen()
    elif what == "exit":
        if RANK == "1":
            sys.exit(17)
        time.sleep(60)
    elif what == "segfault":
        if RANK == "0":
            os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(60)
    elif what == "once":
        seen()
        if ATTEMPT == "0" and RANK == "1":
            await_other("seen-0-0.json")
            sys.exit(3)
        time.sleep(60 if ATTEMPT == "0" else 0)
    elif what == "told":
        signal.signal(signal.SIGTERM, told)
        (OUT / f"up-{RANK}").touch()
        time.sleep(60)
    elif what == "print":
        os.write(1, f"out of {RANK}\n".encode())
        os.write(2, f"err of {RANK}\n".encode())
    elif what == "recorded":
        recorded()
    elif what == "reduced":
        reduced()


main(sys.argv[1])
