"""How real workers begin and end: from snapshots, from unequal states, early, and by an error."""

from pathlib import Path

import pytest

from easyscale import messages
from easyscale.model import Mode, SnapshotReference
from tests.support.crew import Crew, Hand, Zygote, alone

pytestmark = pytest.mark.timeout(120)

SCRIPT = Path(__file__).parents[2] / "support" / "scripts" / "small.py"
HALVES = {0: range(4), 1: range(4, 8)}


def crew_of(zygote: Zygote, folder: Path, *words: str, **settings: object) -> Crew:
    return Crew(zygote, folder, SCRIPT, *words, **settings)


def start(crew: Crew, count: int) -> list[Hand]:
    hands = [crew.start(f"n{number}") for number in range(count)]
    crew.registered(*hands)
    return hands


def test_a_node_without_the_snapshot_takes_the_state_from_one_that_has_it(
    zygote: Zygote, tmp_path: Path
) -> None:
    with crew_of(zygote, tmp_path, snapshot_every_steps=7) as crew:
        a, b = start(crew, 2)
        crew.entered(crew.commit(Mode.RESTORE, HALVES))
        (digest,) = crew.finished(a, b)
        first, *_, last = a.all(messages.SnapshotWritten)
        assert (first.step, first.last) == (7, False)
        assert (last.step, last.last, last.digest) == (18, True, digest)
        has = crew.start("has")
        lacks = crew.start("lacks", snapshot_dir=str(tmp_path / "empty"))
        crew.registered(has, lacks)
        reference = SnapshotReference(first.name, first.step, first.digest)
        commit = crew.commit(Mode.RESTORE, {3: range(4), 2: range(4, 8)}, snapshot=reference)
        crew.entered(commit)
        for hand in (has, lacks):
            entered = hand.last(messages.Entered)
            assert entered is not None
            # Six steps, an evaluation and another step.
            assert (entered.step, entered.position) == (7, 8)
        assert crew.finished(has, lacks) == {digest}


def test_only_who_had_a_snapshot_may_say_that_it_is_gone(zygote: Zygote, tmp_path: Path) -> None:
    with crew_of(zygote, tmp_path, "epochs=1") as crew:
        a, b = start(crew, 2)
        name = "step-00000005-g1.1-00000000"
        missing = SnapshotReference(name, 5, "0" * 64, holders=("n0",))
        crew.commit(Mode.RESTORE, HALVES, snapshot=missing)
        for hand in (a, b):
            crew.until(lambda hand=hand: bool(hand.all(messages.Broken)), "broken is said")  # type: ignore[misc]
        (said,) = a.all(messages.SnapshotRejected)
        assert (said.name, said.reason) == (name, "it is in the folder no more")
        assert b.all(messages.SnapshotRejected) == []
        crew.entered(crew.commit(Mode.RESTORE, HALVES))
        assert len(crew.finished(a, b)) == 1


def test_unequal_initial_states_name_the_first_tensor_that_differs(
    zygote: Zygote, tmp_path: Path
) -> None:
    with crew_of(zygote, tmp_path, "unequal=1") as crew:
        a, b = start(crew, 2)
        crew.commit(Mode.RESTORE, HALVES)
        crew.ended(a, b)
        for hand in (a, b):
            failure = hand.last(messages.Failure)
            assert failure is not None
            assert failure.refused
            assert "model.0.bias differs between n0/cpu:0 and n1/cpu:0" in failure.text


COUNTING = SCRIPT.with_name("counting.py")


def kept(hand: Hand) -> list[str]:
    """What its script printed at the end: plain values, and the digest."""
    return [line for line in hand.output.read_text().splitlines() if line.startswith(("k", "d"))]


def test_the_top_of_an_epoch_counts_once_whoever_joins_in_its_midst(
    zygote: Zygote, tmp_path: Path
) -> None:
    with Crew(zygote, tmp_path, COUNTING) as crew:
        (a,) = start(crew, 1)
        crew.entered(crew.commit(Mode.RESTORE, {0: range(8)}))
        assert crew.finished(a) == {alone(COUNTING, tmp_path)}
    with Crew(zygote, tmp_path, COUNTING, "pause=0.01") as crew:
        (b,) = start(crew, 1)
        crew.entered(crew.commit(Mode.RESTORE, {0: range(8)}))
        crew.at_step(8, b)  # six steps are an epoch
        c = crew.start("c")
        crew.registered(c)
        crew.entered(crew.commit(Mode.BOUNDARY, {0: range(4), 1: range(4, 8)}))
        entered = c.last(messages.Entered)
        assert entered is not None
        assert entered.step % 6, "in the midst of an epoch"
        crew.finished(b, c)
    assert kept(b) == kept(c) == kept(a)
    assert len(kept(a)) == 2


@pytest.mark.parametrize(("words", "every", "taken"), [((), 8, 8), (("epochs=2",), None, 12)])
def test_who_goes_on_from_a_snapshot_keeps_what_the_top_of_an_epoch_did(
    zygote: Zygote, tmp_path: Path, words: tuple[str, ...], every: int | None, taken: int
) -> None:
    """In the midst of an epoch its top has been run; at the end that of the next one has not."""
    with Crew(zygote, tmp_path, COUNTING, snapshot_every_steps=every) as crew:
        a, b = crew.start("a"), crew.start("b", words=words)
        crew.registered(a, b)
        crew.entered(crew.commit(Mode.RESTORE, {0: range(8)}))
        crew.finished(a)
        crew.entered(crew.commit(Mode.RESTORE, {1: range(8)}))
        crew.finished(b)
        written = next(each for each in b.all(messages.SnapshotWritten) if each.step == taken)
        c = crew.start("c")
        crew.registered(c)
        reference = SnapshotReference(written.name, written.step, written.digest)
        crew.entered(crew.commit(Mode.RESTORE, {2: range(8)}, snapshot=reference))
        crew.finished(c)
    assert kept(c) == kept(a)


