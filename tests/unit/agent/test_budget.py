"""The restart budget and who is to blame, from recorded failures alone."""

from collections.abc import Iterable

import msgspec
import pytest

from easyscale.agent.budget import Failed, Ruling, counted, failures, judge
from easyscale.errors import ExitCode
from easyscale.model import LogicalRank, Mode, WorkerFailure, WorkerId
from tests.support.views import Job, commit, number, worker


def failed(
    place: str,
    *,
    rank: int | None = 3,
    step: int = 10,
    kind: str = "ValueError",
    at: str = "train.py:41",
    generation: int | None = 1,
    spawn: int = 1,
    refused: bool = False,
    survived: bool = False,
) -> Failed:
    failure = WorkerFailure(
        type=kind,
        headline=f"{kind}: target 11 is out of bounds",
        place=at,
        rank=None if rank is None else LogicalRank(rank),
        step=step,
        generation=None if generation is None else number(generation),
        pid=1,
        log="stderr.log",
        refused=refused,
        survived=survived,
    )
    return worker(place, spawn), failure


def rule(
    *all_failed: Failed,
    slots: int = 4,
    restarts: int = 3,
    formed: bool = False,
    alive: Iterable[str] = (),
) -> Ruling:
    places = {who.place for who, _ in all_failed}.union(alive)
    return judge(
        all_failed,
        slots=slots,
        places=places,
        max_restarts=restarts,
        benched_after=3,
        workers=5,
        formed=formed,
    )


def test_as_many_failures_as_allowed_are_borne_and_the_next_ends_the_job_with_5() -> None:
    borne = [failed("a", rank=i, generation=i) for i in range(1, 4)]
    assert rule(*borne) == Ruling(used=3)
    spent = rule(*borne, failed("b", rank=9, generation=9))
    assert spent.exit_code is ExitCode.RESTART_BUDGET_SPENT
    assert spent.cause is not None
    assert spent.cause.why_ended == "4 failures without progress; 3 are borne (--max-restarts)"


def test_workers_that_fail_in_one_generation_are_one_failure() -> None:
    together = [failed(f"a/{slot}", rank=slot, kind="SIGKILL", at="") for slot in range(8)]
    assert rule(*together, restarts=0).used == 1


def test_the_same_micro_step_on_three_slots_convicts_the_script() -> None:
    two = [failed("a", generation=1), failed("b", generation=2)]
    assert not rule(*two).ends
    three = rule(*two, failed("c", generation=3))
    assert three.exit_code is ExitCode.JOB_FAILED
    cause = three.cause
    assert cause is not None
    assert cause.blames == "script"
    assert cause.worker == worker("a")
    assert cause.also_on == ("b/cpu:0", "c/cpu:0")
    assert cause.why_ended == (
        "rank 3 failed the same way at step 10 on 3 slots (a/cpu:0, b/cpu:0, c/cpu:0):"
        " it is the script or its data, not a device"
    )


def test_where_there_are_two_slots_both_of_them_convict() -> None:
    assert not rule(failed("a", generation=1), failed("a", generation=2, spawn=2), slots=2).ends
    assert rule(failed("a", generation=1), failed("b", generation=2), slots=2).ends


def test_on_a_single_slot_the_second_time_convicts() -> None:
    assert not rule(failed("a"), slots=1).ends
    ruling = rule(failed("a"), failed("a", generation=2, spawn=2), slots=1)
    assert ruling.cause is not None
    assert "same way at step 10 2 times on the only slot in use, a/cpu:0" in ruling.cause.why_ended


def test_slots_that_failed_before_they_went_are_named_beside_the_one_in_use() -> None:
    ruling = rule(failed("a"), failed("b", generation=2), slots=1)
    assert ruling.cause is not None
    assert "on 2 slots (a/cpu:0, b/cpu:0): it is" in ruling.cause.why_ended


