"""Which job is meant, and what a person hears when it is none of those there are."""

import pytest

from easyscale.errors import ExitCode, UsageError
from easyscale_cli.connection import NodeUnknown
from easyscale_cli.lookup import JobUnknown, _choose, check_place

HERE = "on this machine"


def choose(name: str | None, *known: str) -> str:
    return _choose(name, known, place=HERE, command="status")


def test_the_only_job_needs_no_name() -> None:
    assert choose(None, "resnet50") == "resnet50"
    assert choose("b", "a", "b") == "b"


def test_a_near_miss_is_offered_as_a_command() -> None:
    with pytest.raises(JobUnknown) as met:
        choose("resnet5", "resnet50", "llama-1b", "c", "d", "e", "f")
    told = met.value
    assert told.message == (
        "no job 'resnet5' on this machine; it has resnet50, llama-1b and 4 more"
    )
    assert told.hint == "easyscale status resnet50"
    assert told.exit_code is ExitCode.JOB_FAILED


def test_a_name_like_no_other_is_looked_up_in_the_list() -> None:
    with pytest.raises(JobUnknown) as met:
        choose("zebra", "resnet50")
    assert met.value.hint.startswith("easyscale jobs")


def test_without_any_job_the_person_hears_where_else_to_look() -> None:
    with pytest.raises(JobUnknown) as met:
        choose(None)
    assert met.value.message == "no job on this machine"
    assert "--etcd HOST:2379" in met.value.hint


def test_of_several_jobs_one_has_to_be_named() -> None:
    with pytest.raises(UsageError) as met:
        choose(None, "a", "b")
    assert (met.value.message, met.value.hint) == (
        "2 jobs on this machine: a, b",
        "easyscale status a",
    )


SLOTS = [("gpu-1", "cuda:0"), ("gpu-1", "cuda:1"), ("gpu-2", "cuda:0")]


def test_a_place_that_is_there_passes() -> None:
    check_place(SLOTS, job="j", node="gpu-1", slot="cuda:1")
    check_place(SLOTS, job="j", node="gpu-2")


def test_an_unknown_node_or_slot_is_met_with_those_there_are() -> None:
    with pytest.raises(NodeUnknown) as met:
        check_place(SLOTS, job="j", node="gpu-3")
    assert met.value.message == "job 'j' has no node 'gpu-3'; it has gpu-1, gpu-2"
    with pytest.raises(NodeUnknown) as met:
        check_place(SLOTS, job="j", node="gpu-1", slot="cuda:7")
    assert met.value.message == "node gpu-1 has no slot 'cuda:7'; it has cuda:0, cuda:1"
    assert met.value.hint == "gpu-1/cuda:0"
    with pytest.raises(NodeUnknown) as met:
        check_place([], job="j", node="gpu-1")
    assert met.value.message == "job 'j' has no node 'gpu-1'; it has none now"
