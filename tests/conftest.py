"""What holds for every test: its level, its time, its own folders, and that it leaves nothing.

A test's folder says its level; the level gives marker and deadline. Each test has a temporary and
a run folder of its own, so tests and other people's jobs on the machine never meet.
"""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, settings

from tests.support import leaks

ROOT = Path(__file__).parent.parent
#: Seconds a test of each level may take; a test's own timeout marker goes before.
DEADLINES_S = {"packaging": 180, "integration": 60, "e2e": 240, "docs": 120, "chaos": 900}
PROOF_DEADLINE_S = 1800
MARKED_LEVELS = ("integration", "e2e", "chaos")

settings.register_profile("dev", deadline=None, max_examples=50)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile(
    "nightly",
    deadline=None,
    max_examples=5000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") == "true" else "dev")
)


def pytest_configure(config: pytest.Config) -> None:
    leaks.adopt_orphans()
    if not hasattr(config, "workerinput"):
        signal.signal(signal.SIGTERM, _stop)
        # A shell without job control starts background commands with SIGINT ignored, and what the
        # tests start would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _stop(number: int, frame: object) -> NoReturn:
    """End as Ctrl-C does, so that a run that is told to stop ends what its tests have started."""
    raise KeyboardInterrupt(f"signal {number}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        level = item.path.relative_to(ROOT / "tests").parts[0]
        if level in MARKED_LEVELS:
            item.add_marker(level)
        if item.get_closest_marker("timeout") is None:
            proof = item.get_closest_marker("proof") is not None
            limit_s = PROOF_DEADLINE_S if proof else DEADLINES_S.get(level)
            if limit_s is not None:
                item.add_marker(pytest.mark.timeout(limit_s))
        if item.get_closest_marker("gpu") is not None and not _has_cuda():
            item.add_marker(pytest.mark.skip(reason="no CUDA device here"))


def _has_cuda() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


@pytest.fixture(scope="session", autouse=True)
def _this_tree() -> None:
    """Refuse to test another checkout's code by accident."""
    import easyscale  # which one is imported is the question

    found = Path(easyscale.__file__).resolve().parent.parent
    if found != ROOT:
        pytest.exit(f"easyscale comes from {found}, not from {ROOT}: run `make setup` here", 2)


@pytest.fixture(scope="session", autouse=True)
def _session_leaves_nothing(_this_tree: None) -> Iterator[None]:
    """Hold fixtures that serve many tests to the same rule as the tests."""
    before = leaks.holdings()
    yield
    if left := leaks.leaks(before, leaks.holdings):
        leaks.end_children(before)
        pytest.fail(f"a fixture of the session left behind:\n{left}", pytrace=False)


@pytest.fixture(autouse=True)
def _private_folders(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Give the test its own TMPDIR and XDG_RUNTIME_DIR, short enough for a socket's path."""
    tmp_path_factory.getbasetemp()  # fixed now, outside of what this test sees as temporary
    home = Path(tempfile.mkdtemp(prefix="es-"))
    for name, variable in (("t", "TMPDIR"), ("r", "XDG_RUNTIME_DIR")):
        (home / name).mkdir(mode=0o700)
        monkeypatch.setenv(variable, str(home / name))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(autouse=True)
def _leaves_nothing(request: pytest.FixtureRequest, _private_folders: None) -> Iterator[None]:
    """Fail the test that leaves a child, a thread, a socket or a folder of easyscale behind."""
    places = leaks.private_places()
    before = leaks.holdings(places)
    yield
    allowed = [mark.args[0] for mark in request.node.iter_markers("allow_leak")]
    if left := leaks.leaks(before, lambda: leaks.holdings(places), allowed=allowed):
        leaks.end_children(before)
        pytest.fail(f"the test left behind:\n{left}", pytrace=False)


if sys.platform != "linux":
    pytest.exit("the tests need Linux: they look into /proc and adopt orphans", 2)
