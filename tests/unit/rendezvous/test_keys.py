"""Keys say what they hold, and names that could not be keys are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale.agent.machine import followed_ranges
from easyscale.errors import FormatError, UsageError
from easyscale.model import GenerationNumber, WorkerId
from easyscale.rendezvous import keys
from easyscale.rendezvous.keys import Incarnation, JobKeys
from easyscale.rendezvous.store import Stretch, in_range

JOB = JobKeys.of("resnet")
GENERATION = GenerationNumber(2, 17)
WORKER = WorkerId("gpu-4", "ab12", "cuda:3/1", 5)

NAMES = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="/"),
    min_size=1,
    max_size=64,
).filter(lambda name: name not in {".", ".."})
GENERATIONS = st.builds(GenerationNumber, st.integers(0, 10**6), st.integers(0, 10**6))
WORKERS = st.builds(
    WorkerId,
    NAMES,
    st.from_regex(r"[0-9a-f]{8}", fullmatch=True),
    st.sampled_from(["cpu:0", "cuda:3", "cuda:3/1"]),
    st.integers(0, 1000),
)


def test_the_tree_is_the_one_of_the_docstring() -> None:
    found = [
        JOB.head,
        JOB.job,
        JOB.code,
        JOB.leader,
        JOB.node("gpu-4"),
        JOB.gone_worker(WORKER),
        JOB.gone_agent("gpu-4", "ab12"),
        JOB.wish("7"),
        JOB.plan(GENERATION),
        JOB.ready(GENERATION, WORKER),
        JOB.commit(GENERATION),
        JOB.entry(GENERATION, WORKER),
        JOB.broken(GENERATION, WORKER),
        JOB.progress,
        JOB.snapshot("step-00000012-g1.1-0a1b2c3d"),
        JOB.outcome,
    ]
    worker = "gpu-4/ab12/cuda:3/1/5"
    assert [key.removeprefix("/easyscale/v1/resnet/") for key in found] == [
        "head",
        "job",
        "code",
        "leader",
        "nodes/gpu-4",
        f"gone/{worker}",
        "gone/gpu-4/ab12",
        "wishes/7",
        "plan/2.17",
        f"ready/2.17/{worker}",
        "commit/2.17",
        f"in/2.17/{worker}",
        f"broken/2.17/{worker}",
        "progress",
        "snapshots/step-00000012-g1.1-0a1b2c3d",
        "outcome",
    ]


def test_folders_hold_their_keys_and_no_others() -> None:
    assert in_range(JOB.node("a"), JOB.nodes)
    assert in_range(JOB.ready(GENERATION, WORKER), JOB.ready_in(GENERATION))
    assert not in_range(JOB.ready(GenerationNumber(2, 170), WORKER), JOB.ready_in(GENERATION))
    assert not in_range(JOB.entry(GENERATION, WORKER), JOB.breaks)
    assert not in_range(JobKeys.of("resnet2").head, JOB.prefix)


def test_a_stretch_holds_all_from_its_first_folder_to_the_end_of_its_last() -> None:
    stretch = Stretch(JOB.commits, JOB.head)
    for key in (JOB.commit(GENERATION), JOB.gone_worker(WORKER), JOB.head):
        assert in_range(key, stretch)
    for key in (JOB.entry(GENERATION, WORKER), JOB.broken(GENERATION, WORKER), JOB.job):
        assert not in_range(key, stretch)
    assert in_range(JOB.plan(GENERATION), Stretch(JOB.outcome, JOB.plans))


def test_what_every_agent_follows_holds_nothing_that_grows_with_the_nodes() -> None:
    ranges = followed_ranges(JOB)
    followed = (JOB.head, JOB.job, JOB.leader, JOB.outcome, JOB.plan(GENERATION), JOB.wish("w"))
    for key in (*followed, JOB.commit(GENERATION), JOB.gone_worker(WORKER), JOB.snapshot("s")):
        assert sum(in_range(key, range_) for range_ in ranges) == 1
    each = (JOB.node("a"), JOB.ready(GENERATION, WORKER), JOB.entry(GENERATION, WORKER))
    for key in (*each, JOB.broken(GENERATION, WORKER), JOB.progress):
        assert not any(in_range(key, range_) for range_ in ranges)


@given(job=NAMES, generation=GENERATIONS, worker=WORKERS)
def test_what_a_key_is_built_from_can_be_read_from_it(
    job: str, generation: GenerationNumber, worker: WorkerId
) -> None:
    of = JobKeys.of(job)
    assert of.job_id == keys.job_of(of.head) == job
    assert keys.node_of(of.node(worker.node)) == worker.node
    for key in (
        of.ready(generation, worker),
        of.entry(generation, worker),
        of.broken(generation, worker),
    ):
        assert (keys.generation_of(key), keys.worker_of(key)) == (generation, worker)
    assert keys.generation_of(of.plan(generation)) == generation
    assert keys.generation_of(of.commit(generation)) == generation
    assert keys.ended_of(of.gone_worker(worker)) == worker
    agent = Incarnation(worker.node, worker.incarnation)
    assert keys.ended_of(of.gone_agent(agent.node, agent.incarnation)) == agent
    assert keys.name_of(of.wish("x")) == "x"


@pytest.mark.parametrize("name", ["", "a/b", "ü", "a\n", "a\0", "x" * 65, ".", "..", " a", "a "])
@pytest.mark.parametrize("build", [JobKeys.of, JOB.node, JOB.wish, JOB.snapshot])
def test_a_name_that_cannot_be_a_key_is_refused(build: object, name: str) -> None:
    assert callable(build)
    with pytest.raises(UsageError):
        build(name)


@pytest.mark.parametrize("name", ["a", "my job", "host-1.example.org", "x" * 64, "job:7", "#1"])
def test_ordinary_names_are_taken(name: str) -> None:
    assert JobKeys.of(name).job_id == name


@pytest.mark.parametrize(
    ("parse", "key"),
    [
        (keys.job_of, "/other/v1/resnet/head"),
        (keys.job_of, "/easyscale/v1/"),
        (keys.node_of, JOB.head),
        (keys.node_of, JOB.nodes),
        (keys.generation_of, JOB.node("a")),
        (keys.generation_of, JOB.plans + "two"),
        (keys.worker_of, JOB.plan(GENERATION)),
        (keys.worker_of, JOB.readies + "1.1/a/b/c"),
        (keys.ended_of, JOB.gone + "a"),
    ],
)
def test_a_key_of_another_form_is_an_error(parse: object, key: str) -> None:
    assert callable(parse)
    with pytest.raises(FormatError):
        parse(key)
