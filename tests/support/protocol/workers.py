"""What the model's workers do: learn of commits, compute, exchange, break, form, are fenced.

Neither an exchange nor a handshake is atomic: one member completes it while another one breaks.
"""

from collections.abc import Iterator

from tests.support.protocol.state import (
    Arrival,
    Commit,
    Exchange,
    Guards,
    Move,
    Name,
    Post,
    Snapshot,
    State,
    Violation,
    Worker,
    bits,
    names,
    stands_on,
)


class Workers:
    """The moves of the workers of one scene."""

    def __init__(self, guards: Guards, *, ranks: int, steps: int) -> None:
        self._guards = guards
        self._ranks = ranks
        self._all_ranks = (1 << ranks) - 1
        self._steps = steps

    def share(self, members: int, w: int) -> int:
        """The logical ranks that the map of these members gives to `w`."""
        order = list(bits(members))
        return sum(1 << r for r in range(self._ranks) if order[r % len(order)] == w)

    def moves(self, state: State, w: int) -> Iterator[Move]:
        worker = state.workers[w]
        if worker.frozen or worker.phase in ("ended", "dead", "finished"):
            return
        who = "ABCDE"[w]
        yield from self._learn(state, w, who)
        if worker.known > worker.generation:
            yield from self._heed(state, w, who)
        match worker.phase:
            case "computing":
                yield Move(f"{who} computes and sends", True, self._send(state, w))
                if worker.held == 0 and worker.step > 0 and state.faults.snapshot:
                    yield from self._snapshot(state, w, who)
            case "sent":
                yield from self._exchange(state, w, who)
            case "forming":
                yield from self._form(state, w, who)
            case _:
                pass

    # --- news ------------------------------------------------------------------------------------

    def _learn(self, state: State, w: int, who: str) -> Iterator[Move]:
        worker = state.workers[w]
        if worker.connected:
            for commit in state.commits:
                if commit.number > worker.known:
                    told = state.with_worker(w, worker._replace(known=commit.number))
                    yield Move(f"{who} learns g{commit.number}", True, told)
        if worker.phase not in ("forming", "broken"):
            return
        for peer in bits(state.commit(worker.generation).members):
            known = state.workers[peer].known
            if known > worker.known and not state.workers[peer].frozen:
                told = state.with_worker(w, worker._replace(known=known))
                yield Move(f"{who} is told of g{known} by a peer", True, told)

    def _heed(self, state: State, w: int, who: str) -> Iterator[Move]:
        """A newer generation ends a wait, and whatever a loss interrupts."""
        worker = state.workers[w]
        commit = state.commit(worker.known)
        at_work = worker.phase in ("computing", "sent")
        if at_work and (commit.mode == "boundary" or not self._guards.interrupts):
            return
        if commit.members >> w & 1:
            arrived = self._arrive(state, w, worker, commit.number)
            yield Move(f"{who} arrives in g{commit.number}", True, arrived)
        elif worker.has_state and self._guards.fenced_end:
            ended = worker._replace(phase="ended", held=0, todo=0)
            yield Move(f"{who} is fenced by g{commit.number}", True, state.with_worker(w, ended))
        elif worker.phase != "waiting":
            waits = worker._replace(phase="waiting", generation=0, held=0, todo=0)
            yield Move(f"{who} waits to join again", True, state.with_worker(w, waits))

    # --- a step ----------------------------------------------------------------------------------

    def _send(self, state: State, w: int) -> State:
        worker = state.workers[w]
        sent = worker._replace(phase="sent", held=worker.held | worker.todo, todo=0)
        post = Post(sent.held, sent.known)
        box = [*self._box(state, worker)]
        box[w] = post
        key = (worker.generation, worker.step)
        others = [e for e in state.exchanges if (e[0], e[1]) != key]
        exchanges: tuple[Exchange, ...] = tuple(sorted([*others, (*key, tuple(box))], key=_order))
        return state.with_worker(w, sent)._replace(exchanges=exchanges)

    def _box(self, state: State, worker: Worker) -> tuple[Post | None, ...]:
        for generation, step, box in state.exchanges:
            if (generation, step) == (worker.generation, worker.step):
                return box
        return (None,) * len(state.workers)

    def _exchange(self, state: State, w: int, who: str) -> Iterator[Move]:
        worker = state.workers[w]
        group = state.commit(worker.generation)
        box = self._box(state, worker)
        posts = [box[u] for u in bits(group.members)]
        complete = [post for post in posts if post is not None]
        is_full = len(complete) == len(posts)
        if is_full:
            self._count(worker, complete)
            yield self._complete(state, w, who, headers={post.known for post in complete})
        others = (state.workers[u] for u in bits(group.members & ~(1 << w)))
        if any(_has_left(o, worker, is_full=is_full) for o in others):
            broken = state.with_worker(w, worker._replace(phase="broken", todo=0))
            yield Move(f"{who} breaks in g{group.number}", True, broken)

    def _count(self, worker: Worker, posts: list[Post]) -> None:
        total = 0
        for post in posts:
            if total & post.held:
                raise Violation(f"step {worker.step} counts a rank twice in g{worker.generation}")
            total |= post.held
        if total != self._all_ranks:
            raise Violation(f"step {worker.step} misses a rank in g{worker.generation}")

    def _complete(self, state: State, w: int, who: str, *, headers: set[int]) -> Move:
        worker = state.workers[w]
        old = state.commit(worker.generation)
        newest = max(headers)
        done = worker._replace(
            step=worker.step + 1, held=0, has_record=True, known=max(worker.known, newest)
        )
        label = f"{who} completes step {worker.step} in g{old.number}"
        if done.step == self._steps:
            return Move(f"{label}, the last", True, self._tidy(state, w, _finish(done)))
        if headers != {newest} or newest <= old.number:
            going_on = done._replace(phase="computing", todo=self.share(old.members, w))
            return Move(label, True, self._tidy(state, w, going_on))
        target = state.commit(newest)
        if target.members >> w & 1:
            arrived = self._arrive(state, w, done, newest)
            return Move(f"{label} and switches to g{newest}", True, arrived)
        ended = done._replace(phase="ended", todo=0)
        return Move(f"{label} and leaves in order", True, self._tidy(state, w, ended))

    def _snapshot(self, state: State, w: int, who: str) -> Iterator[Move]:
        """Main makes its state durable at a boundary, whether the store is in reach or not."""
        worker = state.workers[w]
        group = state.commit(worker.generation)
        if group.main != w or worker.unregistered is not None:
            return
        written = Snapshot(worker.step, group.number, w, worker.line)
        if any(snapshot == written for _, snapshot in state.folder):
            return
        folder = dict(state.folder)
        folder[self.name(written)] = written
        if not self._guards.marked_only:
            folder = {name: s for name, s in folder.items() if s.step >= written.step}
        noted = state.with_worker(w, worker._replace(unregistered=written))
        faults = state.faults._replace(snapshot=state.faults.snapshot - 1)
        after = noted._replace(folder=tuple(sorted(folder.items())), faults=faults)
        yield Move(
            f"{who} writes a snapshot of step {worker.step} in g{group.number}", False, after
        )

    def name(self, snapshot: Snapshot) -> Name:
        own = self._guards.own_names
        return (snapshot.step, *((snapshot.generation, snapshot.writer) if own else (0, 0)))

    # --- a handshake -----------------------------------------------------------------------------

    def _arrive(self, state: State, w: int, worker: Worker, number: int) -> State:
        """What it says of itself stands from now on until the result is known."""
        said = Arrival(
            worker.step, worker.line, worker.held, worker.has_state, worker.has_record,
            worker.entered,
        )  # fmt: skip
        box = [*self._arrivals(state, number)]
        box[w] = said
        others = [h for h in state.handshakes if h[0] != number]
        handshakes = tuple(sorted([*others, (number, tuple(box))], key=lambda h: h[0]))
        forming = worker._replace(
            phase="forming", generation=number, known=max(worker.known, number), todo=0
        )
        return self._tidy(state._replace(handshakes=handshakes), w, forming)

    def _arrivals(self, state: State, number: int) -> tuple[Arrival | None, ...]:
        found = next((box for known, box in state.handshakes if known == number), None)
        return found if found is not None else (None,) * len(state.workers)

    def _form(self, state: State, w: int, who: str) -> Iterator[Move]:
        worker = state.workers[w]
        commit = state.commit(worker.generation)
        box = self._arrivals(state, commit.number)
        arrivals = {u: said for u in bits(commit.members) if (said := box[u]) is not None}
        if len(arrivals) < commit.members.bit_count():
            if any(self._never_comes(state, u, commit) for u in bits(commit.members)):
                broken = state.with_worker(w, worker._replace(phase="broken"))
                yield Move(f"{who} gives up forming g{commit.number}", True, broken)
            return
        holders = {u: said for u, said in arrivals.items() if said.has_state}
        if not holders:
            if commit.mode == "restore":
                begun, after = self._load(state, commit)
                begins = after.commit(commit.number)
                restored = self._enter(worker, begins, w, step=begun, held=0, taken=0)
                after = report_entry(self._tidy(after, w, restored), w)
                yield Move(f"{who} restores in g{commit.number}", True, after)
            return
        self._judge(commit, holders)
        top = max(said.step for said in holders.values())
        at_top = [u for u, said in holders.items() if said.step == top]
        keep, taken = self._kept(at_top, holders)
        if not self._guards.held_counts:
            keep, taken = {w: worker.held & (0 if worker.step < top else -1)}, worker.held
        is_behind = worker.has_state and worker.step == top - 1
        served = is_behind and any(holders[u].has_record for u in at_top)
        entered = self._enter(
            worker, commit, w, step=top, held=keep.get(w, 0), taken=taken
        )._replace(has_record=served or (worker.has_record and worker.step == top))
        after = report_entry(self._tidy(state, w, entered), w)
        yield Move(f"{who} enters g{commit.number}", True, after)

    def _never_comes(self, state: State, u: int, commit: Commit) -> bool:
        other = state.workers[u]
        is_over = other.phase in ("ended", "dead", "finished")
        return is_over or other.generation > commit.number

    def _kept(self, at_top: list[int], holders: dict[int, Arrival]) -> tuple[dict[int, int], int]:
        """Whose sums count: of the newest generation first, and never two for one rank."""
        keep: dict[int, int] = {}
        taken = 0
        for u in sorted(at_top, key=lambda u: (-holders[u].entered, u)):
            if not holders[u].held & taken:
                keep[u] = holders[u].held
                taken |= holders[u].held
        return keep, taken

    def _enter(
        self, worker: Worker, commit: Commit, w: int, *, step: int, held: int, taken: int
    ) -> Worker:
        return worker._replace(
            phase="computing", entered=commit.number, has_state=True, step=step,
            line=commit.truth, held=held, todo=self.share(commit.members, w) & ~taken,
            has_record=False,
        )  # fmt: skip

    def _load(self, state: State, commit: Commit) -> tuple[int, State]:
        """The step of the snapshot, and what its line is the truth of from now on."""
        for counted in state.store.snapshots:
            if not stands_on(counted.line, counted.step, commit.line):
                raise Violation(f"{counted} counts, and g{commit.number} begins from before it")
        wanted = commit.snapshot
        if wanted is not None:
            found = dict(state.folder).get(self.name(wanted))
            if found != wanted:
                raise Violation(f"the snapshot that g{commit.number} restores is not there")
        for later in state.commits:
            if later.number >= commit.number and later.truth == commit.truth:
                state = state.with_commit(later._replace(truth=commit.line))
        return wanted.step if wanted is not None else 0, state

    def _judge(self, commit: Commit, holders: dict[int, Arrival]) -> None:
        """Whoever brings state must bring the state of this group.

        Into a restore only what was begun there, or what came after the snapshot: its holder had
        entered the generation before and had not yet said so.
        """
        begun = 0
        if commit.mode == "restore" and commit.snapshot is not None:
            begun = commit.snapshot.step
        for u, said in holders.items():
            if said.line != commit.truth or said.step < begun:
                raise Violation(
                    f"{names(1 << u)} brings a stale state, step {said.step}, into g{commit.number}"
                )

    def _tidy(self, state: State, w: int, worker: Worker) -> State:
        """Put the worker back; forget what nobody can read any more."""
        after = state.with_worker(w, worker)
        reading = {(x.generation, x.step) for x in after.workers if x.phase in _READING}
        forming = {x.generation for x in after.workers if x.phase == "forming"}
        return after._replace(
            exchanges=tuple(e for e in after.exchanges if (e[0], e[1]) in reading),
            handshakes=tuple(h for h in after.handshakes if h[0] in forming),
        )


_READING = ("computing", "sent")


def report_entry(state: State, w: int) -> State:
    """Its agent says in the store what it has entered, as soon as the store is in reach."""
    worker, me = state.workers[w], 1 << w
    if not worker.entered or not worker.connected or not state.store.leases & me:
        return state
    commit = state.commit(worker.entered)
    return state.with_commit(commit._replace(entered=commit.entered | me))


def _finish(worker: Worker) -> Worker:
    return worker._replace(phase="finished", todo=0)


def _has_left(other: Worker, worker: Worker, *, is_full: bool) -> bool:
    """The other one's sockets are closed. Who left in order lingers until all have read."""
    if other.phase in ("broken", "dead", "waiting"):
        return True
    lingers = is_full and other.step > worker.step
    return not lingers and (other.phase == "ended" or other.generation != worker.generation)


def _order(exchange: Exchange) -> tuple[int, int]:
    return exchange[0], exchange[1]
