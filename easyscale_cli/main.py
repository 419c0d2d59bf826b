"""The `easyscale` command: its subcommands, and the one place where errors become exit codes.

A command's module is imported when it is called, so that `easyscale --help` is quick.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from easyscale.errors import EasyScaleError, ExitCode, UsageError
from easyscale_cli.completion import with_job_names

COMMANDS = {
    "launch": "Train a script on the devices there are now",
    "status": "Show how a job is, live or once",
    "jobs": "List the jobs of this machine, or of an etcd",
    "plan": "Show who computes what, and why",
    "events": "List what changed in a job",
    "logs": "Print what the workers of a job printed",
    "devices": "List the slots of a job, or change those of a node",
    "migrate": "Move what a node or slot holds to another",
    "profile": "Measure throughput against slots in the running job",
    "drain": "Have a node or a slot leave at the next step",
    "stop": "End a job at its next step, with a snapshot",
    "fence": "Say that a silent node has ended",
    "verify": "Run a script in many layouts and compare its bits",
    "snapshots": "List, check, compare and remove the snapshots of a job",
    "doctor": "Say whether a job could run here, and what to do if not",
    "completion": "Teach a shell to complete all of this",
}


#: They start processes in ways that only Linux has.
_LINUX_ONLY = frozenset({"launch", "verify", "doctor"})


class Commands(click.Group):
    """Subcommands by name; `easyscale_cli.commands.<name>` holds each as `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        refuse_platform(cmd_name, sys.platform)
        module = importlib.import_module(f"easyscale_cli.commands.{cmd_name}")
        return with_job_names(module.command)

    def get_help(self, ctx: click.Context) -> str:
        from easyscale_cli.views.help import commands_page, page_text

        del ctx
        return page_text(commands_page(self.help or "", COMMANDS))


def refuse_platform(command: str, platform: str) -> None:
    """Raise UsageError where a command cannot work, with what does."""
    if platform == "win32":
        raise UsageError("easyscale needs Linux; this is Windows", hint="the same in WSL2")
    if platform != "linux" and command in _LINUX_ONLY:
        raise UsageError(
            f"easyscale {command} needs Linux; this is {platform}",
            hint="python train.py trains all logical workers in one process here",
        )


def _print_all_pages(context: click.Context, option: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's own
    from easyscale_cli.views.help import print_all_pages

    print_all_pages(context, option, value)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--help-all",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    help="The pages of all commands.",
    callback=_print_all_pages,
)
@click.version_option(package_name="easyscale-torch", message="easyscale %(version)s")
def cli() -> None:
    """Elastic PyTorch training: the same bits on whatever devices there are."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit code and never raises what a person caused."""
    try:
        result = cli.main(args=list(arguments), prog_name="easyscale", standalone_mode=False)
    except click.exceptions.Exit as ending:
        return ending.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.message, err=True)
        return ExitCode.USAGE
    except click.UsageError as error:
        from easyscale_cli.views.errors import json_of_error
        from easyscale_cli.views.usage import asks_for_json, worded

        told = worded(error, arguments)
        if asks_for_json(error, arguments):
            click.echo(json_of_error(told))
        _print_error(told.message, hint=told.hint)
        return ExitCode.USAGE
    except EasyScaleError as error:
        if os.environ.get("EASYSCALE_DEBUG"):
            raise
        _print_error(error.message, hint=error.hint)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    return result if isinstance(result, int) else ExitCode.DONE


def _print_error(message: str, *, hint: str) -> None:
    from easyscale_cli.views.errors import error_lines
    from easyscale_cli.views.style import ColorChoice, paint
    from easyscale_cli.views.writer import FileOutlet, look_of

    look = look_of(sys.stderr, color=ColorChoice.AUTO, ascii_asked=False, environ=os.environ)
    outlet = FileOutlet(sys.stderr.fileno(), sys.stderr.encoding)
    # What reads a pipe or a file looks for one line each.
    cells = outlet.cells() if sys.stderr.isatty() else sys.maxsize
    for line in error_lines(message, hint, cells=cells, glyphs=look.glyphs):
        outlet.write(paint(line, look.palette) + "\n")


def main() -> NoReturn:
    """Entry point of the `easyscale` script."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
