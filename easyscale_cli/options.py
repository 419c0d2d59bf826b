"""What the options of all commands share: environment variables, the store, the look."""

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def environment_names(names: Sequence[str]) -> list[str]:
    """The variables that set an option: `EASYSCALE_<NAME>` of each spelling, then `PET_<NAME>`."""
    words = [
        name.removeprefix("--").replace("-", "_").upper() for name in names if name[:2] == "--"
    ]
    return [f"EASYSCALE_{word}" for word in words] + [f"PET_{word}" for word in words]


def option(*names: str, **attributes: Any) -> Callable[[F], F]:  # noqa: ANN401 - click's own
    """An option that `EASYSCALE_<NAME>`, then torchrun's `PET_<NAME>` sets too."""
    return click.option(*names, envvar=environment_names(names), **attributes)


def _rare_file(name: str, text: str) -> Callable[[F], F]:
    """An option that `--help-all` alone shows."""
    kind = click.Path(dir_okay=False)
    return option(name, type=kind, default="", hidden=True, metavar="FILE", help=text)


def store_options(command: F) -> F:
    """The options that say where a job's records are, for commands that are used from anywhere."""
    options = (
        option(
            "--etcd",
            "--rdzv-endpoint",
            metavar="HOST:PORT,...",
            help="The job's etcd [jobs of this machine are found without it].",
        ),
        _rare_file("--etcd-ca", "Who signed etcd's certificate."),
        _rare_file("--etcd-cert", "Our certificate, where etcd asks for one."),
        _rare_file("--etcd-key", "The key of that certificate."),
        option(
            "--etcd-user",
            default="",
            hidden=True,
            metavar="NAME",
            help="A user of etcd; the password only from EASYSCALE_ETCD_PASSWORD.",
        ),
    )
    for each in reversed(options):
        command = each(command)
    return command


def look_options(command: F) -> F:
    """How a command's answer looks: for a program, or on this terminal."""
    options = (
        click.option("--json", "as_json", is_flag=True, help="One JSON object for programs."),
        option(
            "--color",
            type=click.Choice(["auto", "always", "never"]),
            default="auto",
            help="Colours; NO_COLOR and FORCE_COLOR too [auto].",
        ),
        option("--ascii", "use_ascii", is_flag=True, help="Marks from ASCII only."),
    )
    for each in reversed(options):
        command = each(command)
    return command


def user_name() -> str:
    """Who asks, as reasons name a person."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"  # a container's user need not have a name
