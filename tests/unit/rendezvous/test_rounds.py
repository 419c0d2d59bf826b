"""Nodes of a torchrun job meet in rounds: who is in, who waits, who is told."""

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale.errors import FormatError
from easyscale.model import encode
from easyscale.rendezvous.rounds import (
    Limits,
    Met,
    Presence,
    Propose,
    Round,
    RunKeys,
    RunView,
    Step,
    Wait,
    next_step,
    waiting,
)
from easyscale.rendezvous.store import Entry, View

KEYS = RunKeys.of("run 1/2")
TWO = Limits(least=2, most=2, last_call_s=30.0)
ONE_OR_TWO = Limits(least=1, most=2, last_call_s=30.0)


def view(current: Round | None, *present: str, closed: bool = False) -> RunView:
    return RunView(revision=1, round=current, present=frozenset(present), is_closed=closed)


def step(
    seen: RunView, me: str, *, limits: Limits = TWO, left: int = 0, enough_for_s: float = 0.0
) -> Step:
    return next_step(seen, me=me, left=left, limits=limits, enough_for_s=enough_for_s)


def opened(*nodes: str, number: int = 1, before: tuple[str, ...] = ()) -> Round:
    return Round(number=number, nodes=nodes, before=before)


def complete(*nodes: str, number: int = 1) -> Round:
    return Round(number=number, nodes=nodes, is_complete=True)


def test_the_first_node_opens_the_first_round() -> None:
    assert step(view(None, "a"), "a") == Propose(opened("a"))


def test_an_open_round_is_joined_and_complete_with_its_most_nodes() -> None:
    assert step(view(opened("a"), "a", "b"), "b") == Propose(opened("a", "b"))
    assert step(view(opened("a", "b"), "a", "b"), "a") == Propose(complete("a", "b"))
    assert step(view(complete("a", "b"), "a", "b"), "b") == Met(complete("a", "b"), 1)


def test_a_first_round_makes_a_last_call_once_it_has_enough() -> None:
    alone = view(opened("a"), "a")
    assert isinstance(step(alone, "a"), Wait)  # two are needed
    assert step(alone, "a", limits=ONE_OR_TWO, enough_for_s=10.0) == Wait("last call", 20.0)
    called = step(alone, "a", limits=ONE_OR_TWO, enough_for_s=30.0)
    assert called == Propose(complete("a"))


def test_a_node_that_died_while_the_round_was_open_is_left_out() -> None:
    assert step(view(opened("a", "b"), "b"), "b") == Propose(opened("b"))


def test_a_late_node_opens_the_next_round_and_those_at_work_are_told() -> None:
    running = view(complete("a"), "a", "d")
    assert step(running, "d", limits=ONE_OR_TWO) == Propose(opened("d", number=2, before=("a",)))
    asked = view(opened("d", number=2, before=("a",)), "a", "d")
    assert waiting(asked, number=1, lost=0) == 1
    assert waiting(running, number=1, lost=0) == 0


def test_a_later_round_waits_for_the_living_of_the_one_before_and_for_no_last_call() -> None:
    limits = Limits(least=1, most=3, last_call_s=30.0)
    asked = view(opened("d", number=2, before=("a",)), "a", "d")
    assert isinstance(step(asked, "d", limits=limits, enough_for_s=1000.0), Wait)
    both = view(opened("d", "a", number=2, before=("a",)), "a", "d")
    done = step(both, "a", limits=limits, left=1, enough_for_s=1.0)
    assert isinstance(done, Propose)
    assert done.round.nodes == ("a", "d"), "whoever was there keeps its place"
    without = view(opened("d", number=2, before=("a",)), "d")
    assert isinstance(step(without, "d", limits=limits, enough_for_s=1.0), Propose)


def test_a_full_round_keeps_a_surplus_node_waiting_until_one_of_it_dies() -> None:
    full = view(complete("a", "b"), "a", "b", "d")
    assert isinstance(step(full, "d"), Wait)
    assert waiting(full, number=1, lost=0) == 0, "nobody is disturbed for a node without a place"
    lost = view(complete("a", "b"), "a", "d")
    assert step(lost, "d") == Propose(opened("d", number=2, before=("a",)))


