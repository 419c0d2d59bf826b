"""A launch: what takes longest is begun first, and the rest of the agent imported beside it.

checks that refuse -> zygote, which imports torch -> the agent's own modules -> its loop
"""

import signal
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import msgspec

from easyscale.agent import events
from easyscale.agent.folders import check_writable
from easyscale.agent.hardware import surroundings
from easyscale.agent.hardware.devices import find_slots
from easyscale.agent.inbox import Inbox
from easyscale.agent.node_name import claim_name
from easyscale.agent.occupancy import occupied
from easyscale.agent.outfit import supervisor_settings
from easyscale.agent.processes.supervisor import CLOSE_TIMEOUT_S, Supervisor
from easyscale.agent.settings import LaunchSettings
from easyscale.agent.snapshots import Catalogue
from easyscale.reports import Audience

if TYPE_CHECKING:
    from easyscale.agent.driver import Driver

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def launch(settings: LaunchSettings, audience: Audience, *, notes: Sequence[str] = ()) -> int:
    """Be this node's agent until the job or this node's part in it ends; returns the exit code.

    Raises EasyScaleError for what makes the launch impossible. Call it in the main thread.
    """
    claim = claim_name(
        settings.node_name,
        job=settings.job_id,
        endpoints=settings.store.endpoints,
        is_chosen=settings.node_is_chosen,
    )
    with claim as claimed:
        settings = msgspec.structs.replace(settings, node_name=claimed.name)
        return _launch(settings, audience, notes=(*notes, *filter(None, (claimed.note,))))


def _launch(settings: LaunchSettings, audience: Audience, *, notes: Sequence[str]) -> int:
    slots, slot_notes = find_slots(
        settings.devices,
        threads_per_worker=settings.threads_per_worker,
        workers_per_device=settings.workers_per_device,
        visible=settings.environment.get("CUDA_VISIBLE_DEVICES"),
    )
    catalogue = Catalogue(
        Path(settings.snapshot_dir), job_id=settings.job_id, node=settings.node_name
    )
    catalogue.check_writable()
    check_writable(Path(settings.log_dir), flag="--log-dir")
    with occupied(settings):
        driver = _begin(settings, audience, slots=slots, catalogue=catalogue)
        try:
            about = surroundings.notes(shm=surroundings.shm_bytes())
            return driver.run(notes=(*notes, *slot_notes, *about))
        finally:
            driver.close()
            audience.close()


def _begin(
    settings: LaunchSettings,
    audience: Audience,
    *,
    slots: tuple[events.Slot, ...],
    catalogue: Catalogue,
) -> "Driver":
    inbox = Inbox()
    supervisor = Supervisor(
        supervisor_settings(settings, slots=len(slots)), inbox.put, audience.output
    )
    try:
        _take_signals(inbox)
        supervisor.start()
        from easyscale.agent.driver import Driver  # noqa: PLC0415 - while torch is imported

        return Driver(
            settings,
            audience,
            slots=slots,
            catalogue=catalogue,
            inbox=inbox,
            supervisor=supervisor,
        )
    except BaseException:
        supervisor.close(deadline_s=CLOSE_TIMEOUT_S)
        raise


def _take_signals(inbox: Inbox) -> None:
    def take(number: int, frame: FrameType | None) -> None:
        del frame
        inbox.put(events.Signalled(number=number))

    for number in _SIGNALS:
        signal.signal(number, take)
