"""How busy the slots of a node are, and whose agent it is: read when somebody asks."""

import getpass
import os
import threading
from collections.abc import Mapping, Sequence

from easyscale.agent.events import Slot
from easyscale.agent.hardware.meter import Meter, Reading


class Readings:
    """One meter, which follows the slots that there are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._meter: Meter | None = None
        self._metered: tuple[Slot, ...] = ()

    def of(self, slots: tuple[Slot, ...], pids: Mapping[str, int]) -> Mapping[str, Reading]:
        """Readings by slot; `pids` maps slots to the process that runs there."""
        with self._lock:
            if self._meter is None or self._metered != slots:
                if self._meter is not None:
                    self._meter.close()
                self._meter, self._metered = Meter(slots), slots
            return self._meter.read(pids)

    def close(self) -> None:
        with self._lock:
            if self._meter is not None:
                self._meter.close()


def together(readings: Sequence[Reading]) -> Reading:
    """Of a place with several processes; what one of them has not told yet is not known of all."""
    if len(readings) == 1:
        return readings[0]
    shares = [each.utilization for each in readings if each.utilization is not None]
    used = [each.memory_used_bytes for each in readings if each.memory_used_bytes is not None]
    return Reading(
        utilization=sum(shares) if shares and len(shares) == len(readings) else None,
        memory_used_bytes=sum(used) if used and len(used) == len(readings) else None,
    )


def user_name() -> str:
    """Who runs this agent."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())  # a container's user need not have a name
