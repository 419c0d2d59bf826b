"""A plain job on several nodes in a world of values: whatever happens, it comes to one end."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from easyscale.agent.plain import actions, events
from easyscale.agent.plain.values import Outcome, Report, Round, RoundPhase, Sight
from tests.support.plain import Agent, fault, offer, settings

MOST_TURNS = 400


@dataclass
class Node:
    """An agent, its running workers by local rank, and the round they belong to."""

    agent: Agent
    workers: dict[int, int] = field(default_factory=dict)
    exit_code: int | None = None


@dataclass
class World:
    """Where nodes meet, and what they do there; nothing happens but by a call."""

    least: int
    most: int
    restarts: int
    packed: int | None = None
    now: float = 0.0
    lives: int = 0
    nodes: dict[str, Node] = field(default_factory=dict)
    sight: Sight = field(default_factory=Sight)
    rounds: list[Round] = field(default_factory=list)

    def join(self, name: str) -> None:
        if name in self.nodes:
            return
        wanted = settings(
            node_name=name,
            meets=True,
            min_nodes=self.least,
            max_nodes=self.most,
            max_restarts=self.restarts,
            logical_workers=self.packed,
        )
        self.lives += 1
        self.nodes[name] = Node(Agent(wanted, life=str(self.lives), now=self.now))
        self.register(name)
        self.feed(name, events.Met(store="e:1", seconds=0.0, address=name))

    def register(self, name: str) -> None:
        life = self.nodes[name].agent.state.incarnation
        self.sight = replace(self.sight, offers=(*self.sight.offers, offer(name, life=life)))

    def blink(self, name: str) -> None:
        """The registration ends although the agent lives, which registers again."""
        if name in self.nodes and self.nodes[name].exit_code is None:
            self.leave(name)
            self.all_look()
            self.register(name)

    def lose(self, name: str) -> None:
        if self.nodes.pop(name, None) is not None:
            self.leave(name)

    def leave(self, name: str) -> None:
        left = tuple(each for each in self.sight.offers if each.node != name)
        self.sight = replace(self.sight, offers=left)

    def look(self, name: str) -> None:
        if name in self.nodes:
            leads = bool(self.sight.offers) and self.sight.offers[0].node == name
            self.feed(name, events.Seen(sight=self.sight, leads=leads))

    def all_look(self) -> None:
        for name in tuple(self.nodes):
            self.look(name)

    def end_worker(self, name: str, *, failed: bool = False) -> None:
        node = self.nodes.get(name)
        if node is None or not node.workers:
            return
        local_rank, number = node.workers.popitem()
        how = fault(local_rank, node=name) if failed else None
        self.feed(name, events.WorkerExited(round=number, local_rank=local_rank, fault=how))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for name in tuple(self.nodes):
            self.feed(name, events.Ticked())

    def feed(self, name: str, event: events.PlainEvent) -> None:
        node = self.nodes[name]
        if node.exit_code is not None:
            return
        for action in node.agent.feed(event, after_s=self.now - node.agent.now):
            self.perform(name, node, action)

    def perform(self, name: str, node: Node, action: actions.PlainAction) -> None:
        match action:
            case actions.Write():
                self.write(action)
            case actions.Publish(report=report):
                self.publish(name, report)
            case actions.StartWorkers(round=round_, member=member):
                assert not node.workers, "the former round's workers still run"
                node.workers = dict.fromkeys(range(member.workers), round_.number)
            case actions.KillWorkers():
                while node.workers:
                    self.end_worker(name, failed=True)
            case actions.Exit(code=code):
                assert not node.workers
                node.exit_code = code
                self.leave(name)
            case _:
                pass

    def write(self, decision: actions.Write) -> None:
        """As the store does it: only on the round that the leader has seen."""
        value = decision.value
        if decision.revision != self.sight.revision or self.sight.outcome is not None:
            return
        if isinstance(value, Outcome):
            self.sight = replace(self.sight, outcome=value)
            return
        self.check(value)
        reports = {} if value.phase is RoundPhase.RUNNING else self.sight.reports
        revision = self.sight.revision + 1
        self.sight = replace(self.sight, round=value, reports=reports, revision=revision)

    def publish(self, name: str, report: Report) -> None:
        if self.sight.round is not None and report.round == self.sight.round.number:
            self.sight = replace(self.sight, reports={**self.sight.reports, name: report})

    def check(self, value: Round) -> None:
        if value.phase is RoundPhase.STOPPING:
            return
        ranks = [m.first_rank + n for m in value.members for n in range(m.workers)]
        assert ranks == list(range(value.world_size))
        if self.packed is not None:
            assert value.world_size == self.packed
        assert self.least <= len(value.members) <= self.most
        assert value.restarts <= self.restarts
        if self.rounds:
            before = self.rounds[-1]
            assert value.number == before.number + 1
            stayed = {m.node: m.group_rank for m in before.members}
            kept = [m for m in value.members if stayed.get(m.node) == m.group_rank]
            assert len(value.members) < len(before.members) or len(kept) >= sum(
                m.node in stayed for m in value.members
            )
        self.rounds.append(value)

    def begin(self, names: str) -> None:
        """The first round of these nodes."""
        for name in names:
            self.join(name)
        for _ in range(2):
            for name in names:
                self.look(name)
            self.pass_time(4.0)
        assert len(self.rounds) == 1

    def come_to_an_end(self) -> None:
        """Nothing more is done to the job: its workers end well as soon as they may."""
        for _ in range(MOST_TURNS):
            for name in tuple(self.nodes):
                self.look(name)
                self.end_worker(name)
            self.pass_time(2.0)
            if all(node.exit_code is not None for node in self.nodes.values()):
                return
        raise AssertionError(f"no end: {[n.agent.state for n in self.nodes.values()]}")


NAMES = st.sampled_from("abcd")
HAPPENINGS: st.SearchStrategy[tuple[str, str]] = st.tuples(
    st.sampled_from(["join", "look", "look", "all look", "end", "fail", "lose", "blink", "tick"]),
    NAMES,
)


@given(
    st.lists(HAPPENINGS, max_size=40),
    st.integers(1, 2),
    st.integers(0, 2),
    st.sampled_from([None, 1, 5]),
)
def test_whatever_happens_to_nodes_and_workers_the_job_comes_to_one_end(
    course: list[tuple[str, str]], least: int, restarts: int, packed: int | None
) -> None:
    world = World(least=least, most=3, restarts=restarts, packed=packed)
    deeds: dict[str, Callable[[str], object]] = {
        "join": world.join,
        "look": world.look,
        "all look": lambda _: world.all_look(),
        "end": world.end_worker,
        "fail": lambda name: world.end_worker(name, failed=True),
        "lose": world.lose,
        "blink": world.blink,
        "tick": lambda _: world.pass_time(1.0),
    }
    world.begin("ab")
    for deed, name in course:
        deeds[deed](name)
    if not any(node.exit_code is None for node in world.nodes.values()):
        return  # all were lost, or the job is over already
    world.come_to_an_end()
    outcome = world.sight.outcome
    assert outcome is not None
    assert {node.exit_code for node in world.nodes.values()} == {outcome.exit_code}
    assert outcome.exit_code in {0, 1, 4}


def test_no_change_of_membership_is_ever_charged() -> None:
    world = World(least=1, most=3, restarts=0)
    world.join("a")
    for name in ("b", "c"):
        world.look("a")
        world.pass_time(3.0)
        world.join(name)
    for _ in range(6):
        for name in tuple(world.nodes):
            world.look(name)
            if world.sight.round and world.sight.round.phase is RoundPhase.STOPPING:
                world.end_worker(name, failed=True)
                world.end_worker(name, failed=True)
        world.pass_time(3.0)
    world.lose("b")
    world.end_worker("a", failed=True)
    world.come_to_an_end()
    assert world.sight.outcome is not None
    assert (world.sight.outcome.exit_code, world.sight.outcome.restarts) == (0, 0)
