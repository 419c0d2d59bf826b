"""A launch of a script that calls `easyscale.init`, read into one frozen value."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from easyscale.agent.settings import Balance, LaunchSettings, Timeouts
from easyscale.errors import UsageError
from easyscale.messages import ScriptTarget
from easyscale.model import Determinism
from easyscale.rendezvous.keys import check_name
from easyscale_cli.meeting_place import (
    host_name,
    nameless_nodes,
    new_job_id,
    password_of,
    store_of,
)
from easyscale_cli.parameters import NodeRange, SnapshotPeriod, parse_layout, read_rendezvous_conf

if TYPE_CHECKING:
    from easyscale_cli.launch_reading import ScriptArguments

_DEFAULT_SNAPSHOT_PERIOD_S = 300.0
_DEFAULT_GRACE_S = 30.0


def read_elastic(
    script: str, after: "ScriptArguments", *, asked: Mapping[str, Any], environ: Mapping[str, str]
) -> LaunchSettings:
    logical_workers = after.logical_workers
    assert logical_workers is not None
    target = ScriptTarget.of(script, is_module=asked["is_module"], arguments=after.rest)
    job_id = check_name(asked["job_id"] or new_job_id(target.name), what="job id")
    run_dir = Path("runs") / job_id
    nodes = asked["nodes"] or NodeRange(1, None)
    store = store_of(asked, nodes=nodes, password=password_of(environ))
    if asked["nodes"] and nodes.most != 1 and store.endpoints and asked["job_id"] is None:
        raise nameless_nodes()
    period = asked["snapshot_every"] or SnapshotPeriod(None, _DEFAULT_SNAPSHOT_PERIOD_S)
    conf, _ = read_rendezvous_conf(asked["rdzv_conf"] or "")
    graces = [asked["shutdown_timeout"], asked["grace"], _DEFAULT_GRACE_S]
    return LaunchSettings(
        job_id=job_id,
        job_is_named=asked["job_id"] is not None,
        node_name=check_name(asked["node_name"] or host_name(environ), what="node name"),
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
        store=store,
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


def _balance(asked: Mapping[str, Any]) -> Balance:
    """When ranks move between slots, where the person says so."""
    given = {name: asked[name] for name in Balance.__struct_fields__ if asked.get(name) is not None}
    return Balance(**given)


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
