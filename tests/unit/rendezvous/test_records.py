"""The records of agreement: what they say survives the wire, and each thing is said once."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from easyscale.model import (
    Commit,
    LogicalRank,
    Member,
    Mode,
    OpenGeneration,
    WorkerId,
    decode,
    encode,
)
from easyscale.rendezvous.store import Entry as StoredKey
from easyscale.rendezvous.store import View
from easyscale.rendezvous.view import JobView
from tests.support.views import KEYS, job_spec, number, worker

WORKERS = [worker(f"n{i:02}") for i in range(12)]
SOME = st.lists(st.sampled_from(WORKERS), unique=True, max_size=12)


def made(generation: int, members: list[int], *older: Commit) -> Commit:
    named = [WORKERS[i] for i in members]
    return Commit(
        generation=number(generation),
        mode=Mode.NOW,
        members=tuple(
            Member(one, f"{one.node}:1", (LogicalRank(i),)) for i, one in enumerate(named)
        ),
        main=None,
        reason="",
        open=tuple(OpenGeneration.of(commit, members=named) for commit in older),
    )


@given(older=SOME, newer=SOME)
def test_a_commit_tells_all_who_were_in_an_open_generation(
    older: list[WorkerId], newer: list[WorkerId]
) -> None:
    before = made(1, [WORKERS.index(one) for one in older])
    after = made(2, [WORKERS.index(one) for one in newer], before)
    read = decode(encode(after), Commit, source="a test")
    assert read == after
    assert read.digest == after.digest
    assert read.open[0].workers_in(read) == set(older)
    assert read.open[0].digest == before.digest


def test_a_member_that_stays_is_named_once() -> None:
    before = made(1, list(range(12)))
    text = encode(made(2, list(range(12)), before))
    assert [text.count(one.incarnation) for one in WORKERS] == [1] * 12


def test_a_store_that_was_emptied_shows_what_it_holds_now_at_the_same_revisions() -> None:
    def view(token: str) -> View:
        spec = msgspec.structs.replace(job_spec(), token=token)
        return View.of(2, {KEYS.job: StoredKey(KEYS.job, encode(spec), 2, 2, None)})

    before = JobView.of(view("former"), KEYS)
    again = JobView.of(view("former"), KEYS, before=before)
    assert again.spec is before.spec, "what has not changed is not parsed again"
    after = JobView.of(view("other"), KEYS, before=before)
    assert after.spec is not None
    assert after.spec.token == "other"
