"""`easyscale completion`: the lines that teach a shell to complete our commands."""

import click
from click.shell_completion import get_completion_class

from easyscale.errors import ExitCode
from easyscale_cli.completion import VARIABLE
from easyscale_cli.views.help import PageCommand


@click.command(cls=PageCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, /, shell: str) -> int:
    """Print the lines that let SHELL complete commands, options and the names of jobs here.

    Read them once per shell, from its own start file.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    completion = kind(context.find_root().command, {}, "easyscale", VARIABLE)
    click.echo(kind.source_template % completion.source_vars())
    return ExitCode.DONE
