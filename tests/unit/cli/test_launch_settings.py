"""What a command line means: settings, notes, and one clear line for what it cannot mean."""

from pathlib import Path

import click
import pytest

from easyscale.agent.plain.settings import Entry, PlainSettings, StaticPlace, Std
from easyscale.agent.settings import Balance, LaunchSettings
from easyscale.errors import UsageError
from easyscale_cli.commands.launch import _idle_words, command
from easyscale_cli.launch_reading import read_settings, split_script_arguments
from easyscale_cli.torchrun_flags import PLAIN_WORDS

ENVIRON = {"HOME": "/home/someone"}


def settings_of(*words: str, environ: dict[str, str] | None = None) -> LaunchSettings:
    settings = settings_and_notes(*words, environ=environ)[0]
    assert isinstance(settings, LaunchSettings)
    return settings


def plain_of(*words: str, environ: dict[str, str] | None = None) -> PlainSettings:
    settings = settings_and_notes(*words, environ=environ)[0]
    assert isinstance(settings, PlainSettings)
    return settings


def settings_and_notes(
    *words: str, environ: dict[str, str] | None = None
) -> tuple[LaunchSettings | PlainSettings, tuple[str, ...]]:
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


def test_a_notebook_is_told_how_it_becomes_a_script(tmp_path: Path) -> None:
    (tmp_path / "train.ipynb").write_text("{}")
    with pytest.raises(UsageError, match="a notebook") as caught:
        settings_of("--logical-workers", "2", str(tmp_path / "train.ipynb"))
    assert "jupyter nbconvert --to script" in caught.value.hint


def test_logical_workers_may_stand_directly_after_the_script(script: str) -> None:
    settings = settings_of(script, "--logical-workers", "16", "--lr", "0.1")
    assert settings.logical_workers == 16
    assert settings.script.arguments == ("--lr", "0.1")


def test_logical_workers_behind_the_scripts_words_are_its_own_and_that_is_said(script: str) -> None:
    settings, notes = settings_and_notes(script, "--lr", "0.1", "--logical-workers", "16")
    assert isinstance(settings, PlainSettings)
    assert settings.arguments == ("--lr", "0.1", "--logical-workers", "16")
    assert notes == ("what stands after train.py belongs to it, --logical-workers too",)


def test_every_other_word_after_the_script_is_the_scripts_and_ours_are_named(script: str) -> None:
    settings, notes = settings_and_notes("--logical-workers", "4", script, "--lr", "1", "--seed=3")
    assert isinstance(settings, LaunchSettings)
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
    monkeypatch.setenv("PET_RDZV_ID", "j")
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
        (["--rdzv-backend", "easyscale", "--rdzv-endpoint", "e:1"], ("e:1",), False),
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
        (["--logical-workers", "2", "--node-rank", "1"], "--node-rank is refused"),
        (["--logical-workers", "2", "--no-python"], "--no-python is refused"),
        (["--numa-binding", "near"], "the forms are node, socket, exclusive, core-complex"),
        (["--numa-binding", "node"], "1 workers want a GPU each, this node has 0"),
        (["--numa-binding", "node", "--logical-workers", "2"], "--numa-binding is refused: with"),
        (["--logs-specs", "mine"], "--logs-specs is refused: its plugins need torch"),
        (["--packed"], "--packed needs the number of ranks"),
        (["--nnodes", "1:2"], "several nodes need an etcd"),
        (["--nnodes", "2", "--etcd", "e:1"], "nodes of a job find each other by its name"),
        (["--nnodes", "2", "--rdzv-id", "j"], "2 nodes need an etcd"),
        (["--nnodes", "1:2", "--node-rank", "1"], "told their ranks cannot come and go"),
        (["--nnodes", "2", "--node-rank", "2"], "the ranks of 2 nodes are 0 to 1"),
        (
            ["--nnodes", "2", "--node-rank", "1", "--max-restarts", "1"],
            "nodes that do not meet cannot begin again",
        ),
        (["--no-python", "-m"], "--no-python and --module contradict"),
        (["--nproc-per-node", "xpu"], "the forms are a number, auto, gpu or cpu"),
        (["--nproc-per-node", "0"], "the forms are a number, auto, gpu or cpu"),
        (["--local-ranks-filter", "a"], "not numbers with commas"),
        (["--rdzv-conf", "joint_timeout=3"], "joint_timeout is no key"),
        (["--signals-to-handle", "SIGNO"], "SIGNO is no signal"),
        (["--logical-workers", "2", "--nnodes", "4:2"], "the minimum 4 is above the maximum 2"),
        (["--logical-workers", "2", "--nnodes", "2"], "2 nodes need an etcd"),
        (
            ["--logical-workers", "2", "--nnodes", "2", "--etcd", "e:1"],
            "nodes of a job find each other by its name",
        ),
        (
            ["--logical-workers", "2", "--nnodes", "1:4", "--rdzv-backend", "c10d", "--etcd", "h"],
            "nodes of a job find each other by its name",
        ),
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
    with pytest.raises(UsageError, match="no such file in") as caught:
        settings_of("--logical-workers", "2", "nowhere/alike.txt")
    assert caught.value.hint == "give the path from here, or -m MODULE"


