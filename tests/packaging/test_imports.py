"""Who may import what, seen from outside: import-linter reads the text, this runs it."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT
from tests.packaging.test_wheel import modules_of_the_tree


def imported_by(statement: str) -> set[str]:
    """Top-level names in `sys.modules` after the statement, in a process of its own."""
    program = f"{statement}\nimport sys\nprint(*sorted(name.split('.')[0] for name in sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return set(run.stdout.split())


def control_plane() -> list[str]:
    """Every module but those that may know torch: the runtime, and what plugs into torchrun."""
    with_torch = ("easyscale.runtime", "easyscale.torchrun")
    return sorted(name for name in modules_of_the_tree() if not name.startswith(with_torch))


def test_importing_easyscale_does_not_import_torch() -> None:
    assert {"torch", "numpy"} & imported_by("import easyscale") == set()


def test_naming_the_api_of_easyscale_imports_torch() -> None:
    assert "torch" in imported_by("import easyscale; easyscale.init")


def test_the_control_plane_runs_without_torch_and_numpy() -> None:
    found = imported_by("\n".join(f"import {name}" for name in control_plane()))
    assert {"easyscale", "easyscale_cli"} <= found
    assert {"torch", "numpy"} & found == set()


def test_the_runtime_runs_without_etcd() -> None:
    runtime = sorted(n for n in modules_of_the_tree() if n.startswith("easyscale.runtime"))
    found = imported_by("\n".join(f"import {name}" for name in runtime))
    assert "torch" in found
    assert {"etcd3", "grpc", "easyscale_cli"} & found == set()


def test_import_linter_is_told_of_every_module_outside_the_runtime() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = config["tool"]["importlinter"]["contracts"]
    (no_torch,) = [c for c in contracts if "torch" in c.get("forbidden_modules", ())]
    named = set(no_torch["source_modules"])
    covered = {n for n in control_plane() if any(f"{n}.".startswith(f"{top}.") for top in named)}
    assert set(control_plane()) - covered == {"easyscale"}


@pytest.mark.parametrize("link", ["agent", "rendezvous"])
def test_the_links_are_committed_and_relative(link: str) -> None:
    path = ROOT / "easyscale" / link
    assert path.is_symlink()
    assert path.readlink() == Path("..") / link
