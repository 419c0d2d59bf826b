"""What a script says of itself is read from its text."""

import ast
import sys
import time
from pathlib import Path

import pytest

from easyscale.errors import UsageError
from easyscale_cli.commands import doctor
from easyscale_cli.commands.doctor import Training, script_facts
from easyscale_cli.output import Output
from easyscale_cli.rehearsing import installed_imports, target_of


@pytest.mark.parametrize(
    ("text", "calls"),
    (
        ("import easyscale\njob = easyscale.init()", True),
        ("import easyscale as es\njob = es.init(seed=1)", True),
        ("from easyscale import init as begin\njob = begin()", True),
        ("from other import init\ninit()", False),
        ("import easyscale\neasyscale.state", False),
        ("import wandb\nwandb.init()", False),
    ),
)
def test_a_call_of_init_is_found_under_any_name(text: str, *, calls: bool) -> None:
    assert script_facts("t.py", ast.parse(text)).calls_init is calls


def test_what_trains_by_process_is_named() -> None:
    text = "import torch.distributed as dist\ndist.init_process_group()\nDistributedSampler(x)"
    found = script_facts("t.py", ast.parse(text)).by_process
    assert found == ("DistributedSampler", "init_process_group")


# --- `--bits` -------------------------------------------------------------------------------------


def test_only_a_command_that_takes_modules_hints_at_them() -> None:
    with pytest.raises(UsageError) as caught:
        doctor._bits("nowhere/alike.txt", {}, output(as_json=False))
    assert caught.value.hint == "give the path from here"
    with pytest.raises(UsageError) as caught:
        target_of("nowhere/alike.txt", (), is_module=False)
    assert caught.value.hint == "give the path from here, or -m MODULE"


def output(*, as_json: bool) -> Output:
    return Output({"color": "auto", "use_ascii": False, "as_json": as_json})


class Clock:
    """Stands still until it is moved."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize("as_json", [False, True])
def test_a_pipe_is_told_of_each_run_once_and_then_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    training = Training("t.py", output(as_json=as_json), runs=9, steps=6, clock=clock)
    for run, step, passed_s in (
        ("D1, fixed", 0, 0), ("D1, fixed", 3, 4), ("D1, again", 0, 2), ("D1, again", 5, 11),
        ("D1 on sse, looking for the operator", 0, 1), ("D2 on sse", 1, 1),
    ):  # fmt: skip
        clock.now_s += passed_s
        training.tell(run, step)
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "training t.py, run 1 of 9, 0 s: D1, fixed",
        "training t.py, run 2 of 9, 6 s: D1, again",
        "training t.py, run 2 of 9, 17 s: D1, again, step 5 of 6",
        "training t.py, 18 s: D1 on sse, looking for the operator",
        "training t.py, run 3 of 9, 19 s: D2 on sse, step 1 of 6",
    ]


def test_only_installed_modules_are_imported_before_the_workers_are_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module beside the script would be hidden by an installed one of its name."""
    installed = tmp_path / "site-packages"
    for name in ("large", "datasets", "hidden", "folder"):
        (installed / name).mkdir(parents=True)
        (installed / name / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(installed), *sys.path])
    (tmp_path / "datasets.py").touch()
    (tmp_path / "folder").mkdir()
    script = tmp_path / "train.py"
    script.write_text(
        "import os, torch, easyscale, absent, large.parts as parts\n"
        "from large.more import thing\nfrom datasets import mine\nimport folder.part\n"
        "from . import near\nif True:\n    import hidden\n"
    )
    assert installed_imports(script) == ("large.parts", "large.more")


def test_a_script_that_is_no_python_imports_nothing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("def broken(")
    assert installed_imports(script) == installed_imports(tmp_path / "none.py") == ()
