"""`easyscale doctor`: whether a job could run here, and what to do about what would stop it."""

import ast
import contextlib
import socket
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from easyscale.agent.checkup.checkup import Echo, meet
from easyscale.agent.checkup.doctor import ScriptFacts, StoreFacts, judge
from easyscale.agent.checkup.doctor_report import Check, Level
from easyscale.agent.checkup.node_facts import NodeFacts, gather, marked
from easyscale.errors import EasyScaleError, ExitCode, StoreError, UsageError
from easyscale.rendezvous.endpoints import EtcdSettings, own_address_towards, server_version
from easyscale.rendezvous.keys import check_name
from easyscale.rendezvous.store import Put, Store
from easyscale_cli.options import look_options, option, store_options
from easyscale_cli.output import Output
from easyscale_cli.parameters import NumberRange
from easyscale_cli.views.doctor import check_lines, doctor_json, verdict_lines
from easyscale_cli.views.help import PageCommand

_CALL_TIMEOUT_S = 2.0
_PROBES = 20
#: Named in a script, they say that it trains by process.
_BY_PROCESS = frozenset({"init_process_group", "DistributedDataParallel", "DistributedSampler"})


@click.command(cls=PageCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("script", required=False)
@click.option(
    "--nnodes",
    "nodes",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Check N nodes together: run the same line on each, at the same time [1].",
)
@click.option(
    "--wait",
    "wait_s",
    type=NumberRange(min=1.0),
    default=60.0,
    metavar="SECONDS",
    help="How long the other nodes are waited for [60].",
)
@click.option(
    "--bits",
    is_flag=True,
    help="Also train SCRIPT a few steps: does it keep its bits at D0, D1 and D2?",
)
@option(
    "--logical-workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="For --bits [what the script passes to init].",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=6,
    show_default=True,
    metavar="N",
    help="For --bits: global steps of each run; the rest of the training is left out.",
)
@option(
    "--preload",
    metavar="M,...",
    default="",
    help="For --bits: modules to import once instead of in each worker [the installed ones that "
    "the script's top imports].",
)
@option("--node-name", default="", metavar="NAME", help="This node [host name].")
@option("--snapshot-dir", default="runs", metavar="DIR", help="Where snapshots would go [runs].")
@store_options
@look_options
def command(script: str | None, *, nodes: int, wait_s: float, **asked: Any) -> int:
    """Say whether a job could run here: etcd, clocks, ports, devices, torch, limits, folders.

    With SCRIPT, also in which mode it would start; with --bits, whether it keeps its bits on the
    devices here, what D2 costs, and which operator differs first between kinds of devices. A
    warning costs speed or safety, a fault stops a job; every line that is not good says what to do.
    """
    output = Output(asked)
    with output.answering():
        if nodes > 1 and not asked["etcd"]:
            raise UsageError(f"{nodes} nodes meet in an etcd", hint="--etcd HOST:2379")
        if asked["bits"] and script is None:
            raise UsageError("--bits trains a script", hint="easyscale doctor --bits SCRIPT")
        checks = judge(*_examine(nodes, wait_s, asked, output), _script_facts(script))
        _show(checks, output)
        if asked["bits"] and script is not None:
            bits = _bits(script, asked, output)
            _show(bits, output)
            checks += bits
        if output.as_json:
            output.say(doctor_json(checks))
        else:
            output.show(verdict_lines(checks, cells=output.cells, glyphs=output.glyphs))
    return exit_code(checks)


def _show(checks: Sequence[Check], output: Output) -> None:
    if not output.as_json:
        output.show(check_lines(checks, cells=output.cells, glyphs=output.glyphs))


def exit_code(checks: Sequence[Check]) -> int:
    """1 for a fault; warnings stop nobody."""
    is_faulty = any(check.level is Level.FAULT for check in checks)
    return ExitCode.JOB_FAILED if is_faulty else ExitCode.DONE


def _examine(
    nodes: int, wait_s: float, asked: Mapping[str, Any], output: Output
) -> tuple[StoreFacts, tuple[NodeFacts, ...]]:
    host = socket.gethostname().partition(".")[0]
    name = check_name(asked["node_name"] or host or "node", what="node name")
    folder = Path(asked["snapshot_dir"])
    own = gather(name, folder)
    if not asked["etcd"]:
        return _own_store(), (own,)
    from easyscale_cli import stored

    settings = stored.etcd_settings(asked)
    try:
        store = stored.connect(settings)
    except StoreError as error:
        if nodes > 1:
            raise
        return StoreFacts(endpoints=len(settings.endpoints), fault=error.message,
                          hint=error.hint), (own,)  # fmt: skip
    with contextlib.closing(store):
        facts = _store_facts(store, settings, name)
        if nodes == 1:
            return facts, (own,)
        return facts, _together(
            store, own, nodes=nodes, wait_s=wait_s, output=output, settings=settings
        )


def _together(
    store: Store,
    own: NodeFacts,
    *,
    nodes: int,
    wait_s: float,
    output: Output,
    settings: EtcdSettings,
) -> tuple[NodeFacts, ...]:
    def tell(what: str, waited_s: float) -> None:
        output.wait_for(what, waited_s=waited_s, limit_s=wait_s)

    folder = Path(own.folder.path)
    with (
        contextlib.closing(Echo(own_address_towards(settings.endpoints))) as echo,
        marked(folder, own.node),
    ):
        own = msgspec.structs.replace(own, address=echo.address)
        return meet(store, own, nodes=nodes, limit_s=wait_s, folder=folder, tell=tell)


def _own_store() -> StoreFacts:
    """The etcd that a launch here would start."""
    from easyscale.rendezvous.embedded import find_binary

    try:
        binary = find_binary()
    except EasyScaleError as error:
        return StoreFacts(fault=error.message, hint=error.hint)
    kind = "bundled" if binary.is_bundled else str(binary.path)
    return StoreFacts(version=f"{kind} {binary.version}")


def _store_facts(store: Store, settings: EtcdSettings, node: str) -> StoreFacts:
    try:
        endpoint = settings.endpoints[0]
        version = server_version(endpoint, settings, timeout_s=_CALL_TIMEOUT_S)
    except StoreError:  # another endpoint answers
        version = "version unknown"
    times = []
    key = f"/easyscale/doctor-probe/{node}"
    try:
        lease = store.grant(10, timeout_s=_CALL_TIMEOUT_S)
        for number in range(_PROBES):
            began_s = time.monotonic()
            store.transact([], [Put(key, str(number), lease)], timeout_s=_CALL_TIMEOUT_S)
            times.append(time.monotonic() - began_s)
        store.revoke(lease, timeout_s=_CALL_TIMEOUT_S)
    except StoreError as error:
        return StoreFacts(
            endpoints=len(settings.endpoints), version=version, fault=error.message, hint=error.hint
        )
    return StoreFacts(
        endpoints=len(settings.endpoints),
        version=version,
        warning=getattr(store, "warning", ""),
        put_s=statistics.median(times),
        slowest_put_s=max(times),
    )


def _bits(script: str, asked: Mapping[str, Any], output: Output) -> tuple[Check, ...]:
    """Train it some steps on every kind of device at hand; takes a minute or more."""
    from easyscale.agent.verify.bits import examine, planned_runs
    from easyscale_cli.rehearsing import (
        DEFAULTS,
        installed_imports,
        logical_workers_of,
        rehearsal,
        target_of,
    )

    target = target_of(script, ())
    n = asked["logical_workers"] or logical_workers_of(script, command="doctor --bits")
    steps = asked["steps"]
    with rehearsal(target, n, asked={**DEFAULTS, "preload": asked["preload"]}) as settings:
        runs = planned_runs(settings, steps=steps)
        told = Training(target.name, output, runs=runs, steps=steps, clock=time.monotonic)
        guessed = () if settings.preload else installed_imports(Path(script))
        try:
            return examine(settings, told.tell, steps=steps, guessed=guessed)
        finally:
            output.end_work()


class Training:
    """Says which run goes on, in which step it is, and since when the script is trained."""

    def __init__(
        self,
        script: str,
        output: Output,
        *,
        runs: int,
        steps: int,
        clock: Callable[[], float],
    ) -> None:
        self._script = script
        self._output = output
        self._runs = runs
        self._steps = steps
        self._clock = clock
        self._began_s = clock()
        self._run = ""
        self._number = 0

    def tell(self, run: str, step: int) -> None:
        from easyscale.agent.verify.kinds import LOOKING

        is_planned = not run.endswith(LOOKING)
        if run != self._run:
            self._run = run
            self._number += is_planned
        of = f", run {self._number} of {self._runs}" if is_planned else ""
        since = f"{self._clock() - self._began_s:.0f} s"
        at = f", step {step} of {self._steps}" if step else ""
        self._output.tell_work(f"training {self._script}{of}, {since}: {run}{at}", stage=run)


def _script_facts(script: str | None) -> ScriptFacts | None:
    """Read the script's own text; nothing of it is run."""
    if script is None:
        return None
    name = Path(script).name
    try:
        tree = ast.parse(Path(script).read_bytes(), filename=name)
    except OSError as error:
        return ScriptFacts(name=name, fault=(error.strerror or str(error)).lower())
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f" at line {line}" if line else ""
        return ScriptFacts(name=name, fault=f"no python{where}: {getattr(error, 'msg', error)}")
    return script_facts(name, tree)


def script_facts(name: str, tree: ast.AST) -> ScriptFacts:
    """Whether it calls easyscale.init, and what it names that trains by process."""
    bound = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "easyscale"
        for alias in node.names
        if alias.name == "init"
    }
    modules = {
        alias.asname or "easyscale"
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "easyscale"
    }
    calls = any(
        _is_init(node.func, bound, modules) for node in ast.walk(tree) if isinstance(node, ast.Call)
    )
    used = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute | ast.Name)
    }
    return ScriptFacts(name=name, calls_init=calls, by_process=tuple(sorted(used & _BY_PROCESS)))


def _is_init(function: ast.expr, bound: set[str], modules: set[str]) -> bool:
    match function:
        case ast.Name(id=name):
            return name in bound
        case ast.Attribute(value=ast.Name(id=module), attr="init"):
            return module in modules
        case _:
            return False
