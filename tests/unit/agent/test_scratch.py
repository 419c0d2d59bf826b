"""A folder that stands for another one."""

from pathlib import Path

from easyscale.agent.verify import scratch


def test_a_file_that_is_written_to_is_a_copy(tmp_path: Path) -> None:
    origin, mirror = tmp_path / "origin", tmp_path / "mirror"
    (origin / "checkpoints").mkdir(parents=True)
    (origin / "checkpoints" / "best.pt").write_text("mine")
    scratch.Mirror().fill(mirror, origin)
    (mirror / "checkpoints" / "best.pt").write_text("theirs")
    (mirror / "new.pt").write_text("theirs")
    assert (origin / "checkpoints" / "best.pt").read_text() == "mine"
    assert not (origin / "new.pt").exists()


def test_a_large_file_can_be_read_through_a_link(tmp_path: Path) -> None:
    origin, mirror = tmp_path / "origin", tmp_path / "mirror"
    origin.mkdir()
    with (origin / "data.bin").open("wb") as file:
        file.truncate(scratch.COPIED_BYTES + 1)
    scratch.Mirror().fill(mirror, origin)
    assert (mirror / "data.bin").is_symlink()
    assert (mirror / "data.bin").stat().st_size == scratch.COPIED_BYTES + 1


def test_links_of_the_person_stay_readable_and_runs_are_left_out(tmp_path: Path) -> None:
    origin, mirror = tmp_path / "origin", tmp_path / "mirror"
    (origin / "runs").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x.txt").write_text("x")
    (origin / "data").symlink_to(tmp_path / "elsewhere")
    scratch.Mirror().fill(mirror, origin)
    assert (mirror / "data" / "x.txt").read_text() == "x"
    assert not (mirror / "runs").exists()