@pytest.mark.parametrize("module", ["nosuch", "json.nosuch", "json.tool.inside", "train.py"])
def test_a_module_that_python_would_not_find_is_refused(module: str) -> None:
    with pytest.raises(UsageError, match=f"-m {module}: there is no module "):
        settings_of("--logical-workers", "2", "-m", module)


def test_a_module_is_looked_for_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('run')")
    (package / "train.py").write_text("raise SystemExit('run')")
    monkeypatch.chdir(tmp_path)
    assert settings_of("--logical-workers", "2", "-m", "mine.train").script.module == "mine.train"


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


# --- without easyscale.init ----------------------------------------------------------------------


def test_without_logical_workers_the_defaults_are_torchruns(script: str) -> None:
    settings = plain_of(script, "--lr", "0.1")
    assert (settings.entry, settings.arguments) == (Entry.PYTHON, ("--lr", "0.1"))
    assert settings.slots == ("local:0",)
    assert (settings.max_restarts, settings.role) == (0, "default")
    assert settings.stop_signals == (15, 2, 1, 3)
    assert settings.shutdown_timeout_s == 30.0
    assert not settings.meets
    assert settings.static is None
    assert settings.logical_workers is None


def test_every_flag_takes_both_spellings_and_its_variable(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(plain_of("--nproc_per_node=3", script).slots) == 3
    monkeypatch.setenv("PET_NPROC_PER_NODE", "2")
    monkeypatch.setenv("PET_TEE", "0:3")
    monkeypatch.setenv("PET_MAX_RESTARTS", "4")
    settings = plain_of(script)
    assert (len(settings.slots), settings.max_restarts) == (2, 4)
    assert settings.logs.tee.of(0) == Std.BOTH
    assert len(plain_of("--nproc-per-node", "1", script).slots) == 1


def test_one_node_meets_nobody_whatever_is_said_of_where(script: str) -> None:
    words = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id", "x")
    settings = plain_of(*words, script)
    assert (settings.meets, settings.job_id) == (False, "x")
    assert not plain_of("--standalone", "--nnodes", "1:4", script).meets


def test_one_node_with_a_port_has_a_name_by_which_commands_find_it(script: str) -> None:
    names = {plain_of("--master-port", "29501", script).job_id for _ in range(2)}
    assert len(names - {"none"}) == 2
    two = ("--nnodes", "2", "--node-rank", "1", "--master-addr", "head")
    assert plain_of(*two, script).job_id == "none-29500", "the same on nodes that do not meet"


def test_nodes_meet_at_an_etcd_of_their_own_without_a_name(script: str) -> None:
    words = ("--nnodes", "1:4", "--rdzv-backend", "c10d", "--rdzv-endpoint", "head")
    settings = plain_of(*words, "--rdzv-conf", "last_call_timeout=7,is_host=1", script)
    assert (settings.job_id, settings.meets) == ("none-29400", True)
    here = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:77")
    assert plain_of(*here, script).job_id == "none-77", "two jobs on one machine have two names"
    assert settings.store.serve_at == "head:29400"
    assert (settings.min_nodes, settings.max_nodes, settings.last_call_s) == (1, 4, 7.0)


@pytest.mark.parametrize(
    ("words", "place"),
    (
        (
            ["--nnodes", "2", "--node-rank", "1", "--master-addr", "head"],
            StaticPlace(nodes=2, node_rank=1, master_addr="head", master_port=29500),
        ),
        (
            ["--nnodes", "2", "--node_rank=0", "--master_addr=h", "--master_port=1234"],
            StaticPlace(nodes=2, node_rank=0, master_addr="h", master_port=1234),
        ),
        (
            ["--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", "h:77"],
            StaticPlace(nodes=2, node_rank=1, master_addr="h", master_port=77),
        ),
        (
            ["--master-port", "4321"],
            StaticPlace(nodes=1, node_rank=0, master_addr="127.0.0.1", master_port=4321),
        ),
        (["--rdzv-backend", "static"], None),
        (["--node-rank", "0"], None),
    ),
)
def test_nodes_that_are_told_their_ranks_meet_nobody(
    script: str, words: list[str], place: StaticPlace | None
) -> None:
    settings = plain_of(*words, script)
    assert settings.static == place
    assert not settings.meets


def test_a_packed_job_has_its_ranks_and_the_slots_they_are_put_on(script: str) -> None:
    settings = plain_of("--packed", "--devices", "cpu:2", script, "--logical-workers", "5")
    assert (settings.logical_workers, settings.slots) == (5, ("cpu:0", "cpu:1"))
    assert settings.slot_environments["cpu:1"] == {"CUDA_VISIBLE_DEVICES": ""}


def test_what_has_no_effect_says_so_in_one_line(script: str) -> None:
    _, notes = settings_and_notes("--monitor-interval", "5", "--start-method", "fork", script)
    assert notes == (
        "--monitor-interval has no effect here: ends are seen at once",
        "--start-method has no effect here: every worker is a program of its own",
    )


def test_every_word_that_only_an_elastic_job_reads_says_so(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EASYSCALE_SNAPSHOT_KEEP", "5")
    words = ["--seed", "3", "--nproc-per-node", "2", "--grace", "5", script]
    notes = _idle_words(command.make_context("launch", words))
    assert notes == tuple(
        f"{name} has no effect in a job whose script does not call easyscale.init"
        for name in ("--seed", "--snapshot-keep")
    )
    assert {option.name for option in command.params} >= PLAIN_WORDS


def test_ranks_of_nodes_that_meet_or_are_alone_are_not_ignored_in_silence(script: str) -> None:
    c10d = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "h:1", "--nnodes", "2")
    _, notes = settings_and_notes(*c10d, "--node-rank", "1", script)
    assert notes == ("--node-rank has no effect: nodes that meet get their ranks",)
    _, notes = settings_and_notes("--master-addr", "h", script)
    assert notes == ("--master-addr has no effect: one node needs no other",)


def test_a_local_rank_that_the_node_has_not_is_named(script: str) -> None:
    _, notes = settings_and_notes(
        "--nproc-per-node", "2", "-t", "1:3,10:3", "--local-ranks-filter", "0,7", script
    )
    assert notes == (
        "--tee names local rank 10: this node has 2, counted from 0",
        "--local-ranks-filter names local rank 7: this node has 2, counted from 0",
    )


def test_a_program_need_not_be_a_file_here(script: str) -> None:
    assert plain_of("--no-python", "nvidia-smi", "-L").entry is Entry.PROGRAM


def test_the_time_to_end_has_torchruns_three_sources(script: str) -> None:
    assert plain_of("--shutdown-timeout", "5", script).shutdown_timeout_s == 5.0
    assert plain_of("--grace", "7", script).shutdown_timeout_s == 7.0
    environ = ENVIRON | {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "9"}
    assert plain_of(script, environ=environ).shutdown_timeout_s == 9.0
    elastic = settings_of("--shutdown-timeout", "5", "--logical-workers", "2", script)
    assert elastic.grace_s == 5.0


def test_filters_part_at_commas_and_two_commas_are_one(script: str) -> None:
    settings = plain_of("--duplicate-stdout-filters", "apple,a,,b", script)
    assert settings.logs.stdout_filters == ("apple", "a,b")


def test_a_person_says_when_a_slot_is_slow_and_when_a_move_pays(script: str) -> None:
    words = (
        "--slow-from", "1.5", "--slow-steps", "7", "--slow-seconds", "9", "--least-gain", "0.1",
        "--pays-within", "90", "--trial-steps", "11", "--probe-share", "0.2",
        "--logical-workers", "4", script,
    )  # fmt: skip
    assert settings_of(*words).balance == Balance(
        slow_from=1.5, slow_steps=7, slow_least_s=9.0, least_gain=0.1, pays_within=90,
        trial_steps=11, probe_share=0.2,
    )  # fmt: skip
    assert settings_of("--logical-workers", "4", script).balance == Balance()


@pytest.mark.parametrize(
    "option",
    ["--slow-from", "--slow-seconds", "--least-gain", "--probe-share", "--hang-timeout"],
)
def test_what_is_no_number_is_refused_where_nothing_would_be_less_or_more(
    script: str, option: str
) -> None:
    with pytest.raises(click.BadParameter, match="'nan' is no number"):
        settings_of(option, "nan", "--logical-workers", "4", script)


def test_a_takeover_waits_for_a_time_that_comes(script: str) -> None:
    with pytest.raises(click.BadParameter, match="neither seconds nor 'never'"):
        settings_of("--takeover-after", "nan", "--logical-workers", "4", script)
