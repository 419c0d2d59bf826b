"""Claims about the handshake: every logical rank is counted once, by whoever already holds it."""

from collections.abc import Sequence

from hypothesis import assume, given
from hypothesis import strategies as st

from easyscale.model import GenerationNumber, Mode, Span, WorkerId, decode
from easyscale.runtime import tree
from easyscale.runtime.entry import (
    Arrival,
    AwaitCommit,
    Entry,
    EntryLayout,
    FetchCommit,
    Restore,
    arrange,
)

G1, G2, G3 = (GenerationNumber(1, number) for number in (1, 2, 3))


def arrival(
    name: str,
    position: int,
    *held: Span,
    has_state: bool = True,
    has_record: bool = True,
    formed: GenerationNumber = G1,
    newest: GenerationNumber = G2,
    digest: str = "",
) -> Arrival:
    return Arrival(
        worker=WorkerId(name, "0", "cpu:0", 0),
        has_state=has_state,
        position=position,
        held=held,
        formed=formed,
        has_record=has_record,
        newest=newest,
        digest=digest,
    )


def enter(
    *arrivals: Arrival,
    owners: Sequence[int],
    generation: GenerationNumber = G2,
    mode: Mode = Mode.NOW,
) -> Entry:
    return arrange(arrivals, owners=owners, generation=generation, mode=mode)


def laid_out(
    *arrivals: Arrival, owners: Sequence[int], generation: GenerationNumber = G2
) -> EntryLayout:
    entry = enter(*arrivals, owners=owners, generation=generation)
    assert isinstance(entry, EntryLayout)
    return entry


def test_story_1_a_finished_sum_stays_where_it_is_whatever_the_new_map_says() -> None:
    # A{0} B{1} C{2}; C is done with 2, B is killed; the map of g2 gives rank 2 to A.
    layout = laid_out(arrival("A", 5), arrival("C", 5, Span(2, 3)), owners=(0, 1, 0))
    assert layout.keep == ((), (Span(2, 3),))
    assert layout.compute == ((0,), (1,))
    assert layout.spans == ((Span(0, 1),), (Span(1, 2), Span(2, 3)))
    assert layout.record_to == layout.state_to == ()


def test_story_2_the_one_behind_takes_the_last_record_and_computes_nothing_twice() -> None:
    layout = laid_out(
        arrival("A", 6), arrival("C", 5, Span(0, 1), Span(2, 3), has_record=True), owners=(0, 0, 1)
    )
    assert layout.position == 6
    assert (layout.record_from, layout.record_to) == (0, (1,))
    assert layout.keep == ((), ())
    assert layout.drop == ((), (Span(0, 1), Span(2, 3)))
    assert layout.compute == ((0, 1), (2,))


def test_story_3_without_the_one_ahead_the_survivor_redoes_what_it_does_not_hold() -> None:
    layout = laid_out(
        arrival("C", 5, Span(2, 3), formed=G2, newest=G3), owners=(0, 0, 0), generation=G3
    )
    assert layout.position == 5
    assert layout.record_from is None
    assert layout.keep == ((Span(2, 3),),)
    assert layout.compute == ((0, 1),)


def test_story_4_a_member_behind_takes_the_whole_state_when_nobody_has_the_record() -> None:
    layout = laid_out(
        arrival("B", 5, Span(0, 2), formed=G1, newest=G3),
        arrival("D", 6, has_record=False, formed=G2, newest=G3),
        owners=(0, 1),
        generation=G3,
    )
    assert layout.record_from is None
    assert (layout.state_from, layout.state_to) == (1, (0,))
    assert layout.drop == ((Span(0, 2),), ())
    assert layout.compute == ((0,), (1,))


def test_story_20_the_sum_of_the_newer_generation_counts_and_the_other_is_dropped() -> None:
    # A was dropped by g2 without hearing it; g2's B computed rank 0 again; g3 names both.
    layout = laid_out(
        arrival("A", 5, Span(0, 1), formed=G1, newest=G3),
        arrival("B", 5, Span(0, 2), formed=G2, newest=G3),
        owners=(0, 1),
        generation=G3,
    )
    assert layout.keep == ((), (Span(0, 2),))
    assert layout.drop == ((Span(0, 1),), ())
    assert layout.compute == ((), ())


