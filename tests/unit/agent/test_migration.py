"""Who takes what when a slot or node moves: one to one, by speed, or beside what it holds."""

from easyscale.agent import changes
from easyscale.agent.balance.migration import migrate
from easyscale.agent.balance.scene import Scene
from easyscale.agent.memory import Memory
from easyscale.agent.wants import wanted
from easyscale.model import Commit, Occasion, Plan, Wish
from tests.support.views import KEYS, Job, commit, job_spec, launch_settings, worker

A, A1, B, B1, C = (worker(name) for name in ("a", "a/1", "b", "b/1", "c"))


def moved(job: Job, *, source: str, target: str) -> tuple[Plan | None, str]:
    node, _, slot = source.partition("/")
    wish = Wish(kind="migrate", node=node, slots=(slot,) if slot else (), target=target, by="ann")
    job.put(KEYS.wish("w"), wish)
    view, settings = job.view(), launch_settings()
    base = view.base
    assert base is not None
    ask = wanted(view, base, settings)
    assert ask.migrate == (wish,)
    return migrate(Scene(view, base, ask, Memory(), settings, 0.0), wish)


def running(made: Commit) -> Job:
    job = Job(job_spec(logical_workers=6)).leads()
    return job.node("a", "in_use", "in_use").committed(made)


def test_two_slots_move_to_two_and_the_ranks_of_each_stay_together() -> None:
    job = running(commit(1, {A: [0, 1, 2], A1: [3, 4], C: [5]})).node("c", "in_use")
    plan, _ = moved(job.node("b", "standby", "standby"), source="a", target="b")
    assert plan is not None
    held = {each.worker: each.ranks for each in plan.assignments}
    assert held == {C: (5,), B: (0, 1, 2), B1: (3, 4)}
    assert plan.occasion is Occasion.MIGRATION
    assert plan.main == B, "the main left, so it is who has rank 0 now"
    assert plan.reason == "a/cpu:0 and a/cpu:1 → b/cpu:0 and b/cpu:1 (ann)"


def test_ranks_of_two_slots_go_to_one_by_its_speed_beside_what_it_holds() -> None:
    job = running(commit(1, {A: [0, 1], A1: [2, 3], B: [4, 5]})).node("b", ("in_use", 0.1))
    plan, _ = moved(job, source="a", target="b/cpu:0")
    assert plan is not None
    assert [(each.worker, each.ranks) for each in plan.assignments] == [(B, (0, 1, 2, 3, 4, 5))]


def test_where_all_members_move_they_leave_one_generation_later() -> None:
    job = running(commit(1, {A: [0, 1, 2], A1: [3, 4, 5]})).node("b", "standby", "standby")
    plan, _ = moved(job, source="a", target="b")
    assert plan is not None
    held = {each.worker: each.ranks for each in plan.assignments}
    assert held == {A: (), A1: (), B: (0, 1, 2), B1: (3, 4, 5)}
    assert plan.main == A, "main stays who it is while it is a member"
    after = Job(job_spec(logical_workers=6)).leads().node("a", "in_use", "in_use")
    after.node("b", "in_use", "in_use").committed(commit(2, held))
    then, _ = moved(after, source="a", target="b")
    assert then is not None
    assert then.workers == (B, B1)
    assert then.occasion is Occasion.NONE


def test_one_slot_moves_and_its_node_stays() -> None:
    job = running(commit(1, {A: [0, 1, 2], A1: [3, 4, 5]})).node("b")
    plan, _ = moved(job, source="a/cpu:1", target="b")
    assert plan is not None
    assert [(each.worker, each.ranks) for each in plan.assignments] == [
        (A, (0, 1, 2)),
        (B, (3, 4, 5)),
    ]


def test_a_target_that_is_not_ready_is_waited_for_and_named() -> None:
    job = running(commit(1, {A: [0, 1, 2], A1: [3, 4, 5]})).node("b", "starting")
    assert moved(job, source="a", target="b") == (
        None,
        "migration waits for b: no worker there is ready to take over",
    )


def test_a_migration_that_waits_holds_back_nobody_who_joins() -> None:
    job = running(commit(1, {A: [0, 1, 2], A1: [3, 4, 5]})).node("b", "starting").node("c")
    job.put(KEYS.wish("w"), Wish(kind="migrate", node="a", target="b", by="ann"))
    view = job.view()
    assert view.base is not None
    memory = Memory(entered=view.base.generation)
    first = changes.propose(view, memory, 0.0, settings=launch_settings())
    change = changes.propose(view, first.memory, 2.0, settings=launch_settings())
    assert change.plan is not None, change.reason
    assert C in change.plan.workers


def test_a_migration_that_waits_says_so_where_nothing_else_is_wanted() -> None:
    job = running(commit(1, {A: [0, 1, 2], A1: [3, 4, 5]})).node("b", "starting")
    job.put(KEYS.wish("w"), Wish(kind="migrate", node="a", target="b", by="ann"))
    view = job.view()
    assert view.base is not None
    memory = Memory(entered=view.base.generation)
    change = changes.propose(view, memory, 9.0, settings=launch_settings())
    assert (change.plan, change.reason[:22]) == (None, "migration waits for b:")


def test_a_target_whose_memory_does_not_hold_it_is_named_with_what_it_holds() -> None:
    job = running(commit(1, {A: [0, 1], A1: [2, 3], B: [4, 5]})).node("b", ("in_use", 0.1))
    job.slot(B, free_bytes=0, partial_bytes=100)
    plan, waits = moved(job, source="a", target="b/cpu:0")
    assert plan is None
    assert waits == "migration waits for b/cpu:0: b/cpu:0 has 6 and memory for 3, as it seems"


def test_a_migration_that_waits_holds_back_no_other_whatever_their_names() -> None:
    job = running(commit(1, {A: [0, 1], A1: [2, 3], B: [4, 5]})).node("b", "in_use")
    first = Wish(kind="migrate", node="a", slots=("cpu:0",), target="c", by="ann")
    second = Wish(kind="migrate", node="a", slots=("cpu:1",), target="b", by="bob")
    job.put(KEYS.wish("z"), first).put(KEYS.wish("a"), second)
    view = job.view()
    base, settings = view.base, launch_settings()
    assert base is not None
    assert wanted(view, base, settings).migrate == (first, second), "as they were asked"
    memory = Memory(entered=base.generation)
    memory = changes.propose(view, memory, 0.0, settings=settings).memory
    change = changes.propose(view, memory, 2.0, settings=settings)
    assert change.plan is not None, change.reason
    assert change.plan.reason == "a/cpu:1 → b/cpu:0 (bob)"
