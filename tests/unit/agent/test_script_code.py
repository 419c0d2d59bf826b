"""The code of a job is the script and the local modules that it imports, found without running."""

import sys
from pathlib import Path

import pytest

from easyscale.agent.script_code import read_code
from easyscale.messages import ScriptTarget


def project(root: Path, **files: str) -> Path:
    """Files by their path, where two underscores stand for a slash."""
    for name, text in files.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def code(root: Path, script: str = "train.py", *, module: bool = False, **environ: str) -> set[str]:
    return set(digests(root, script, module=module, **environ))


def digests(
    root: Path, script: str = "train.py", *, module: bool = False, **environ: str
) -> dict[str, str]:
    target = ScriptTarget.of(script, is_module=module, arguments=())
    return read_code(target, working_directory=root, environment=environ)


def test_a_script_alone_is_its_own_file(tmp_path: Path) -> None:
    project(tmp_path, train="import os, json, torch\nimport click.testing\n", other="")
    assert code(tmp_path) == {"train.py"}


def test_what_it_imports_however_deep_belongs_to_it(tmp_path: Path) -> None:
    project(
        tmp_path,
        train="import model\nfrom data.sets import Digits\ndef late():\n    import helpers\n",
        model="from layers import attention as a\n",
        layers__attention="from . import norm\nfrom .. import beyond\n",
        layers__norm="",
        data__sets="from data.read import *\n",
        data__read="import data.sets\n",
        helpers="",
        unused="import helpers\n",
        layers__unused="",
    )
    (tmp_path / "data" / "__init__.py").write_text("")
    assert code(tmp_path) == {
        "train.py",
        "model.py",
        "layers/attention.py",
        "layers/norm.py",
        "data/__init__.py",
        "data/sets.py",
        "data/read.py",
        "helpers.py",
    }


def test_nothing_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    text = f"open({str(mark)!r}, 'w')\n"
    project(tmp_path, train=f"import model\n{text}", model=text)
    assert code(tmp_path) == {"train.py", "model.py"}
    assert not mark.exists()


def test_editing_an_imported_file_changes_its_digest_and_no_other(tmp_path: Path) -> None:
    project(tmp_path, train="import model\n", model="a = 1\n", other="a = 1\n")
    before = digests(tmp_path)
    (tmp_path / "other.py").write_text("a = 2\n")
    assert digests(tmp_path) == before
    (tmp_path / "model.py").write_text("a = 2\n")
    after = digests(tmp_path)
    assert {name for name in after if after[name] != before[name]} == {"model.py"}


def test_names_do_not_tell_where_the_project_lies(tmp_path: Path) -> None:
    files = {"train": "import pack.inner\n", "pack__inner": "a = 1\n"}
    one, other = (project(tmp_path / name, **files) for name in ("one", "other"))
    assert digests(one) == digests(other)
    assert digests(tmp_path, "one/train.py") == digests(one)


def test_what_only_a_type_checker_imports_does_not_run(tmp_path: Path) -> None:
    project(
        tmp_path,
        train=(
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import stubs\n"
            "else:\n    import real\n"
        ),
        stubs="",
        real="",
    )
    assert code(tmp_path) == {"train.py", "real.py"}


def test_a_module_named_by_a_string_is_found(tmp_path: Path) -> None:
    project(
        tmp_path,
        train="import importlib\nimportlib.import_module('models.small')\n__import__('more')\n",
        models__small="",
        more="",
    )
    assert code(tmp_path) == {"train.py", "models/small.py", "more.py"}


def test_a_local_file_goes_before_an_installed_module_and_after_a_built_in_one(
    tmp_path: Path,
) -> None:
    project(tmp_path, train="import json, click, sys\n", click="", sys="", json="")
    assert code(tmp_path) == {"train.py", "click.py", "json.py"}


def test_folders_of_pythonpath_are_local_and_installed_ones_are_not(tmp_path: Path) -> None:
    project(tmp_path / "job", train="import shared, installed\n")
    project(tmp_path / "lib", shared="")
    project(tmp_path / "site-packages", installed="")
    path = f"{tmp_path / 'lib'}:{tmp_path / 'site-packages'}"
    assert code(tmp_path / "job", PYTHONPATH=path) == {"train.py", "shared.py"}


def test_a_project_that_a_pth_file_names_is_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project(tmp_path / "job", train="import library\n")
    project(tmp_path / "work", library="")
    monkeypatch.setattr(sys, "path", ["/bin", *sys.path[1:], str(tmp_path / "work")])
    assert code(tmp_path / "job") == {"train.py", "library.py"}


def test_a_module_is_found_with_the_packages_above_it(tmp_path: Path) -> None:
    project(tmp_path, pack__train="from . import model\nimport beside\n", pack__model="", beside="")
    (tmp_path / "pack" / "__init__.py").write_text("")
    expected = {"pack/__init__.py", "pack/train.py", "pack/model.py", "beside.py"}
    assert code(tmp_path, "pack.train", module=True) == expected
    project(tmp_path, pack____main__="")
    (tmp_path / "pack" / "__main__.py").write_text("from pack import model\n")
    expected = {"pack/__init__.py", "pack/__main__.py", "pack/model.py"}
    assert code(tmp_path, "pack", module=True) == expected


def test_our_own_modules_are_compared_by_their_version(tmp_path: Path) -> None:
    project(tmp_path, train="import easyscale\nimport easyscale.agent.machine\n")
    assert code(tmp_path) == {"train.py"}


def test_a_file_that_is_no_python_has_a_digest_and_no_imports(tmp_path: Path) -> None:
    project(tmp_path, train="import broken\n", broken="def (:\n")
    assert code(tmp_path) == {"train.py", "broken.py"}