@pytest.mark.parametrize(
    "other",
    [
        failed("c", rank=4, generation=3),
        failed("c", step=11, generation=3),
        failed("c", kind="KeyError", generation=3),
        failed("c", at="train.py:7", generation=3),
    ],
    ids=["rank", "step", "type", "line"],
)
def test_another_micro_step_or_another_failure_is_not_the_same(other: Failed) -> None:
    assert not rule(failed("a", generation=1), failed("b", generation=2), other).ends


def test_a_signal_in_one_micro_step_convicts_as_well() -> None:
    killed = [failed(p, kind="SIGSEGV", at="", generation=i) for i, p in enumerate("abc", 1)]
    assert rule(*killed).exit_code is ExitCode.JOB_FAILED


def test_a_signal_outside_a_micro_step_may_come_from_anywhere() -> None:
    killed = [
        failed(p, rank=None, kind="SIGKILL", at="", generation=i) for i, p in enumerate("abc", 1)
    ]
    assert not rule(*killed).ends


def test_a_script_that_fails_before_its_first_generation_is_convicted_too() -> None:
    at_import = [
        failed(f"a/{i}", rank=None, step=0, kind="ImportError", generation=None) for i in range(3)
    ]
    ruling = rule(*at_import)
    assert ruling.exit_code is ExitCode.JOB_FAILED
    assert ruling.cause is not None
    assert ruling.cause.why_ended.startswith("the script failed the same way at step 0 on 3 slots")


def test_what_is_the_same_anywhere_is_not_tried_again() -> None:
    ruling = rule(failed("a", refused=True))
    assert ruling.exit_code is ExitCode.JOB_FAILED


def test_one_slot_failing_with_many_ranks_accuses_the_device() -> None:
    bad = [
        failed("b/1", rank=rank, step=6412 + i, generation=i + 1, spawn=i + 1)
        for i, rank in enumerate((3, 5, 7))
    ]
    ruling = rule(*bad, restarts=2)
    assert ruling.exit_code is ExitCode.RESTART_BUDGET_SPENT
    assert ruling.cause is not None
    assert ruling.cause.blames == "device"
    assert ruling.cause.why_ended == (
        "b/cpu:1 failed at steps 6,412, 6,413 and 6,414 with 3 ranks that ran well elsewhere:"
        " the device or node b, not the script"
    )


def test_progress_leaves_failures_behind() -> None:
    old, new = failed("a", step=10), failed("b", step=19, generation=2)
    assert counted([old, new], step=19, forgiven_after_steps=10) == (old, new)
    assert counted([old, new], step=20, forgiven_after_steps=10) == (new,)


def test_the_first_cause_is_the_earliest_generation_not_the_first_report() -> None:
    late, early = failed("b", generation=4), failed("a", generation=2)
    ruling = rule(late, early, failed("c", generation=5))
    assert ruling.cause is not None
    assert ruling.cause.worker == worker("a")
    assert ruling.cause.victims == 5


def test_failures_are_read_from_the_store_in_the_order_of_their_record() -> None:
    job = Job()
    order: list[WorkerId] = []
    for who, failure in (failed("c"), failed("a"), failed("b")):
        job.gone(who, failure=failure)
        order.append(who)
    job.gone(worker("d"))  # no failure: it was asked to end
    assert [who for who, _ in failures(job.view())] == order
    roundtrip = msgspec.json.decode(msgspec.json.encode(failed("a")[1]), type=WorkerFailure)
    assert roundtrip == failed("a")[1]


def test_a_failure_on_the_way_in_counts_from_where_the_job_stands() -> None:
    who, failure = failed("a", rank=None, step=0, generation=None)
    late = (who, msgspec.structs.replace(failure, job_step=500))
    assert counted([late], step=509, forgiven_after_steps=10) == (late,)
    assert counted([late], step=510, forgiven_after_steps=10) == ()


