"""Slots that come, go and are asked for while a node runs."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from easyscale.agent import actions, events, offering
from easyscale.agent.hardware.devices import Offer
from easyscale.agent.hardware.devices_file import DevicesFile, read_word
from easyscale.agent.settings import Identity
from easyscale.agent.state import Now, OwnWorker, Phase, Stage, State, Turn
from easyscale.errors import UsageError
from easyscale.model import Wish, decode
from easyscale.rendezvous.store import Delete
from tests.support.views import KEYS, Job, commit, launch_settings, worker
from tests.unit.agent.test_machine import W0, W1, Agent


def slots(count: int) -> tuple[events.Slot, ...]:
    return tuple(events.Slot(name=f"cpu:{index}") for index in range(count))


def node(*phases: Phase, job: Job | None = None) -> State:
    """Node a with a worker in each of these phases, one a slot."""
    workers = [OwnWorker(worker(f"a/{i}"), phase, 0.0) for i, phase in enumerate(phases)]
    return State(
        settings=launch_settings(),
        identity=Identity(node="a", incarnation="a-boot-1", boot_id="b", host="a", address=""),
        keys=KEYS,
        began_s=0.0,
        slots=slots(len(phases)),
        workers={each.id.slot: each for each in workers},
        view=(job or Job()).view(),
    )


def heard(state: State, event: events.SlotsFound | events.SlotsRefused) -> Turn:
    turn = Turn(state, Now(1.0), "test")
    offering.heard(turn, event)
    return turn


def names(turn: Turn) -> list[str]:
    return [slot.name for slot in turn.state.slots]


def test_new_slots_are_offered_beside_the_old_ones() -> None:
    turn = heard(node(Phase.MEMBER), events.SlotsFound(slots=slots(3)))
    assert names(turn) == ["cpu:0", "cpu:1", "cpu:2"]
    assert turn.actions == []


def test_a_member_whose_slot_goes_stays_to_a_boundary_and_a_starter_is_stopped() -> None:
    turn = heard(
        node(Phase.MEMBER, Phase.MEMBER, Phase.STARTING), events.SlotsFound(slots=slots(1))
    )
    assert names(turn) == ["cpu:0", "cpu:1", "cpu:2"]
    assert turn.state.withdrawn == {"cpu:1", "cpu:2"}
    [stopped] = turn.actions
    assert isinstance(stopped, actions.StopWorker)
    assert stopped.worker == worker("a/2")


def test_a_slot_that_comes_back_may_hold_a_worker_again() -> None:
    state = replace(node(Phase.MEMBER, Phase.LEAVING), withdrawn=frozenset({"cpu:1"}))
    turn = heard(state, events.SlotsFound(slots=slots(2)))
    assert turn.state.withdrawn == frozenset()


def test_why_a_slot_was_taken_away_is_registered_until_it_is_given_again() -> None:
    agent = Agent().running()

    def registered() -> list[tuple[str, str]]:
        assert agent.state.record is not None
        return [(slot.state, slot.withdrawn) for slot in agent.state.record.slots]

    agent.take(events.SlotsFound(slots=agent.slots[:1], reason="devices set by ann"))
    assert registered() == [("in_use", ""), ("draining", "devices set by ann")]
    agent.take(events.SlotsFound(slots=agent.slots, reason="devices set by bob"))
    assert registered() == [("in_use", ""), ("in_use", "")]


def test_a_node_that_leaves_takes_no_slots() -> None:
    state = replace(node(Phase.MEMBER), stage=Stage.LEAVING, withdrawn=frozenset({"cpu:0"}))
    turn = heard(state, events.SlotsFound(slots=slots(4)))
    assert (names(turn), turn.state.withdrawn) == (["cpu:0"], frozenset({"cpu:0"}))


# --- wishes ------------------------------------------------------------------------------------

WISH = Wish(kind="devices", node="a", target="cpu:3", by="ann")


def sought(state: State, wish_id: str = "w1") -> Turn:
    turn = Turn(state, Now(1.0), "test")
    offering.seek(turn, wish_id, WISH)
    return turn


def test_a_wish_is_taken_up_once() -> None:
    turn = sought(node(Phase.MEMBER))
    assert turn.actions == [actions.FindSlots(devices="cpu:3", wish_id="w1", by="ann")]
    assert sought(turn.state).actions == []


@pytest.mark.parametrize(
    ("incarnation", "is_meant"), [("a-boot-1", True), ("", True), ("a-boot-0", False)]
)
def test_a_wish_is_taken_up_by_the_agent_that_is_meant(incarnation: str, *, is_meant: bool) -> None:
    agent = Agent().running()
    asked = replace(WISH, incarnation=incarnation)
    done = agent.view(Job().committed(commit(1, [W0, W1])).put(KEYS.wish("w1"), asked))
    assert any(isinstance(each, actions.FindSlots) for each in done) is is_meant


def test_a_granted_wish_leaves_the_store_also_when_the_first_delete_was_lost() -> None:
    state = sought(node(Phase.MEMBER)).state
    turn = heard(state, events.SlotsFound(slots=slots(3), wish_id="w1"))
    [first] = [each for each in turn.actions if isinstance(each, actions.Transact)]
    assert first.operations == (Delete(KEYS.wish("w1")),)
    assert sought(turn.state).actions == [first]


def test_a_refusal_stands_in_the_wish_until_another_one_is_granted() -> None:
    job = Job().put(KEYS.wish("w1"), WISH)
    turn = heard(
        node(Phase.MEMBER, job=job), events.SlotsRefused(wish_id="w1", reason="no GPU here")
    )
    [write] = turn.actions
    assert isinstance(write, actions.Write)
    assert decode(write.value, Wish, source="wish").refused == "no GPU here"

    job.put(write.key, write.value)
    later = heard(node(Phase.MEMBER, job=job), events.SlotsFound(slots=slots(2), wish_id="w2"))
    [answer] = later.actions
    assert isinstance(answer, actions.Transact)
    assert answer.operations == (Delete(KEYS.wish("w2")), Delete(KEYS.wish("w1")))


# --- the file ----------------------------------------------------------------------------------


def test_the_file_holds_one_word_beside_notes(tmp_path: Path) -> None:
    path = tmp_path / "devices"
    path.write_text("# night shift\n\n cpu:3 \n")
    assert read_word(path) == "cpu:3"
    for text in ("", "# nothing", "cpu:1\ncpu:2\n"):
        path.write_text(text)
        with pytest.raises(UsageError, match="lines where one says"):
            read_word(path)
    with pytest.raises(UsageError, match="No such file"):
        read_word(path.parent / "none")


def test_a_file_written_anew_is_held_against_what_is_offered_now(tmp_path: Path) -> None:
    path = tmp_path / "devices"
    path.write_text("cpu:3\n")
    now, told = ["cpu:0", "cpu:1", "cpu:2"], list[str]()

    def offer(found: Offer, reason: str) -> None:
        now[:] = [slot.name for slot in found.slots]
        told.append(reason)

    file = DevicesFile(
        path, threads_per_worker=1, visible=None, offered=lambda: now, offer=offer,
        refuse=told.append,
    )  # fmt: skip

    def write(text: str) -> None:
        """As a shell or an editor does, with another time than before."""
        anew = tmp_path / "anew"
        anew.write_text(text)
        anew.rename(path)
        file.take()

    write("# the same\ncpu:3\n")
    assert told == []
    now[:] = ["cpu:0"]  # by `easyscale devices --set`
    file.take()
    assert told == [], "the file did not change"
    write("cpu:3\n")
    assert (now, told) == (["cpu:0", "cpu:1", "cpu:2"], ["devices says cpu:3"])
    write("cpu:2\ncpu:1\n")
    why = f"{path} holds 2 lines where one says the slots of this node"
    assert told[1:] == [f"{why}; the slots stay as they are"]
    assert len(now) == 3
