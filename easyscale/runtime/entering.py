"""One attempt to enter a generation: form its group, say where we are, do what the handshake says.

Every part may break and be repeated in a newer generation; nothing here decides, `entry.py` does.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from easyscale.errors import GenerationBroken, ScriptError, SnapshotDamaged
from easyscale.messages import SnapshotRejected
from easyscale.model import Commit, GenerationNumber, Mode, Span
from easyscale.pulse import Phase
from easyscale.runtime import tree
from easyscale.runtime.buckets import TensorLayout
from easyscale.runtime.channel import ask, ask_layout, fetch_state
from easyscale.runtime.entry import (
    Arrival,
    AwaitCommit,
    Entry,
    EntryLayout,
    FetchCommit,
    Restore,
    arrange,
)
from easyscale.runtime.exchange import Exchange, Note
from easyscale.runtime.group import Membership, Wait, form
from easyscale.runtime.headers import Operation, OperationKind, name_difference
from easyscale.runtime.listener import Listener
from easyscale.runtime.neighbours import (
    ASK_INTERVAL_S,
    ASK_TIMEOUT_S,
    Knowledge,
    Patience,
    offer_all,
    read_knowledge,
)
from easyscale.runtime.record import Alone, Record
from easyscale.runtime.session import Session
from easyscale.runtime.snapshots import read_snapshot
from easyscale.runtime.state import State, digest, entry_digests
from easyscale.runtime.step import StepWork
from easyscale.runtime.training import Training

if TYPE_CHECKING:
    from easyscale.runtime.team import Work

#: No wait here ends by the clock alone: Patience asks the others first.
NO_LIMIT_S = 7 * 24 * 3600.0

#: How often a joiner is told that its state is still being made, and for how long at most.
SIGN_INTERVAL_S = 1.0
MAKING_MOST_S = 600.0

NONE_FORMED = GenerationNumber(0, 0)


@dataclass(frozen=True, slots=True)
class Share:
    """What this process does in the operation at `position`, and what everybody sends in it."""

    position: int
    compute: tuple[int, ...]
    spans: tuple[tuple[Span, ...], ...]


@dataclass(frozen=True, slots=True)
class Entrance:
    """A generation that was entered."""

    commit: Commit
    exchange: Exchange
    #: Lays out the operation that was interrupted; the commit's map rules after it.
    share: Share


@dataclass(slots=True)
class Standing:
    """What a member brings along from one generation to the next."""

    has_state: bool = False
    formed: GenerationNumber = NONE_FORMED
    #: The result of the last operation, for a member that is one behind.
    record: Record | None = None
    #: The operation that this process is in the middle of.
    work: "Work | None" = None

    @property
    def open_work(self) -> "Work | None":
        return self.work if self.work is not None and not self.work.is_complete else None

    @property
    def can_serve_record(self) -> bool:
        record = self.record
        if record is None or not record.is_intact:
            return False
        return not isinstance(record.tensors, Alone)


@dataclass(slots=True)
class StateShelf:
    """States that listener threads hand to joiners: bytes only, made by the main thread."""

    #: How long one may be asked for before the main thread begins to make it.
    timeout_s: float
    _chunks: dict[str, list[bytes]] = field(default_factory=dict)
    #: The newest request that was begun: it is here, still being made, or it failed.
    _begun: str | None = None
    _is_making: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def put(self, request: str, chunks: Iterable[bytes]) -> None:
        """Make a state, and offer it under its generation; the ones before are given up.

        Who asks meanwhile is told that it is being made: a large one takes longer than any
        silence that a joiner stands.
        """
        made: dict[str, list[bytes]] = {}
        with self._changed:
            self._chunks, self._begun, self._is_making = {}, request, True
            self._changed.notify_all()
        try:
            made = {request: list(chunks)}
        finally:
            with self._changed:
                self._chunks, self._is_making = made, False
                self._changed.notify_all()

    def get(self, request: str) -> Iterator[bytes | None]:
        """Yield None from time to time while it is made, then it; LookupError where none comes.

        A joiner may ask before the layout is known here.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._begun == request, self.timeout_s)
        began_s = time.monotonic()
        while self._makes(request) and time.monotonic() - began_s < MAKING_MOST_S:
            yield None
            with self._changed:
                interval_s = min(SIGN_INTERVAL_S, self.timeout_s / 4)
                self._changed.wait_for(lambda: not self._makes(request), interval_s)
        yield from self._chunks[request]

    def _makes(self, request: str) -> bool:
        return self._is_making and self._begun == request


