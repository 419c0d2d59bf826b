"""Every flag of torchrun and what becomes of it here: one table for parser, help and docs.

A flag works, has no effect and says so in one line, or is refused with the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from easyscale.errors import UsageError


class State(StrEnum):
    """What a flag does in a mode."""

    WORKS = "works"
    NO_EFFECT = "no effect"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Use:
    """What a flag does in a mode, and why; `hint` is what to write instead."""

    state: State
    why: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag of torchrun; `dest` is its name among the parsed words."""

    name: str
    dest: str
    plain: Use
    elastic: Use


def _works(why: str = "") -> Use:
    return Use(State.WORKS, why)


def _idle(why: str) -> Use:
    return Use(State.NO_EFFECT, why)


def _refused(why: str, hint: str = "") -> Use:
    return Use(State.REFUSED, why, hint)


_NO_TORCH = _refused("its plugins need torch in the agent", "--log-dir, --tee and --redirects")
_ALL_IN_FILES = _idle("all output of all workers is in files, and all of it is shown")
_FINDS = _refused("nodes of an elastic job find each other and get their ranks", "--rdzv-endpoint")
_FORKED = _refused("an elastic worker is a script in python that calls easyscale.init")
FLAGS: Final = (
    Flag("--nnodes", "nodes", _works(), _works()),
    Flag("--nproc-per-node", "nproc_per_node", _works("not xpu: give a number"), _works()),
    Flag(
        "--rdzv-backend",
        "rdzv_backend",
        _works("c10d: the agent on the endpoint's host serves an etcd; others: etcd v3"),
        _works("as in plain mode; static is refused"),
    ),
    Flag("--rdzv-endpoint", "etcd", _works("etcd's, or with c10d the serving agent's"), _works()),
    Flag(
        "--rdzv-id", "job_id", _works("default a new name, or none-PORT on several nodes"), _works()
    ),
    Flag(
        "--rdzv-conf",
        "rdzv_conf",
        _works("join_timeout and last_call_timeout; other known keys have no effect"),
        _works("join_timeout; other known keys have no effect"),
    ),
    Flag("--standalone", "standalone", _works(), _works()),
    Flag("--max-restarts", "max_restarts", _works("per job, failures only"), _works("default 3")),
    Flag(
        "--monitor-interval",
        "monitor_interval",
        _idle("ends are seen at once"),
        _idle("ends are seen at once"),
    ),
    Flag(
        "--start-method",
        "start_method",
        _idle("every worker is a program of its own"),
        _idle("workers are forked from one process that has imported torch"),
    ),
    Flag(
        "--event-log-handler",
        "event_log_handler",
        _idle("--json prints every event"),
        _idle("--json prints every event"),
    ),
    Flag("--role", "role", _works(), _idle("elastic workers have no roles")),
    Flag("--module", "is_module", _works(), _works()),
    Flag("--no-python", "no_python", _works(), _FORKED),
    Flag("--run-path", "run_path", _works(), _FORKED),
    Flag("--log-dir", "log_dir", _works("default runs/JOB/logs"), _works("in folders by slot")),
    Flag("--redirects", "redirects", _works(), _ALL_IN_FILES),
    Flag("--tee", "tee", _works(), _ALL_IN_FILES),
    Flag("--local-ranks-filter", "local_ranks_filter", _works(), _ALL_IN_FILES),
    Flag("--duplicate-stdout-filters", "duplicate_stdout_filters", _works(), _ALL_IN_FILES),
    Flag("--duplicate-stderr-filters", "duplicate_stderr_filters", _works(), _ALL_IN_FILES),
    Flag("--node-rank", "node_rank", _works("with --master-addr, where nodes do not meet"), _FINDS),
    Flag("--master-addr", "master_addr", _works("as --node-rank"), _FINDS),
    Flag("--master-port", "master_port", _works("as --node-rank; else a free one"), _FINDS),
    Flag("--local-addr", "local_addr", _works(), _works()),
    Flag("--logs-specs", "logs_specs", _NO_TORCH, _NO_TORCH),
    Flag(
        "--numa-binding",
        "numa_binding",
        _works("on nodes with a GPU for each worker, without numactl"),
        _refused("elastic workers move from slot to slot", "numactl before easyscale launch"),
    ),
    Flag(
        "--signals-to-handle",
        "signals_to_handle",
        _works("others that schedulers send are passed on, and the job goes on"),
        _idle("SIGTERM, SIGINT and SIGHUP drain the node"),
    ),
    Flag(
        "--shutdown-timeout",
        "shutdown_timeout",
        _works("in every stop; also --grace"),
        _works("as --grace"),
    ),
    Flag(
        "--virtual-local-rank",
        "virtual_local_rank",
        _works(),
        _idle("an elastic worker sees its own device only"),
    ),
)

#: What a plain or packed launch reads beside them.
PLAIN_WORDS: Final = frozenset(flag.dest for flag in FLAGS) | {
    "script", "arguments", "logical_workers", "packed", "devices", "devices_file", "node_name",
    "etcd_ca", "etcd_cert", "etcd_key", "etcd_user", "grace",
    "progress", "progress_every", "color", "use_ascii", "as_json",
}  # fmt: skip


def check_flags(asked: Mapping[str, Any], *, is_plain: bool) -> tuple[str, ...]:
    """The lines for what was given and does nothing; raises UsageError for what is refused."""
    notes = []
    for flag in FLAGS:
        if asked.get(flag.dest) in {None, False, ""}:
            continue
        use = flag.plain if is_plain else flag.elastic
        if use.state is State.REFUSED:
            mode = "" if flag.plain.state is State.REFUSED else "with --logical-workers, "
            raise UsageError(f"{flag.name} is refused: {mode}{use.why}", hint=use.hint)
        if use.state is State.NO_EFFECT:
            notes.append(f"{flag.name} has no effect here: {use.why}")
    return tuple(notes)


def told(use: Use) -> str:
    """`works`, or `no effect: why`."""
    return f"{use.state}: {use.why}" if use.why else str(use.state)
