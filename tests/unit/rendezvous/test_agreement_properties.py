"""Random schedules of faults over machines on one memory store: the safety lines always hold.

Liveness is asked of the quiet end: when everything is healed, training goes on again.
"""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from easyscale.agent.state import Stage
from easyscale.model import GenerationNumber
from easyscale.rendezvous.agreement import JobView
from tests.support.world import Worker, World

NAMES = ("a", "b", "c")


class Faults(RuleBasedStateMachine):
    """Three nodes; joins, kills, cuts, freezes, outages, drains in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(logical_workers=3, max_restarts=10_000)
        self.world.is_doubtful = True  # the same view gives the same plan
        self.committed: dict[int, GenerationNumber] = {}
        self.lives = dict.fromkeys(NAMES, 1)
        self.newest = GenerationNumber(0, 0)
        self.digests: dict[GenerationNumber, str] = {}
        self.formed: dict[tuple[str, GenerationNumber], str] = {}
        self.wiped = False

    @initialize()
    def start_two(self) -> None:
        self.world.start("a")
        self.world.start("b")
        self.world.advance(1.0)
        self.world.train(1)

    # --- what may happen -----------------------------------------------------------------------

    @precondition(lambda self: "c" not in self.world.nodes)
    @rule()
    def join(self) -> None:
        if self._knows_the_job():
            self.world.start("c")

    @rule(name=st.sampled_from(NAMES))
    def kill_worker(self, name: str) -> None:
        for worker in self._workers(name):
            self.world.end(worker.id, signal=9)
        self.world.pump()

    @rule(name=st.sampled_from(NAMES))
    def cut_agent(self, name: str) -> None:
        if name in self.world.nodes:
            self.world.nodes[name].store.cut()

    @rule(name=st.sampled_from(NAMES))
    def heal_agent(self, name: str) -> None:
        if name in self.world.nodes:
            self.world.nodes[name].store.heal()

    @rule(name=st.sampled_from(NAMES))
    def freeze(self, name: str) -> None:
        if name in self.world.nodes:
            self.world.nodes[name].frozen = True

    @rule(name=st.sampled_from(NAMES))
    def wake(self, name: str) -> None:
        if name in self.world.nodes:
            self.world.nodes[name].frozen = False
        self.world.pump()

    @rule(name=st.sampled_from(NAMES))
    def lose_lease(self, name: str) -> None:
        node = self.world.nodes.get(name)
        if node is not None and node.lease is not None and self.world.server.is_running:
            self.world.server.announce(self.world.server.contents.end_lease(node.lease))
            self.world.pump()

    @rule(name=st.sampled_from(NAMES))
    def pause_leader(self, name: str) -> None:
        if name in self.world.nodes:
            self.world.nodes[name].holds_transactions = True

    @rule(name=st.sampled_from(NAMES))
    def resume_leader(self, name: str) -> None:
        self._resume(name)
        self.world.pump()

    @rule(name=st.sampled_from(NAMES))
    def break_off(self, name: str) -> None:
        for worker in self._workers(name):
            if worker.entered is not None and not worker.broken and not worker.forming:
                self.world.break_(worker.id, [])
        self.world.pump()

    @rule(name=st.sampled_from(NAMES))
    def complete_one(self, name: str) -> None:
        """One member has the result of the running operation, the others read late."""
        ready = [w for w in self._workers(name) if w.entered is not None]
        if ready and not ready[0].forming and not ready[0].broken:
            self.world.operate(ready[0].id)
            self.world.pump()

    @rule(name=st.sampled_from(NAMES))
    def compute(self, name: str) -> None:
        for worker in self._workers(name):
            if worker.entered is not None and not worker.forming and not worker.broken:
                self.world.compute(worker.id)

    @rule(name=st.sampled_from(NAMES))
    def cut_link(self, name: str) -> None:
        """This node and the next one do not hear each other."""
        other = NAMES[(NAMES.index(name) + 1) % len(NAMES)]
        self.world.links.add(frozenset((name, other)))
        for one, two in ((name, other), (other, name)):
            suspects = [w.id for w in self._workers(two)]
            for worker in self._workers(one):
                members = worker.entered.workers if worker.entered else ()
                met = [suspect for suspect in suspects if suspect in members]
                if met and not worker.broken and not worker.forming:
                    self.world.break_(worker.id, met)
        self.world.pump()

    @rule()
    def join_links(self) -> None:
        self.world.links.clear()
        self.world.pump()

    @rule(name=st.sampled_from(NAMES), is_deaf=st.booleans())
    def hear_late(self, name: str, is_deaf: bool) -> None:
        """What the store says reaches this agent late."""
        if name in self.world.nodes:
            self.world.nodes[name].deaf = is_deaf
        self.world.pump()

    @rule()
    def stop_store(self) -> None:
        self.world.server.stop()

    @rule()
    def start_store(self) -> None:
        if not self.world.server.is_running:
            self.world.server.start()
            self.world.pump()

    @rule()
    def wipe_store(self) -> None:
        """It comes back with nothing, and all who know more are there to say so.

        Strangers alone cannot tell an empty store from a new job; that is no promise of ours.
        """
        for name, node in self.world.nodes.items():
            node.frozen = node.deaf = False
            node.store.heal()
            self._resume(name)
        self.world.server.wipe()
        if not self.world.server.is_running:
            self.world.server.start()
        self.world.advance(3.0)

    @rule(name=st.sampled_from(NAMES), has_guard=st.booleans())
    def kill_agent(self, name: str, has_guard: bool) -> None:
        """SIGKILL to the agent: its workers die with it; its guard may say so."""
        node = self.world.nodes.get(name)
        if node is None or node.dead:
            return
        node.dead = True
        node.workers.clear()
        if has_guard and node.store.is_reachable:
            self.world.leave(node, "killed")
        self.world.pump()

    @precondition(lambda self: any(not node.acts for node in self.world.nodes.values()))
    @rule()
    def start_agent_again(self) -> None:
        for name, node in sorted(self.world.nodes.items()):
            gone = node.dead or node.exit_code is not None
            if gone and self._knows_the_job():
                self.lives[name] += 1
                self.world.start(name, life=str(self.lives[name]))
                return

    @rule(name=st.sampled_from(NAMES))
    def drain(self, name: str) -> None:
        if name in self.world.nodes and self.world.server.is_running:
            self.world.wish("drain", name)

    @rule(name=st.sampled_from(NAMES))
    def snapshot(self, name: str) -> None:
        for worker in self._workers(name):
            if worker.entered is not None and worker.entered.main == worker.id:
                self.world.snapshot(worker.id)
        self.world.pump()

    @rule(seconds=st.sampled_from((0.25, 0.5, 1.0, 3.0, 7.0)))
    def wait(self, seconds: float) -> None:
        self.world.advance(seconds)

    @rule(steps=st.integers(1, 3))
    def train(self, steps: int) -> None:
        self.world.train(steps)

    # --- what always holds ---------------------------------------------------------------------

    @invariant()
    def never_two_running_groups(self) -> None:
        """All members of at most one generation stand in it (a take-over takes a minute)."""
        running = []
        workers = self._everybody()
        for commit in {w.entered.generation: w.entered for w in workers if w.entered}.values():
            inside = {
                w.id
                for w in workers
                if w.entered == commit and not w.forming and w.left_for is None
            }
            if all(member in inside for member in commit.workers):
                running.append(commit.generation)
        assert len(running) <= 1, self._story(f"{running} all run")

    @invariant()
    def what_was_committed_never_changes_or_falls(self) -> None:
        contents = self.world.server.contents
        view = JobView.of(contents.view(self.world.keys.prefix), self.world.keys)
        if view.head is None:
            return
        now = GenerationNumber(view.head.era, view.head.committed)
        assert now >= self.newest, self._story(f"{now} after {self.newest}")
        self.newest = now
        for generation, commit in view.commits.items():
            known = self.digests.setdefault(generation, commit.digest)
            assert known == commit.digest, self._story(f"two contents of {generation}")
            ranks = sorted(r for m in commit.members for r in m.ranks)
            assert not commit.members or ranks == [0, 1, 2], self._story(f"ranks {ranks}")

    @invariant()
    def nobody_forms_two_generations_of_one_number(self) -> None:
        for worker in self._everybody():
            if worker.entered is not None:
                key = (str(worker.id), worker.entered.generation)
                known = self.formed.setdefault(key, worker.entered.digest)
                assert known == worker.entered.digest

    def teardown(self) -> None:
        """Healed, everything goes on: some group completes steps again."""
        world = self.world
        if not world.nodes:
            return
        if not world.server.is_running:
            world.server.start()
        world.links.clear()
        for name, node in sorted(world.nodes.items()):
            node.frozen = node.deaf = False
            node.store.heal()
            self._resume(name)
            if node.dead:
                self.lives[name] += 1
                world.start(name, life=str(self.lives[name]))
        world.pump()
        if all(node.exit_code is not None for node in world.nodes.values()):
            return  # all were drained: the job has its outcome
        for _ in range(40):
            world.advance(3.0)
            before = max((w.position for w in self._everybody()), default=0)
            world.train(2)
            after = max((w.position for w in self._everybody()), default=0)
            over = all(node.exit_code is not None for node in world.nodes.values())
            if after >= before + 2 or over:
                return
        alive = [node.name for node in world.nodes.values() if node.state.stage is Stage.RUNNING]
        raise AssertionError(self._story(f"nothing trains any more; agents {alive}"))

    # --- helpers -------------------------------------------------------------------------------

    def _resume(self, name: str) -> None:
        node = self.world.nodes.get(name)
        if node is None:
            return
        node.holds_transactions = False
        held, node.held = node.held, []
        for action in held:
            self.world.transact(node, action)

    def _knows_the_job(self) -> bool:
        """A stranger meets a store that knows the job: else it would begin a new one."""
        contents = self.world.server.contents
        return self.world.server.is_running and self.world.keys.head in contents.entries

    def _workers(self, name: str) -> list[Worker]:
        node = self.world.nodes.get(name)
        return [] if node is None or node.frozen else list(node.workers.values())

    def _everybody(self) -> list[Worker]:
        return [w for node in self.world.nodes.values() for w in node.workers.values()]

    def _story(self, what: str) -> str:
        return "\n".join([what, *self.world.trace[-60:]])


TestFaults = pytest.mark.timeout(120)(Faults.TestCase)
TestFaults.settings = settings(
    max_examples=8,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,  # the long run below is the one that searches
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_many_more_schedules_hold_the_same_lines() -> None:
    run_state_machine_as_test(
        Faults, settings=settings(max_examples=400, stateful_step_count=40, deadline=None)
    )
