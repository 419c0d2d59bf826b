"""Times how long a leader takes to see what all agents have written, and what that costs it.

`python benchmarks/leader.py` registers 8, 64 and 256 nodes of eight slots (1,000 with --thousand)
in one etcd, commits a generation with a member on each and lets all of them say in the same moment
that they have entered it. The leader's part is the product's: a watch of the job's keys, and the
job read back from whatever came since it last looked. The writers are another process.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc.aio
import psutil

from easyscale.agent.store_thread import StoreThread
from easyscale.model import (
    Commit,
    Entry,
    GenerationNumber,
    LogicalRank,
    Member,
    Mode,
    NodeRecord,
    Position,
    SlotRecord,
    WorkerId,
    encode,
)
from easyscale.rendezvous.embedded import EmbeddedEtcd
from easyscale.rendezvous.etcd import connect
from easyscale.rendezvous.etcd_connection import etcdrpc
from easyscale.rendezvous.keys import JobKeys
from easyscale.rendezvous.store import Delete, Put, View
from easyscale.rendezvous.view import JobView

KEYS = JobKeys.of("many")
SLOTS = 8
DEADLINE_S = 60.0
TIMEOUT_S = 10.0
#: Writes under way at once, as of agents that are machines of their own.
AT_ONCE = 100


def worker(number: int, slot: int = 0) -> WorkerId:
    return WorkerId(f"node-{number}", "1a2b3c4d-5e6f7a8b-9c0d1e2f", f"cuda:{slot}", 1)


def registration(number: int) -> NodeRecord:
    slots = tuple(
        SlotRecord(w.slot, "NVIDIA 9.0 132", w, "in_use", "10.0.0.1:40123", 0.0123, 0.02)
        for w in (worker(number, slot) for slot in range(SLOTS))
    )
    return NodeRecord(
        node=f"node-{number}", incarnation=worker(number).incarnation, boot_id="boot",
        host=f"host-{number}", address=f"10.0.0.1:{number}", slots=slots,
    )  # fmt: skip


def commit_of(number: int, count: int) -> Commit:
    members = tuple(Member(worker(n), f"10.0.0.1:{n}", (LogicalRank(n),)) for n in range(count))
    return Commit(
        generation=GenerationNumber(1, number), mode=Mode.NOW, members=members,
        main=members[0].worker, reason="all ran again",
    )  # fmt: skip


async def write(endpoint: str, count: int) -> None:
    """Register all, then let all enter the generation whose number is read from the input."""
    async with grpc.aio.insecure_channel(endpoint) as channel:
        store = etcdrpc.KVStub(channel)
        turns = asyncio.Semaphore(AT_ONCE)

        async def put(key: str, value: str) -> None:
            async with turns:
                await store.Put(etcdrpc.PutRequest(key=key.encode(), value=value.encode()))

        await asyncio.gather(
            *(put(KEYS.node(f"node-{n}"), encode(registration(n))) for n in range(count))
        )
        print("registered", flush=True)
        entered = encode(Entry(position=Position(7), has_state=True, pause_s=0.04))
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            generation = GenerationNumber(1, int(line))
            await asyncio.gather(
                *(put(KEYS.entry(generation, worker(n)), entered) for n in range(count))
            )
            print("entered", flush=True)


@contextmanager
def writers(endpoint: str, count: int) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, __file__, "--write", endpoint, str(count)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(TIMEOUT_S)


def hears(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdout is not None
    if (said := process.stdout.readline().strip()) != line:
        raise RuntimeError(f"the writers said {said!r}, not {line!r}")


class Seeing:
    """What a leader's link does with news, on the thread that does it there."""

    def __init__(self) -> None:
        self._thread: StoreThread[None] = StoreThread(self, name="leader", fail=print)
        self._newest: View | None = None
        self._seen = threading.Condition()
        self.view = JobView()
        self.looks = 0
        self._thread.start()

    def hear(self, view: View) -> None:
        self._newest = view
        self._thread.see()

    def sees_entered(self, commit: Commit) -> None:
        with self._seen:
            if not self._seen.wait_for(lambda: self.view.is_entered(commit), DEADLINE_S):
                raise RuntimeError(f"{commit.generation} was not seen to be entered")

    def close(self) -> None:
        self._thread.close()

    def open(self) -> None:
        pass

    def carry_out(self, order: None, /) -> None:
        pass

    def write(self) -> bool:
        return True

    def look(self) -> bool:
        assert self._newest is not None
        view = JobView.of(self._newest, KEYS, before=self.view)
        with self._seen:
            self.view = view
            self.looks += 1
            self._seen.notify()
        return True


def measure(server: EmbeddedEtcd, etcd: psutil.Process, *, count: int, rounds: int) -> None:
    store = connect(server.settings, timeout_s=TIMEOUT_S)
    seeing, me = Seeing(), psutil.Process()
    times, costs, looks, asked = [], [], [], []
    with writers(str(server.endpoint), count) as process:
        hears(process, "registered")
        store.watch(KEYS.prefix, deliver=seeing.hear, lost=lambda _: None)
        for number in range(1, rounds + 1):
            commit = commit_of(number, count)
            older = KEYS.entries_in(GenerationNumber(1, number - 1))
            for entry in store.read(older, timeout_s=TIMEOUT_S).entries:
                store.transact([], [Delete(entry)], timeout_s=TIMEOUT_S)
            key = KEYS.commit(commit.generation)
            store.transact([], [Put(key, encode(commit))], timeout_s=TIMEOUT_S)
            time.sleep(0.2)
            seeing.looks, began_s = 0, time.perf_counter()
            own_s, etcd_s = sum(me.cpu_times()[:2]), sum(etcd.cpu_times()[:2])
            assert process.stdin is not None
            process.stdin.write(f"{number}\n")
            process.stdin.flush()
            seeing.sees_entered(commit)
            times.append(time.perf_counter() - began_s)
            costs.append(sum(me.cpu_times()[:2]) - own_s)
            asked.append(sum(etcd.cpu_times()[:2]) - etcd_s)
            looks.append(seeing.looks)
            hears(process, "entered")
    store.close()
    seeing.close()
    print(
        f"{count:5} agents: the leader has seen all of them enter after"
        f" {statistics.median(times):.3f} s, longest {max(times):.3f} s,"
        f" in {statistics.median(looks):.0f} looks;"
        f" CPU of the leader {statistics.median(costs):.2f} s,"
        f" of etcd {statistics.median(asked):.2f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--thousand", action="store_true", help="1,000 agents too")
    parser.add_argument("--write", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        endpoint, count = options.write
        asyncio.run(write(endpoint, int(count)))
        return
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {options.rounds} rounds each")
    for count in (8, 64, 256, *((1000,) if options.thousand else ())):
        server = EmbeddedEtcd.start()
        try:
            below = psutil.Process().children(recursive=True)
            etcd = next(child for child in below if child.name() == "etcd")
            measure(server, etcd, count=count, rounds=options.rounds)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
