"""Which name a node gets when its host has an agent in the job already."""

import secrets

import pytest

from easyscale.agent.node_name import NodeName, claim_name
from easyscale.errors import ExitCode, UsageError


@pytest.fixture
def job_id() -> str:
    """Claims are the machine's: two runs of these tests must not meet."""
    return f"job-{secrets.token_hex(4)}"


def claim(job_id: str, *, is_chosen: bool = False, etcd: str = "e:1") -> NodeName:
    endpoints = (etcd,) if etcd else ()
    return claim_name("a", job=job_id, endpoints=endpoints, is_chosen=is_chosen)


def test_a_second_live_agent_of_a_host_gets_a_number_and_it_is_said(job_id: str) -> None:
    with claim(job_id) as first, claim(job_id) as second:
        with claim(job_id) as third:
            assert [first.name, second.name, third.name] == ["a", "a-2", "a-3"]
        assert first.note == ""
        assert second.note == "another agent of this host is a already: this node is a-2"


def test_a_name_is_free_again_when_its_agent_has_ended(job_id: str) -> None:
    with claim(job_id) as first, claim(job_id):
        first.__exit__(None, None, None)
        with claim(job_id) as again:
            assert again.name == "a"


def test_a_name_that_a_person_chose_is_refused_when_taken(job_id: str) -> None:
    first = claim(job_id, is_chosen=True)
    with first, pytest.raises(UsageError, match="'a' is taken") as refused:
        claim(job_id, is_chosen=True)
    assert refused.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize("other", ["job", "etcd", "own etcd"])
def test_agents_that_cannot_meet_may_have_one_name(job_id: str, other: str) -> None:
    names = {"job": f"{job_id}-2"}
    etcds = {"etcd": "f:1", "own etcd": ""}
    there = claim(names.get(other, job_id), is_chosen=True, etcd=etcds.get(other, "e:1"))
    with claim(job_id), there as second:
        assert second.name == "a"
