"""What a command line means: settings, notes, and one clear line for what it cannot mean."""

from pathlib import Path

import click
import pytest

from easyscale.agent.settings import LaunchSettings
from easyscale.errors import UsageError
from easyscale_cli.commands.launch import command, read_settings, split_script_arguments

ENVIRON = {"HOME": "/home/someone"}


def settings_of(*words: str, environ: dict[str, str] | None = None) -> LaunchSettings:
    return settings_and_notes(*words, environ=environ)[0]


def settings_and_notes(
    *words: str, environ: dict[str, str] | None = None
) -> tuple[LaunchSettings, tuple[str, ...]]:
    context = command.make_context("launch", list(words))
    asked = dict(context.params)
    script, arguments = asked.pop("script"), asked.pop("arguments")
    own_words = frozenset(name for p in command.params for name in p.opts if name.startswith("--"))
    return read_settings(
        script, arguments, asked=asked, environ=environ or ENVIRON, own_words=own_words
    )


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def test_the_defaults_are_those_of_one_machine(script: str) -> None:
    settings = settings_of("--logical-workers", "16", script)
    assert settings.logical_workers == 16
    assert (settings.min_nodes, settings.max_nodes) == (1, None)
    assert settings.devices == "auto"
    assert settings.store.endpoints == ()
    assert settings.seed is None
    assert settings.threads_per_worker == 1
    assert settings.snapshot_every_s == 300.0
    assert settings.snapshot_every_steps is None
    assert settings.snapshot_dir == f"runs/{settings.job_id}"
    assert settings.log_dir == f"runs/{settings.job_id}/logs"
    assert settings.job_id.startswith("train-")


def test_logical_workers_may_stand_directly_after_the_script(script: str) -> None:
    settings = settings_of(script, "--logical-workers", "16", "--lr", "0.1")
    assert settings.logical_workers == 16
    assert settings.script.arguments == ("--lr", "0.1")


def test_logical_workers_behind_the_scripts_words_are_told_their_place(script: str) -> None:
    with pytest.raises(UsageError, match="needs to know") as caught:
        settings_of(script, "--lr", "0.1", "--logical-workers", "16")
    assert caught.value.hint.startswith(f"--logical-workers N before {script} or directly after it")


def test_every_other_word_after_the_script_is_the_scripts_and_ours_are_named(script: str) -> None:
    settings, notes = settings_and_notes("--logical-workers", "4", script, "--lr", "1", "--seed=3")
    assert settings.script.arguments == ("--lr", "1", "--seed=3")
    assert settings.seed is None
    assert notes == ("what stands after train.py belongs to it, --seed=3 too",)


def test_a_double_dash_after_the_script_is_dropped_and_all_behind_it_is_the_scripts() -> None:
    split = split_script_arguments(("--", "--logical-workers", "3"))
    assert split == (None, ("--logical-workers", "3"))


def test_torchruns_words_mean_the_same(script: str) -> None:
    settings = settings_of(
        "--nnodes", "2:4", "--rdzv-endpoint", "a:2379,b:2379", "--rdzv-id", "resnet50",
        "--nproc-per-node", "3", "--logical-workers", "8", script,
    )  # fmt: skip
    assert (settings.min_nodes, settings.max_nodes) == (2, 4)
    assert settings.store.endpoints == ("a:2379", "b:2379")
    assert settings.job_id == "resnet50"
    assert settings.devices.endswith("3")


@pytest.mark.parametrize("words", (["--snapshot-every", "50"], ["--snapshot-every", "90s"]))
def test_snapshots_come_every_so_many_steps_or_seconds(script: str, words: list[str]) -> None:
    settings = settings_of(*words, "--logical-workers", "2", script)
    if words[1] == "50":
        assert (settings.snapshot_every_steps, settings.snapshot_every_s) == (50, None)
    else:
        assert (settings.snapshot_every_steps, settings.snapshot_every_s) == (None, 90.0)