OTHER = "parameter 4: 'model.4.weight' float32[8, 24] with strides [24, 1] here, "


@pytest.mark.parametrize("asks", [True, False])
def test_a_newcomer_that_builds_another_model_ends_and_the_job_goes_on(
    zygote: Zygote, tmp_path: Path, asks: bool
) -> None:
    """It ends before it offers itself; where it could ask nobody, in the handshake."""
    with crew_of(zygote, tmp_path, "pause=0.01") as crew:
        a, b = start(crew, 2)
        crew.entered(crew.commit(Mode.RESTORE, HALVES))
        crew.at_step(3, a, b)
        addresses = (a.all(messages.Registered)[0].address,) if asks else ()
        c = crew.start("c", words=("dim=8",), members=addresses)
        if not asks:
            crew.registered(c)
            crew.commit(Mode.BOUNDARY, {0: range(4), 1: range(4, 6), 2: range(6, 8)})
        crew.ended(c)
        (text,) = failures(c)
        assert text.startswith("this script builds another model than the job that it joins: ")
        assert OTHER in text
        assert bool(c.all(messages.Registered)) is not asks
        if not asks:
            for hand in (a, b):
                crew.until(lambda hand=hand: bool(hand.all(messages.Broken)), "broken is said")  # type: ignore[misc]
                assert hand.all(messages.Broken)[0].suspects == (c.worker,)
            crew.commit(Mode.NOW, HALVES)
        assert crew.finished(a, b) == {alone(SCRIPT, tmp_path)}


def test_a_newcomer_with_other_data_ends_and_the_job_goes_on(
    zygote: Zygote, tmp_path: Path
) -> None:
    with crew_of(zygote, tmp_path, "pause=0.01") as crew:
        a, b = start(crew, 2)
        crew.entered(crew.commit(Mode.RESTORE, HALVES))
        c = crew.start("c", words=("rows=180",))
        crew.registered(c)
        crew.commit(Mode.BOUNDARY, {0: range(4), 1: range(4, 6), 2: range(6, 8)})
        crew.ended(c)
        failure = c.last(messages.Failure)
        assert failure is not None
        assert "the training loader has " in failure.text
        assert (failure.refused, failure.generation) == (True, None)
        crew.commit(Mode.NOW, HALVES)
        assert crew.finished(a, b) == {alone(SCRIPT, tmp_path)}


def test_a_newcomer_that_builds_the_same_model_offers_itself(
    zygote: Zygote, tmp_path: Path
) -> None:
    with crew_of(zygote, tmp_path, "pause=0.01") as crew:
        _, b = start(crew, 2)
        crew.entered(crew.commit(Mode.RESTORE, HALVES))
        gone = "127.0.0.1:9"
        c = crew.start("c", members=(gone, b.all(messages.Registered)[0].address))
        crew.registered(c)


def failures(*hands: Hand) -> list[str]:
    """How each of them says that it failed."""
    said = [hand.last(messages.Failure) for hand in hands]
    assert None not in said
    return [failure.text for failure in said if failure is not None]


def test_an_optimizer_that_one_process_steers_by_its_own_losses_is_named(
    zygote: Zygote, tmp_path: Path
) -> None:
    with crew_of(zygote, tmp_path, "steer=1") as crew:
        a, b = start(crew, 2)
        crew.commit(Mode.RESTORE, HALVES)
        crew.ended(a, b)
        for text in failures(a, b):
            assert "optimizer.param_groups[0].weight_decay is " in text
            assert " on n0/cpu:0 and " in text


@pytest.mark.parametrize("step", [2, 17])  # in the middle, and the last of all
def test_a_weight_that_one_process_writes_by_its_own_batches_is_named(
    zygote: Zygote, tmp_path: Path, step: int
) -> None:
    with crew_of(zygote, tmp_path, f"own={step}") as crew:
        a, b = start(crew, 2)
        crew.commit(Mode.RESTORE, HALVES)
        crew.ended(a, b)
        assert all(
            " has come to differ between n0/cpu:0 and n1/cpu:0" in text for text in failures(a, b)
        )
        assert not any(hand.all(messages.Finished) for hand in (a, b))


def test_an_early_end_of_the_loop_is_completed_when_the_script_ends(
    zygote: Zygote, tmp_path: Path
) -> None:
    with crew_of(zygote, tmp_path, "stop=1") as crew:
        a, b = start(crew, 2)
        crew.entered(crew.commit(Mode.RESTORE, HALVES))
        assert len(crew.finished(a, b)) == 1
        finished = a.last(messages.Finished)
        assert finished is not None
        assert finished.step == 12


def test_an_error_in_a_micro_step_is_reported_with_its_rank_step_and_line(
    zygote: Zygote, tmp_path: Path
) -> None:
    with crew_of(zygote, tmp_path, "raise=3:6") as crew:
        a, b = start(crew, 2)
        crew.entered(crew.commit(Mode.RESTORE, HALVES))
        crew.ended(b)
        failure = b.last(messages.Failure)
        assert failure is not None
        assert (failure.type, failure.text) == ("ValueError", "a wrong label")
        assert (failure.rank, failure.step, failure.refused) == (6, 3, False)
        assert failure.file == str(SCRIPT)
        assert failure.excerpt[-1].text.strip() == 'raise ValueError("a wrong label")'
        assert failure.excerpt[-1].number == failure.line
        assert "a wrong label" in b.text
        crew.until(lambda: bool(a.all(messages.Broken)), "the other one says that it is stuck")
        assert a.all(messages.Broken)[0].suspects == (b.worker,)
