"""Goes through every state that a scene can reach, and judges each: safe, and able to end.

Breadth first, so that the trace of a violation is a shortest one.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.support.protocol.leading import Agents, Leader
from tests.support.protocol.state import (
    Commit,
    Faults,
    Guards,
    Line,
    Mode,
    Move,
    State,
    Store,
    Violation,
    Worker,
    bits,
    names,
)
from tests.support.protocol.workers import Workers

AT_WORK = ("computing", "sent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Who is there at the beginning, and how much may go wrong."""

    members: int
    standby: int = 0
    ranks: int = 2
    steps: int = 2
    #: A second generation that is committed already: its members, and how it is entered.
    second: tuple[int, Mode] | None = None
    #: Members of the first that are cut off, and have been silent for long.
    cut_off: int = 0
    #: Who loses the store in one blow; everybody alone if empty.
    cut_together: int = 0
    #: The highest generation: a bound of the search, not of the protocol.
    most: int = 4
    faults: Faults


@dataclass(frozen=True, slots=True)
class Result:
    """`found` is empty where everything held; `trace` leads to what did not."""

    states: int
    found: str
    trace: tuple[str, ...]
    #: States at the highest generation, which were judged for safety alone.
    unjudged: int = 0
    #: States in which two groups lived at once, the older one taken over.
    two_groups: int = 0


class Model:
    """The moves of one scene, and what must hold in each of its states."""

    def __init__(self, scene: Scene, guards: Guards) -> None:
        self._scene = scene
        self._workers = Workers(guards, ranks=scene.ranks, steps=scene.steps)
        self._agents = Agents(guards, self._workers)
        self._leader = Leader(guards, most=scene.most)

    def begin(self) -> State:
        """The members run their first generation, the others wait in register."""
        scene = self._scene
        line = ((1, 0),)
        commits = [Commit(1, scene.members, "restore", line, line, entered=scene.members)]
        if scene.second is not None:
            members, mode = scene.second
            begun = ((2, 0),) if mode == "restore" else line
            commits.append(Commit(2, members, mode, begun, line))
        everybody = scene.members | scene.standby
        store = Store(len(commits), leases=everybody & ~scene.cut_off, silent=scene.cut_off)
        workers = tuple(self._worker(w, line) for w in range(everybody.bit_length()))
        return State(workers, store, tuple(commits), faults=scene.faults)

    def _worker(self, w: int, line: Line) -> Worker:
        scene = self._scene
        if not scene.members >> w & 1:
            return Worker("waiting")
        return Worker(
            "computing", generation=1, known=1, entered=1, has_state=True, line=line,
            todo=self._workers.share(scene.members, w), connected=not scene.cut_off >> w & 1,
        )  # fmt: skip

    def moves(self, state: State) -> Iterator[Move]:
        for w in range(len(state.workers)):
            yield from self._workers.moves(state, w)
            yield from self._agents.moves(state, w)
        yield from self._leader.moves(state)
        if state.faults.total:
            yield from self._go_wrong(state)
        if state.faults.heal:
            for w, worker in enumerate(state.workers):
                if worker.frozen or not worker.connected:
                    well = state.with_worker(w, worker._replace(connected=True, frozen=False))
                    yield _fault(f"{'ABCDE'[w]} is well again", well, "heal", costs=0)

    def _go_wrong(self, state: State) -> Iterator[Move]:
        faults, store = state.faults, state.store
        for w, worker in enumerate(state.workers):
            who, me = "ABCDE"[w], 1 << w
            lives = worker.phase not in ("ended", "dead")
            if faults.kill and lives:
                dead = worker._replace(phase="dead", held=0, todo=0, frozen=False)
                yield _fault(f"{who} is killed", state.with_worker(w, dead), "kill")
            if faults.cut and worker.connected and lives and not self._scene.cut_together:
                yield self._cut(state, me)
            if faults.freeze and lives and not worker.frozen:
                frozen = state.with_worker(w, worker._replace(frozen=True))
                yield _fault(f"{who} freezes", frozen, "freeze")
            if faults.lapse and store.leases & me:
                lapsed = store._replace(leases=store.leases & ~me)
                yield _fault(f"the lease of {who} lapses", state._replace(store=lapsed), "lapse")
            if faults.drain and lives and not store.wishes & me:
                asked = store._replace(wishes=store.wishes | me)
                yield _fault(f"{who} asks to leave", state._replace(store=asked), "drain")
        if faults.cut and self._scene.cut_together:
            yield self._cut(state, self._scene.cut_together)
        if faults.pause:
            for paused in self._leader.pause(state):
                yield _fault("the leader is paused with a commit in hand", paused, "pause")

    def _cut(self, state: State, who: int) -> Move:
        for w in bits(who):
            state = state.with_worker(w, state.workers[w]._replace(connected=False))
        return _fault(f"{names(who)} cut off from the store", state, "cut")

    def judge(self, state: State) -> bool:
        """Raise Violation for two groups of one line, or a snapshot that is not what counts.

        Returns whether two groups of different lines live at once.
        """
        folder = dict(state.folder)
        for counted in state.store.snapshots:
            found = folder.get(self._workers.name(counted))
            if found != counted:
                how = "written over" if found else "deleted"
                raise Violation(f"the snapshot of step {counted.step} that counts was {how}")
        running = [
            commit
            for commit in state.commits
            if all(
                state.workers[w].phase in AT_WORK and state.workers[w].generation == commit.number
                for w in bits(commit.members)
            )
        ]
        for older, newer in pairwise(running):
            if older.line == newer.line:
                groups = f"g{older.number} {names(older.members)}, g{newer.number}"
                raise Violation(f"{groups} {names(newer.members)} run at once")
        return len(running) > 1

    def is_over(self, state: State) -> bool:
        """The outcome stands, which ends every worker; or nobody is left who could reach it."""
        heard = [w for w in state.workers if w.connected and w.phase != "dead" and not w.frozen]
        return state.store.outcome or all(w.phase in ("ended", "finished") for w in heard)

    def is_bounded(self, state: State) -> bool:
        return max(state.newest.number, state.store.planned) >= self._scene.most


