"""What was wrong with a command line, in our words: the value, and the nearest thing that works."""

import os
import re
from collections.abc import Sequence

import click

from easyscale.errors import UsageError
from easyscale_cli.views.errors import near_miss

_CHOICES = re.compile(r"is not one of (.*)")


def worded(error: click.UsageError, arguments: Sequence[str] = ()) -> UsageError:
    """The error of click as a fact in lower case with one thing to try.

    ``arguments`` is the command line: an option is named as the person spelled it.
    """
    context = error.ctx
    path = context.command_path if context else "easyscale"
    help_hint = f"{path} --help"
    match error:
        case click.NoSuchOption():
            near = near_miss(error.option_name, _options_of(context))
            return _worded(f"{path} has no option {error.option_name}", near, help_hint)
        case click.exceptions.NoSuchCommand():
            near = near_miss(error.command_name, _commands_of(context))
            hint = f"{path} {near}" if near else None
            return _worded(f"{path} has no command {error.command_name!r}", hint, help_hint)
        case click.MissingParameter() if error.param is not None:
            name = error.param.make_metavar(context) if context else error.param.name
            return _worded(f"{path} needs {name}", None, help_hint)
        case click.BadParameter() if error.param is not None:
            name = _origin(error.param, arguments)
            return _worded(f"{name}: {_fact(error.message)}", None, help_hint)
        case click.BadOptionUsage():
            fact = _fact(error.message.replace(f"Option {error.option_name!r}", "it", 1))
            return _worded(f"{error.option_name}: {fact.removeprefix('it ')}", None, help_hint)
        case _:
            return _worded(_fact(error.format_message()), None, help_hint)


def asks_for_json(error: click.UsageError, arguments: Sequence[str]) -> bool:
    """Tell whether an answer as JSON was asked for on a command line that cannot be read.

    Behind the script of ``launch`` every word is the script's own.
    """
    context = error.ctx
    if context is None or not context.allow_interspersed_args:
        return False
    known = any("--json" in each.opts for each in context.command.get_params(context))
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return known and "--json" in own


def _worded(message: str, near: str | None, otherwise: str) -> UsageError:
    return UsageError(message, hint=near or otherwise)


def _origin(parameter: click.Parameter, arguments: Sequence[str]) -> str:
    """Where a parameter's value came from: the spelling of the option, or a variable."""
    spelled = [name for name in parameter.opts if _stands_in(name, arguments)]
    if not spelled:
        names = parameter.envvar or ()
        names = [names] if isinstance(names, str) else names
        spelled = [name for name in names if os.environ.get(name)]
    name = next(iter(spelled or parameter.opts), "")
    return name if name.startswith("-") or name in os.environ else name.upper()


def _stands_in(name: str, arguments: Sequence[str]) -> bool:
    return any(word == name or word.startswith(f"{name}=") for word in arguments)


def _fact(message: str) -> str:
    """Lower case, no full stop, choices without quotes."""
    text = _CHOICES.sub(lambda found: f"is none of {found[1].replace(chr(39), '')}", message)
    return text[:1].lower() + text[1:].rstrip(".")


def _options_of(context: click.Context | None) -> list[str]:
    parameters = context.command.get_params(context) if context else []
    return [name for parameter in parameters for name in parameter.opts if name[:1] == "-"]


def _commands_of(context: click.Context | None) -> list[str]:
    if context is None or not isinstance(context.command, click.Group):
        return []
    return context.command.list_commands(context)
