"""Other code and other arguments are refused by name, at the start, on a resume, before a fork."""

from pathlib import Path

import msgspec
import pytest

from easyscale.agent.code_check import CodeCheck, code_file
from easyscale.agent.settings import LaunchSettings
from easyscale.errors import ExitCode, JobConflict
from easyscale.messages import ScriptTarget
from easyscale.model import encode
from easyscale.rendezvous.code_record import (
    CodeRecord,
    describe_arguments,
    describe_change,
    without_secrets,
)
from easyscale.rendezvous.keys import JobKeys
from easyscale.rendezvous.memory import MemoryServer
from easyscale.rendezvous.store import Put, Store
from tests.support.views import KEYS, launch_settings


class Node:
    """A folder with a script, and launches from there."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder = folder
        self.store = store
        self.arguments: tuple[str, ...] = ("--epochs", "2")
        (folder / "runs" / "job").mkdir(parents=True)
        self.edit("train.py", "import model\n")
        self.edit("model.py", "a = 1\n")

    def edit(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def settings(self, *, allow: bool) -> LaunchSettings:
        return launch_settings(
            script=ScriptTarget(path="train.py", arguments=self.arguments),
            working_directory=str(self.folder),
            allow_code_change=allow,
        )

    def launch(self, *, allow: bool = False) -> str:
        """What is said aloud."""
        return CodeCheck(self.settings(allow=allow)).agree(self.store, KEYS)

    def leaves_snapshot(self) -> None:
        (self.folder / "runs" / "job" / "step-00000010-g1.1-0123abcd").mkdir(exist_ok=True)


@pytest.fixture
def store() -> Store:
    return MemoryServer(lambda: 0.0).client()


@pytest.fixture
def a(tmp_path: Path, store: Store) -> Node:
    return Node(tmp_path / "a", store)


@pytest.fixture
def b(tmp_path: Path, store: Store) -> Node:
    return Node(tmp_path / "b", store)


def register(store: Store) -> None:
    store.transact([], [Put(KEYS.node("a"), "{}")], timeout_s=1.0)


def test_the_same_code_is_let_in_and_nothing_is_said(a: Node, b: Node) -> None:
    assert (a.launch(), b.launch(), a.launch()) == ("", "", "")


def test_a_node_with_another_file_is_refused_by_its_name(a: Node, b: Node) -> None:
    a.launch()
    b.edit("model.py", "a = 2\n")
    b.edit("unused.py", "")
    with pytest.raises(JobConflict, match=r"other code: model\.py differs$") as met:
        b.launch()
    assert met.value.exit_code is ExitCode.USAGE
    assert "--allow-code-change" in met.value.hint


def test_a_change_of_a_file_that_is_not_imported_changes_nothing(a: Node) -> None:
    a.launch()
    a.edit("notes.py", "a = 2\n")
    assert a.launch() == ""


def test_allowed_it_is_said_aloud_and_stands_for_the_next_when_nobody_trains(
    a: Node, b: Node
) -> None:
    a.launch()
    for node in (a, b):
        node.edit("train.py", "import model  # better\n")
    assert "train.py differs; its bits may differ" in a.launch(allow=True)
    assert b.launch() == ""


def test_allowed_beside_nodes_that_train_the_jobs_code_stays(
    a: Node, b: Node, store: Store
) -> None:
    a.launch()
    register(store)
    b.edit("train.py", "")
    assert "train.py differs; model.py is not imported here" in b.launch(allow=True)
    with pytest.raises(JobConflict):
        b.launch()
    assert a.launch() == ""


def test_a_resume_at_a_new_etcd_is_held_against_the_code_of_its_snapshots(a: Node) -> None:
    a.launch()
    a.leaves_snapshot()
    a.edit("train.py", "import model, more\n")
    a.edit("more.py", "")
    a.store = MemoryServer(lambda: 0.0).client()
    with pytest.raises(JobConflict, match=r"train\.py differs; more\.py is imported only here"):
        a.launch()
    a.store = MemoryServer(lambda: 0.0).client()
    assert "by --allow-code-change" in a.launch(allow=True)
    a.store = MemoryServer(lambda: 0.0).client()
    assert a.launch() == "", "the changed code is the job's now"


def test_without_a_snapshot_there_is_nothing_to_go_on_from(a: Node) -> None:
    a.launch()
    a.edit("train.py", "")
    a.store = MemoryServer(lambda: 0.0).client()
    assert a.launch() == ""


def test_snapshots_of_unknown_code_are_no_reason_to_refuse(a: Node) -> None:
    a.leaves_snapshot()
    (a.folder / "runs" / "job" / code_file("job")).write_text("{")
    assert a.launch() == ""


def test_jobs_that_share_a_folder_have_each_their_own_code(a: Node) -> None:
    a.launch()
    a.leaves_snapshot()
    settings = msgspec.structs.replace(a.settings(allow=False), job_id="other")
    a.edit("train.py", "")
    CodeCheck(settings).agree(a.store, JobKeys.of("other"))
    a.edit("train.py", "import model\n")
    a.store = MemoryServer(lambda: 0.0).client()
    assert a.launch() == ""


def test_a_file_edited_while_the_job_runs_reaches_no_new_worker(a: Node) -> None:
    check = CodeCheck(a.settings(allow=False))
    assert check.changed() == ""
    a.edit("model.py", "a = 2\n")
    assert check.changed().startswith("model.py differs since this agent began")
    a.edit("model.py", "a = 1\n")
    assert check.changed() == ""
    allowed = CodeCheck(a.settings(allow=True))
    a.edit("model.py", "a = 3\n")
    assert allowed.changed() == ""


def test_many_files_are_counted_and_a_few_are_named() -> None:
    before = CodeRecord(files={f"{name}.py": "1" for name in "abcdef"})
    after = {f"{name}.py": "2" for name in "abcde"} | {"g.py": "1", "h.py": "1"}
    assert describe_change(before.files, after) == (
        "a.py, b.py, c.py and 2 more differ; g.py, h.py are imported only here; "
        "f.py is not imported here"
    )


def test_a_node_with_other_arguments_is_refused_by_the_words(a: Node, b: Node) -> None:
    a.launch()
    b.arguments = ("--epochs", "1")
    told = r"other arguments: the job has --epochs 2, this launch --epochs 1$"
    with pytest.raises(JobConflict, match=told) as met:
        b.launch()
    assert met.value.exit_code is ExitCode.USAGE
    assert met.value.hint.startswith("the same arguments on every node, or --allow-code-change (")
    assert "by --allow-code-change: the job has --epochs 2" in b.launch(allow=True)


def test_other_code_and_other_arguments_are_named_together(a: Node, b: Node) -> None:
    a.launch()
    b.arguments = ()
    b.edit("model.py", "a = 2\n")
    with pytest.raises(JobConflict) as met:
        b.launch()
    assert met.value.message.endswith(
        "other code and arguments: model.py differs; the job has --epochs 2, "
        "this launch none of these"
    )
    assert met.value.hint.startswith("the same files and arguments on every node")


def test_a_resume_with_other_arguments_is_told_and_allowed_once(a: Node) -> None:
    a.launch()
    a.leaves_snapshot()
    a.arguments = ("--epochs", "3")
    a.store = MemoryServer(lambda: 0.0).client()
    with pytest.raises(JobConflict, match="the job has --epochs 2, this launch --epochs 3"):
        a.launch()
    assert "by --allow-code-change" in a.launch(allow=True)
    a.store = MemoryServer(lambda: 0.0).client()
    assert a.launch() == ""


def test_a_record_without_arguments_refuses_none(a: Node, store: Store) -> None:
    files = dict(CodeCheck(a.settings(allow=False))._own.files)
    store.transact([], [Put(KEYS.code, encode(CodeRecord(files=files)))], timeout_s=1.0)
    assert a.launch() == ""


@pytest.mark.parametrize(
    ("stands", "own", "told"),
    [
        ("out --dim 8 -v", "out --dim 8 -v", ""),
        ("out --dim 8", "out --dim 16", "the job has --dim 8, this launch --dim 16"),
        ("out --dim=8", "out", "the job has --dim=8, this launch none of these"),
        ("out", "out -v", "the job has none of these, this launch -v"),
        ("a b", "b a", "the same words in another order"),
        ("--shift -1", "--shift -2", "the job has --shift -1, this launch --shift -2"),
        ("a b c d e", "", "the job has a b c and 2 more, this launch none of these"),
    ],
)
def test_arguments_that_differ_are_named(stands: str, own: str, told: str) -> None:
    assert describe_arguments(stands.split(), own.split()) == told


def test_a_long_argument_is_cut_short() -> None:
    told = describe_arguments(("x" * 500,), ())
    assert told == f"the job has {'x' * 60}..., this launch none of these"


def test_a_secret_among_the_arguments_is_kept_as_a_digest_that_differs() -> None:
    words = ("--hf-token", "hush", "--api_key=hush", "--password", "--dim", "8", "--tokens", "9")
    kept = without_secrets(words)
    assert "hush" not in " ".join(kept)
    assert kept[4:] == words[4:]
    assert kept[1] != without_secrets(("--hf-token", "other"))[1]
    assert kept == without_secrets(words)