def test_a_newer_commit_is_fetched_before_anything_else() -> None:
    entry = enter(arrival("A", 5), arrival("B", 5, newest=G3), owners=(0, 1))
    assert entry == FetchCommit(1, G3)


def test_a_joiner_takes_the_state_of_the_lowest_member_at_the_top() -> None:
    layout = laid_out(
        arrival("D", 0, has_state=False), arrival("A", 7), arrival("B", 7), owners=(0, 1, 2)
    )
    assert (layout.state_from, layout.state_to) == (1, (0,))
    assert layout.compute == ((0,), (1,), (2,))


def test_a_joiner_never_gets_the_state_of_one_that_is_behind() -> None:
    layout = laid_out(
        arrival("A", 6), arrival("B", 7), arrival("D", 0, has_state=False), owners=(0, 1, 2)
    )
    assert (layout.record_from, layout.record_to) == (1, (0,))
    assert (layout.state_from, layout.state_to) == (1, (2,))


def test_two_operations_behind_means_the_whole_state() -> None:
    layout = laid_out(arrival("A", 5), arrival("B", 7), owners=(0, 1))
    assert (layout.record_to, layout.state_to) == ((), (0,))


def test_without_state_a_restore_loads_and_any_other_mode_waits() -> None:
    empty = arrival("A", 0, has_state=False)
    assert isinstance(enter(empty, owners=(0,), mode=Mode.RESTORE), Restore)
    assert isinstance(enter(empty, owners=(0,), mode=Mode.NOW), AwaitCommit)
    assert isinstance(enter(empty, owners=(0,), mode=Mode.BOUNDARY), AwaitCommit)


def test_a_state_that_differs_is_replaced_by_the_most_senior_one() -> None:
    layout = laid_out(
        arrival("A", 5, Span(0, 1), digest="aa", formed=G1, newest=G3),
        arrival("B", 5, Span(1, 2), digest="bb", formed=G2, newest=G3),
        arrival("C", 5, digest="", formed=G2, newest=G3),
        owners=(0, 1, 2),
        generation=G3,
    )
    assert layout.differing == (0,)
    assert (layout.state_from, layout.state_to) == (1, (0,))
    assert layout.keep == ((), (Span(1, 2),), ())


def test_an_arrival_survives_its_journey() -> None:
    sent = arrival("A", 5, Span(0, 2), digest="aa")
    assert decode(sent.to_bytes(), Arrival, source="a member") == sent


@st.composite
def entries(draw: st.DrawFn) -> tuple[list[Arrival], list[int]]:
    n = draw(st.integers(1, 9))
    size = draw(st.integers(1, 5))
    top = draw(st.integers(0, 3))
    arrivals = []
    for process in range(size):
        ranks = draw(st.sets(st.integers(0, n - 1)))
        arrivals.append(
            arrival(
                str(process),
                max(0, top - draw(st.integers(0, 2))),
                *tree.maximal_subtrees(ranks, n),
                has_state=draw(st.booleans()),
                has_record=draw(st.booleans()),
                formed=draw(st.sampled_from((G1, G2))),
                newest=draw(st.sampled_from((G1, G2))),
                digest=draw(st.sampled_from(("", "aa", "bb"))),
            )
        )
    return arrivals, draw(st.lists(st.integers(0, size - 1), min_size=n, max_size=n))


@given(entries())
def test_every_rank_is_sent_once_and_every_member_ends_at_the_top(
    drawn: tuple[list[Arrival], list[int]],
) -> None:
    arrivals, owners = drawn
    layout = enter(*arrivals, owners=owners)
    assume(isinstance(layout, EntryLayout))
    assert isinstance(layout, EntryLayout)
    n = len(owners)
    assert len(tree.merges([span for spans in layout.spans for span in spans], n)) == (
        sum(len(spans) for spans in layout.spans) - 1
    )
    for process, one in enumerate(arrivals):
        at_top = one.has_state and one.position == layout.position
        served = process in layout.record_to or process in layout.state_to
        assert served == (not at_top or process in layout.differing)
        assert sorted((*layout.keep[process], *layout.drop[process])) == sorted(one.held)
        if served:
            assert layout.keep[process] == ()
        if process in layout.record_to:
            assert one.has_state
            assert one.position == layout.position - 1
    sources = {layout.state_from, *([layout.record_from] if layout.record_to else [])}
    assert all(source not in (*layout.record_to, *layout.state_to) for source in sources)
