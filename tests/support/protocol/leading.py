"""What reaches the model's store: leases, reports, records, and the decisions of its leader.

Transactions are atomic and read the store as it is; what agents know may be old.
"""

from collections.abc import Iterator

from tests.support.protocol.state import (
    Commit,
    Guards,
    Line,
    Mode,
    Move,
    Snapshot,
    State,
    Violation,
    bits,
    is_overtaken,
    names,
    stands_on,
)
from tests.support.protocol.workers import Workers, report_entry

AT_WORK = ("computing", "sent", "broken", "forming")


class Agents:
    """What the agents of one scene say in the store."""

    def __init__(self, guards: Guards, workers: Workers) -> None:
        self._guards = guards
        self._workers = workers

    def moves(self, state: State, w: int) -> Iterator[Move]:
        worker, store, me, who = state.workers[w], state.store, 1 << w, "ABCDE"[w]
        is_heard = worker.connected and not worker.frozen
        if store.leases & me and not is_heard:
            lost = store._replace(leases=store.leases & ~me)
            yield Move(f"the lease of {who} expires", True, state._replace(store=lost))
        if not store.leases & me and not store.silent & me:
            silent = store._replace(silent=store.silent | me)
            yield Move(f"{who} has been silent for long", True, state._replace(store=silent))
        if not is_heard:
            return
        if not store.leases & me:
            back = store._replace(leases=store.leases | me, silent=store.silent & ~me)
            heard = report_entry(state._replace(store=back), w)
            yield Move(f"{who} is heard again", True, heard)
            return
        yield from self._report(state, w, who)
        yield from self._record(state, w, who)

    def _report(self, state: State, w: int, who: str) -> Iterator[Move]:
        worker, store, me = state.workers[w], state.store, 1 << w
        if worker.phase in ("ended", "dead") and not store.gone & me:
            gone = state._replace(store=store._replace(gone=store.gone | me))
            yield Move(f"{who} is reported as ended", True, gone)
        if worker.phase == "finished" and not store.done & me:
            done = state._replace(store=store._replace(done=store.done | me))
            yield Move(f"{who} is reported as finished", True, done)

    # --- records ---------------------------------------------------------------------------------

    def _record(self, state: State, w: int, who: str) -> Iterator[Move]:
        """What it writes stands on what it knows: the fence says whether that is the newest."""
        worker, head = state.workers[w], state.newest
        known = next((c for c in state.commits if c.number == worker.known), head)
        if state.store.outcome or (self._guards.head_fence and worker.known != head.number):
            return
        if worker.unregistered is not None:
            yield self._register(state, w, who, worker.unregistered, known)
        elif state.faults.survey:
            yield from self._survey(state, w, who)
        leads = known if self._guards.main_of_head else state.commit(worker.generation or 1)
        if leads.main == w and worker.has_state and worker.phase in (*AT_WORK, "finished"):
            _judge_record(head, worker.line, worker.step, f"{who} writes progress")

    def _survey(self, state: State, w: int, who: str) -> Iterator[Move]:
        """An agent that starts finds what lies in the folder."""
        for _, snapshot in state.folder:
            if snapshot not in state.store.snapshots:
                found = state.workers[w]._replace(unregistered=snapshot)
                faults = state.faults._replace(survey=state.faults.survey - 1)
                after = state.with_worker(w, found)._replace(faults=faults)
                yield Move(f"{who} finds the snapshot of step {snapshot.step}", False, after)

    def _register(self, state: State, w: int, who: str, snapshot: Snapshot, known: Commit) -> Move:
        """Make it count, and delete what it supersedes: one is kept."""
        head, store = state.newest, state.store
        forgotten = state.with_worker(w, state.workers[w]._replace(unregistered=None))
        if self._guards.same_line and is_overtaken(snapshot, known.line):
            return Move(f"{who} keeps an overtaken snapshot out", True, forgotten)
        _judge_record(head, snapshot.line, snapshot.step, f"{who} registers a snapshot")
        counted = {*store.snapshots, snapshot}
        kept = max(counted)
        going = {self._workers.name(old) for old in counted if old != kept}
        folder = tuple((name, s) for name, s in forgotten.folder if name not in going)
        after = forgotten._replace(store=store._replace(snapshots=(kept,)), folder=folder)
        return Move(f"{who} registers the snapshot of step {snapshot.step}", True, after)


