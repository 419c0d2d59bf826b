"""Times how long a new plan takes to reach simulated agents on one etcd, and what etcd pays for it.

`python benchmarks/agents.py` speaks an agent's part of the store's protocol for 8, 64 and 256
agents (1,000 with --thousand): a lease renewed every third of its life, a registration, a watch of
each followed range, and one read of them all on news. One process plays all agents: its own time is
in the figures. Target: 1,000 agents know a plan within 2 s.
"""

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import psutil

from easyscale.agent.machine import followed_ranges
from easyscale.agent.settings import Timeouts
from easyscale.rendezvous.embedded import EmbeddedEtcd
from easyscale.rendezvous.etcd_connection import etcdrpc, range_end
from easyscale.rendezvous.keys import JobKeys

THOUSAND = 1000
#: For a thousand agents on two cores.
TARGET_S = 2.0
KEYS = JobKeys.of("many")
TTL_S = Timeouts().lease_ttl_s
#: As long as a registration of eight slots and a commit record of that many members.
RECORD = "x" * 1500
MEMBER = "y" * 120
DEADLINE_S = 60.0
QUIET_S = 5.0
_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))


@dataclass(slots=True)
class Agent:
    """One agent as etcd sees it: a connection, a lease, a key, a watch of each range."""

    number: int
    channel: Any
    plan: str = ""
    knows: asyncio.Event = field(default_factory=asyncio.Event)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    async def start(self) -> None:
        lease = (await etcdrpc.LeaseStub(self.channel).LeaseGrant(
            etcdrpc.LeaseGrantRequest(TTL=TTL_S)
        )).ID  # fmt: skip
        await put(self.channel, KEYS.node(f"node-{self.number}"), RECORD, lease=lease)
        following = [self._follow(range_) for range_ in followed_ranges(KEYS)]
        for part in (self._renew(lease), self._read(), *following):
            self.tasks.append(asyncio.create_task(part))

    async def _renew(self, lease: int) -> None:
        await asyncio.sleep(self.number % 97 / 97 * TTL_S / 3)  # as spread as starts are
        while True:
            stub = etcdrpc.LeaseStub(self.channel)
            request = etcdrpc.LeaseKeepAliveRequest(ID=lease)
            async for _ in stub.LeaseKeepAlive(iter([request])):
                break
            await asyncio.sleep(TTL_S / 3)

    async def _follow(self, range_: str) -> None:
        create = etcdrpc.WatchCreateRequest(key=range_.encode(), range_end=range_end(range_))
        stream = etcdrpc.WatchStub(self.channel).Watch()
        await stream.write(etcdrpc.WatchRequest(create_request=create))
        async for answer in stream:
            if answer.events:
                self.news.set()

    async def _read(self) -> None:
        """On news of any range, read all of them at one revision; news meanwhile come together."""
        ranges = [
            etcdrpc.RequestOp(
                request_range=etcdrpc.RangeRequest(key=r.encode(), range_end=range_end(r))
            )
            for r in followed_ranges(KEYS)
        ]
        while True:
            await self.news.wait()
            self.news.clear()
            answer = await etcdrpc.KVStub(self.channel).Txn(etcdrpc.TxnRequest(success=ranges))
            pairs = [pair for part in answer.responses for pair in part.response_range.kvs]
            self.plan = next((p.value.decode() for p in pairs if p.key == KEYS.head.encode()), "")
            self.knows.set()

    async def know(self, plan: str) -> None:
        while self.plan != plan:
            self.knows.clear()
            await self.knows.wait()

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.channel.close()


async def put(channel: Any, key: str, value: str, *, lease: int = 0) -> None:
    request = etcdrpc.PutRequest(key=key.encode(), value=value.encode(), lease=lease)
    await etcdrpc.KVStub(channel).Put(request)


async def announce(channel: Any, number: int, agents: int) -> str:
    """A leader's decision, in one transaction: head, plan and commit."""
    plan = f"1.{number}"
    writes = {
        KEYS.head: plan,
        f"{KEYS.plans}{plan}": MEMBER * agents,
        f"{KEYS.commits}{plan}": MEMBER * agents,
    }
    puts = [
        etcdrpc.RequestOp(request_put=etcdrpc.PutRequest(key=k.encode(), value=v.encode()))
        for k, v in writes.items()
    ]
    older = f"1.{number - 1}"
    gone = [
        etcdrpc.RequestOp(
            request_delete_range=etcdrpc.DeleteRangeRequest(key=f"{folder}{older}".encode())
        )
        for folder in (KEYS.plans, KEYS.commits)
    ]
    await etcdrpc.KVStub(channel).Txn(etcdrpc.TxnRequest(success=[*puts, *gone]))
    return plan


async def measure(server: EmbeddedEtcd, etcd: psutil.Process, *, count: int, rounds: int) -> None:
    def channel() -> Any:
        return grpc.aio.insecure_channel(str(server.endpoint), options=_OPTIONS)

    agents = [Agent(number, channel()) for number in range(count)]
    leader = channel()
    try:
        for some in range(0, count, 50):  # as if started by hand, not in one blow
            await asyncio.gather(*(agent.start() for agent in agents[some : some + 50]))
        await asyncio.sleep(1.0)
        quiet = await _cpu(etcd, asyncio.sleep(QUIET_S)) / QUIET_S
        times, costs = [], []
        for number in range(1, rounds + 1):
            began_s = time.perf_counter()

            async def change(number: int = number) -> None:
                plan = await announce(leader, number, count)
                await asyncio.wait_for(
                    asyncio.gather(*(agent.know(plan) for agent in agents)), DEADLINE_S
                )

            costs.append(await _cpu(etcd, change()))
            times.append(time.perf_counter() - began_s)
            await asyncio.sleep(0.2)
    finally:
        for agent in agents:
            await agent.stop()
        await leader.close()
    median_s = statistics.median(times)
    verdict = f" (target {TARGET_S:g} s: {'met' if median_s <= TARGET_S else 'missed'})"
    print(
        f"{count:5} agents: all know a plan after {median_s:.3f} s, longest {max(times):.3f} s"
        f"{verdict if count == THOUSAND else ''}; etcd: {100 * quiet:.1f} % of a core at "
        f"rest, {1000 * statistics.median(costs):.0f} ms a change, "
        f"{etcd.memory_info().rss / 2**20:.0f} MiB",
        flush=True,
    )


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
    options = parser.parse_args()
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
