"""What a worker is given: its command line and torchrun's environment variables; pure."""

import signal
from collections.abc import Mapping
from string import Template

from easyscale.agent.plain.settings import Entry, PlainSettings
from easyscale.agent.plain.values import Member, Round
from easyscale.errors import UsageError

#: Never handed to a worker: it is for the agent's own connection.
_SECRETS = frozenset({"EASYSCALE_ETCD_PASSWORD"})
#: Runs a file in the interpreter that is there already, as `runpy` does; @record writes its errors.
_RUN_PATH = (
    "import runpy, sys\n"
    "from torch.distributed.elastic.multiprocessing.errors import record\n"
    "sys.argv = sys.argv[1:]\n"
    "record(lambda: runpy.run_path(sys.argv[0], run_name='__main__'))()"
)


def words(settings: PlainSettings, local_rank: int) -> list[str]:
    """The command line of a worker; `${local_rank}` in the script's words is its number."""
    rest = [
        Template(word).safe_substitute(local_rank=str(local_rank)) for word in settings.arguments
    ]
    python = [settings.python, "-u"]
    match settings.entry:
        case Entry.PYTHON:
            return [*python, settings.script, *rest]
        case Entry.MODULE:
            return [*python, "-m", settings.script, *rest]
        case Entry.RUN_PATH:
            return [*python, "-c", _RUN_PATH, settings.script, *rest]
        case Entry.PROGRAM:
            return [settings.script, *rest]


def environment(
    settings: PlainSettings,
    round_: Round,
    member: Member,
    *,
    local_rank: int,
    error_file: str,
    timer_file: str = "",
) -> dict[str, str]:
    """The agent's environment, with what torchrun adds to it."""
    given = settings.environment
    told = {name: value for name, value in given.items() if name not in _SECRETS}
    told |= settings.slot_environments.get(member.places[local_rank], {})
    told |= {
        "RANK": str(member.first_rank + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(round_.world_size),
        "LOCAL_WORLD_SIZE": str(member.workers),
        "GROUP_RANK": str(member.group_rank),
        "GROUP_WORLD_SIZE": str(round_.group_world_size),
        "ROLE_NAME": settings.role,
        "ROLE_RANK": str(member.first_role_rank + local_rank),
        "ROLE_WORLD_SIZE": str(member.role_world_size),
        "MASTER_ADDR": round_.master_addr,
        "MASTER_PORT": str(round_.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(round_.restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(settings.max_restarts),
        "TORCHELASTIC_RUN_ID": settings.job_id,
        # Rank 0 serves the store: an agent without torch has none to offer.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": error_file,
        "TORCHELASTIC_SIGNALS_TO_HANDLE": _signal_names(settings),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": given.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    if timer_file:
        told["TORCHELASTIC_TIMER_FILE"] = timer_file
    if sets_threads(settings):
        told["OMP_NUM_THREADS"] = "1"
    if settings.virtual_local_rank:
        told |= {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": _only_device(given, local_rank)}
    elif settings.is_packed and told.get("CUDA_VISIBLE_DEVICES"):
        told["LOCAL_RANK"] = "0"  # it sees one GPU, whatever its number among this node's workers
    return told


def sets_threads(settings: PlainSettings) -> bool:
    """Whether each worker gets one thread because nobody said how many, as torchrun does it."""
    workers = settings.logical_workers or len(settings.slots)
    return "OMP_NUM_THREADS" not in settings.environment and workers > 1


def _only_device(given: Mapping[str, str], local_rank: int) -> str:
    visible = given.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return str(local_rank)
    devices = [word.strip() for word in visible.split(",")]
    if local_rank >= len(devices):
        raise UsageError(
            f"--virtual-local-rank: CUDA_VISIBLE_DEVICES={visible} has no device for local rank"
            f" {local_rank}",
            hint=f"--nproc-per-node {len(devices)}",
        )
    return devices[local_rank]


def _signal_names(settings: PlainSettings) -> str:
    return ",".join(signal.Signals(number).name for number in settings.stop_signals)
