"""The shell completes commands and the names of jobs, in the three shells."""

import click
import pytest
from click.shell_completion import ShellComplete

from easyscale.agent.doors.control import LocalAgent
from easyscale_cli import connection
from easyscale_cli.completion import VARIABLE
from easyscale_cli.main import cli, run


@pytest.mark.parametrize("shell", ("bash", "zsh", "fish"))
def test_the_lines_for_a_shell_name_our_variable(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["completion", shell]) == 0
    shown = capsys.readouterr().out
    assert f"{VARIABLE}={shell}_complete" in shown
    assert "easyscale" in shown


def test_another_shell_is_refused_with_those_there_are() -> None:
    with pytest.raises(click.BadParameter, match="'bash', 'zsh', 'fish'"):
        cli.main(["completion", "tcsh"], prog_name="easyscale", standalone_mode=False)


def offered(*words: str) -> list[str]:
    completion = ShellComplete(cli, {}, "easyscale", VARIABLE)
    return [item.value for item in completion.get_completions(list(words[:-1]), words[-1])]


def test_commands_and_those_below_them_are_offered() -> None:
    assert offered("sn") == ["snapshots"]
    assert offered("snapshots", "") == ["ls", "verify", "diff", "prune"]


@pytest.mark.parametrize("command", (["status"], ["snapshots", "diff"], ["drain"]))
def test_jobs_of_this_machine_are_offered(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = LocalAgent(job="resnet50", node="a", pid=1, socket="/s")
    monkeypatch.setattr(connection, "agents_here", lambda: {"resnet50": [agent], "bert": [agent]})
    assert offered(*command, "re") == ["resnet50"]
