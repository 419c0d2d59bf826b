"""`easyscale logs` of a folder that a job has left, and what is said of what is not there."""

import json
import time
from datetime import datetime
from pathlib import Path

import click
import pytest

from easyscale.agent.processes.log_files import MarkedLog, worker_folder
from easyscale.model import WorkerId
from easyscale.reports import Stream
from easyscale_cli.commands.logs import Moment
from easyscale_cli.main import run


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two nodes whose logs lie in one folder, and nobody who answers for them."""
    monkeypatch.setattr("easyscale_cli.lookup.agents_here", dict)
    monkeypatch.chdir(tmp_path)
    for node, rank, at_s in (("b", 1, 20.0), ("a", 0, 10.0)):
        folder = worker_folder(tmp_path / "runs/old/logs", WorkerId(node, "life", "cpu:0", 1))
        log = MarkedLog(folder, Stream.STDOUT)
        log.write(f"from {node}\n".encode(), rank, wall_s=at_s)
        log.write(b"unfinished", None, wall_s=at_s + 1)
        log.close()
    return tmp_path


def printed(capfd: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert run(["logs", *words]) == code
    told = capfd.readouterr()
    return told.out if code == 0 else " ".join(told.err.split())


def test_a_folder_is_read_when_nobody_is_left(
    left: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = printed(capfd, "old")
    assert text.splitlines() == [
        "[a/cpu:0 r0] from a", "[b/cpu:0 r1] from b", "[a/cpu:0] unfinished",
        "[b/cpu:0] unfinished",
    ]  # fmt: skip
    assert printed(capfd, "old", "--rank", "1") == "[b/cpu:0 r1] from b\n"
    assert printed(capfd, "old", "--slot", "a/cpu:0", "-f").count("\n") == 2
    since = datetime.fromtimestamp(15.0).astimezone().isoformat()
    assert "from a" not in printed(capfd, "old", "--since", since)
    line = json.loads(printed(capfd, "old", "--json").splitlines()[0])
    assert (line["at"], line["rank"]) == ("1970-01-01T00:00:10.000Z", 0)
    (left / "runs").rename(left / "kept")
    assert "from a" in printed(capfd, "old", "--log-dir", "kept/old/logs")


def test_what_a_plain_job_left_is_read_by_round_and_local_rank(
    left: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for attempt, rank, text in ((0, 0, b"first\n"), (1, 0, b"again\n"), (1, 1, b"other\n")):
        folder = left / f"runs/ddp/logs/ddp_x1/attempt_{attempt}/{rank}"
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_bytes(text)
        (folder / "error.json").write_text("{}")
    told = printed(capfd, "ddp", "--slot", "local:0").splitlines()
    assert told == ["[ddp_x1/local:0] first", "[ddp_x1/local:0] again"]
    line = json.loads(printed(capfd, "ddp", "--slot", "local:1", "--json"))
    assert (line["process"], line["at"], line["rank"]) == (2, None, None)


def test_what_is_not_there_is_said(left: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "no job 'new' on this machine" in printed(capfd, "new", code=1)
    assert "has no logs of node 'c'; it has a, b" in printed(capfd, "old", "--node", "c", code=1)
    told = printed(capfd, "old", "--slot", "cpu:7", code=1)
    assert "has no logs of slot 'cpu:7'; it has cpu:0" in told
    assert "is no time; 10m, 14:05 or" in printed(capfd, "old", "--since", "soon", code=2)
    assert printed(capfd, "old", "--rank", "-1", code=2)
    (left / "runs/plain/logs").mkdir(parents=True)
    assert "holds no logs of workers" in printed(capfd, "plain", code=1)


@pytest.mark.parametrize(
    ("text", "ago_s"), [("10m", 600), ("90s", 90), ("1.5h", 5400), ("2d", 172_800)]
)
def test_a_time_may_be_so_long_ago(text: str, ago_s: float) -> None:
    moment = Moment().convert(text, None, None)
    assert 0 <= time.time() - ago_s - moment < 5


def test_a_time_of_day_is_the_last_one() -> None:
    for text in ("00:00", "23:59", "12:34:56"):
        moment = Moment().convert(text, None, None)
        assert time.time() - 86_400 - 3_700 < moment <= time.time()
        assert datetime.fromtimestamp(moment).astimezone().strftime("%H:%M:%S").startswith(text)


@pytest.mark.parametrize("text", ["", "10", "m", "25:00", "2026-13-01", "tomorrow", "-5m"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Moment().convert(text, None, None)


def test_a_story_is_asked_for_with_whose_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--rank", "3"]) == 2
    assert "--rank says whose story is told" in capfd.readouterr().err
    assert run(["status", "--story", "--rank", "3", "--node", "a"]) == 2
    assert "of a node or of a rank" in capfd.readouterr().err
