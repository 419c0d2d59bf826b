"""Reads and plays stories: commands, four dashes, the whole expected trace, an empty line.

    start a slots=2
    ----
    a: leads
    ...

Lines that begin with # explain. EASYSCALE_REWRITE_STORIES=1 writes what happened as expected.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from easyscale.agent import events
from easyscale.model import Mode, WorkerId
from easyscale.rendezvous.agreement import JobView
from tests.support.world import World, failure

REWRITE = "EASYSCALE_REWRITE_STORIES"


@dataclass
class Block:
    """Comments and commands, and what they are expected to print."""

    head: list[str]
    commands: list[str]
    expected: list[str]


def play(path: Path) -> tuple[str, str]:
    """Play a story; returns the expected and the actual text of the whole file."""
    text = path.read_text()
    player = Player()
    blocks = list(_blocks(text))
    actual = "\n".join(_render(block, player.run(block.commands)) for block in blocks)
    if os.environ.get(REWRITE):
        path.write_text(actual)
        return actual, actual
    return text, actual


def _blocks(text: str) -> Iterator[Block]:
    for part in text.strip("\n").split("\n\n"):
        lines = part.split("\n")
        head = [line for line in lines if line.startswith("#")]
        rest = [line for line in lines if not line.startswith("#")]
        cut = rest.index("----") if "----" in rest else len(rest)
        yield Block(head, rest[:cut], rest[cut + 1 :])


def _render(block: Block, trace: list[str]) -> str:
    lines = [*block.head, *block.commands]
    if block.commands:
        lines += ["----", *trace]
    return "\n".join(lines) + "\n"


class Player:
    """Carries out the commands of one story on one world."""

    def __init__(self) -> None:
        self._world = World()

    def run(self, commands: list[str]) -> list[str]:
        """Carry the commands out; returns what happened."""
        for line in commands:
            name, *words = line.split()
            named = dict(word.split("=", 1) for word in words if "=" in word)
            plain = [word for word in words if "=" not in word]
            command: Callable[..., None] = getattr(self, f"do_{name.replace('-', '_')}")
            command(*plain, **named)
            self._world.pump()
        trace = self._world.trace
        self._world.trace = []
        return trace

    # --- the world -----------------------------------------------------------------------------

    def do_job(
        self,
        *,
        logical: str = "4",
        nodes: str = "1",
        restarts: str = "3",
        takeover: str = "60",
        most: str = "",
        etcd: str = "own",
        disks: str = "shared",
    ) -> None:
        self._world = World(
            logical_workers=int(logical), min_nodes=int(nodes), max_restarts=int(restarts),
            takeover_after_s=None if takeover == "never" else float(takeover),
            max_nodes=int(most) if most else None, is_shared=etcd == "shared",
            shares_folder=disks == "shared",
        )  # fmt: skip

    def do_start(
        self, *names: str, slots: str = "1", kind: str = "cpu", boot: str = "boot1", life: str = "1"
    ) -> None:
        for name in names:
            self._world.start(name, slots=int(slots), kind=kind, boot=boot, life=life)

    def do_advance(self, seconds: str) -> None:
        self._world.advance(float(seconds))

    def do_train(self, steps: str = "1") -> None:
        self._world.train(int(steps))

    def do_compute(self, *places: str) -> None:
        """These hold the sums of their share of the running operation."""
        for place in places:
            self._world.compute(self._id(place))

    def do_complete(self, *places: str) -> None:
        """All have sent what they hold; these have the result, the others not yet."""
        self._world.operate(*map(self._id, places))

    def do_evaluate(self, *places: str) -> None:
        """An operation that is no step: nobody switches after it."""
        self._world.operate(*map(self._id, places), boundary=False)

    def do_finish(self, *places: str) -> None:
        self._world.finish(*places)

    def do_slow_scripts(self) -> None:
        """From now on workers reach `register` only when told to."""
        self._world.auto = False

    def do_register(self, place: str) -> None:
        self._world.register(self._id(place))

    def do_snapshot(self, place: str) -> None:
        self._world.snapshot(self._id(place))

    # --- faults --------------------------------------------------------------------------------

    def do_kill(self, *places: str) -> None:
        for place in [self._id(place) for place in places]:
            self._world.end(place, signal=9)

    def do_exit(self, place: str, *, code: str = "0") -> None:
        self._world.end(self._id(place), exit_code=int(code))

    def do_fail(self, place: str, *, rank: str = "", step: str = "0", line: str = "41") -> None:
        said = failure(rank=int(rank) if rank else None, step=int(step), line=int(line))
        self._world.end(self._id(place), exit_code=1, failure=said)

    def do_break(self, place: str, *suspects: str) -> None:
        self._world.break_(self._id(place), [self._id(suspect) for suspect in suspects])

    def do_cut_link(self, one: str, other: str) -> None:
        """The two nodes do not reach each other any more."""
        self._world.links.add(frozenset((one, other)))

    def do_deaf(self, *names: str) -> None:
        """What the store says reaches these agents late: at `hear`."""
        for name in names:
            self._world.nodes[name].deaf = True

    def do_hear(self, *names: str) -> None:
        for name in names:
            self._world.nodes[name].deaf = False

    def do_stick(self, place: str) -> None:
        """It arrives in the generation it knows and does not get through the handshake."""
        self._world.worker(place).stuck = True

    def do_give(self, generation: str, mode: str, **members: str) -> None:
        """A commit that stands in the store, whoever made it."""
        named = {
            self._id(place): tuple(int(rank) for rank in ranks.split(",") if rank)
            for place, ranks in members.items()
        }
        self._world.give(int(generation), Mode(mode), named)

    def do_join_link(self) -> None:
        self._world.links.clear()

    def do_die(self, *names: str) -> None:
        """The node is gone without a word: no exit is seen by anybody."""
        for name in names:
            self._world.nodes[name].dead = True

    def do_freeze(self, name: str) -> None:
        self._world.nodes[name].frozen = True

    def do_stop_worker(self, place: str) -> None:
        """A signal holds its process (SIGSTOP): it computes nothing and answers nobody."""
        self._world.worker(place).frozen = True

    def do_wake(self, name: str) -> None:
        self._world.nodes[name].frozen = False

    def do_cut(self, *names: str) -> None:
        """The agent loses etcd; its workers and their peers do not notice."""
        for name in names:
            self._world.nodes[name].store.cut()

    def do_heal(self, *names: str) -> None:
        for name in names:
            self._world.nodes[name].store.heal()

    def do_store(self, what: str) -> None:
        server = self._world.server
        {"stop": server.stop, "start": server.start, "wipe": server.wipe}[what]()

    def do_pause_leader(self, name: str) -> None:
        """Its decisions are made, but leave the process only after `release`."""
        self._world.nodes[name].holds_transactions = True

    def do_release(self, name: str) -> None:
        node = self._world.nodes[name]
        node.holds_transactions = False
        for action in node.held:
            self._world.transact(node, action)
        node.held.clear()
        results = [e for e in node.inbox if isinstance(e, events.Transacted)]
        for result in results:
            how = "carried out" if result.succeeded else "refused by the store"
            self._world.note(f"{name}: {result.name!r} {how}")

    def do_step_leader(self, name: str) -> None:
        """Let out what it holds; it goes on holding what it decides next."""
        node = self._world.nodes[name]
        held, node.held = node.held, []
        for action in held:
            self._world.transact(node, action)

    def do_lose_lease(self, name: str) -> None:
        node = self._world.nodes[name]
        assert node.lease is not None
        self._world.server.announce(self._world.server.contents.end_lease(node.lease))

    # --- wishes --------------------------------------------------------------------------------

    def do_drain(self, place: str, *, by: str = "a-person") -> None:
        node, _, slot = place.partition("/")
        self._world.wish("drain", node, *([slot] if slot else []), by=by)

    def do_wish(self, kind: str, node: str = "", *, by: str = "a-person", target: str = "") -> None:
        self._world.wish(kind, node, by=by, target=target)

    def do_signal(self, name: str, number: str) -> None:
        self._world.post(self._world.nodes[name], events.Signalled(number=int(number)))

    # --- looking -------------------------------------------------------------------------------

    def do_status(self) -> None:
        """What the store holds, and where every worker is."""
        world = self._world
        view = JobView.of(world.server.contents.view(world.keys.prefix), world.keys)
        head = view.head
        world.note(f"head: {head.era}.{head.planned} planned, {head.committed} committed"
                   if head else "head: none")  # fmt: skip
        for generation, commit in sorted(view.commits.items()):
            members = ", ".join(
                f"{m.worker.place}.{m.worker.spawn}{list(m.ranks)}" for m in commit.members
            )
            entered = " entered" if view.is_entered(commit) else ""
            world.note(f"{generation.label} {commit.mode}{entered}: {members or 'nobody'}")
        if view.outcome:
            world.note(f"outcome: {view.outcome.state}, exit {view.outcome.exit_code}")
        for node in world.nodes.values():
            for worker in node.workers.values():
                place = f"{worker.id.place}.{worker.id.spawn}"
                label = worker.entered.generation.label if worker.entered else "no generation"
                world.note(f"{place} in {label} at {worker.position}")

    def _id(self, place: str) -> WorkerId:
        return self._world.worker(place).id
