"""Two versions of easyscale do not meet in one job: one is refused, and told who upgrades."""

import msgspec
import pytest

from easyscale.agent.job_terms import agree_on_job
from easyscale.errors import FormatError
from easyscale.model import FORMAT_VERSION, JobSpec, decode, encode
from easyscale.rendezvous.formats import FormatConflict, our_release, refuse_other_format
from easyscale.rendezvous.memory import MemoryServer
from easyscale.rendezvous.store import Put, Store
from tests.support.views import KEYS, job_spec, launch_settings


@pytest.fixture
def store() -> Store:
    return MemoryServer(lambda: 0.0).client()


def written(store: Store, text: str, *, is_running: bool = False) -> None:
    store.transact([], [Put(KEYS.job, text)], timeout_s=1.0)
    if is_running:
        store.transact([], [Put(KEYS.node("a"), "{}")], timeout_s=1.0)


def of_format(version: int, release: str = "") -> str:
    return encode(msgspec.structs.replace(job_spec(), version=version, release=release))


def test_a_job_says_which_easyscale_began_it(store: Store) -> None:
    assert agree_on_job(store, KEYS, launch_settings()).release == our_release() != ""


def test_a_newer_format_is_refused_and_this_side_is_to_be_upgraded(store: Store) -> None:
    written(store, '{"version": 4, "release": "0.9.3", "logical_workers": {"new": "form"}}')
    with pytest.raises(FormatConflict) as met:
        agree_on_job(store, KEYS, launch_settings())
    ours = ".".join(our_release().split(".")[:2])
    assert met.value.message == (
        f"job 'job' was written by easyscale 0.9, format 4; this is {ours}, format 1"
    )
    assert met.value.hint == "pip install -U easyscale-torch; the job is untouched"
    entry = store.read(KEYS.job, timeout_s=1.0).get(KEYS.job)
    assert entry is not None
    assert entry.value.startswith('{"version": 4'), "the job is untouched"


def test_beside_an_older_format_that_runs_the_other_side_is_to_be_upgraded(store: Store) -> None:
    written(store, of_format(0, "0.0.9"), is_running=True)
    with pytest.raises(FormatConflict, match=r"is run by easyscale 0\.0, format 0") as met:
        agree_on_job(store, KEYS, launch_settings())
    assert "on the job's nodes: easyscale stop job" in met.value.hint


def test_an_older_job_that_nobody_runs_goes_on_in_our_format(store: Store) -> None:
    written(store, of_format(0))
    assert agree_on_job(store, KEYS, launch_settings()).version == FORMAT_VERSION
    entry = store.read(KEYS.job, timeout_s=1.0).get(KEYS.job)
    assert entry is not None
    spec = decode(entry.value, JobSpec, source="job")
    assert (spec.version, spec.release) == (FORMAT_VERSION, our_release())
    written(store, entry.value, is_running=True)
    agree_on_job(store, KEYS, launch_settings())  # a second node of ours is welcome


def test_what_is_no_record_at_all_is_named() -> None:
    with pytest.raises(FormatError, match="the key is no record of easyscale"):
        refuse_other_format("job", "[]", source="the key", is_running=False)
