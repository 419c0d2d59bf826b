"""The members of a generation, seen from one of them: the driver of `member.py`.

A break never raises into user code. It is noticed at touch points (the inner and outer `next()`,
every wait), the next generation is entered there, and the loop goes on with what is left to do.
"""

import time
from collections.abc import Iterable
from typing import NoReturn, assert_never

import msgspec

from easyscale.errors import FormatError, GenerationBroken
from easyscale.messages import (
    Broken,
    Drained,
    Entered,
    FencedOff,
    Finished,
    Registered,
)
from easyscale.model import (
    Commit,
    GenerationNumber,
    Mode,
    Occasion,
    Position,
    Span,
    WorkerId,
    decode,
    metrics_as_json,
)
from easyscale.pulse import Phase
from easyscale.runtime import member
from easyscale.runtime.departure import Departure
from easyscale.runtime.entering import (
    Entering,
    Entrance,
    Outdated,
    Share,
    Standing,
    StateShelf,
    layout_of,
    planned_spans,
    refuse_other_model,
)
from easyscale.runtime.exchange import Exchange
from easyscale.runtime.group import Membership
from easyscale.runtime.headers import Operation, OperationKind
from easyscale.runtime.listener import Answers, Listener
from easyscale.runtime.neighbours import (
    ASK_INTERVAL_MAX_S,
    ASK_INTERVAL_S,
    Knowledge,
    ask_all,
)
from easyscale.runtime.progress import Progress
from easyscale.runtime.record import Record
from easyscale.runtime.session import Session, leave
from easyscale.runtime.snapshot_schedule import SnapshotSchedule
from easyscale.runtime.steering import final_text
from easyscale.runtime.step import StepWork
from easyscale.runtime.team import EndWork, Work
from easyscale.runtime.training import Training


