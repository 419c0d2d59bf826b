"""`easyscale profile` as people type it: what is kept, where the picture goes, what is refused."""

import json
from pathlib import Path

import pytest

from easyscale.balance import ProfilePoint, ProfileRecord
from easyscale_cli import plotting
from easyscale_cli.commands import profile
from easyscale_cli.connection import Job as FoundJob
from easyscale_cli.main import run
from easyscale_cli.output import Output
from tests.support.kept import WHERE, keep
from tests.support.views import KEYS, Job

SIZES = ((8, 0.05), (2, 0.19), (1, 0.37))
RECORD = ProfileRecord(
    wish="w",
    by="asked by ann",
    at="2026-10-04T14:07:11.000Z",
    logical_workers=16,
    planned=3,
    points=tuple(
        ProfilePoint(
            slots={"H100 80GB HBM3": slots},
            counts=(16 // slots,) * slots,
            step_s=step_s,
            micro_steps_per_s=16 / step_s,
            predicted_s=None,
        )
        for slots, step_s in SIZES
    ),
    done=True,
)
SHOWN = """\
job · 16 logical workers · 3 of 3 sizes measured

SLOTS  OF KIND             STEP  MICRO-STEPS/S  THROUGHPUT
    8  8 H100 80GB HBM3   50 ms          320.0  ━━━━━━━━━━━━━━━━━━━━━━━━
    2  2 H100 80GB HBM3  190 ms           84.2  ━━━━━━──────────────────
    1  1 H100 80GB HBM3  370 ms           43.2  ━━━─────────────────────
"""


@pytest.fixture(autouse=True)
def _kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    keep(Job().put(KEYS.profile, RECORD), monkeypatch)


def asked(*words: str) -> int:
    return run(["profile", *WHERE, *words])


def never(*_: object, **__: object) -> None:
    pytest.fail("the job was asked")


def test_what_was_measured_is_shown_line_by_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert asked("--show") == 0
    assert capfd.readouterr().out == SHOWN


def test_a_fresh_measurement_is_shown_as_a_kept_one(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def measure(job: FoundJob, steps: int, output: Output, *, limit_s: float) -> ProfileRecord:
        assert (job.id, steps, limit_s) == ("job", 5, 3600.0)
        assert not output.as_json
        return RECORD

    monkeypatch.setattr(profile, "_measure", measure)
    assert asked("--steps", "5") == 0
    assert capfd.readouterr().out == SHOWN


def test_programs_get_the_record(capfd: pytest.CaptureFixture[str]) -> None:
    assert asked("--show", "--json") == 0
    value = json.loads(capfd.readouterr().out)
    assert (value["version"], value["job"], len(value["points"])) == (1, "job", 3)


def test_a_job_that_was_not_measured_says_so(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    keep(Job(), monkeypatch)
    assert asked("--show") == 2
    assert capfd.readouterr().err == (
        "error: job 'job' has not been measured\n  try: easyscale profile job\n"
    )


def test_the_picture_is_drawn_beside_the_table(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "curve.png"
    assert asked("--show", "--png", str(picture)) == 0
    assert capfd.readouterr().out == SHOWN
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert [each.name for each in tmp_path.iterdir()] == ["curve.png"]


def test_a_size_that_was_never_measured_has_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    begun = ProfileRecord(wish="w", by="", at="", logical_workers=16, planned=3)
    keep(Job().put(KEYS.profile, begun), monkeypatch)
    assert asked("--show", "--png", str(tmp_path / "x.png")) == 2
    assert "no size of job 'job' has been measured yet" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("none/x.png", "no such file or directory"),
        ("file/x.png", "not a directory"),
        ("x" * 300, "file name too long"),
    ],
)
def test_a_picture_that_cannot_be_written_is_refused_before_anybody_measures(
    place: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(profile, "found", never)
    assert asked("--png", place) == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        f"error: --png {place}: {why}",
        "  try: name a file in a folder that can be written",
    ]


def test_programs_hear_of_such_a_picture_as_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert asked("--png", "/none/x.png", "--json") == 2
    error = json.loads(capfd.readouterr().out)["error"]
    assert (error["code"], error["exit_code"]) == ("usage", 2)


@pytest.mark.parametrize("as_json", [False, True], ids=["lines", "json"])
def test_a_disk_that_is_full_takes_the_picture_and_not_the_profile(
    as_json: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def full(job: str, record: ProfileRecord, path: Path) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(plotting, "draw_profile", full)
    picture = tmp_path / "x.png"
    assert asked("--show", "--png", str(picture), *(["--json"] if as_json else [])) == 1
    said = capfd.readouterr()
    message = f"{picture} was not written: no space left on device; what was measured stands"
    assert said.err.splitlines() == [
        f"error: {message}",
        "  try: easyscale profile job --show --png FILE",
    ]
    if as_json:
        assert json.loads(said.out)["error"]["message"] == message
    else:
        assert said.out == SHOWN
