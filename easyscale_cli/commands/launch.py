"""`easyscale launch`: read the command line into one frozen value and be this node's agent."""

import os
import re
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from easyscale.agent.plain.settings import PlainSettings
from easyscale.agent.settings import Balance, LaunchSettings, StoreSettings, Timeouts
from easyscale.errors import UsageError
from easyscale.messages import ScriptTarget
from easyscale.model import Determinism
from easyscale.rendezvous.keys import check_name
from easyscale.reports import Audience
from easyscale_cli.options import option
from easyscale_cli.parameters import (
    NodeRange,
    NodeRangeType,
    SecondsOrNever,
    SnapshotPeriod,
    SnapshotPeriodType,
    parse_layout,
    read_rendezvous_conf,
)
from easyscale_cli.scripts import check_module, check_script
from easyscale_cli.torchrun_flags import PLAIN_WORDS, check_flags
from easyscale_cli.views.help import PageCommand, page_text
from easyscale_cli.views.launch_help import LAUNCH_PAGE, full_page

_DEFAULT_SNAPSHOT_PERIOD_S = 300.0
_DEFAULT_GRACE_S = 30.0
_GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
_ONE_GPU = re.compile(r"cuda:\d+")
#: What torchrun takes for its c10d where no port is given.
_C10D_PORT = 29400
#: What nodes call their job when nobody names it and nobody else can come to their etcd.
_NAMELESS = "none"
_HOST_NAME_VARIABLES = ("SLURMD_NODENAME", "NODE_NAME")


def show_all_help(context: click.Context, option: click.Parameter, value: object) -> None:
    """Print the long page and end, before anything else is read."""
    del option
    if value and not context.resilient_parsing:
        click.echo(page_text(full_page()))
        context.exit()