def _fault(label: str, state: State, kind: str, *, costs: int = 1) -> Move:
    faults = state.faults
    spent = {kind: getattr(faults, kind) - 1, "total": faults.total - costs}
    return Move(f"FAULT {label}", False, state._replace(faults=faults._replace(**spent)))


ALL_GUARDS = Guards()


def search(scene: Scene, guards: Guards = ALL_GUARDS, *, limit: int = 1_000_000) -> Result:
    """Visit every reachable state; more than `limit` is an error of the scene."""
    model = Model(scene, guards)
    begin = model.begin()
    known = {begin: 0}
    states, parents = [begin], [(-1, "")]
    origins: dict[int, list[int]] = defaultdict(list)
    two_groups = 0
    at = 0
    while at < len(states):
        state = states[at]
        try:
            for move in model.moves(state):
                to = known.get(move.state)
                if to is None:
                    to = known[move.state] = len(states)
                    states.append(move.state)
                    parents.append((at, move.label))
                if move.is_fair:
                    origins[to].append(at)
            two_groups += model.judge(state)
        except Violation as violation:
            return Result(len(states), str(violation), _trace(parents, at))
        at += 1
        if len(states) > limit:
            raise RuntimeError(f"more than {limit:,} states: bound the scene")
    return _judge_ends(model, states, parents, origins, two_groups)


def reachable(scene: Scene, guards: Guards = ALL_GUARDS) -> Iterator[State]:
    """Every state that the scene can reach, in the order in which they are found."""
    model = Model(scene, guards)
    found = {model.begin(): None}
    todo = list(found)
    while todo:
        state = todo.pop()
        yield state
        fresh = [m.state for m in model.moves(state) if m.state not in found]
        found.update(dict.fromkeys(fresh))
        todo += dict.fromkeys(fresh)


def _judge_ends(
    model: Model,
    states: Sequence[State],
    parents: Sequence[tuple[int, str]],
    origins: dict[int, list[int]],
    two_groups: int,
) -> Result:
    """From every state an end must be reachable without another fault, and without a heal."""
    good = bytearray(len(states))
    todo = [at for at, state in enumerate(states) if model.is_over(state)]
    for at in todo:
        good[at] = 1
    while todo:
        for before in origins[todo.pop()]:
            if not good[before]:
                good[before] = 1
                todo.append(before)
    unjudged = 0
    for at, state in enumerate(states):
        if good[at]:
            continue
        if model.is_bounded(state):
            unjudged += 1
            continue
        found = "training cannot end from here"
        return Result(len(states), found, _trace(parents, at), two_groups=two_groups)
    return Result(len(states), "", (), unjudged, two_groups)


def _trace(parents: Sequence[tuple[int, str]], at: int) -> tuple[str, ...]:
    labels = []
    while at > 0:
        at, label = parents[at]
        labels.append(label)
    return tuple(reversed(labels))
