"""What an agent gives the processes it starts, its own name and address among it."""

import secrets
import socket
import sys
from pathlib import Path

from easyscale.agent.events import Slot
from easyscale.agent.folders import folder_identity
from easyscale.agent.hardware.devices import slot_environment
from easyscale.agent.processes.supervisor import SupervisorSettings
from easyscale.agent.processes.zygote_link import ZygoteSettings
from easyscale.agent.settings import Identity, LaunchSettings
from easyscale.agent.state import State
from easyscale.messages import ForkRequest, WorkerSettings
from easyscale.model import JobSpec, WorkerId
from easyscale.rendezvous.endpoints import parse_endpoint
from easyscale.rendezvous.view import incarnation_of

#: Never handed to a worker: it is for the agent's own connection.
_SECRETS = frozenset({"EASYSCALE_ETCD_PASSWORD"})
#: Whom a newcomer asks what they train, until one answers.
_MOST_MEMBERS = 3


def fork_request(
    settings: LaunchSettings,
    spec: JobSpec,
    worker: WorkerId,
    *,
    slot: Slot,
    members: tuple[str, ...] = (),
) -> ForkRequest:
    """Ask for the worker of a slot; what is fixed for the job's life is as its record says.

    `members` are addresses of workers that train already, whom it may ask what.
    """
    timeouts = settings.timeouts
    hang_s = settings.hang_timeout_s or timeouts.hang_least_s
    return ForkRequest(
        settings=WorkerSettings(
            worker=worker,
            job_id=settings.job_id,
            token=spec.token,
            local_host=local_host(settings),
            logical_workers=spec.logical_workers,
            seed=spec.seed,
            determinism=spec.determinism,
            threads_per_worker=spec.threads_per_worker,
            left_open=settings.left_open,
            partials=settings.partials,
            snapshot_dir=str(Path(settings.working_directory) / settings.snapshot_dir),
            snapshot_every_steps=settings.snapshot_every_steps,
            snapshot_every_s=settings.snapshot_every_s,
            forming_timeout_s=timeouts.forming_timeout_s,
            exchange_deadline_s=hang_s + timeouts.exchange_margin_s,
            linger_timeout_s=timeouts.forming_timeout_s,
            members=members,
        ),
        script=settings.script,
        environment=_worker_environment(settings) | slot_environment(slot),
        working_directory=settings.working_directory,
    )


def training_members(state: State) -> tuple[str, ...]:
    """Addresses of a few members that live, as far as this agent knows."""
    commit = state.commit
    members = commit.members if commit is not None else ()
    living = [m.address for m in members if not state.view.ended(m.worker)]
    return tuple(living[:_MOST_MEMBERS])


def identity_of(settings: LaunchSettings, *, address: str) -> Identity:
    """Which life of which agent begins here; others reach it at `address`."""
    host = socket.gethostname()
    boot_id = _boot_id()
    incarnation = incarnation_of(host=host, boot_id=boot_id, chance=secrets.token_hex(4))
    return Identity(
        node=settings.node_name,
        incarnation=incarnation,
        boot_id=boot_id,
        host=host,
        address=address,
        folder=folder_identity(Path(settings.working_directory) / settings.snapshot_dir),
    )


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""  # no boot can be told from another here: an end is proven in other ways


def supervisor_settings(settings: LaunchSettings, *, slots: int) -> SupervisorSettings:
    """How the zygote is started, and where the logs of workers lie."""
    log_dir = Path(settings.log_dir)
    return SupervisorSettings(
        log_dir=log_dir,
        zygote=ZygoteSettings(
            python=sys.executable,
            environment=_worker_environment(settings),
            log_file=log_dir / settings.node_name / "zygote.log",
            threads_per_worker=settings.threads_per_worker,
            determinism=settings.determinism,
            workers=slots,
            preload=settings.preload,
        ),
    )


def _worker_environment(settings: LaunchSettings) -> dict[str, str]:
    return {name: value for name, value in settings.environment.items() if name not in _SECRETS}


def local_host(settings: LaunchSettings) -> str:
    """What other workers are told to connect to: this host's end of the road to etcd."""
    if settings.local_address:
        return settings.local_address
    if not settings.store.endpoints:
        return "127.0.0.1"
    endpoint = parse_endpoint(settings.store.endpoints[0])
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_DGRAM)
        family, _, _, _, address = found[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing: it only asks the routing table
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
