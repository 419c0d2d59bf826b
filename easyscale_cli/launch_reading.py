"""A command line of `launch` turned into one frozen value, elastic or plain."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from easyscale.agent.plain.settings import PlainSettings
from easyscale.agent.settings import LaunchSettings, StoreSettings
from easyscale.errors import UsageError
from easyscale_cli.meeting_place import host_name, new_job_id, password_of, store_of
from easyscale_cli.parameters import NodeRange
from easyscale_cli.scripts import check_module, check_script
from easyscale_cli.torchrun_flags import check_flags

#: What nodes call their job when nobody names it and nobody else can come to their etcd.
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
        (check_module if asked["is_module"] else check_script)(script)
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
    is_static = static_place(asked, nodes, workers=after.logical_workers) is not None
    store = StoreSettings()
    if nodes.most != 1 and not is_static:  # one node has nobody to meet, whatever is said of where
        store = store_of(asked, nodes=nodes, password=password_of(environ))
        if not store.endpoints:
            raise UsageError("several nodes need an etcd to meet at", hint="--etcd HOST:2379")
    shared = Shared(
        job_id=asked["job_id"] or _plain_job_id(script, asked, nodes, is_static=is_static),
        node_name=asked["node_name"] or host_name(environ),
        store=store,
        logical_workers=after.logical_workers,
        arguments=after.rest,
    )
    return read_plain_settings(script, shared, asked=asked, environ=environ)


def _plain_job_id(
    script: str, asked: Mapping[str, Any], nodes: NodeRange, *, is_static: bool
) -> str:
    """A new name, or the one by which nodes that meet at an etcd of their own find each other."""
    if nodes.most == 1:
        return new_job_id(script)
    if is_static:
        return _NAMELESS
    if asked["rdzv_backend"] != "c10d":
        raise UsageError(
            "nodes of a job find each other by its name", hint="--rdzv-id NAME, the same on each"
        )
    return _NAMELESS


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
