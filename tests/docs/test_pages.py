"""The pages: their maps agree with the tree, their links lead somewhere, their commands run."""

import hashlib
import importlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")],
    key=lambda page: page.relative_to(ROOT).as_posix(),
)
PAGES = [page for page in PAGES if "_build" not in page.parts]
MARK = re.compile(r"^<!-- (run|not run: .+) -->$")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def folder_map() -> ModuleType:
    spec = importlib.util.spec_from_file_location("folder_map", ROOT / "docs" / "folder_map.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_map_names_every_module_once_with_its_idea() -> None:
    tool = folder_map()
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"^\| `([^`]+\.py)` \| .+ \|$", page, re.MULTILINE)
    assert sorted(named) == sorted(tool.modules()), "run `make map`"
    assert tool.with_map(page, tool.folder_map()) == page, "run `make map`"


def test_every_module_says_its_idea_in_its_first_lines() -> None:
    tool = folder_map()
    assert [name for name in tool.modules() if not tool.first_sentence(name)] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    pattern = (
        r"`((?:easyscale|agent|rendezvous|easyscale_cli|tests|docs|examples|benchmarks)/[^`<* ]*)`"
    )
    missing = [name for name in re.findall(pattern, text) if not (ROOT / name).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_make_targets_that_a_page_names_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z0-9]+)`", page.read_text())) <= targets


def test_calls_that_the_api_page_explains_exist() -> None:
    page = (ROOT / "docs" / "training-api.md").read_text()
    job = importlib.import_module("easyscale.runtime.job")
    named = set(re.findall(r"\bjob\.([a-z_]+)", page))
    assert named >= {"register", "loader", "epochs", "evaluate", "state", "is_main"}
    assert {name for name in named if not hasattr(job.Job, name)} == set()


# --- commands ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Block:
    """Commands of one fenced block, and the comment above it that says whether they are run."""

    page: Path
    line: int
    mark: str
    commands: tuple[str, ...]

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


def console_blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text().splitlines()
    for number, line in enumerate(lines):
        if line == "```console":
            body = "\n".join(lines[number + 1 : lines.index("```", number)])
            commands = re.findall(r"^\$ (.+(?:\\\n.+)*)", body, re.MULTILINE)
            joined = tuple(command.replace("\\\n", " ") for command in commands)
            yield Block(page=page, line=number + 1, mark=lines[number - 1], commands=joined)


BLOCKS = [block for page in PAGES for block in console_blocks(page)]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_of_commands_says_whether_it_is_run(block: Block) -> None:
    assert MARK.match(block.mark), "write <!-- run --> or <!-- not run: reason --> above it"
    assert block.commands


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_stand_in_console_blocks_only(page: Path) -> None:
    assert re.findall(r"^```(?:sh|bash|shell)$", page.read_text(), re.MULTILINE) == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", [b for b in BLOCKS if b.mark == "<!-- run -->"], ids=str)
def test_commands_run_as_they_are_shown_and_train_the_same_bits(
    block: Block, tmp_path: Path
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    saved = []
    for command in block.commands:
        run = run_as_shown(command, tmp_path)
        assert run.returncode == 0, f"$ {command}\n{run.stdout}\n{run.stderr}"
        saved += [fingerprint(path) for path in tmp_path.glob("*.pt")]
        for path in tmp_path.glob("*.pt"):
            path.unlink()
    trainings = [command for command in block.commands if "examples/" in command]
    assert len(saved) == len(trainings)
    assert len(set(saved)) == 1


def fingerprint(weights: Path) -> str:
    """SHA-256 over names, types and bytes of what a script saved."""
    summary = hashlib.sha256()
    for name, tensor in sorted(torch.load(weights, weights_only=True).items()):
        summary.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        summary.update(tensor.contiguous().numpy().tobytes())
    return summary.hexdigest()


def run_as_shown(command: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run it without a shell: assignments before the command, then its words."""
    words = shlex.split(command)
    env = dict(os.environ)
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    return subprocess.run(
        words,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_the_ci_calls_what_the_readme_tells_a_reader_to_run() -> None:
    told = [command for block in console_blocks(ROOT / "README.md") for command in block.commands]
    called = re.findall(r"^(make .+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert [command for command in told if command.startswith("make ")] == called != []


def test_every_command_has_its_reference() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text()
    shown = re.findall(r"easyscale_cli\.commands\.(\w+):command\n +:prog: easyscale (\w+)", page)
    commands = importlib.import_module("easyscale_cli.main").COMMANDS
    assert sorted(shown) == sorted((name, name) for name in commands)
