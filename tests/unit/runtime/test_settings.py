"""Who wins: the command line, then the environment, then the script, then the default."""

import pytest

from easyscale.errors import ScriptError, UsageError
from easyscale.messages import WorkerSettings
from easyscale.model import Determinism, WorkerId
from easyscale.runtime.settings import Arguments, alone, launched, read_arguments

NOTHING = Arguments()


def worker(*, seed: int | None = None, left_open: tuple[str, ...] = ()) -> WorkerSettings:
    return WorkerSettings(
        worker=WorkerId("n", "i", "cpu:0", 0),
        job_id="job",
        token="token",
        local_host="127.0.0.1",
        logical_workers=16,
        seed=seed,
        determinism=Determinism.SAME_KIND,
        threads_per_worker=1,
        left_open=left_open,
        partials="host",
        snapshot_dir="runs",
        snapshot_every_steps=None,
        snapshot_every_s=None,
        forming_timeout_s=1.0,
        exchange_deadline_s=1.0,
        linger_timeout_s=1.0,
    )


def test_the_command_line_wins_and_each_overruled_argument_is_one_line() -> None:
    said: list[str] = []
    arguments = Arguments(logical_workers=8, seed=3, threads_per_worker=1)
    settings = launched(arguments, worker(seed=5), {}, said.append)
    assert (settings.logical_workers, settings.seed, settings.offload_partials) == (16, 5, True)
    assert said == [
        "logical_workers = 16 from the command line; init(logical_workers=8) is not used",
        "seed = 5 from the command line; init(seed=3) is not used",
    ]


def test_what_the_launch_left_open_is_refused_where_the_script_says_otherwise() -> None:
    told = worker(left_open=("threads_per_worker", "determinism"))
    same = Arguments(threads_per_worker=1, determinism=Determinism.SAME_KIND)
    assert launched(same, told, {}, pytest.fail).threads_per_worker == 1
    with pytest.raises(ScriptError, match=r"init\(threads_per_worker=2\)") as caught:
        launched(Arguments(threads_per_worker=2), told, {}, pytest.fail)
    assert "--threads-per-worker 2" in caught.value.hint
    with pytest.raises(ScriptError, match="has same-kind"):
        launched(Arguments(determinism=Determinism.HETEROGENEOUS), told, {}, pytest.fail)


def test_what_a_variable_named_is_said_to_come_from_it() -> None:
    said: list[str] = []
    environment = {"EASYSCALE_SEED": "5", "PET_LOGICAL_WORKERS": "16"}
    launched(Arguments(logical_workers=8, seed=3), worker(seed=5), environment, said.append)
    assert said == [
        "logical_workers = 16 from PET_LOGICAL_WORKERS; init(logical_workers=8) is not used",
        "seed = 5 from EASYSCALE_SEED; init(seed=3) is not used",
    ]


def test_the_scripts_seed_stands_where_the_command_line_names_none() -> None:
    said: list[str] = []
    assert launched(Arguments(seed=3), worker(), {}, said.append).seed == 3
    assert launched(NOTHING, worker(), {}, said.append).seed == 0
    assert said == []


def test_alone_the_environment_wins_over_the_script() -> None:
    said: list[str] = []
    environment = {
        "EASYSCALE_LOGICAL_WORKERS": "4",
        "EASYSCALE_SEED": "9",
        "EASYSCALE_DETERMINISM": "heterogeneous",
    }
    settings = alone(Arguments(logical_workers=4, seed=1), environment, said.append)
    assert (settings.logical_workers, settings.seed) == (4, 9)
    assert settings.determinism is Determinism.HETEROGENEOUS
    assert said == ["seed = 9 from EASYSCALE_SEED; init(seed=1) is not used"]


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"])
def test_another_launchers_ranks_are_refused(name: str) -> None:
    with pytest.raises(ScriptError, match=f"another launcher \\({name} is set\\)") as caught:
        alone(NOTHING, {name: "1"}, lambda _: None)
    assert caught.value.__notes__ == ["try: easyscale launch SCRIPT --logical-workers N"]


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5", ""])
def test_a_wrong_word_in_the_environment_is_refused_by_name(value: str) -> None:
    with pytest.raises(UsageError, match="EASYSCALE_LOGICAL_WORKERS is "):
        alone(NOTHING, {"EASYSCALE_LOGICAL_WORKERS": value}, lambda _: None)


@pytest.mark.parametrize(("logical_workers", "seed"), [(0, None), (True, None), (2, -1), (2, 1.5)])
def test_wrong_arguments_are_refused_by_name(logical_workers: int, seed: int | None) -> None:
    with pytest.raises(ScriptError, match=r"init\(\w+=\.\.\.\) is "):
        read_arguments(
            logical_workers=logical_workers, seed=seed, determinism=None, threads_per_worker=None
        )
