"""What is shipped: all parts, under their import names, and nothing that shadows a user's file."""

import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, Built, Installed


def modules_of_the_tree() -> set[str]:
    """Every module in the checkout by the name it is imported by."""
    names = set()
    for package in ("easyscale", "easyscale_cli"):
        for path in sorted((ROOT / package).rglob("*.py")):
            names.add(_import_name(path.relative_to(ROOT)))
    for package in ("agent", "rendezvous"):
        for path in sorted((ROOT / package).rglob("*.py")):
            names.add(_import_name(Path("easyscale") / path.relative_to(ROOT)))
    return names


def _import_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_the_wheel_holds_every_module_once_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        files = [name for name in wheel.namelist() if ".dist-info/" not in name]
    python = [_import_name(Path(name)) for name in files if name.endswith(".py")]
    assert sorted(python) == sorted(modules_of_the_tree())
    assert [name for name in files if not name.endswith(".py")] == ["easyscale/py.typed"]


def test_the_sdist_holds_every_module_behind_the_links(built: Built) -> None:
    with tarfile.open(built.sdist) as sdist:
        names = [Path(*Path(member.name).parts[1:]) for member in sdist.getmembers()]
    held = {_import_name(name) for name in names if name.suffix == ".py"}
    assert modules_of_the_tree() <= held


def test_all_parts_can_be_imported(installed: Installed) -> None:
    program = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"
    run = installed.run("-c", program, *sorted(modules_of_the_tree()))
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize("name", ["agent", "rendezvous"])
def test_the_folder_names_are_no_import_names(installed: Installed, name: str) -> None:
    run = installed.run("-c", f"import {name}")
    assert run.returncode == 1
    assert f"ModuleNotFoundError: No module named '{name}'" in run.stderr


def test_a_script_beside_its_own_agent_py_gets_that_one(
    installed: Installed, tmp_path: Path
) -> None:
    (tmp_path / "agent.py").write_text("whose = 'the user'\n")
    (tmp_path / "rendezvous.py").write_text("whose = 'the user'\n")
    (tmp_path / "train.py").write_text(
        "import sys; sys.path.insert(0, '.')\n"
        "import agent, rendezvous, easyscale, easyscale.agent, easyscale.rendezvous\n"
        "print(agent.whose, rendezvous.whose, easyscale.agent is not agent)\n"
    )
    run = installed.run("train.py", cwd=tmp_path)
    assert (run.stdout, run.stderr) == ("the user the user True\n", "")


def test_the_command_is_installed_and_prints_its_help(installed: Installed) -> None:
    run = installed.run(str(installed.command), "--help")
    assert run.returncode == 0, run.stderr
    assert "launch" in run.stdout
    assert run.stderr == ""


def test_the_metadata_names_the_distribution_and_its_command(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        (metadata,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
        (points,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
        assert "\nName: easyscale-torch\n" in wheel.read(metadata).decode()
        assert "easyscale = easyscale_cli.main:main" in wheel.read(points).decode()