def test_what_others_survived_is_counted_by_its_place_and_ends_in_quarantine() -> None:
    def on(place: str, times: int) -> list[Failed]:
        gens = range(len(place) * 10, len(place) * 10 + times)
        return [failed(place, step=g, generation=g, spawn=g, survived=True) for g in gens]

    assert rule(*on("b/0", 2), *on("b/12", 3), restarts=3) == Ruling(used=3)
    assert rule(*on("b/0", 9), restarts=3) == Ruling(used=3)
    spent = rule(*on("b/0", 3), restarts=2)
    assert spent.exit_code is ExitCode.RESTART_BUDGET_SPENT
    lost = failed("a", generation=50)
    assert rule(*on("b/0", 3), lost).used == 3
    assert rule(*on("b/0", 1), lost, failed("a", generation=51, step=11)).used == 2


def on_the_way_in(place: str, spawn: int = 1, *, refused: bool = False) -> Failed:
    return failed(
        place, rank=None, step=0, kind="ImportError", generation=None, spawn=spawn, refused=refused
    )


def test_a_node_that_gets_no_worker_in_accuses_itself_while_others_train() -> None:
    bad = [on_the_way_in(f"b/{i}", spawn) for i in range(3) for spawn in range(1, 6)]
    assert rule(*bad, formed=True, alive=["a/cpu:0"]) == Ruling(used=0)
    assert rule(*bad, on_the_way_in("b/3", refused=True), formed=True, alive=["a/cpu:0"]).used == 0


def test_a_member_that_was_lost_and_starts_again_may_still_get_in() -> None:
    bad = [on_the_way_in(f"b/{i}", spawn) for i in range(3) for spawn in range(1, 6)]
    lost = failed("a", rank=None, kind="SIGKILL", at="")
    assert rule(*bad, lost, formed=True) == Ruling(used=1)
    assert rule(*bad, lost, on_the_way_in("a", 2), formed=True).exit_code is ExitCode.JOB_FAILED


def test_where_nobody_gets_in_any_more_the_script_is_convicted_as_at_the_start() -> None:
    bad = [on_the_way_in(f"b/{i}") for i in range(3)]
    assert rule(*bad, formed=True).exit_code is ExitCode.JOB_FAILED


def test_as_many_rounds_as_the_luckiest_place_has_failed_are_spent() -> None:
    def at(place: str, times: int) -> list[Failed]:
        return [failed(place, rank=None, generation=None, at="", spawn=i) for i in range(times)]

    assert rule(*at("a", 5), *at("b", 2), slots=9).used == 2
    assert rule(*at("a", 5), *at("b", 2), slots=9, alive=["c/cpu:0"]).used == 0
    assert rule(*at("a", 5), *at("b", 4)).exit_code is ExitCode.RESTART_BUDGET_SPENT


def test_a_place_that_gets_no_other_worker_holds_no_round_back() -> None:
    again = [failed("a", rank=None, generation=None, at="", spawn=i) for i in range(5)]
    assert rule(*again, on_the_way_in("b", refused=True)).used == 5


def recorded(
    *fell: Failed,
    mode: Mode = Mode.NOW,
    members: Iterable[WorkerId] = (),
    entered: bool = True,
) -> Job:
    job = Job()
    for place in ("a", "b"):
        job.node(place)
    for who, failure in fell:
        job.gone(who, failure=failure)
    made = commit(5, list(members) or [worker("c")], mode=mode)
    return job.committed(made, entered=entered)


def test_nobody_has_survived_what_a_restore_had_to_follow() -> None:
    both = [failed(place, rank=None, generation=4, survived=True) for place in "ab"]
    seen = failures(recorded(*both, mode=Mode.RESTORE).view())
    assert [failure.survived for _, failure in seen] == [False, False]
    assert [failure.survived for _, failure in failures(recorded(*both).view())] == [True, True]


def test_what_kept_a_place_from_coming_in_is_behind_it_once_a_worker_has_come_in() -> None:
    late, other = on_the_way_in("a"), on_the_way_in("b")
    assert failures(recorded(late, other, members=[worker("a", 2)]).view()) == (other,)
    on_its_way = recorded(late, other, members=[worker("a", 2)], entered=False)
    assert failures(on_its_way.view()) == (late, other), "else the next one would be the first"
    gone = recorded(late, other, members=[worker("a", 2)]).gone(worker("a", 2))
    assert failures(gone.view()) == (late, other)