@click.command(
    cls=PageCommand,
    page=LAUNCH_PAGE,
    context_settings={
        "allow_interspersed_args": False,
        "ignore_unknown_options": False,
        "help_option_names": ["-h", "--help"],
        # torchrun takes both, --nproc_per_node too.
        "token_normalize_func": lambda token: token.replace("_", "-"),
    },
    options_metavar="[OPTIONS]",
)
@option("--nodes", "--nnodes", type=NodeRangeType(), help="Nodes to start with and to allow.")
@option("--devices", help="Slots here: auto, cuda[:LIST] or cpu[:COUNT].")
@option("--devices-file", default="", help="A file that says so, and is followed.")
@option("--nproc-per-node", help="The same in torchrun's words: a number, gpu, cpu or auto.")
@option("--standalone", is_flag=True, help="One machine, own etcd, nothing else to start.")
@option("--max-restarts", type=click.IntRange(min=0), help="Failures borne [0, elastic 3].")
@option("--etcd", "--rdzv-endpoint", help="etcd v3 servers, HOST:PORT,...")
@option(
    "--rdzv-backend",
    type=click.Choice(["c10d", "etcd", "etcd-v2", "easyscale", "static"]),
    help="Who serves that etcd.",
)
@option("--rdzv-conf", help="join_timeout=600,last_call_timeout=3: seconds.")
@option("--job-id", "--rdzv-id", help="The job; the same name goes on with it.")
@option("--node-name", help="This node [host name].")
@option("--local-addr", default="", help="What others are told to connect to.")
@option("--etcd-ca", type=click.Path(dir_okay=False), default="")
@option("--etcd-cert", type=click.Path(dir_okay=False), default="")
@option("--etcd-key", type=click.Path(dir_okay=False), default="")
@option("--etcd-user", default="")
@option("--node-rank", type=int, help="This node's number, where nodes do not meet.")
@option("--master-addr", help="Where rank 0 is then.")
@option("--master-port", type=click.IntRange(1, 65535), help="And its port.")
@option("--logical-workers", type=int, help="Shares of each step; N decides the bits.")
@option("--packed", is_flag=True, help="An unmodified DDP script: N ranks on the slots there are.")
@option(
    "--determinism", type=click.Choice([str(level) for level in Determinism]), default="same-kind"
)
@option("--layout", help="Ranks of each slot in turn, 0,2|1,3, to compare layouts.")
@option("--seed", type=int, help="Stands over the script's init(seed=...).")
@option("--threads-per-worker", type=click.IntRange(min=1), default=1, show_default=True)
@option("--workers-per-device", type=click.IntRange(1, 64), default=1, show_default=True)
@option("--partials", type=click.Choice(["device", "host"]), default="device", show_default=True)
@option("--hang-timeout", type=click.FloatRange(min=1.0), help="Seconds [from the step time].")
@option("--grace", type=click.FloatRange(min=0.0), help="From SIGTERM to a hard end [30].")
@option("--shutdown-timeout", type=click.IntRange(min=0), help="The same in torchrun's words.")
@option("--signals-to-handle", help="Signals that end the job here.")
@option("--takeover-after", type=SecondsOrNever(), default="60", show_default=True)
@option("--allow-code-change", is_flag=True, help="Let in other code than the job began with.")
@option("--slow-from", type=click.FloatRange(min=1.01), help="Times its kind's median [1.2].")
@option("--slow-steps", type=click.IntRange(min=1), help="For so many steps [5].")
@option("--slow-seconds", "slow_least_s", type=click.FloatRange(0.0), help="For so long [2].")
@option("--least-gain", type=click.FloatRange(0.0, 1.0), help="Of a move, as a share [0.05].")
@option("--pays-within", type=click.IntRange(min=1), help="Steps that a move may take [200].")
@option("--standby", is_flag=True, help="Keep one started process more for a joiner.")
@option("--preload", default="", help="Modules to import once per node, before the fork.")
@option("--snapshot-every", type=SnapshotPeriodType(), help="Steps, or seconds as 300s [300s].")
@option("--snapshot-dir", help="Where [runs/JOB].")
@option("--snapshot-keep", type=click.IntRange(min=1), default=3, show_default=True)
@option("--log-dir", help="Every worker's raw output [runs/JOB/logs].")
@option("--metrics-port", type=click.IntRange(0, 65535), help="Where Prometheus may ask [nowhere].")
@option("--redirects", "-r", help="Streams that go to files only: 0-3, or RANK:0-3,...")
@option("--tee", "-t", help="Streams that go to files too.")
@option("--local-ranks-filter", help="The local ranks that the console shows.")
@option("--duplicate-stdout-filters", hidden=True)
@option("--duplicate-stderr-filters", hidden=True)
@option(
    "--progress",
    type=click.Choice(["auto", "live", "plain", "none"]),
    default="auto",
    show_default=True,
)
@option("--progress-every", type=click.FloatRange(min=0.1), default=30.0, show_default=True)
@option("--color", type=click.Choice(["auto", "always", "never"]), default="auto")
@option("--ascii", "use_ascii", is_flag=True, help="Marks from ASCII only.")
@option("--json", "as_json", is_flag=True, help="One JSON object per event on standard output.")
@option("--module", "-m", "is_module", is_flag=True, help="SCRIPT is a module, as python -m.")
@option("--no-python", is_flag=True, help="SCRIPT is a program, not python's.")
@option("--run-path", is_flag=True, help="SCRIPT is run by runpy.")
@option("--role", hidden=True)
@option("--virtual-local-rank", is_flag=True, hidden=True)
@option("--monitor-interval", type=float, hidden=True)
@option("--start-method", type=click.Choice(["spawn", "fork", "forkserver"]), hidden=True)
@option("--event-log-handler", hidden=True)
@option("--logs-specs", hidden=True)
@option("--numa-binding", hidden=True)
@click.option(
    "--help-all",
    is_flag=True,
    is_eager=True,
    hidden=True,
    expose_value=False,
    callback=show_all_help,
    help="This page, and what becomes of each flag of torchrun.",
)
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    context: click.Context, /, script: str, arguments: tuple[str, ...], **asked: Any
) -> int:
    """Train SCRIPT on the devices there are now; same bits on any of them."""
    settings, notes = read_settings(
        script, arguments, asked=asked, environ=os.environ, own_words=_own_words(context.command)
    )
    if isinstance(settings, PlainSettings):
        from easyscale.agent.plain.driver import launch as launch_plain
        from easyscale_cli.plain_launch import writers

        notes = (*notes, *_idle_words(context))
        audience = _open_writer(asked, role=settings.role, tags=writers(settings) > 1)
        return launch_plain(settings, audience, notes=notes)
    from easyscale.agent.driver import launch

    return launch(settings, _open_writer(asked, tags=not _is_one_slot(settings)), notes=notes)


def _idle_words(context: click.Context) -> tuple[str, ...]:
    """The lines for what was given and means something to elastic jobs only."""
    given = [
        option
        for option in context.command.params
        if option.name and context.get_parameter_source(option.name) in _GIVEN
    ]
    return tuple(
        f"{option.opts[0]} has no effect in a job whose script does not call easyscale.init"
        for option in given
        if option.name not in PLAIN_WORDS
    )


def _is_one_slot(settings: LaunchSettings) -> bool:
    """Whether no more than one worker of this node can ever write."""
    is_one = settings.devices == "cpu:1" or _ONE_GPU.fullmatch(settings.devices) is not None
    return is_one and settings.workers_per_device == 1 and not settings.devices_file


