"""`easyscale doctor`: whether a job could run here, and what to do about what would stop it."""

import ast
import contextlib
import socket
import statistics
import time
from collections.abc import Mapping, Sequence
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
from easyscale_cli.views.doctor import doctor_json, doctor_lines
from easyscale_cli.views.help import PageCommand
from easyscale_cli.views.layout import line

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
    type=click.FloatRange(min=1.0),
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
        if asked["bits"] and script is not None:
            checks += _bits(script, asked["logical_workers"], output)
        if output.as_json:
            output.say(doctor_json(checks))
        else:
            output.show(doctor_lines(checks, cells=output.cells, glyphs=output.glyphs))
    return exit_code(checks)


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


def _bits(script: str, n: int | None, output: Output) -> tuple[Check, ...]:
    """Train it on every kind of device at hand; takes a minute."""
    from easyscale.agent.verify.bits import examine
    from easyscale_cli.rehearsing import DEFAULTS, logical_workers_of, rehearsal, target_of

    target = target_of(script, ())
    n = n or logical_workers_of(script, command="doctor --bits")

    def tell(what: str) -> None:
        output.show_live(line(f"training {target.name}: {what}"))

    with rehearsal(target, n, asked=DEFAULTS) as settings:
        checks = examine(settings, tell)
    output.end_live()
    return checks


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
