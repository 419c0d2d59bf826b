"""Which name a node gets when its host has an agent in the job already."""

import secrets

import pytest

from easyscale.agent.node_name import claim_name
from easyscale.agent.settings import LaunchSettings, StoreSettings
from easyscale.errors import ExitCode, UsageError
from tests.support.views import launch_settings


@pytest.fixture
def job_id() -> str:
    """Claims are the machine's: two runs of these tests must not meet."""
    return f"job-{secrets.token_hex(4)}"


def settings_of(job_id: str, *, is_chosen: bool = False, etcd: str = "e:1") -> LaunchSettings:
    store = StoreSettings(endpoints=(etcd,) if etcd else ())
    return launch_settings(job_id=job_id, node_name="a", node_is_chosen=is_chosen, store=store)


def test_a_second_live_agent_of_a_host_gets_a_number_and_it_is_said(job_id: str) -> None:
    settings = settings_of(job_id)
    with claim_name(settings) as first, claim_name(settings) as second:
        with claim_name(settings) as third:
            assert [first.name, second.name, third.name] == ["a", "a-2", "a-3"]
        assert first.note == ""
        assert second.note == "another agent of this host is a already: this node is a-2"


def test_a_name_is_free_again_when_its_agent_has_ended(job_id: str) -> None:
    settings = settings_of(job_id)
    with claim_name(settings) as first, claim_name(settings):
        first.__exit__(None, None, None)
        with claim_name(settings) as again:
            assert again.name == "a"


def test_a_name_that_a_person_chose_is_refused_when_taken(job_id: str) -> None:
    settings = settings_of(job_id, is_chosen=True)
    with claim_name(settings), pytest.raises(UsageError, match="'a' is taken") as refused:
        claim_name(settings)
    assert refused.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize("other", ["job", "etcd", "own etcd"])
def test_agents_that_cannot_meet_may_have_one_name(job_id: str, other: str) -> None:
    settings = {
        "job": settings_of(f"{job_id}-2", is_chosen=True),
        "etcd": settings_of(job_id, is_chosen=True, etcd="f:1"),
        "own etcd": settings_of(job_id, is_chosen=True, etcd=""),
    }[other]
    with claim_name(settings_of(job_id)), claim_name(settings) as second:
        assert second.name == "a"