@dataclass(slots=True)
class Entering:
    """Performs entries for one worker."""

    training: Training
    session: Session
    listener: Listener
    shelf: StateShelf
    standing: Standing
    override: tuple[str, ...]
    #: Why a wait of this generation should end at once.
    superseded: Callable[[GenerationNumber], str | None]
    #: Names the wait that the main thread is in, for peers that ask.
    waits_for: Callable[[str], None]

    def enter(self, commit: Commit) -> Entrance:
        """Enter, or raise GenerationBroken; state is held afterwards."""
        membership = Membership(commit, self.session.worker, self.session.settings.token)
        name = f"forming {commit.generation}"
        wait = self.wait(
            membership,
            name,
            deadline_s=self.session.settings.forming_timeout_s,
            # A member of a killed node is named as long as nobody knows of its end.
            first_ask_s=ASK_INTERVAL_S,
        )
        self.waits_for(name)
        group = form(membership, listener=self.listener, wait=wait)
        layout = layout_of(self.training)
        exchange = Exchange(group, layout=layout, n=self.training.settings.logical_workers)
        try:
            found = self._handshake(exchange, layout, membership, wait)
            return Entrance(commit, exchange, self._perform(found, exchange, membership, wait))
        except BaseException:
            exchange.abandon()
            raise
        finally:
            self.waits_for("")

    def wait(
        self,
        membership: Membership,
        name: str,
        *,
        deadline_s: float,
        first_ask_s: float | None = None,
    ) -> Wait:
        """A wait that ends for a reason: superseded, somebody gone, nothing moves."""

        def is_coming(knowledge: Knowledge) -> bool:
            return knowledge.waits_for != name

        patience = Patience(
            membership,
            self.session,
            name,
            deadline_s=deadline_s,
            is_coming=is_coming,
            superseded=lambda: self.superseded(membership.generation),
            first_ask_s=first_ask_s,
        )
        return Wait(timeout_s=NO_LIMIT_S, interrupt=patience, pulse=self.session.pulse)

    # --- the handshake ---------------------------------------------------------------------------

    def _handshake(
        self, exchange: Exchange, layout: TensorLayout, membership: Membership, wait: Wait
    ) -> EntryLayout:
        entry = self._arrive(exchange, layout, membership, wait)
        if isinstance(entry, Restore):
            self._restore(membership.commit)
            entry = self._arrive(exchange, layout, membership, wait)
            if isinstance(entry, Restore):
                self._say_missing(membership.commit)
        match entry:
            case EntryLayout():
                if entry.differing and membership.commit.mode is Mode.RESTORE:
                    self._refuse_unequal_starts(exchange, membership, wait)
                return entry
            case FetchCommit(source=source, newest=newest):
                self._fetch_commit(membership, source)
                raise GenerationBroken(f"{membership.place(source)} knows {newest.label}")
            case AwaitCommit(reason=reason) | Restore(reason=reason):
                raise GenerationBroken(reason)

    def _arrive(
        self, exchange: Exchange, layout: TensorLayout, membership: Membership, wait: Wait
    ) -> Entry:
        commit, standing = membership.commit, self.standing
        newest = self.session.newest
        work = standing.open_work
        restoring = commit.mode is Mode.RESTORE and standing.has_state and work is None
        arrival = Arrival(
            worker=self.session.worker,
            has_state=standing.has_state,
            position=self.training.place.position,
            held=() if work is None else work.held,
            formed=standing.formed,
            has_record=standing.can_serve_record,
            newest=max(commit.generation, newest.generation if newest else commit.generation),
            digest=digest(self.training.capture().objects) if restoring else "",
            layout=layout.digest,
        )
        note = Note(newest=arrival.newest, payload=arrival.to_bytes())
        record = exchange.gather(Operation(OperationKind.ENTRY, position=0), note, wait=wait)
        arrivals = [msgspec.json.decode(payload, type=Arrival) for payload in record.payloads]
        if any(arrival.layout != layout.digest for arrival in arrivals):
            self._refuse_other_model(exchange, layout, membership, wait, arrivals)
        return arrange(
            arrivals,
            owners=owners(commit, self.training.settings.logical_workers),
            generation=commit.generation,
            mode=commit.mode,
        )

    def _refuse_other_model(
        self,
        exchange: Exchange,
        layout: TensorLayout,
        membership: Membership,
        wait: Wait,
        arrivals: Sequence[Arrival],
    ) -> NoReturn:
        """Who has no state and built something else than those who have it ends; they go on.

        Where nobody has any, nobody is right.
        """
        note = Note(newest=membership.generation, payload=layout.description)
        record = exchange.gather(Operation(OperationKind.ENTRY, position=2), note, wait=wait)
        said = record.payloads
        holder = next((rank for rank, arrival in enumerate(arrivals) if arrival.has_state), None)
        if holder is None:
            places = [membership.place(rank) for rank in range(len(said))]
            name_difference(said, places)
        assert holder is not None
        if not arrivals[membership.rank].has_state and said[holder] != layout.description:
            raise other_model(layout, said[holder])
        others = [rank for rank, theirs in enumerate(said) if theirs != said[holder]]
        names = ", ".join(membership.place(rank) for rank in others)
        raise GenerationBroken(f"{names} built another model", suspects=others)

    def _fetch_commit(self, membership: Membership, source: int) -> None:
        text = ask(
            membership.addresses[source],
            token=membership.token,
            worker=membership.worker,
            timeout_s=ASK_TIMEOUT_S,
        )
        knowledge = read_knowledge(text)
        if knowledge is not None:
            offer_all(self.session, [knowledge])

    def _restore(self, commit: Commit) -> None:
        """Load the snapshot that the commit names, where this node has it."""
        reference = commit.snapshot
        if reference is None:
            self.standing.has_state = True  # what the script built; compared in the next round
            return
        folder = Path(self.session.settings.snapshot_dir)
        if not (folder / reference.name).is_dir():
            return  # another member has it
        try:
            state = read_snapshot(folder, reference.name)
        except SnapshotDamaged as error:
            self.session.say(SnapshotRejected(name=reference.name, reason=str(error)))
            return
        self._take(state)

    def _say_missing(self, commit: Commit) -> None:
        """That a snapshot is not here says nothing, unless this node is known to have had it."""
        wanted = commit.snapshot
        if wanted is None or self.session.worker.node not in wanted.holders:
            return
        if not (Path(self.session.settings.snapshot_dir) / wanted.name).is_dir():
            reason = "it is in the folder no more"
            self.session.say(SnapshotRejected(name=wanted.name, reason=reason))

    def _take(self, state: State) -> None:
        self.training.restore(state, override=self.override)
        self.standing.has_state = True

    def _refuse_unequal_starts(
        self, exchange: Exchange, membership: Membership, wait: Wait
    ) -> None:
        """Name the first tensor in which the states that the scripts built differ."""
        mine = entry_digests(self.training.capture().objects)
        note = Note(newest=membership.generation, payload=msgspec.json.encode(mine))
        record = exchange.gather(Operation(OperationKind.ENTRY, position=1), note, wait=wait)
        entries = [msgspec.json.decode(said, type=dict[str, str]) for said in record.payloads]
        for path in sorted({path for entry in entries for path in entry}):
            for rank, entry in enumerate(entries):
                if entry.get(path) != entries[0].get(path):
                    raise ScriptError(
                        f"the script built unequal states: {path} differs between "
                        f"{membership.place(0)} and {membership.place(rank)}",
                        hint="draw initial weights after easyscale.init, which seeds every process",
                    )

    # --- what the layout says --------------------------------------------------------------------

    def _perform(
        self, layout: EntryLayout, exchange: Exchange, membership: Membership, wait: Wait
    ) -> Share:
        me, standing = membership.rank, self.standing
        request = f"{membership.generation} {membership.commit.digest}"
        if layout.state_to and me == layout.state_from:
            self._make_state(membership, request)
        if me in layout.state_to:
            self._fetch_state(membership, layout.state_from, request, wait)
        elif me in layout.record_to:
            assert layout.record_from is not None
            self._adopt(exchange.receive_record(layout.record_from, wait=wait))
        elif (work := standing.open_work) is not None:
            work.drop(layout.drop[me])
            work.todo = list(layout.compute[me])
        if me == layout.record_from:
            assert standing.record is not None
            exchange.serve_record(standing.record, layout.record_to, wait=wait)
        standing.formed = membership.generation
        return Share(layout.position, layout.compute[me], layout.spans)

    def _make_state(self, membership: Membership, request: str) -> None:
        """Put the state on the shelf; peers that ask are told that this process does not wait.

        That takes seconds for each gigabyte. To the agent it is what a snapshot is: long, and hung
        only after minutes.
        """
        place, pulse = self.training.place, self.session.pulse
        self.waits_for("")
        pulse.beat(Phase.SNAPSHOT, position=place.position, step=place.step)
        self.shelf.put(request, self._boundary_chunks())
        pulse.beat(Phase.FORMING, position=place.position, step=place.step)
        self.waits_for(f"forming {membership.generation}")

    def _boundary_chunks(self) -> Iterator[bytes]:
        """As asked for: to copy the state from its device is a part of making it."""
        yield from self.boundary_state().chunks()

    def _adopt(self, record: Record) -> None:
        """Take the result that this process was one behind of."""
        work = self.standing.open_work
        assert work is not None, "one operation behind, so in the middle of it"
        work.adopt(record)
        self.training.count_operation(finished=work.kind is OperationKind.END)
        self.standing.record = record

    def boundary_state(self) -> State:
        """The state at the boundary, also from inside a step that has not been completed."""
        if self.standing.work is not None and self.standing.work.is_complete:
            raise GenerationBroken("a result is to be taken in here: there is no boundary to serve")
        state = self.training.capture()
        work = self.standing.open_work
        if isinstance(work, StepWork):
            return work.at_boundary(state)
        if work is not None and work.kind is OperationKind.EVALUATION:
            raise GenerationBroken("an outer body is under way here: there is no boundary to serve")
        return state

    def _fetch_state(self, membership: Membership, source: int, request: str, wait: Wait) -> None:
        if self.standing.has_state and self.standing.open_work is not None:
            # One behind and nobody can serve the record: what this script would do to its state
            # from here on is lost. A fresh process joins instead.
            raise Outdated(f"{membership.place(source)} is one operation ahead and kept no record")
        address = membership.addresses[source]
        chunks = fetch_state(
            address,
            token=membership.token,
            worker=membership.worker,
            request=request,
            timeout_s=self.session.settings.forming_timeout_s,
            interrupt=wait.interrupt,
        )
        # Complete and checked before a bit of it is applied.
        self._take_joining(
            State.from_chunks(
                [bytes(chunk) for chunk in chunks], source=f"the state from {address}"
            )
        )

    def _take_joining(self, state: State) -> None:
        """A joiner takes the state as it is: overrides belong to the start of a job."""
        self.training.restore(state, is_joining=True)
        self.standing.has_state = True
        self.standing.record = None


