"""A launch without `easyscale.init`, read from torchrun's words into one frozen value."""

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from easyscale.agent.plain.settings import (
    DEFAULT_SIGNALS,
    NEW_PIPE,
    Entry,
    LogSettings,
    PlainSettings,
    StaticPlace,
    parse_signals,
    parse_std,
)
from easyscale.agent.settings import StoreSettings
from easyscale.errors import UsageError
from easyscale.rendezvous.keys import check_name
from easyscale_cli.parameters import NodeRange, read_rendezvous_conf

#: Where torchrun's static nodes meet when no port is given.
_STATIC_PORT = 29500
#: Of torchrun's agent, for what needs torch there or has another form here.
_IDLE_VARIABLES = (
    "TORCHELASTIC_HEALTH_CHECK_PORT",
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
)
#: What says where rank 0 is.
_STATIC_FLAGS = ("--node-rank", "--master-addr", "--master-port")
_DEFAULT_SHUTDOWN_S = 30.0
_SHUTDOWN_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"


class Shared(NamedTuple):
    """What plain and elastic launches read alike, in launch.py."""

    job_id: str
    node_name: str
    store: StoreSettings
    logical_workers: int | None
    arguments: tuple[str, ...]


def read_plain_settings(
    script: str, shared: Shared, *, asked: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[PlainSettings, tuple[str, ...]]:
    """Settings, and the lines that say what was read in an unusual way; raises UsageError."""
    nodes = nodes_of(asked)
    static = static_place(asked, nodes, workers=shared.logical_workers)
    conf, notes = read_rendezvous_conf(asked["rdzv_conf"] or "")
    slots = _slots(asked, environ, is_packed=shared.logical_workers is not None)
    settings = PlainSettings(
        job_id=check_name(shared.job_id, what="job id"),
        node_name=check_name(shared.node_name, what="node name"),
        node_is_chosen=asked["node_name"] is not None,
        entry=_entry(asked),
        script=script,
        arguments=shared.arguments,
        python=environ.get("PYTHON_EXEC", sys.executable),
        working_directory=str(Path.cwd()),
        environment=dict(environ),
        slots=slots.names,
        slot_environments=slots.environments,
        logical_workers=shared.logical_workers,
        devices_file=asked["devices_file"],
        min_nodes=1 if static else nodes.least,
        max_nodes=1 if static else nodes.most,
        static=static,
        meets=bool(shared.store.endpoints),
        store=shared.store,
        local_address=asked["local_addr"],
        role=asked["role"] or "default",
        max_restarts=asked["max_restarts"] or 0,
        logs=_logs(asked, shared.job_id),
        stop_signals=parse_signals(asked["signals_to_handle"] or DEFAULT_SIGNALS),
        shutdown_timeout_s=_shutdown_timeout(asked, environ),
        watchdog=_watchdog(environ),
        virtual_local_rank=asked["virtual_local_rank"],
        cores=_cores(asked, environ, workers=len(slots.names)),
        join_timeout_s=conf.join_timeout_s,
        last_call_s=conf.last_call_s,
    )
    idle = [f"{name} has no effect here" for name in _IDLE_VARIABLES if environ.get(name)]
    if static is None:
        given = [name for name in _STATIC_FLAGS if asked[name[2:].replace("-", "_")] is not None]
        idle += [f"{name} has no effect: {_why_not_static(nodes)}" for name in given]
    return settings, (*notes, *slots.notes, *idle, *_absent_ranks(settings))


def _why_not_static(nodes: NodeRange) -> str:
    return "one node needs no other" if nodes.most == 1 else "nodes that meet get their ranks"


def _absent_ranks(settings: PlainSettings) -> list[str]:
    """The lines for local ranks that are named and that this node has not."""
    logs, workers = settings.logs, _workers(settings)
    named = {
        "--redirects": logs.redirects.by_rank or (),
        "--tee": logs.tee.by_rank or (),
        "--local-ranks-filter": logs.shown_ranks or (),
    }
    return [
        f"{flag} names local rank {rank}: this node has {workers}, counted from 0"
        for flag, ranks in named.items()
        for rank in sorted(ranks)
        if rank >= workers
    ]


def writers(settings: PlainSettings) -> int:
    """How many workers of this node write to the console."""
    return sum(_shows(settings.logs, rank) for rank in range(_workers(settings)))


def _workers(settings: PlainSettings) -> int:
    """The most workers that this node may have."""
    slots = len(settings.slots)
    return slots if settings.logical_workers is None else settings.logical_workers


def _shows(logs: LogSettings, rank: int) -> bool:
    if logs.shown_ranks is not None and rank not in logs.shown_ranks:
        return False
    return logs.redirects.of(rank) & ~logs.tee.of(rank) != 3  # noqa: PLR2004 - both streams


# --- where it runs -------------------------------------------------------------------------------


def nodes_of(asked: Mapping[str, Any]) -> NodeRange:
    """How many nodes to start with and to allow; one, where nobody says."""
    return NodeRange(1, 1) if asked["standalone"] else asked["nodes"] or NodeRange(1, 1)


def static_place(
    asked: Mapping[str, Any], nodes: NodeRange, *, workers: int | None
) -> StaticPlace | None:
    """Where rank 0 is, if the command line says it instead of letting nodes meet."""
    backend, endpoint = asked["rdzv_backend"], asked["etcd"]
    told = [asked[name] is not None for name in ("node_rank", "master_addr", "master_port")]
    is_static = backend == "static" or (
        backend is None and any(told) and (not endpoint or asked["node_rank"] is not None)
    )
    if not is_static:
        return None
    if nodes.least != nodes.most:
        raise UsageError(
            f"--nnodes {nodes.least}:{nodes.most}: nodes that are told their ranks cannot come"
            " and go",
            hint="--nnodes N, or --rdzv-endpoint HOST:PORT",
        )
    address, port = asked["master_addr"], asked["master_port"]
    if endpoint:
        address, port = _split_endpoint(endpoint)
    if nodes.least == 1:
        return (
            None
            if port is None
            else StaticPlace(
                nodes=1, node_rank=0, master_addr=address or "127.0.0.1", master_port=port
            )
        )
    if workers is not None:
        raise UsageError(
            "--packed over several nodes needs them to meet", hint="--rdzv-endpoint HOST:PORT"
        )
    return _place_among(asked, nodes.least, address=address, port=port)


def _place_among(
    asked: Mapping[str, Any], nodes: int, *, address: str | None, port: int | None
) -> StaticPlace:
    node_rank = asked["node_rank"] or 0
    if not 0 <= node_rank < nodes:
        raise UsageError(
            f"--node-rank {node_rank}: the ranks of {nodes} nodes are 0 to {nodes - 1}",
            hint=f"--node-rank {nodes - 1}",
        )
    if asked["max_restarts"]:
        raise UsageError(
            f"--max-restarts {asked['max_restarts']}: nodes that do not meet cannot begin again"
            " together",
            hint="--rdzv-backend c10d --rdzv-endpoint HOST:PORT instead of --node-rank",
        )
    return StaticPlace(
        nodes=nodes,
        node_rank=node_rank,
        master_addr=address or "127.0.0.1",
        master_port=port or _STATIC_PORT,
    )


def _split_endpoint(text: str) -> tuple[str, int]:
    from easyscale.rendezvous.endpoints import parse_endpoint

    return parse_endpoint(text, default_port=_STATIC_PORT)


class _Slots(NamedTuple):
    names: tuple[str, ...]
    environments: Mapping[str, Mapping[str, str]]
    notes: tuple[str, ...] = ()


def _slots(asked: Mapping[str, Any], environ: Mapping[str, str], *, is_packed: bool) -> _Slots:
    """The places of this node's workers; a number changes nothing that they see, as in torchrun."""
    if asked["devices_file"] and not is_packed:
        raise UsageError(
            "--devices-file: the slots of a plain job do not change", hint="--nproc-per-node N"
        )
    word = asked["nproc_per_node"]
    if word is not None and asked["devices"] is not None:
        raise UsageError("--devices and --nproc-per-node both name the slots", hint="give one")
    if word is None and asked["devices"] is None and not is_packed:
        word = "1"
    if not is_packed and word is not None and word.isdecimal() and int(word) > 0:
        return _Slots(tuple(f"local:{rank}" for rank in range(int(word))), {})
    from easyscale.agent.hardware.devices import Machine, find_slots, slot_environment

    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if not is_packed and word is not None:
        count = _count(word, Machine(visible=visible))
        return _Slots(tuple(f"local:{rank}" for rank in range(count)), {})
    devices = _devices_word(asked, Machine(visible=visible))
    slots, notes = find_slots(devices, threads_per_worker=1, visible=visible)
    names = tuple(slot.name for slot in slots)
    if is_packed:
        environments = {slot.name: slot_environment(slot) for slot in slots}
        return _Slots(names, environments, notes)
    # Plain workers see all chosen devices and pick theirs by LOCAL_RANK.
    uuids = ",".join(slot.uuid for slot in slots if slot.uuid)
    seen = {"CUDA_VISIBLE_DEVICES": uuids, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if uuids else {}
    return _Slots(names, dict.fromkeys(names, seen), notes)


def _devices_word(asked: Mapping[str, Any], machine: Any) -> str:  # noqa: ANN401 - an Inventory
    from easyscale.agent.hardware.devices import devices_of_nproc
    from easyscale.agent.hardware.devices_file import read_word

    if asked["devices_file"]:
        return read_word(Path(asked["devices_file"]))
    if asked["nproc_per_node"] is not None:
        return devices_of_nproc(asked["nproc_per_node"], inventory=machine)
    return asked["devices"] or "auto"


def _count(word: str, machine: Any) -> int:  # noqa: ANN401 - an Inventory
    """How many workers torchrun's word means on this machine."""
    if word == "cpu":
        return int(machine.cores())
    if word in {"auto", "gpu", "cuda"}:
        gpus = len(machine.gpus())
        if gpus or word == "auto":
            return gpus or int(machine.cores())
        raise UsageError(f"--nproc-per-node {word}: there is no GPU on this node", hint="cpu")
    raise UsageError(
        f"--nproc-per-node {word}: the forms are a number, auto, gpu or cpu",
        hint="--nproc-per-node auto",
    )


def _cores(
    asked: Mapping[str, Any], environ: Mapping[str, str], *, workers: int
) -> tuple[tuple[int, ...], ...]:
    if asked["numa_binding"] is None:
        return ()
    from easyscale.agent.hardware.devices import Machine
    from easyscale.agent.plain import numa

    if asked["packed"]:
        raise UsageError(
            "--numa-binding: packed ranks move from slot to slot", hint="leave one of the two out"
        )
    word, words = asked["numa_binding"], [str(binding) for binding in numa.Binding]
    if word not in words:
        raise UsageError(
            f"--numa-binding {word}: the forms are {', '.join(words)}", hint="--numa-binding node"
        )
    gpus = Machine(visible=environ.get("CUDA_VISIBLE_DEVICES")).gpus()
    return numa.cores_near(
        [gpu.uuid for gpu in gpus],
        numa.Binding(word),
        workers=workers,
        machine=numa.Machine.here(),
    )


# --- what it runs --------------------------------------------------------------------------------


def _entry(asked: Mapping[str, Any]) -> Entry:
    if asked["run_path"]:
        return Entry.RUN_PATH
    if asked["no_python"]:
        if asked["is_module"]:
            raise UsageError(
                "--no-python and --module contradict each other", hint="give one of them"
            )
        return Entry.PROGRAM
    return Entry.MODULE if asked["is_module"] else Entry.PYTHON


def _shutdown_timeout(asked: Mapping[str, Any], environ: Mapping[str, str]) -> float:
    for value in (asked["shutdown_timeout"], asked["grace"]):
        if value is not None:
            return float(value)
    text = environ.get(_SHUTDOWN_VARIABLE, "")
    return float(text) if text.replace(".", "", 1).isdecimal() else _DEFAULT_SHUTDOWN_S


def _watchdog(environ: Mapping[str, str]) -> str:
    """Torch's watchdog is asked for by a variable, and its pipe may be named by another."""
    if environ.get("TORCHELASTIC_ENABLE_FILE_TIMER") != "1":
        return ""
    return environ.get("TORCHELASTIC_TIMER_FILE") or NEW_PIPE


# --- what you see --------------------------------------------------------------------------------


def _logs(asked: Mapping[str, Any], job_id: str) -> LogSettings:
    folder = asked["log_dir"] or str(Path("runs") / job_id / "logs")
    if folder == os.devnull:
        folder = tempfile.gettempdir()
    elif Path(folder).is_file():
        raise UsageError(f"--log-dir {folder}: a file, not a folder")
    return LogSettings(
        folder=folder,
        is_default=asked["log_dir"] is None,
        redirects=parse_std(asked["redirects"] or "0", option="--redirects"),
        tee=parse_std(asked["tee"] or "0", option="--tee"),
        shown_ranks=_ranks(asked["local_ranks_filter"]),
        stdout_filters=_filters(asked["duplicate_stdout_filters"]),
        stderr_filters=_filters(asked["duplicate_stderr_filters"]),
    )


def _ranks(text: str | None) -> frozenset[int] | None:
    if not text:
        return None
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise UsageError(
            f"--local-ranks-filter {text}: not numbers with commas", hint="--local-ranks-filter 0,1"
        )
    return frozenset(int(word) for word in words)


def _filters(text: str | None) -> tuple[str, ...]:
    """Words with commas between; two commas are one that belongs to the word."""
    parts = (text or "").replace(",,", "\0").split(",")
    return tuple(part.replace("\0", ",") for part in parts if part)
