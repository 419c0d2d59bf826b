"""`easyscale launch`: read the command line into one frozen value and be this node's agent."""

import os
import re
import sys
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import click
from click.core import ParameterSource

from easyscale.agent.plain.settings import PlainSettings
from easyscale.agent.settings import LaunchSettings
from easyscale.model import Determinism
from easyscale.reports import Audience
from easyscale_cli.launch_reading import read_settings
from easyscale_cli.options import option
from easyscale_cli.parameters import (
    NodeRangeType,
    NumberRange,
    SecondsOrNever,
    SnapshotPeriodType,
)
from easyscale_cli.torchrun_flags import PLAIN_WORDS
from easyscale_cli.views.help import PageCommand, page_text
from easyscale_cli.views.launch_help import LAUNCH_PAGE, full_page

_GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
_ONE_GPU = re.compile(r"cuda:\d+")


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
@option("--hang-timeout", type=NumberRange(min=1.0), help="Seconds [from the step time].")
@option("--grace", type=NumberRange(min=0.0), help="From SIGTERM to a hard end [30].")
@option("--shutdown-timeout", type=click.IntRange(min=0), help="The same in torchrun's words.")
@option("--signals-to-handle", help="Signals that end the job here.")
@option("--takeover-after", type=SecondsOrNever(), default="60", show_default=True)
@option(
    "--allow-code-change",
    is_flag=True,
    help="Let in other code or arguments than the job began with.",
)
@option("--slow-from", type=NumberRange(min=1.01), help="Times its kind's median [1.2].")
@option("--slow-steps", type=click.IntRange(min=1), help="For so many steps [5].")
@option("--slow-seconds", "slow_least_s", type=NumberRange(0.0), help="For so long [2].")
@option("--least-gain", type=NumberRange(0.0, 1.0), help="Of a move, as a share [0.05].")
@option("--pays-within", type=click.IntRange(min=1), help="Steps that a move may take [200].")
@option("--trial-steps", type=click.IntRange(min=2), help="A move is judged after these [20].")
@option("--probe-share", type=NumberRange(0.001, 0.5), help="To look at slow slots [0.04].")
@option(
    "--standby", is_flag=True, help="Start a process more: a surplus slot's or the next CPU slot's."
)
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
@option("--progress-every", type=NumberRange(min=0.1), default=30.0, show_default=True)
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
    from easyscale.agent.launching import launch

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


def _own_words(command: click.Command) -> frozenset[str]:
    names = (name for parameter in command.params for name in parameter.opts)
    return frozenset(name for name in names if name.startswith("--"))
