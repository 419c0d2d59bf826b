"""Times how long a new plan takes to reach simulated agents on one etcd, and what etcd pays for it.

`python benchmarks/agents.py` speaks an agent's part of the store's protocol for 8, 64 and 256
agents (1,000 with --thousand): a lease renewed every third of its life, a registration, a stream
that watches each followed range and is asked after a silence whether it lives, and the records read
back into values. A change is the commit after a loss, one slot a node; every agent decodes it. A
process for each core plays its share of the agents: their own time is in the figures. Target: 1,000
agents know a plan within 2 s.
"""

import argparse
import asyncio
import itertools
import os
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import psutil

from easyscale.agent.machine import followed_ranges
from easyscale.agent.settings import Timeouts
from easyscale.model import (
    Commit,
    GenerationNumber,
    Head,
    LogicalRank,
    Member,
    Mode,
    OpenGeneration,
    WorkerId,
    decode,
    encode,
)
from easyscale.rendezvous.embedded import EmbeddedEtcd
from easyscale.rendezvous.etcd_connection import etcdrpc, key_range
from easyscale.rendezvous.etcd_watch import SILENCE_S
from easyscale.rendezvous.keys import JobKeys
from easyscale.rendezvous.store import Range
from easyscale.rendezvous.view import incarnation_of

THOUSAND = 1000
#: For a thousand agents on two cores.
TARGET_S = 2.0
KEYS = JobKeys.of("many")
TTL_S = Timeouts().lease_ttl_s
#: As long as a registration of eight slots.
RECORD = "x" * 1500
DEADLINE_S = 60.0
QUIET_S = 5.0
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 20),
)
_DELETE = 1


@dataclass(slots=True)
class Agent:
    """One agent as etcd sees it: two connections, a lease, a key, a watch of each range."""

    number: int
    channel: Any
    #: The watches have a connection of their own.
    watching: Any
    known: GenerationNumber | None = None
    knows: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    async def start(self) -> None:
        lease = (await etcdrpc.LeaseStub(self.channel).LeaseGrant(
            etcdrpc.LeaseGrantRequest(TTL=TTL_S)
        )).ID  # fmt: skip
        await put(self.channel, KEYS.node(f"node-{self.number}"), RECORD, lease=lease)
        for part in (self._renew(lease), self._follow(followed_ranges(KEYS))):
            self.tasks.append(asyncio.create_task(part))

    async def _renew(self, lease: int) -> None:
        await asyncio.sleep(self.number % 97 / 97 * TTL_S / 3)  # as spread as starts are
        stream = etcdrpc.LeaseStub(self.channel).LeaseKeepAlive()
        while True:
            await stream.write(etcdrpc.LeaseKeepAliveRequest(ID=lease))
            await stream.read()
            await asyncio.sleep(TTL_S / 3)

    async def _follow(self, ranges: Sequence[Range]) -> None:
        """Take in what the ranges show; the keys of one revision come in one answer."""
        stream = etcdrpc.WatchStub(self.watching).Watch()
        for range_ in ranges:
            create = etcdrpc.WatchCreateRequest(**key_range(range_))
            await stream.write(etcdrpc.WatchRequest(create_request=create))
        probe = etcdrpc.RangeRequest(key=KEYS.head.encode(), count_only=True)
        answer = asyncio.create_task(stream.read())
        while True:
            # Not `wait_for`, which would cancel the stream along with the wait.
            done, _ = await asyncio.wait({answer}, timeout=SILENCE_S)
            if not done:
                await etcdrpc.KVStub(self.watching).Range(probe)
                continue
            for event in answer.result().events:
                if event.type != _DELETE:
                    self._take(event.kv.key.decode(), event.kv.value.decode())
            answer = asyncio.create_task(stream.read())

    def _take(self, key: str, value: str) -> None:
        if key.startswith(KEYS.commits):
            self.known = decode(value, Commit, source=key).generation
        elif key == KEYS.head:
            decode(value, Head, source=key)
            self.knows.set()

    async def know(self, generation: GenerationNumber) -> None:
        while self.known != generation:
            self.knows.clear()
            await self.knows.wait()

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for channel in (self.channel, self.watching):
            await channel.close()


async def put(channel: Any, key: str, value: str, *, lease: int = 0) -> None:
    request = etcdrpc.PutRequest(key=key.encode(), value=value.encode(), lease=lease)
    await etcdrpc.KVStub(channel).Put(request)


def commit_of(number: int, agents: int, former: Commit | None) -> Commit:
    """What a leader commits after a loss: a member on each node, and who was there before."""
    workers = [
        WorkerId(
            node=f"node-{n}",
            incarnation=incarnation_of(host=f"h{n}", boot_id=f"b{n}", chance=f"{n:08x}"),
            slot="cuda:0",
            spawn=1,
        )
        for n in range(agents)
    ]
    members = tuple(
        Member(worker, f"10.0.{n >> 8}.{n & 255}:40123", (LogicalRank(n),))
        for n, worker in enumerate(workers)
    )
    return Commit(
        generation=GenerationNumber(1, number),
        mode=Mode.NOW,
        members=members,
        main=workers[0],
        reason=f"rank {number} ran again on node-1/cuda:0",
        open=(OpenGeneration.of(former, members=workers),) if former else (),
    )


