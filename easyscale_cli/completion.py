"""What the shell offers after a tab: commands and options by click, and the names of jobs here."""

import contextlib

import click
from click.shell_completion import CompletionItem

from easyscale.errors import EasyScaleError

#: The variable by which the shell asks; its value says for which shell.
VARIABLE = "_EASYSCALE_COMPLETE"


class JobName(click.ParamType[str]):
    """The name of a job; the shell offers those with an agent on this machine."""

    name = "job"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        del param, ctx
        return value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        del ctx, param
        from easyscale_cli.connection import agents_here

        with contextlib.suppress(EasyScaleError, OSError):  # nothing to offer is no error
            return [CompletionItem(name) for name in agents_here() if name.startswith(incomplete)]
        return []


def with_job_names(command: click.Command) -> click.Command:
    """Let the shell offer jobs wherever a command takes one."""
    for parameter in command.params:
        if isinstance(parameter, click.Argument) and parameter.name == "job":
            parameter.type = JobName()
    if isinstance(command, click.Group):
        for each in command.commands.values():
            with_job_names(each)
    return command