def test_the_command_line_wins_over_the_environment(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EASYSCALE_LOGICAL_WORKERS", "4")
    monkeypatch.setenv("PET_NNODES", "3:5")
    monkeypatch.setenv("EASYSCALE_ETCD", "e:1")
    assert settings_of(script).logical_workers == 4
    assert settings_of(script).min_nodes == 3
    assert settings_of("--logical-workers", "2", script).logical_workers == 2


@pytest.mark.parametrize(
    ("words", "endpoints", "serve_at"),
    (
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "head:29500"], ("head:29500",), True),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "head"], ("head:29400",), True),
        (["--rdzv-backend", "etcd", "--rdzv-endpoint", "e:1,f:1"], ("e:1", "f:1"), False),
        (["--rdzv-backend", "etcd-v2", "--rdzv-endpoint", "e:1"], ("e:1",), False),
        (["--rdzv-endpoint", "e:1"], ("e:1",), False),
        (["--rdzv-backend", "c10d"], (), False),
    ),
)
def test_the_backend_says_whether_an_agent_serves_the_etcd_that_is_named(
    script: str, words: list[str], endpoints: tuple[str, ...], *, serve_at: bool
) -> None:
    store = settings_of(*words, "--logical-workers", "2", script).store
    assert store.endpoints == endpoints
    assert store.serve_at == (endpoints[0] if serve_at else "")


def test_the_password_comes_only_from_the_environment(script: str) -> None:
    environ = ENVIRON | {"EASYSCALE_ETCD_PASSWORD": "secret"}
    settings = settings_of("--etcd", "e:1", "--logical-workers", "2", script, environ=environ)
    assert settings.store.password == "secret"
    assert "--etcd-password" not in [name for p in command.params for name in p.opts]


@pytest.mark.parametrize(
    ("words", "fact"),
    (
        (["--logical-workers", "0"], "--logical-workers 0: a job has at least 1"),
        ([], "launch needs to know the job's logical workers"),
        (["--logical-workers", "2", "--nnodes", "4:2"], "the minimum 4 is above the maximum 2"),
        (["--logical-workers", "2", "--nnodes", "2"], "2 nodes need an etcd"),
        (["--logical-workers", "2", "--standalone", "--etcd", "e:1"], "--standalone starts an"),
        (["--logical-workers", "2", "--rdzv-backend", "static"], "static fixes nodes and ranks"),
        (
            ["--logical-workers", "2", "--rdzv-backend", "c10d", "--etcd", "e:1,f:1"],
            "one of the nodes serves, 2 addresses",
        ),
        (
            ["--logical-workers", "2", "--rdzv-backend", "c10d", "--etcd", "e", "--etcd-user", "a"],
            "--etcd-user: the etcd that an agent serves has neither",
        ),
        (["--logical-workers", "2", "--job-id", "a/b"], "a job id is printable ASCII without"),
        (
            ["--logical-workers", "2", "--devices", "cpu:2", "--nproc-per-node", "3"],
            "name different slots",
        ),
    ),
)
def test_what_cannot_be_meant_is_one_clear_line(script: str, words: list[str], fact: str) -> None:
    with pytest.raises(UsageError, match=fact):
        settings_of(*words, script)


def test_a_missing_script_is_named_with_its_near_miss(script: str) -> None:
    wrong = script.replace("train.py", "trian.py")
    with pytest.raises(UsageError, match="no such file in") as caught:
        settings_of("--logical-workers", "2", wrong)
    assert caught.value.hint.endswith("train.py")


@pytest.mark.parametrize("period", ("0", "0s", "-1", "5m", "s"))
def test_a_period_that_is_none_is_refused(script: str, period: str) -> None:
    with pytest.raises(click.BadParameter, match="neither a number of steps nor seconds"):
        settings_of("--snapshot-every", period, "--logical-workers", "2", script)


def test_a_layout_names_the_ranks_of_each_slot(script: str) -> None:
    settings = settings_of("--layout", "0,2|1|3", "--logical-workers", "4", script)
    assert settings.layout == ((0, 2), (1,), (3,))


@pytest.mark.parametrize("layout", ("0,1", "0,1,2|2,3", "0,1,2,4", "a|b", "0,1,2,03"))
def test_a_layout_that_is_no_partition_is_refused(script: str, layout: str) -> None:
    with pytest.raises(UsageError, match="not each of the ranks 0 to 3 just once") as caught:
        settings_of("--layout", layout, "--logical-workers", "4", script)
    assert caught.value.hint == "--layout '0,1|2,3'"
