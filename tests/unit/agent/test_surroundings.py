"""What a container gives is measured, and too little of it is said before it hurts."""

from pathlib import Path

import pytest

from easyscale.agent.hardware.surroundings import notes, open_files, shm_bytes
from easyscale.agent.processes.orphans import dead_children


def test_little_shared_memory_is_a_note_and_enough_is_none() -> None:
    [told] = notes(shm=64_000_000)
    assert told.startswith("/dev/shm holds 64 MB")
    assert "--shm-size" in told
    assert notes(shm=2_000_000_000) == ()
    assert notes(shm=None) == ()


def test_where_there_is_no_such_folder_nothing_is_measured(tmp_path: Path) -> None:
    assert shm_bytes(tmp_path / "none") is None
    assert (shm_bytes(tmp_path) or 0) > 0
    soft, hard = open_files()
    assert soft > 0
    assert hard == -1 or soft <= hard


@pytest.mark.parametrize(
    ("stat", "is_dead"),
    (
        ("7 (python) S 1 7", False),
        ("7 (odd) Z name) R 1 7", False),
        ("7 (defunct) Z 1 7", True),
        ("", False),
    ),
)
def test_a_dead_child_is_told_by_its_state(tmp_path: Path, stat: str, *, is_dead: bool) -> None:
    task = tmp_path / "self" / "task" / "1"
    task.mkdir(parents=True)
    (task / "children").write_text("7 8\n")
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(stat)
    assert dead_children(tmp_path) == ([7] if is_dead else [])
