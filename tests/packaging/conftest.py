"""Builds the wheel and the sdist once, from a copy, and installs the wheel in a clean venv."""

import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
_NOT_IN_A_CHECKOUT = shutil.ignore_patterns(
    ".git",
    ".venv",
    "venv",
    "build",
    "dist",
    "runs",
    "*.egg-info",
    "__pycache__",
    ".*_cache",
    "_build",
)


@dataclass(frozen=True, slots=True)
class Built:
    """What a release would upload."""

    wheel: Path
    sdist: Path


@dataclass(frozen=True, slots=True)
class Installed:
    """A venv in which nothing of the checkout can be seen: only the wheel and the dependencies."""

    python: Path
    command: Path
    elsewhere: Path

    def run(self, *arguments: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(self.python), "-I", *arguments],
            cwd=cwd or self.elsewhere,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build as a release does: sdist from the tree, wheel from that sdist."""
    tree = tmp_path_factory.mktemp("build") / "tree"
    shutil.copytree(ROOT, tree, symlinks=True, ignore=_NOT_IN_A_CHECKOUT)
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist"],
        cwd=tree,
        check=True,
        capture_output=True,
        timeout=150,
    )
    (wheel,) = (tree / "dist").glob("*.whl")
    (sdist,) = (tree / "dist").glob("*.tar.gz")
    return Built(wheel=wheel, sdist=sdist)


@pytest.fixture(scope="session")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Install the wheel alone; the dependencies are lent by the environment of the tests."""
    place = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", str(place / "venv")], check=True, timeout=100)
    python = place / "venv" / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(built.wheel)],
        check=True,
        timeout=100,
    )
    lend_dependencies(python, place / "lent")
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    return Installed(
        python=python, command=place / "venv" / "bin" / "easyscale", elsewhere=elsewhere
    )


def lend_dependencies(python: Path, lent: Path) -> None:
    """Show the venv every package that the tests have, except the editable easyscale itself."""
    lent.mkdir()
    ours = Path(sysconfig.get_path("purelib"))
    for entry in ours.iterdir():
        if "easyscale" not in entry.name and entry.suffix != ".pth":
            (lent / entry.name).symlink_to(entry)
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    theirs = subprocess.run(
        [python, "-c", ask], check=True, capture_output=True, text=True, timeout=30
    ).stdout.strip()
    (Path(theirs) / "lent.pth").write_text(f"{lent}\n")
