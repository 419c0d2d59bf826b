"""Jobs that have finished leave an etcd whole; whoever was taken up again stays."""

import pytest

from easyscale.model import JobState, Outcome, encode
from easyscale.rendezvous.keys import JobKeys
from easyscale.rendezvous.memory import MemoryServer
from easyscale.rendezvous.store import Delete, Put, Store
from easyscale_cli.forgetting import endings, forget
from easyscale_cli.stored import stored_jobs


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
