"""`plan JOB` from the job's records to the screen, through the command itself."""

import json
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from easyscale.balance import DoubtedSlot, FormerPlan, SlowSlot, SpeedRecord, TriedPlan
from easyscale.model import NodeRecord, Occasion, SlotState, decode
from easyscale_cli.main import run
from easyscale_cli.views.style import Span
from tests.support.kept import WHERE, keep
from tests.support.views import KEYS, Job, commit, job_spec, number, worker

FAST, SLOW = "H100 80GB HBM3", "A100-SXM4-80GB"
A, B, C, D = map(worker, "abcd")


def recorded() -> Job:
    """One slot is slow, one doubted, one full; of those that wait one is of another kind."""
    job = Job(job_spec(logical_workers=14, kind=FAST)).leads()
    for name in "abcdefg":
        state: SlotState = "in_use" if name in "abcd" else "standby"
        job.node(name, (state, 0.131 if name == "d" else 0.038), kind=SLOW if name == "e" else FAST)
    changed(job, "b", free_bytes=0, partial_bytes=100)
    changed(job, "c", data_wait_s=0.012)
    changed(job, "d", spread=0.061)
    made = commit(5, {A: range(4), B: range(4, 7), C: range(7, 10), D: range(10, 14)})
    made = msgspec.structs.replace(made, occasion=Occasion.UNDO, reason="back to 4+4+3+3")
    job.committed(made).progress(2_990, steps_per_s=1.8)
    return job.put(KEYS.speed, speeds())


def changed(job: Job, node: str, **values: object) -> None:
    record = decode(job.entries[KEYS.node(node)].value, NodeRecord, source=node)
    slot = msgspec.structs.replace(record.slots[0], **{"spread": 0.01, **values})
    job.put(KEYS.node(node), msgspec.structs.replace(record, slots=(slot,)))


def speeds() -> SpeedRecord:
    undone = {A: 6, B: 3, C: 4, D: 1}
    former = {w.place: n for w, n in undone.items()}
    slow = SlowSlot(
        worker=D, since_step=2_900, micro_step_s=0.131, ratio=3.4, emptied=False, reason="131 ms"
    )
    tried = TriedPlan(
        counts=tuple(undone.items()), micro_steps={str(A): 0.038}, promised_s=0.228,
        measured_s=0.6, reason="back to 4+4+3+3", until=9_000,
    )  # fmt: skip
    doubt = DoubtedSlot(worker=C, factor=1.3, reason="it waited for data with 4 ranks")
    return SpeedRecord(
        generation=number(5),
        planned_at="2026-10-04T14:07:11.000Z",
        planned_at_step=2_950,
        former=FormerPlan(generation=number(4), step_s=0.228, counts=former),
        slow=(slow,),
        tried=(tried,),
        doubts=(doubt,),
        max_nodes=6,
    )


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "UTC")
        time.tzset()
        keep(recorded(), monkeypatch)
        yield
    time.tzset()


@pytest.mark.parametrize("cells", [80, 160])
@pytest.mark.parametrize("is_ascii", [False, True], ids=["unicode", "ascii"])
def test_a_plan_is_explained_in_full(
    compare_screen: Callable[..., None],
    cells: int,
    is_ascii: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(cells))
    assert run(["plan", *WHERE, "--explain", *(["--ascii"] if is_ascii else [])]) == 0
    lines = [(Span(text),) for text in capfd.readouterr().out.splitlines()]
    compare_screen("plan-explained", lines, cells=cells, is_ascii=is_ascii)


def test_without_explain_it_is_the_beginning_of_that(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *WHERE]) == 0
    short = capfd.readouterr().out
    assert "left out" in short
    assert run(["plan", *WHERE, "--explain"]) == 0
    assert capfd.readouterr().out.startswith(short)


def test_programs_get_all_of_it(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *WHERE, "--json"]) == 0
    plan = json.loads(capfd.readouterr().out)
    assert (plan["version"], plan["job"], plan["generation"]) == (1, "job", 5)
    assert [each["most_ranks"] for each in plan["assignments"]] == [None, 3, None, None, None]
    assert [each["doubt_factor"] for each in plan["assignments"]] == [None, None, 1.3, None, None]
    assert [(each["node"], each["reason"]) for each in plan["left_out"]] == [
        ("e", f"of kind {SLOW}, the job is of kind {FAST}"),
        ("g", "the job takes at most 6 nodes"),
    ]
    assert len(plan["alternatives"]) == 4
