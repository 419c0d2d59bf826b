"""A command line of `launch` turned into one frozen value, elastic or plain."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from easyscale.agent.plain.settings import PlainSettings
from easyscale.agent.settings import LaunchSettings, StoreSettings
from easyscale.errors import UsageError
from easyscale_cli.meeting_place import (
    host_name,
    nameless_nodes,
    new_job_id,
    password_of,
    store_of,
)
from easyscale_cli.parameters import NodeRange
from easyscale_cli.scripts import check_module, check_script
from easyscale_cli.torchrun_flags import check_flags

if TYPE_CHECKING:
    from easyscale.agent.plain.settings import StaticPlace

#: What nodes call their job when nobody names it, with the port at which they meet.
_NAMELESS = "none"


def read_settings(
    script: str,
    arguments: Sequence[str],
    *,
    asked: Mapping[str, Any],
    environ: Mapping[str, str],
    own_words: frozenset[str] = frozenset(),
) -> tuple[LaunchSettings | PlainSettings, tuple[str, ...]]:
    """Turn a command line into settings and the lines that say what was read in an unusual way.

    Raises UsageError with the value that cannot be meant and one thing to try.
    """
    after = split_script_arguments(arguments)
    logical_workers = after.logical_workers or asked["logical_workers"]
    if logical_workers is not None and logical_workers < 1:
        raise UsageError(
            f"--logical-workers {logical_workers}: a job has at least 1", hint="--logical-workers 1"
        )
    if asked["packed"] and logical_workers is None:
        raise UsageError("--packed needs the number of ranks", hint="--packed --logical-workers N")
    is_plain = asked["packed"] or logical_workers is None
    notes = (*check_flags(asked, is_plain=is_plain), *_notes(script, after.rest, own_words))
    if not asked["no_python"]:
        if asked["is_module"]:
            check_module(script)
        else:
            check_script(script, or_module=True)
    if is_plain:
        after = ScriptArguments(logical_workers, after.rest)
        settings, further = _read_plain(script, after, asked=asked, environ=environ)
        return settings, (*notes, *further)
    from easyscale_cli.elastic_launch import read_elastic

    after = ScriptArguments(logical_workers, after.rest)
    return read_elastic(script, after, asked=asked, environ=environ), notes


def _read_plain(
    script: str, after: "ScriptArguments", *, asked: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[PlainSettings, tuple[str, ...]]:
    from easyscale_cli.plain_launch import Shared, nodes_of, read_plain_settings, static_place

    nodes = nodes_of(asked)
    place = static_place(asked, nodes, workers=after.logical_workers)
    is_static = place is not None
    store = StoreSettings()
    if nodes.most != 1 and not is_static:  # one node has nobody to meet, whatever is said of where
        store = store_of(asked, nodes=nodes, password=password_of(environ))
        if not store.endpoints:
            raise UsageError("several nodes need an etcd to meet at", hint="--etcd HOST:2379")
    shared = Shared(
        job_id=asked["job_id"] or _plain_job_id(script, asked, nodes, place=place, store=store),
        node_name=asked["node_name"] or host_name(environ),
        store=store,
        logical_workers=after.logical_workers,
        arguments=after.rest,
    )
    return read_plain_settings(script, shared, asked=asked, environ=environ)


def _plain_job_id(
    script: str,
    asked: Mapping[str, Any],
    nodes: NodeRange,
    *,
    place: "StaticPlace | None",
    store: StoreSettings,
) -> str:
    """A new name, or one that all nodes of a nameless job find: their port is the same."""
    if nodes.most == 1:
        return new_job_id(script)
    if place is not None:
        return f"{_NAMELESS}-{place.master_port}"
    if asked["rdzv_backend"] != "c10d":
        raise nameless_nodes()
    return f"{_NAMELESS}-{store.serve_at.rpartition(':')[2]}"


class ScriptArguments(NamedTuple):
    """What stands after SCRIPT: our one word that may stand there, and the script's own."""

    logical_workers: int | None
    rest: tuple[str, ...]


def split_script_arguments(arguments: Sequence[str]) -> ScriptArguments:
    """Take `--logical-workers N` directly after SCRIPT; drop a `--` there, as torchrun does."""
    if arguments and arguments[0] == "--":
        return ScriptArguments(None, tuple(arguments[1:]))
    name, equals, value = (arguments[0] if arguments else "").partition("=")
    if name != "--logical-workers":
        return ScriptArguments(None, tuple(arguments))
    used = 1 if equals else 2
    text = value if equals else (arguments[1] if len(arguments) > 1 else "")
    if not text.lstrip("-").isdecimal():
        fact = f"--logical-workers {text}: not a whole number" if text else f"{name}: no number"
        raise UsageError(fact, hint="--logical-workers 16")
    rest = tuple(arguments[used:])
    number = int(text)
    if number < 1:
        raise UsageError(
            f"--logical-workers {number}: a job has at least 1", hint="--logical-workers 1"
        )
    return ScriptArguments(number, rest[1:] if rest[:1] == ("--",) else rest)


def _notes(script: str, rest: Sequence[str], own_words: frozenset[str]) -> tuple[str, ...]:
    ours = [word for word in rest if word.partition("=")[0] in own_words]
    if not ours:
        return ()
    name = Path(script).name
    return (f"what stands after {name} belongs to it, {', '.join(ours)} too",)
