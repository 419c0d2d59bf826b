"""The words of the protocol's model: guards, workers, commits, the store, one state of all of them.

Sets of workers and of logical ranks are bit masks; a state is a tuple of tuples, so that equal
states are found equal.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

Phase = Literal["waiting", "forming", "computing", "sent", "broken", "finished", "ended", "dead"]
Mode = Literal["boundary", "now", "restore"]

#: The restores that a state stands on, as (generation, the step that it began from). States of one
#: line are of one history; a restore begins a new one when it takes up its snapshot.
Line = tuple[tuple[int, int], ...]
#: What makes a snapshot's folder: its step, the generation, the writer.
Name = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Guards:
    """What the protocol demands; a model without one of them must find a violation."""

    #: A commit shares a living worker with whatever could run, or knows that one ended, or is a
    #: restore and takes over a group that has been silent as a whole.
    overlap: bool = True
    #: A restore waits until every holder of state is known to have ended, or silent for long.
    holders_first: bool = True
    #: Survivors are looked for in nothing older than the newest restore.
    no_way_back: bool = True
    #: Every write of truth compares the head that its writer knows.
    head_fence: bool = True
    #: Progress is written by main of the generation that the head names.
    main_of_head: bool = True
    #: A snapshot counts if no restore began from before it.
    same_line: bool = True
    #: A snapshot's name holds its generation and its writer.
    own_names: bool = True
    #: Only what a mark in the store has superseded is deleted.
    marked_only: bool = True
    #: A worker that holds state and is left out ends; it does not wait for the next generation.
    fenced_end: bool = True
    #: The generations that may run alone say that training has ended.
    outcome_of_head: bool = True
    #: A loss interrupts every wait, not at a boundary alone.
    interrupts: bool = True
    #: The interrupted step is laid out by what the members hold, not by the plan.
    held_counts: bool = True
    #: Who goes on with what a restore began leaves behind whom that restore took over.
    takeover_lasts: bool = True
    #: Whoever entered a generation has left the ones before, and so have all it met there.
    entry_proves: bool = True


class Commit(NamedTuple):
    number: int
    members: int
    mode: Mode
    #: As its record says: the restores up to this one.
    line: Line
    #: Of what its members hold: a restore that has not loaded its snapshot yet may find that a
    #: member brings the state of the generation before.
    truth: Line
    #: The members that reported that they entered it.
    entered: int = 0
    #: What a restore starts from; None is the state that the script builds.
    snapshot: "Snapshot | None" = None

    @property
    def main(self) -> int:
        return next(bits(self.members))


class Snapshot(NamedTuple):
    step: int
    generation: int
    writer: int
    line: Line


class Worker(NamedTuple):
    phase: Phase
    #: The generation that it runs, forms or broke in.
    generation: int = 0
    #: The newest generation that it knows, and the newest that it has entered.
    known: int = 0
    entered: int = 0
    has_state: bool = False
    step: int = 0
    line: Line = ()
    #: Ranks of the running step whose sums it holds, and those that it has yet to compute.
    held: int = 0
    todo: int = 0
    #: It can serve the result of the step before.
    has_record: bool = False
    #: Its agent reaches the store.
    connected: bool = True
    #: Agent and worker stand still, their sockets open.
    frozen: bool = False
    #: Durable in the folder, and not yet in the store.
    unregistered: Snapshot | None = None


class Arrival(NamedTuple):
    step: int
    line: Line
    held: int
    has_state: bool
    has_record: bool
    entered: int


class Post(NamedTuple):
    """What a member sent in a step: the ranks that it holds, and the newest commit it knows."""

    held: int
    known: int


#: Of one step of one generation, and of one handshake: what each worker said, by its number.
Exchange = tuple[int, int, tuple[Post | None, ...]]
Handshake = tuple[int, tuple[Arrival | None, ...]]


class Store(NamedTuple):
    planned: int
    plan: Commit | None = None
    leases: int = 0
    #: Without a lease for the take-over time.
    silent: int = 0
    gone: int = 0
    done: int = 0
    wishes: int = 0
    snapshots: tuple[Snapshot, ...] = ()
    outcome: bool = False
    #: The decision of a leader that was paused with it, when heads are not compared.
    hand: Commit | None = None


class Faults(NamedTuple):
    """How often each may happen yet."""

    total: int = 0
    kill: int = 0
    cut: int = 0
    freeze: int = 0
    #: Ends a cut or a freeze.
    heal: int = 0
    drain: int = 0
    pause: int = 0
    #: A lease is lost although its agent lives.
    lapse: int = 0
    #: Not faults, but bounded like them.
    snapshot: int = 0
    survey: int = 0


class State(NamedTuple):
    workers: tuple[Worker, ...]
    store: Store
    commits: tuple[Commit, ...]
    exchanges: tuple[Exchange, ...] = ()
    handshakes: tuple[Handshake, ...] = ()
    #: The shared folder: what lies under each name.
    folder: tuple[tuple[Name, Snapshot], ...] = ()
    faults: Faults = Faults()

    def commit(self, number: int) -> Commit:
        return next(c for c in self.commits if c.number == number)

    @property
    def newest(self) -> Commit:
        return self.commits[-1]

    def with_worker(self, w: int, worker: Worker) -> "State":
        return self._replace(workers=(*self.workers[:w], worker, *self.workers[w + 1 :]))

    def with_commit(self, commit: Commit) -> "State":
        others = [c for c in self.commits if c.number != commit.number]
        return self._replace(commits=tuple(sorted([*others, commit])))


class Move(NamedTuple):
    """One thing that can happen next; a fair one happens if nothing else does."""

    label: str
    is_fair: bool
    state: State


class Violation(Exception):
    """Raised where something that must hold does not."""


def bits(mask: int) -> Iterator[int]:
    at = 0
    while mask:
        if mask & 1:
            yield at
        mask >>= 1
        at += 1


def stands_on(line: Line, step: int, truth: Line) -> bool:
    """Whether a state of this line and step is one that `truth` has gone through, or comes to."""
    depth = len(line)
    return line == truth or (truth[:depth] == line and step <= truth[depth][1])


def is_overtaken(snapshot: Snapshot, line: Line) -> bool:
    """A restore after its generation began from before it: what it holds was given up."""
    return any(
        generation > snapshot.generation and begun < snapshot.step for generation, begun in line
    )


def names(mask: int) -> str:
    return "{" + ",".join("ABCDE"[w] for w in bits(mask)) + "}"