async def announce(channel: Any, commit: Commit) -> None:
    """A leader's decision, in one transaction: head and commit."""
    number = commit.generation.number
    head = Head(era=1, planned=number, committed=number, digest=commit.digest)
    writes = {KEYS.head: encode(head), KEYS.commit(commit.generation): encode(commit)}
    puts = [
        etcdrpc.RequestOp(request_put=etcdrpc.PutRequest(key=k.encode(), value=v.encode()))
        for k, v in writes.items()
    ]
    older = KEYS.commit(GenerationNumber(1, number - 1)).encode()
    gone = etcdrpc.RequestOp(request_delete_range=etcdrpc.DeleteRangeRequest(key=older))
    await etcdrpc.KVStub(channel).Txn(etcdrpc.TxnRequest(success=[*puts, gone]))


class Players:
    """Processes that play agents: each says when all of its agents know a generation."""

    def __init__(self, endpoint: str, count: int) -> None:
        self._endpoint = endpoint
        self._shares = [range(count)[n :: os.cpu_count() or 1] for n in range(os.cpu_count() or 1)]
        self._processes: list[asyncio.subprocess.Process] = []

    async def start(self) -> None:
        for share in self._shares:
            process = await asyncio.create_subprocess_exec(
                sys.executable, __file__, "--play", self._endpoint, str(share.start),
                str(share.stop), str(share.step),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            self._processes.append(process)
        await self._hear("ready")

    async def know(self, generation: GenerationNumber) -> None:
        await self._hear(f"all know {generation}")

    async def _hear(self, line: str) -> None:
        for process in self._processes:
            assert process.stdout is not None
            said = (await asyncio.wait_for(process.stdout.readline(), DEADLINE_S)).decode().strip()
            if said != line:
                raise RuntimeError(f"a player said {said!r}, not {line!r}")

    def cpu_s(self) -> float:
        """What all players have computed until now: on a busy machine it tells more than time."""
        return sum(sum(psutil.Process(p.pid).cpu_times()[:2]) for p in self._processes)

    async def stop(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()


def connect(endpoint: str) -> Any:
    return grpc.aio.insecure_channel(endpoint, options=_OPTIONS)


async def play(endpoint: str, numbers: range) -> None:
    """Be these agents until the input ends."""
    agents = [Agent(number, connect(endpoint), connect(endpoint)) for number in numbers]
    for some in range(0, len(agents), 50):  # as if started by hand, not in one blow
        await asyncio.gather(*(agent.start() for agent in agents[some : some + 50]))
    print("ready", flush=True)
    playing = asyncio.create_task(tell(agents))
    try:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    finally:
        playing.cancel()
        for agent in agents:
            await agent.stop()


async def tell(agents: Sequence[Agent]) -> None:
    for number in itertools.count(1):
        generation = GenerationNumber(1, number)
        await asyncio.gather(*(agent.know(generation) for agent in agents))
        print(f"all know {generation}", flush=True)


async def measure(server: EmbeddedEtcd, etcd: psutil.Process, *, count: int, rounds: int) -> None:
    players = Players(str(server.endpoint), count)
    leader = connect(str(server.endpoint))
    try:
        await players.start()
        await asyncio.sleep(1.0)
        quiet = await _cpu(etcd, asyncio.sleep(QUIET_S)) / QUIET_S
        times, costs, plays = [], [], []
        commit: Commit | None = None
        for number in range(1, rounds + 1):
            commit = commit_of(number, count, commit)
            began_s, played_s = time.perf_counter(), players.cpu_s()
            costs.append(await _cpu(etcd, change(leader, players, commit)))
            times.append(time.perf_counter() - began_s)
            plays.append(players.cpu_s() - played_s)
            await asyncio.sleep(0.2)
    finally:
        await players.stop()
        await leader.close()
    median_s = statistics.median(times)
    verdict = f" (target {TARGET_S:g} s: {'met' if median_s <= TARGET_S else 'missed'})"
    assert commit is not None
    print(
        f"{count:5} agents: all know a commit of {len(encode(commit)) / 1000:.0f} kB after"
        f" {median_s:.3f} s, longest {max(times):.3f} s{verdict if count == THOUSAND else ''};"
        f" CPU of all agents {statistics.median(plays):.2f} s, of etcd"
        f" {statistics.median(costs):.2f} s a change and {100 * quiet:.0f} % of a core at rest,"
        f" {etcd.memory_info().rss / 2**20:.0f} MiB",
        flush=True,
    )


async def change(leader: Any, players: Players, commit: Commit) -> None:
    await announce(leader, commit)
    await players.know(commit.generation)


async def _cpu(etcd: psutil.Process, work: Any) -> float:
    """CPU seconds that etcd took while this was done."""
    before = etcd.cpu_times()
    await work
    after = etcd.cpu_times()
    return float(after.user + after.system - before.user - before.system)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--thousand", action="store_true", help="1,000 agents too")
    parser.add_argument("--play", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        endpoint, *numbers = options.play
        asyncio.run(play(endpoint, range(*map(int, numbers))))
        return
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {options.rounds} changes each")
    counts = (8, 64, 256, *((THOUSAND,) if options.thousand else ()))
    # One event loop for all: grpc does not outlive its first.
    asyncio.run(measure_all(counts, rounds=options.rounds))


async def measure_all(counts: Iterable[int], *, rounds: int) -> None:
    for count in counts:
        server = EmbeddedEtcd.start()
        try:
            below = psutil.Process().children(recursive=True)
            etcd = next(child for child in below if child.name() == "etcd")
            await measure(server, etcd, count=count, rounds=rounds)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