class Together:
    """A worker among others; the main thread's side of it."""

    is_launched = True

    def __init__(self, training: Training, session: Session) -> None:
        self._training = training
        self._session = session
        self._me = session.worker
        self._n = training.settings.logical_workers
        self._state: member.State = member.Waiting()
        self._standing = Standing()
        self._entering: Entering | None = None
        self._exchange: Exchange | None = None
        #: Groups that were left in order, kept open until the next operation is complete.
        self._left: list[Exchange] = []
        self._commit: Commit | None = None
        self._share: Share | None = None
        #: What all members said in the last operation of this generation.
        self._headers: tuple[GenerationNumber, ...] = ()
        #: The last step's micro-steps gave weights.
        self._weighted = False
        self._waits_for = ""
        self._ranks: tuple[int, ...] = ()
        self._has_begun = False
        self._snapshots = SnapshotSchedule(training, session)
        self._progress = Progress(training, session)
        self._departure = Departure(training, session, keep_boundary=self._keep_boundary)

    # --- what the loop asks ----------------------------------------------------------------------

    @property
    def is_main(self) -> bool:
        return self._commit is not None and self._commit.main == self._me

    @property
    def ranks(self) -> tuple[int, ...]:
        return self._ranks

    def enter(self, override: tuple[str, ...]) -> None:
        session = self._session
        settings = session.settings
        self._progress.beat(Phase.WAITING)
        refuse_other_model(self._training, session)
        described = layout_of(self._training).description
        shelf = StateShelf(timeout_s=settings.forming_timeout_s)
        listener = Listener(
            host=settings.local_host,
            token=settings.token,
            worker=self._me,
            answers=Answers(
                know=self._know, state=shelf.get, heard=self._heard, layout=lambda: described
            ),
        )
        self._entering = Entering(
            training=self._training,
            session=session,
            listener=listener,
            shelf=shelf,
            standing=self._standing,
            override=override,
            superseded=self._superseded,
            waits_for=self._say_waits_for,
        )
        session.at_script_end = self._script_ended
        session.say(Registered(worker=self._me, address=listener.address))
        self._recover()

    def boundary(self) -> None:
        self._touch()
        event = member.AtBoundary(self._headers, self._session.newest)
        self._decide(event)
        self._recover()
        self._snapshot_if_due()

    def begin(self, work: Work) -> None:
        self._standing.work = work
        self._has_begun = True
        self._note_generation()
        share = self._share
        if share is not None and share.position == self._training.place.position:
            work.todo = list(share.compute)
        else:
            work.todo = list(self._ranks)

    def _note_generation(self) -> None:
        """For the report of a failure: until its first operation this worker is on its way in."""
        if self._has_begun and self._commit is not None:
            self._session.generation = self._commit.generation

    def next_rank(self, work: Work) -> int | None:
        while True:
            self._touch()
            if work.is_complete:
                break
            if work.todo:
                rank = work.todo.pop(0)
                if not work.todo:
                    self._watch_last(work, rank)
                evaluates = work.kind is OperationKind.EVALUATION
                self._progress.beat(Phase.EVALUATION if evaluates else Phase.MICRO_STEP, rank=rank)
                return rank
            self._complete(work)
        self._standing.work = None
        self._progress.beat(Phase.OUTER_BODY)
        if work.kind is OperationKind.STEP:
            self._progress.report_step()
        return None

    def show_awake(self) -> None:
        self._session.pulse.end_wait()

    def end(self) -> None:
        training = self._training
        if self._commit is not None and self._commit.mode is not Mode.RESTORE:
            training.refuse_end_at_top()  # alone: the others go on
        # Where the script left its loop early, what it did with the weights since is its own.
        compares = training.recorder is None and training.left_at is None
        steering = final_text(training.things) if compares else b""
        work = EndWork(self._n, steering=steering)
        self.begin(work)
        while (rank := self.next_rank(work)) is not None:
            work.compute(rank)
        self._decide(member.EndCompleted())

    # --- operations ------------------------------------------------------------------------------

    def _watch_last(self, work: Work, rank: int | None) -> None:
        """The exchange of a step may start while its last micro-step here still runs."""
        exchange = self._exchange
        if exchange is None or exchange.group.size == 1 or not isinstance(work, StepWork):
            return
        # Weights are known after the micro-step only; who gave them once gives them again.
        if not work.is_watched and not self._weighted:
            work.watch(exchange, self._operation(work), rank)

    def _operation(self, work: Work) -> Operation:
        return Operation(work.kind, self._training.place.position, self._spans())

    def _complete(self, work: Work) -> None:
        """Bring the shares together, or enter the generation that a break leads to."""
        assert self._exchange is not None
        operation = self._operation(work)
        if not work.held:
            self._watch_last(work, None)
        membership = self._exchange.group.membership
        assert self._entering is not None
        wait = self._entering.wait(
            membership, operation.name, deadline_s=self._session.settings.exchange_deadline_s
        )
        self._progress.beat(Phase.EXCHANGE)
        self._waits_for = operation.name
        began_s = time.monotonic()
        try:
            newest = self._newest_number()
            record = work.exchange(self._exchange, operation, newest=newest, wait=wait)
        except GenerationBroken as broken:
            self._waits_for = ""
            self._break(broken)
            self._recover()
            return
        self._waits_for = ""
        self._training.timing.exchanges.append(time.monotonic() - began_s)
        self._take_result(work, record)

    def _take_result(self, work: Work, record: Record) -> None:
        work.adopt(record)
        training = self._training
        training.count_operation(finished=work.kind is OperationKind.END)
        training.timing.end_operation()
        self._standing.record = record
        self._headers = record.newest
        self._weighted = any(record.weighted)
        for exchange in self._left:
            exchange.close()
            exchange.group.close()
        self._left.clear()
        self._learn_commits(record)

    def _learn_commits(self, record: Record) -> None:
        """A header shows a commit that this worker lacks: its sender has it."""
        newest = max(record.newest)
        if newest <= self._newest_number():
            return
        assert self._exchange is not None
        try:
            source = record.newest.index(newest)
            text = self._exchange.group.ask(source, timeout_s=ASK_INTERVAL_S)
            knowledge = msgspec.json.decode(text, type=Knowledge)
        except (OSError, msgspec.DecodeError):
            return  # the next header shows it again
        if knowledge.commit is not None:
            self._session.offer(knowledge.commit, by_peer=True)

    def _spans(self) -> tuple[tuple[Span, ...], ...]:
        share = self._share
        if share is not None and share.position == self._training.place.position:
            return share.spans
        assert self._commit is not None
        return planned_spans(self._commit, self._n)

    # --- changes ---------------------------------------------------------------------------------

    def _touch(self) -> None:
        """A touch point: a commit that waits for no boundary is acted on."""
        if self._commit is None or self._superseded(self._commit.generation) is None:
            return
        newest = self._session.newest
        assert newest is not None
        self._decide(member.CommitKnown(newest))
        self._recover()

    def _superseded(self, generation: GenerationNumber) -> str | None:
        newest = self._session.newest
        if newest is None or newest.generation <= generation:
            return None
        if isinstance(self._state, member.Running) and newest.mode is Mode.BOUNDARY:
            return None
        return f"{newest.generation.label} was agreed"

    def _break(self, broken: GenerationBroken) -> None:
        """Whatever was waited for does not come; a commit that explains it is taken first."""
        self._abandon()
        newest = self._session.newest
        if self._commit_explains(newest):
            assert newest is not None
            self._decide(member.CommitKnown(newest))
        else:
            commit = self._state_commit()
            suspects = tuple(commit.members[rank].worker for rank in broken.suspects)
            self._decide(member.WaitBroke(suspects, broken.message))

    def _commit_explains(self, newest: Commit | None) -> bool:
        return newest is not None and self._superseded(self._state_commit().generation) is not None

    def _state_commit(self) -> Commit:
        state = self._state
        assert not isinstance(state, member.Waiting)
        return state.commit

    def _recover(self) -> None:
        """Go on until this worker runs: forms, waits for newer commits, or leaves for good."""
        while not isinstance(self._state, member.Running | member.Finished):
            match self._state:
                case member.Forming(commit=commit):
                    self._form(commit)
                case member.Broken(commit=commit):
                    self._progress.beat(Phase.BROKEN)
                    self._await_commit(commit)
                case member.Waiting():
                    self._progress.beat(Phase.WAITING)
                    self._await_first_commit()
                case member.Leaving(commit=commit, pauses=pauses):
                    self._leave(commit, pauses=pauses)
                case member.Fenced(commit=commit):
                    self._fence(commit)
                case _:
                    assert_never(self._state)

    def _form(self, commit: Commit) -> None:
        assert self._entering is not None
        self._progress.beat(Phase.FORMING)
        self._set_aside()
        is_newcomer = not self._standing.has_state
        try:
            entrance = self._entering.enter(commit)
        except Outdated:
            self._fence(commit)
        except GenerationBroken as broken:
            self._break(broken)
        except (OSError, msgspec.DecodeError) as error:
            self._break(GenerationBroken(f"forming {commit.generation}: {error}"))
        else:
            self._use(entrance)
            if is_newcomer:
                self._snapshots.skip_known()
            self._decide(member.Entered())

    def _use(self, entrance: Entrance) -> None:
        commit = entrance.commit
        self._exchange = entrance.exchange
        self._commit = commit
        self._note_generation()
        self._share = entrance.share
        self._departure.enter(commit)
        self._headers = ()
        self._set_ranks(commit)
        self._training.timing.interrupt()

    def _set_ranks(self, commit: Commit) -> None:
        rank = commit.process_rank(self._me)
        assert rank is not None
        self._ranks = tuple(sorted(commit.members[rank].ranks))

    def _await_commit(self, commit: Commit) -> None:
        """BROKEN: a newer commit by any road; computes nothing, keeps its sums and last result."""
        membership = Membership(commit, self._me, self._session.settings.token)
        interval_s = ASK_INTERVAL_S
        known, since_s = commit.generation, time.monotonic()
        is_kept = False
        while True:
            newer = self._session.wait_newer(known, timeout_s=interval_s)
            if newer is not None:
                known, since_s = newer.generation, time.monotonic()
                self._decide(member.CommitKnown(newer))
                if not isinstance(self._state, member.Broken):
                    return
            _, answers = ask_all(membership, self._session)
            if self._end_is_known(answers.values()):
                return
            waited_s = time.monotonic() - since_s
            if self._departure.is_left_behind(
                commit, answers.values(), waited_s=waited_s, has_boundary=self._has_boundary
            ):
                newest = self._session.newest
                assert newest is not None
                self._decide(member.LeftBehind(newest))
                return
            holds_on = self._standing.has_state and not is_kept
            if holds_on and self._departure.may_be_last(commit, waited_s=waited_s):
                is_kept = True
                self._keep_boundary()
                self._progress.beat(Phase.BROKEN)
            interval_s = min(2 * interval_s, ASK_INTERVAL_MAX_S)

    @property
    def _has_boundary(self) -> bool:
        """The state at the boundary before what is under way can still be made."""
        work = self._standing.open_work
        return work is None or work.kind is not OperationKind.EVALUATION

    def _end_is_known(self, answers: Iterable[Knowledge]) -> bool:
        """A member that finished says that all had come to the end, this worker included."""
        work = self._standing.open_work
        if work is None or work.kind is not OperationKind.END:
            return False
        position = self._training.place.position
        if not any(known.finished and known.position > position for known in answers):
            return False
        work.is_complete = True
        self._training.count_operation(finished=True)
        # BROKEN -> RUNNING: nothing is exchanged after the end, so no group is needed
        self._state = member.Running(self._state_commit())
        return True

    def _await_first_commit(self) -> None:
        known: GenerationNumber | None = None
        while isinstance(self._state, member.Waiting):
            # No timer: WAITING ends by a commit, by the agent's word or by its end.
            commit = self._session.wait_newer(known, timeout_s=ASK_INTERVAL_MAX_S)
            if commit is not None:
                known = commit.generation
                self._decide(member.CommitKnown(commit))

    # --- decisions carried out -------------------------------------------------------------------

    def _decide(self, event: member.Event) -> None:
        decision = member.step(self._state, event, me=self._me)
        self._state = decision.state
        match decision.action:
            case None | member.Form() | member.Leave() | member.Fence():
                pass  # the state says it all; `_recover` acts on it
            case member.SwitchMap(commit=commit):
                self._commit = commit
                self._departure.enter(commit)
                self._note_generation()
                self._standing.formed = commit.generation
                self._share = None
                was_idle = not self._ranks
                self._set_ranks(commit)
                self._training.timing.change_map(
                    is_other=was_idle or commit.occasion is Occasion.PROFILE
                )
                self._say_entered(commit)
            case member.SayEntered(commit=commit):
                self._say_entered(commit)
            case member.SayBroken(commit=commit, suspects=suspects, reason=reason):
                self._say_broken(commit, suspects, reason)
            case member.SayFinished(commit=commit):
                self._finish(commit)
            case _:
                assert_never(decision.action)

    def _say_entered(self, commit: Commit) -> None:
        completed_s = self._training.timing.completed_at_s
        self._session.say(
            Entered(
                generation=commit.generation,
                position=Position(self._training.place.position),
                step=self._training.place.step,
                has_state=True,
                pause_s=0.0 if completed_s is None else time.monotonic() - completed_s,
            )
        )

    def _say_broken(self, commit: Commit, suspects: tuple[WorkerId, ...], reason: str) -> None:
        self._session.say(
            Broken(
                generation=commit.generation,
                position=Position(self._training.place.position),
                suspects=suspects,
                reason=reason,
            )
        )

    def _abandon(self) -> None:
        if self._exchange is not None:
            self._exchange.abandon()
            self._exchange = None

    def _set_aside(self) -> None:
        """Leave the running group: in order at a boundary, for ever in the middle of something."""
        if self._exchange is None:
            return
        if self._standing.open_work is None:
            self._left.append(self._exchange)
            self._exchange = None
        else:
            self._abandon()

    def _fence(self, commit: Commit) -> NoReturn:
        self._session.say(FencedOff(generation=commit.generation))
        leave(self._session, 0)

    def _leave(self, commit: Commit, *, pauses: bool) -> None:
        departure = self._departure
        if pauses:
            departure.keep_state(commit.generation)
            departure.has_failed |= not self._snapshots.finish()
        else:
            departure.hand_over(commit)
            self._snapshots.finish()
        newest = self._session.newest
        assert newest is not None
        self._decide(member.CommitKnown(newest))
        if not isinstance(self._state, member.Leaving):
            return
        departure.left_for = commit.generation
        self._session.say(Drained(generation=commit.generation, step=self._training.place.step))
        self._session.flush()
        departure.linger(lambda known: known.has_left_behind(commit.generation))
        leave(self._session, 0)

    # --- the end ---------------------------------------------------------------------------------

    def _finish(self, commit: Commit) -> None:
        training = self._training
        state = training.capture()
        if self.is_main:
            self._snapshots.begin(state, commit.generation, pause_s=0.0, last=True)
            self._snapshots.finish()
        self._progress.beat(Phase.FINISHED)
        self._session.say(
            Finished(
                position=Position(training.place.position),
                step=training.place.step,
                digest=state.digest,
                is_main=self.is_main,
                metrics=metrics_as_json(training.metrics),
                epochs=training.place.epoch,
            )
        )

    def _script_ended(self) -> None:
        """The script came to its end without an error: complete the job, then linger.

        Not where it called `sys.exit` inside its loop: then steps are due, and the agent says so.
        """
        if isinstance(self._state, member.Running):
            if self._training.left_at in self._session.exit_places:
                return
            self._training.close_step()
            self.end()
        self._progress.beat(Phase.FINISHED)
        self._snapshots.finish()
        self._departure.linger(lambda known: known.finished)

    # --- snapshots and progress ------------------------------------------------------------------

    def _snapshot_if_due(self) -> None:
        if self.is_main and self._snapshots.is_due:
            self._write_snapshot(last=False)

    def _write_snapshot(self, *, last: bool) -> None:
        self._progress.beat(Phase.SNAPSHOT)
        began_s = time.monotonic()
        assert self._entering is not None
        assert self._commit is not None
        self._snapshots.begin(
            self._entering.boundary_state(),
            self._commit.generation,
            pause_s=time.monotonic() - began_s,
            last=last,
        )
        self._progress.beat(Phase.OUTER_BODY)

    def _keep_boundary(self) -> bool:
        """Write the state at the boundary; False where the disk does not take it.

        Also where that boundary has passed, as in an evaluation.
        """
        try:
            self._write_snapshot(last=True)
        except GenerationBroken:
            return False
        self._progress.beat(Phase.SNAPSHOT)
        return self._snapshots.finish()

    # --- what peers hear -------------------------------------------------------------------------

    def _newest_number(self) -> GenerationNumber:
        newest = self._session.newest
        assert self._commit is not None
        return self._commit.generation if newest is None else newest.generation

    def _say_waits_for(self, name: str) -> None:
        self._waits_for = name

    def _know(self) -> str:
        """For a listener's thread: reads plain attributes, never waits."""
        commit = self._commit
        knowledge = Knowledge(
            commit=self._session.newest,
            position=self._training.place.position,
            waits_for=self._waits_for,
            entered=None if commit is None else commit.generation,
            finished=isinstance(self._state, member.Finished),
            left_for=self._departure.left_for,
            has_failed=self._departure.has_failed,
            misses_somebody=bool(self._waits_for) and self._session.misses_somebody,
        )
        return msgspec.json.encode(knowledge).decode()

    def _heard(self, text: str) -> None:
        """A peer's hello brought the record of the generation that it forms."""
        try:
            commit = decode(text, Commit, source="a peer's commit")
        except FormatError:
            return
        self._session.offer(commit, by_peer=True)