class Leader:
    """Whoever leads: one decision on one view, carried out at once or, paused, much later."""

    def __init__(self, guards: Guards, *, most: int) -> None:
        self._guards = guards
        self._most = most

    def moves(self, state: State) -> Iterator[Move]:
        store = state.store
        if store.outcome or not store.leases:
            return
        yield from self._end(state)
        if state.newest.number + 1 <= self._most and store.planned < self._most:
            yield from self._recover(state)
            yield from self._propose(state)
        yield from self._settle(state)
        if store.hand is not None and all(c.number != store.hand.number for c in state.commits):
            yield self._commit(state, store.hand, "the paused leader wakes and commits")

    # --- what the store shows --------------------------------------------------------------------

    def _open(self, state: State) -> list[Commit]:
        """The generations that could still run: from the newest on that all have entered."""
        first = max((c.number for c in state.commits if c.entered == c.members), default=0)
        return [c for c in state.commits if c.number >= first]

    def _running(self, state: State) -> list[Commit]:
        """Of those, from the newest on that interrupts every wait."""
        opened = self._open(state)
        since = max((c.number for c in opened if c.mode != "boundary"), default=0)
        return [c for c in opened if c.number >= since]

    def _holders(self, state: State) -> int:
        mask = 0
        for commit in state.commits:
            mask |= commit.entered
        return mask

    def objects(self, state: State, members: int, mode: Mode) -> bool:
        """Whether the overlap rule or the rule of the base forbids this commit."""
        store = state.store
        ended = store.gone | store.done
        opened = self._open(state)
        if self._guards.overlap:
            for older in opened:
                shares = members & older.members & ~ended
                proven = older.members & ended or self._is_left(older, opened)
                silent = older.members & store.silent
                may_take_over = mode == "restore" or self._is_replaced(older, opened)
                taken_over = may_take_over and silent == older.members
                if not (shares or proven or taken_over):
                    return True
        if mode != "restore":
            return not members & self._holders(state)
        if not self._guards.holders_first:
            return False
        may_hold = self._holders(state) | ~store.leases
        return any(older.members & may_hold & ~ended & ~store.silent for older in opened)

    def _is_replaced(self, older: Commit, opened: list[Commit]) -> bool:
        """A restore has been committed over it."""
        return self._guards.takeover_lasts and any(
            newer.mode == "restore" and newer.number > older.number for newer in opened
        )

    def _is_left(self, older: Commit, opened: list[Commit]) -> bool:
        """Somebody entered a newer generation, and met one of these members there."""
        return self._guards.entry_proves and any(
            newer.number > older.number and newer.entered and newer.members & older.members
            for newer in opened
        )

    # --- decisions -------------------------------------------------------------------------------

    def _recover(self, state: State) -> Iterator[Move]:
        """Go on with whoever holds the state, or from the newest snapshot."""
        store = state.store
        opened = self._running(state) if self._guards.no_way_back else self._open(state)
        present = store.leases & ~store.gone
        named = 0
        for commit in opened:
            named |= commit.members
        numbers = {commit.number for commit in opened}
        broken = [
            w for w in bits(named & present)
            if (it := state.workers[w]).phase == "broken" and it.generation in numbers
            and it.connected and not it.frozen
        ]  # fmt: skip
        lost = named & ~present
        if not broken:
            lost &= ~store.done
        if not (lost or broken):
            return
        number = max(state.newest.number, store.planned) + 1
        left = next(
            (
                holders for commit in reversed(opened)
                if (holders := commit.members & present & self._holders(state) & ~store.done)
            ), 0,
        )  # fmt: skip
        if left:
            if not self.objects(state, left, "now"):
                now = Commit(number, left, "now", state.newest.line, state.newest.truth)
                yield self._commit(state, now, "the leader commits the survivors")
        elif (members := self._startable(state, named)) and not self.objects(
            state, members, "restore"
        ):
            base = max(store.snapshots, default=None)
            began = (number, base.step if base is not None else 0)
            line = (*(base.line if base is not None else ()), began)
            truth = state.newest.truth
            restore = Commit(number, members, "restore", line, truth, snapshot=base)
            self._judge_restore(state, restore)
            yield self._commit(state, restore, "the leader commits a restore")

    def _startable(self, state: State, named: int) -> int:
        """Who waits in register, or for a generation that it has not formed."""
        present = state.store.leases & ~state.store.gone
        holders = self._holders(state)
        mask = 0
        for w in bits(present):
            phase = state.workers[w].phase
            formless = phase in AT_WORK and named >> w & 1 and not holders >> w & 1
            if phase == "waiting" or formless:
                mask |= 1 << w
        return mask

    def _judge_restore(self, state: State, restore: Commit) -> None:
        """Before the take-over time nobody's steps are given up; members bring them along."""
        for commit in self._open(state):
            for w in bits(commit.members & ~state.store.silent & ~restore.members):
                worker = state.workers[w]
                begun = restore.snapshot.step if restore.snapshot is not None else 0
                lives = worker.phase in AT_WORK and worker.has_state
                if lives and worker.generation == commit.number and worker.step > begun:
                    raise Violation(
                        f"g{restore.number} throws step {worker.step} away, which {names(1 << w)}"
                        " holds and could go on with"
                    )

    def _propose(self, state: State) -> Iterator[Move]:
        store, base = state.store, state.newest
        present = store.leases & ~store.gone
        if store.plan is not None or base.members & (store.done | ~present):
            return
        joins = sum(
            1 << w for w in bits(present & ~base.members) if state.workers[w].phase == "waiting"
        )
        number = store.planned + 1
        members = (base.members | joins) & ~store.wishes
        if members not in (0, base.members):
            plan = Commit(number, members, "boundary", base.line, base.truth)
            planned = store._replace(planned=number, plan=plan)
            label = f"the leader plans g{number} {names(members)}"
            yield Move(label, True, state._replace(store=planned))

    def _settle(self, state: State) -> Iterator[Move]:
        """Commit the open plan, or give it up."""
        store, plan = state.store, state.store.plan
        if plan is None:
            return
        # For members that are gone, for one that says nothing, or for what is asked meanwhile.
        given_up = state._replace(store=store._replace(plan=None))
        yield Move(f"the leader gives g{plan.number} up", True, given_up)
        present = store.leases & ~store.gone & ~store.done
        if plan.members & ~present:
            return
        if not self.objects(state, plan.members, "boundary"):
            yield self._commit(state, plan, "the leader commits the plan")

    def _commit(self, state: State, commit: Commit, label: str) -> Move:
        store = state.store._replace(planned=max(commit.number, state.store.planned), plan=None)
        if state.store.hand == commit:
            store = store._replace(hand=None)
        after = state.with_commit(commit)._replace(store=store)
        return Move(f"{label}, g{commit.number} {names(commit.members)}", True, after)

    def pause(self, state: State) -> Iterator[State]:
        """A leader stops with a decision in hand; with the head compared it can never land."""
        store = state.store
        if self._guards.head_fence or store.hand is not None or store.plan is None:
            return
        yield state._replace(store=store._replace(hand=store.plan, plan=None))

    def _end(self, state: State) -> Iterator[Move]:
        """Main of one that may run has finished in it, and no other member is waited for.

        A change that was planned at the last boundary is entered by nobody any more.
        """
        store = state.store
        over = store.done | store.gone | ~store.leases
        groups = self._running(state) if self._guards.outcome_of_head else [*state.commits]
        named = groups[0].members
        for commit in groups:
            named |= commit.members & self._holders(state)
        for commit in reversed(groups):
            finished = commit.members & store.done
            is_end = state.workers[commit.main].generation == commit.number
            waits = (named if self._guards.outcome_of_head else commit.members) & ~over
            if finished >> commit.main & 1 and is_end and not waits:
                for w in bits(finished):
                    worker = state.workers[w]
                    _judge_record(state.newest, worker.line, worker.step, "the outcome is written")
                ended = state._replace(store=store._replace(outcome=True))
                yield Move("the leader writes the outcome", True, ended)
                return


def _judge_record(head: Commit, line: Line, step: int, what: str) -> None:
    if not stands_on(line, step, head.truth):
        raise Violation(f"{what} at step {step} for a group that g{head.number} has replaced")