def layout_of(training: Training) -> TensorLayout:
    """What the script has registered, as all processes must have it."""
    registry = training.things
    return TensorLayout.of(
        registry.parameters.items(), [(slot.path, slot.tensor) for slot in registry.buffers]
    )


def other_model(layout: TensorLayout, theirs: bytes) -> ScriptError:
    """What ends a newcomer whose script does not build what the job trains."""
    return ScriptError(
        "this script builds another model than the job that it joins: "
        f"{layout.first_difference(theirs)}",
        hint="the same script, arguments, data and packages on every node",
    )


def refuse_other_model(training: Training, session: Session) -> None:
    """Raise ScriptError where a member of the running job has registered something else.

    Asked before this worker offers itself: the job does not notice it. Where nobody answers, the
    handshake compares.
    """
    layout, settings = layout_of(training), session.settings
    for address in settings.members:
        try:
            theirs = ask_layout(
                address, token=settings.token, worker=session.worker, timeout_s=ASK_TIMEOUT_S
            )
        except OSError:
            continue
        if theirs and theirs != layout.description:
            raise other_model(layout, theirs)
        return


class Outdated(GenerationBroken):
    """Raised when this process cannot catch up; a new one in its slot can."""

    code = "outdated"


def owners(commit: Commit, n: int) -> list[int]:
    """The process rank that the map gives each logical rank to."""
    found = [-1] * n
    for process, member in enumerate(commit.members):
        for rank in member.ranks:
            found[rank] = process
    assert -1 not in found, f"{commit.generation} leaves logical ranks without an owner"
    return found


def planned_spans(commit: Commit, n: int) -> tuple[tuple[Span, ...], ...]:
    """What each process sends when the map alone rules."""
    return tuple(tree.maximal_subtrees(member.ranks, n) for member in commit.members)