def _open_writer(asked: Mapping[str, Any], *, role: str = "", tags: bool = True) -> Audience:
    from easyscale_cli.views.stage import ProgressChoice, StageSettings
    from easyscale_cli.views.style import ColorChoice
    from easyscale_cli.views.writer import LaunchWriter, look_of

    color, ascii_asked = ColorChoice(asked["color"]), asked["use_ascii"]
    out, err = (
        look_of(stream, color=color, ascii_asked=ascii_asked, environ=os.environ)
        for stream in (sys.stdout, sys.stderr)
    )
    settings = StageSettings(
        out=out,
        err=err,
        version=version("easyscale-torch"),
        progress=ProgressChoice(asked["progress"]),
        progress_every_s=asked["progress_every"],
        json=asked["as_json"],
        tags=tags,
        role=role,
        keys=("ctrl-c ends it",) if role else ("ctrl-c drain",),
    )
    return LaunchWriter(settings)


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
    after = ScriptArguments(logical_workers, after.rest)
    return _read_elastic(script, after, asked=asked, environ=environ), notes


def _read_plain(
    script: str, after: "ScriptArguments", *, asked: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[PlainSettings, tuple[str, ...]]:
    from easyscale_cli.plain_launch import Shared, nodes_of, read_plain_settings, static_place

    nodes = nodes_of(asked)
    is_static = static_place(asked, nodes, workers=after.logical_workers) is not None
    store = StoreSettings()
    if nodes.most != 1 and not is_static:  # one node has nobody to meet, whatever is said of where
        store = _store(asked, nodes=nodes, password=_password(environ))
        if not store.endpoints:
            raise UsageError("several nodes need an etcd to meet at", hint="--etcd HOST:2379")
    shared = Shared(
        job_id=asked["job_id"] or _plain_job_id(script, asked, nodes, is_static=is_static),
        node_name=asked["node_name"] or _host_name(environ),
        store=store,
        logical_workers=after.logical_workers,
        arguments=after.rest,
    )
    return read_plain_settings(script, shared, asked=asked, environ=environ)


def _plain_job_id(
    script: str, asked: Mapping[str, Any], nodes: NodeRange, *, is_static: bool
) -> str:
    """A new name, or the one by which nodes that meet at an etcd of their own find each other."""
    if is_static:
        return _NAMELESS
    if nodes.most == 1:
        return _new_job_id(script)
    if asked["rdzv_backend"] != "c10d":
        raise UsageError(
            "nodes of a job find each other by its name", hint="--rdzv-id NAME, the same on each"
        )
    return _NAMELESS


def _read_elastic(
    script: str, after: "ScriptArguments", *, asked: Mapping[str, Any], environ: Mapping[str, str]
) -> LaunchSettings:
    logical_workers = after.logical_workers
    assert logical_workers is not None
    target = ScriptTarget.of(script, is_module=asked["is_module"], arguments=after.rest)
    job_id = check_name(asked["job_id"] or _new_job_id(target.name), what="job id")
    run_dir = Path("runs") / job_id
    nodes = asked["nodes"] or NodeRange(1, None)
    period = asked["snapshot_every"] or SnapshotPeriod(None, _DEFAULT_SNAPSHOT_PERIOD_S)
    conf, _ = read_rendezvous_conf(asked["rdzv_conf"] or "")
    graces = [asked["shutdown_timeout"], asked["grace"], _DEFAULT_GRACE_S]
    return LaunchSettings(
        job_id=job_id,
        node_name=check_name(asked["node_name"] or _host_name(environ), what="node name"),
        node_is_chosen=asked["node_name"] is not None,
        script=target,
        working_directory=str(Path.cwd()),
        environment=dict(environ),
        logical_workers=logical_workers,
        min_nodes=nodes.least,
        max_nodes=nodes.most,
        layout=parse_layout(asked["layout"], logical_workers),
        devices=_devices(asked),
        devices_file=asked["devices_file"],
        store=_store(asked, nodes=nodes, password=_password(environ)),
        local_address=asked["local_addr"],
        seed=asked["seed"],
        threads_per_worker=asked["threads_per_worker"],
        workers_per_device=asked["workers_per_device"],
        determinism=Determinism(asked["determinism"]),
        left_open=_left_open(),
        partials=asked["partials"],
        preload=tuple(filter(None, asked["preload"].split(","))),
        standby=asked["standby"],
        allow_code_change=asked["allow_code_change"],
        max_restarts=3 if asked["max_restarts"] is None else asked["max_restarts"],
        hang_timeout_s=asked["hang_timeout"],
        takeover_after_s=asked["takeover_after"],
        grace_s=next(float(each) for each in graces if each is not None),
        snapshot_dir=asked["snapshot_dir"] or str(run_dir),
        snapshot_every_steps=period.steps,
        snapshot_every_s=period.seconds,
        snapshot_keep=asked["snapshot_keep"],
        log_dir=asked["log_dir"] or str(run_dir / "logs"),
        balance=_balance(asked),
        metrics_port=asked["metrics_port"],
        timeouts=Timeouts(meeting_timeout_s=conf.join_timeout_s),
    )


def _left_open() -> tuple[str, ...]:
    """What the script may have its own word on, since nobody gave one here."""
    context = click.get_current_context(silent=True)
    return tuple(
        name
        for name in ("threads_per_worker", "determinism")
        if context and context.get_parameter_source(name) is ParameterSource.DEFAULT
    )


def _password(environ: Mapping[str, str]) -> str:
    return environ.get("EASYSCALE_ETCD_PASSWORD", "")


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


def _own_words(command: click.Command) -> frozenset[str]:
    names = (name for parameter in command.params for name in parameter.opts)
    return frozenset(name for name in names if name.startswith("--"))


def _balance(asked: Mapping[str, Any]) -> Balance:
    """When ranks move between slots, where the person says so."""
    names = ("slow_from", "slow_steps", "slow_least_s", "least_gain", "pays_within")
    return Balance(**{name: asked[name] for name in names if asked[name] is not None})


def _devices(asked: Mapping[str, Any]) -> str:
    from easyscale.agent.hardware.devices import Machine, devices_of_nproc
    from easyscale.agent.hardware.devices_file import read_word

    devices, nproc_per_node = asked["devices"], asked["nproc_per_node"]
    if asked["devices_file"]:
        if devices is not None or nproc_per_node is not None:
            message = "--devices-file says the slots; --devices and --nproc-per-node do too"
            raise UsageError(message, hint="give one of them")
        return read_word(Path(asked["devices_file"]))
    if nproc_per_node is None:
        return devices or "auto"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    same = devices_of_nproc(nproc_per_node, inventory=Machine(visible=visible))
    if devices is not None and devices != same:
        message = f"--devices {devices} and --nproc-per-node {nproc_per_node} name different slots"
        raise UsageError(message, hint="give one of the two")
    return same


def _store(asked: Mapping[str, Any], *, nodes: NodeRange, password: str) -> StoreSettings:
    endpoints = tuple(part.strip() for part in (asked["etcd"] or "").split(",") if part.strip())
    serve_at = _serve_at(asked, endpoints)
    if asked["standalone"] and endpoints:
        message = f"--standalone starts an etcd of its own; --etcd {asked['etcd']} names another"
        raise UsageError(message, hint="give one of the two")
    if not endpoints and nodes.least > 1:
        raise UsageError(
            f"{nodes.least} nodes need an etcd at which they meet", hint="--etcd HOST:2379"
        )
    return StoreSettings(
        endpoints=(serve_at,) if serve_at else endpoints,
        serve_at=serve_at,
        ca_file=asked["etcd_ca"],
        certificate_file=asked["etcd_cert"],
        key_file=asked["etcd_key"],
        user=asked["etcd_user"],
        password=password,
    )


def _serve_at(asked: Mapping[str, Any], endpoints: Sequence[str]) -> str:
    """Where the agent that finds HOST to be its own serves etcd; empty: etcd runs by itself."""
    from easyscale.rendezvous.endpoints import parse_endpoint

    backend = asked["rdzv_backend"]
    if backend == "static":
        raise UsageError(
            "--rdzv-backend static fixes nodes and ranks; an elastic job changes both",
            hint="--rdzv-backend c10d, or --etcd HOST:PORT",
        )
    if backend != "c10d" or not endpoints:
        return ""
    if len(endpoints) > 1:
        raise UsageError(
            f"--rdzv-backend c10d: one of the nodes serves, {len(endpoints)} addresses are given",
            hint="give one HOST:PORT, or --rdzv-backend etcd",
        )
    secure = [name for name in ("etcd_ca", "etcd_cert", "etcd_key", "etcd_user") if asked[name]]
    if secure:
        raise UsageError(
            f"--{secure[0].replace('_', '-')}: the etcd that an agent serves has neither TLS nor"
            " users",
            hint="an etcd of your own, with --etcd HOST:PORT and no --rdzv-backend c10d",
        )
    return str(parse_endpoint(endpoints[0], default_port=_C10D_PORT))


def _new_job_id(script: str) -> str:
    stem = "".join(
        c if (c.isascii() and c.isalnum()) or c in "-_" else "-" for c in Path(script).stem
    )
    return f"{stem[:40] or 'job'}-{secrets.token_hex(3)}"


def _host_name(environ: Mapping[str, str]) -> str:
    for variable in _HOST_NAME_VARIABLES:
        if environ.get(variable):
            return environ[variable]
    return socket.gethostname().partition(".")[0] or "node"
