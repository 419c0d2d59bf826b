"""What a worker is given: its words and its environment."""

import pytest

from easyscale.agent.plain import contract
from easyscale.agent.plain.settings import Entry, PlainSettings, Std, parse_signals, parse_std
from easyscale.agent.plain.values import Sight
from easyscale.errors import UsageError
from tests.support.plain import offer, round_of, settings, terms

PYTHON = "/usr/bin/python3"


def given_to(wanted: PlainSettings, *, local_rank: int = 1) -> dict[str, str]:
    round_ = round_of(Sight(offers=(offer("a"), offer("b"))), terms(2, 2))
    return contract.environment(
        wanted, round_, round_.members[1], local_rank=local_rank, error_file="/logs/error.json"
    )


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (Entry.PYTHON, [PYTHON, "-u", "train.py", "--lr", "0.1"]),
        (Entry.MODULE, [PYTHON, "-u", "-m", "train.py", "--lr", "0.1"]),
        (Entry.PROGRAM, ["train.py", "--lr", "0.1"]),
    ],
)
def test_the_command_line_of_a_worker(entry: Entry, words: list[str]) -> None:
    assert contract.words(settings(entry=entry), 0) == words


def test_local_rank_is_filled_into_the_scripts_words_and_nothing_else_is() -> None:
    wanted = settings(arguments=("--out=${local_rank}.pt", "$HOME", "${x}", "$$"))
    assert contract.words(wanted, 3)[3:] == ["--out=3.pt", "$HOME", "${x}", "$"]


def test_the_environment_is_torchruns() -> None:
    told = given_to(settings())
    assert {name: told[name] for name in told if name != "HOME"} == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "default",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "4",
        "MASTER_ADDR": "a.net",
        "MASTER_PORT": "4001",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": "/logs/error.json",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": "1",
    }


def test_threads_that_somebody_chose_stand_and_a_single_worker_gets_no_word() -> None:
    assert given_to(settings(environment={"OMP_NUM_THREADS": "4"}))["OMP_NUM_THREADS"] == "4"
    assert not contract.sets_threads(settings(slots=("local:0",)))


def test_the_password_for_etcd_stays_with_the_agent() -> None:
    assert "EASYSCALE_ETCD_PASSWORD" not in given_to(
        settings(environment={"EASYSCALE_ETCD_PASSWORD": "secret"})
    )


def test_a_virtual_local_rank_shows_one_device_of_those_that_are_visible() -> None:
    wanted = settings(virtual_local_rank=True, environment={"CUDA_VISIBLE_DEVICES": "4, 6"})
    told = given_to(wanted)
    assert (told["LOCAL_RANK"], told["CUDA_VISIBLE_DEVICES"]) == ("0", "6")
    assert given_to(settings(virtual_local_rank=True))["CUDA_VISIBLE_DEVICES"] == "1"
    few = settings(virtual_local_rank=True, environment={"CUDA_VISIBLE_DEVICES": "4"})
    with pytest.raises(UsageError, match="no device for local rank 1"):
        given_to(few)


def test_a_packed_worker_on_a_gpu_sees_it_as_its_only_one() -> None:
    wanted = settings(
        logical_workers=4,
        slot_environments={"local:1": {"CUDA_VISIBLE_DEVICES": "GPU-b"}},
    )
    assert given_to(wanted)["LOCAL_RANK"] == "0"
    on_cpu = settings(
        logical_workers=4, slot_environments={"local:1": {"CUDA_VISIBLE_DEVICES": ""}}
    )
    assert given_to(on_cpu)["LOCAL_RANK"] == "1"


def test_streams_are_chosen_for_all_or_by_rank_of_any_length() -> None:
    assert parse_std("3", option="-t").of(17) == Std.BOTH
    some = parse_std("0:1,12:3", option="-t")
    assert [some.of(rank) for rank in (0, 1, 12)] == [Std.OUT, Std.NONE, Std.BOTH]


@pytest.mark.parametrize("text", ["4", "x", "1:4", ":1", "1:", "0,1"])
def test_streams_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="neither 0 to 3 nor"):
        parse_std(text, option="--tee")


def test_signals_are_named_and_must_be_ones_that_can_be_handled() -> None:
    assert parse_signals("SIGTERM, SIGUSR1") == (15, 10)
    for text in ("SIGNONE", "SIGKILL", "TERM"):
        with pytest.raises(UsageError):
            parse_signals(text)