def test_a_node_whose_workers_failed_opens_the_next_round_itself() -> None:
    restarting = step(view(complete("a", "b"), "a", "b"), "b", left=1)
    assert restarting == Propose(opened("b", number=2, before=("a", "b")))


def test_a_lost_node_of_the_own_round_asks_for_a_new_one() -> None:
    assert waiting(view(complete("a", "b"), "a"), number=1, lost=1) == 1


def test_a_closed_run_takes_nobody_and_disturbs_nobody() -> None:
    closed = view(complete("a"), "a", "b", closed=True)
    assert step(closed, "b", limits=ONE_OR_TWO) == "closed"
    assert waiting(closed, number=1, lost=1) == 0


def test_an_emptied_store_never_counts_below_what_a_node_has_left() -> None:
    assert step(view(None, "a"), "a", left=5) == Propose(opened("a", number=6))
    joined = step(view(opened("b"), "a", "b"), "a", left=5)
    assert joined == Propose(opened("b", "a", number=6))


def test_a_view_reads_what_stands_in_the_run_and_refuses_what_it_cannot_read() -> None:
    entries = {
        KEYS.round: encode(complete("a")),
        KEYS.node("a"): encode(Presence(host="10.0.0.1")),
        KEYS.address(1): "10.0.0.1:4000",
        KEYS.closed: "a",
    }
    stored = View.of(7, {key: Entry(key, value, 3, 5, None) for key, value in entries.items()})
    seen = RunView.of(stored, KEYS)
    assert (seen.round, seen.round_revision, seen.is_closed) == (complete("a"), 5, True)
    assert seen.present == frozenset("a")
    assert dict(seen.addresses) == {1: "10.0.0.1:4000"}
    broken = View.of(7, {KEYS.round: Entry(KEYS.round, "{}", 3, 5, None)})
    with pytest.raises(FormatError, match="round is not a Round"):
        RunView.of(broken, KEYS)


def test_run_ids_are_free_text_and_never_share_keys() -> None:
    assert KEYS.prefix == "/easyscale/torchrun/v1/run%201%2F2/"
    assert RunKeys.of("a").prefix != RunKeys.of("a/b").prefix


@dataclass
class Run:
    """Nodes that meet on one store, one step at a time in any order."""

    limits: Limits
    current: Round | None = None
    present: frozenset[str] = frozenset()
    left: dict[str, int] = field(default_factory=dict)
    met: dict[str, Round] = field(default_factory=dict)

    def turn(self, me: str) -> None:
        self.present |= {me}
        if me in self.met:
            told = waiting(self.view, number=self.met[me].number, lost=len(self.lost(me)))
            if not told:
                return
            self.left[me] = self.met.pop(me).number
        done = step(
            self.view, me, limits=self.limits, left=self.left.get(me, 0), enough_for_s=100.0
        )
        if isinstance(done, Propose):
            assert self.current is None or done.round.number >= self.current.number
            self.current = done.round
        elif isinstance(done, Met):
            self.met[me] = done.round

    @property
    def view(self) -> RunView:
        return RunView(revision=1, round=self.current, present=self.present)

    def lost(self, me: str) -> set[str]:
        return set(self.met[me].nodes) - self.present

    def die(self, me: str) -> None:
        self.present -= {me}
        self.met.pop(me, None)


@given(
    orders=st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["turn"] * 9 + ["die"]))),
    least=st.integers(1, 2),
    more=st.integers(0, 2),
)
def test_whatever_happens_the_living_meet_in_the_end(
    orders: list[tuple[str, str]], least: int, more: int
) -> None:
    run = Run(Limits(least=least, most=least + more, last_call_s=30.0))
    for name, what in orders:
        getattr(run, what)(name)
    for _ in range(12):
        for name in sorted(run.present):
            run.turn(name)
    if len(run.present) < least:
        assert not run.met
        return
    assert run.current is not None
    assert run.current.is_complete
    together = {name for name, met in run.met.items() if met == run.current}
    assert together == set(run.current.nodes), "all members hold the same round"
    assert set(run.met) == together
    assert len(together) == min(len(run.present), run.limits.most)
    assert msgspec.json.decode(encode(run.current), type=Round) == run.current
