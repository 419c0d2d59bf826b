"""Jobs that have finished leave an etcd whole; whoever was taken up again stays."""

import pytest

from easyscale.agent.plain.records import PlainKeys
from easyscale.agent.plain.values import Report, ReportState, Round, RoundPhase, Terms
from easyscale.model import JobState, Outcome, encode
from easyscale.rendezvous.keys import JobKeys
from easyscale.rendezvous.memory import MemoryServer
from easyscale.rendezvous.store import Delete, Put, Store
from easyscale_cli.forgetting import endings, forget
from easyscale_cli.stored import stored_jobs
from easyscale_cli.stored_plain import recorded_plain_jobs


@pytest.fixture
def store() -> Store:
    return MemoryServer(lambda: 0.0).client()


def write(store: Store, job: str, *, state: JobState | None = None, runs: bool = False) -> None:
    keys = JobKeys.of(job)
    puts = [Put(keys.job, "{}"), Put(keys.code, "{}")]
    if state is not None:
        outcome = Outcome(state=state, exit_code=0, reason="script ended", step=7, digest="d" * 64)
        puts.append(Put(keys.outcome, encode(outcome)))
    if runs:
        puts += [Put(keys.node("a"), "{}"), Put(keys.leader, "a")]
    store.transact([], puts, timeout_s=1.0)


def test_only_jobs_with_an_ending_and_without_nodes_may_go(store: Store) -> None:
    write(store, "done", state=JobState.FINISHED)
    write(store, "failed", state=JobState.FAILED)
    write(store, "again", state=JobState.FINISHED, runs=True)
    write(store, "running", runs=True)
    found = {each.job: each.is_finished for each in endings(store)}
    assert found == {"done": True, "failed": False}


def test_a_job_goes_with_all_its_records_and_no_other_does(store: Store) -> None:
    write(store, "done", state=JobState.FINISHED)
    write(store, "done-2", state=JobState.FINISHED)
    [first, _] = endings(store)
    assert forget(store, first)
    assert stored_jobs(store) == ["done-2"]


@pytest.mark.parametrize("what", ("leader", "outcome"))
def test_a_job_that_was_taken_up_meanwhile_stays(store: Store, what: str) -> None:
    write(store, "done", state=JobState.FINISHED)
    [ended] = endings(store)
    keys = JobKeys.of("done")
    change = Put(keys.leader, "a") if what == "leader" else Delete(keys.outcome)
    store.transact([], [change], timeout_s=1.0)
    assert not forget(store, ended)
    assert stored_jobs(store) == ["done"]


def test_what_cannot_be_read_is_left_alone(store: Store) -> None:
    keys = JobKeys.of("newer")
    store.transact([], [Put(keys.outcome, '{"version": 9}')], timeout_s=1.0)
    assert endings(store) == []


def write_plain(
    store: Store, job: str, state: ReportState = ReportState.DONE, *, runs: bool = False
) -> None:
    keys = PlainKeys(job)
    terms = Terms(min_nodes=1, max_nodes=1, max_restarts=0, logical_workers=None)
    round_ = Round(
        number=1,
        phase=RoundPhase.RUNNING,
        restarts=0,
        members=(),
        world_size=1,
        group_world_size=1,
        master_addr="127.0.0.1",
        master_port=1,
    )
    report = Report(round=1, incarnation="a-1", state=state)
    puts = [
        Put(keys.terms, encode(terms)),
        Put(keys.round, encode(round_)),
        Put(keys.report(1, "a"), encode(report)),
    ]
    puts += [Put(keys.common.node("a"), "{}")] if runs else []
    store.transact([], puts, timeout_s=1.0)


def test_what_a_plain_job_left_may_go_however_it_ended(store: Store) -> None:
    write_plain(store, "done")
    write_plain(store, "failed", ReportState.FAILED)
    write_plain(store, "running", runs=True)
    found = endings(store)
    assert {each.job: (each.state, each.can_go_on) for each in found} == {
        "done": (JobState.FINISHED, False),
        "failed": (JobState.FAILED, False),
    }
    assert all(forget(store, each) for each in found)
    assert recorded_plain_jobs(store) == ["running"]


def test_a_plain_job_that_was_begun_again_meanwhile_stays(store: Store) -> None:
    write_plain(store, "done")
    [ended] = endings(store)
    write_plain(store, "done")
    assert not forget(store, ended)
