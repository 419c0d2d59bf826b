"""The slots of a packed job's node, found anew when a file or a person names others.

A plain job's places stand for no device that is known here: of theirs the processes are read.
"""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from easyscale.agent.plain.actions import FindSlots
from easyscale.agent.plain.events import PlainEvent, SlotsChanged, SlotsRefused
from easyscale.agent.plain.settings import PlainSettings
from easyscale.agent.plain.state import State
from easyscale.errors import EasyScaleError

if TYPE_CHECKING:
    from easyscale.agent.doors.readings import Readings
    from easyscale.agent.hardware.devices import Offer
    from easyscale.agent.hardware.devices_file import DevicesFile
    from easyscale.agent.hardware.meter import Reading

Environments = Mapping[str, Mapping[str, str]]


class SlotFinder:
    """Finds slots and what workers on them see; any thread may ask."""

    def __init__(
        self,
        settings: PlainSettings,
        *,
        see: Callable[[Environments], None],
        post: Callable[[PlainEvent], None],
        tell: Callable[[str], None],
    ) -> None:
        self._visible = settings.environment.get("CUDA_VISIBLE_DEVICES")
        self._is_packed = settings.is_packed
        self._environments: Environments = settings.slot_environments
        self._see = see
        self._post = post
        self._file = (
            self._follow(Path(settings.devices_file), tell) if settings.devices_file else None
        )
        self._lock = threading.Lock()
        self._readings: Readings | None = None

    def start(self) -> None:
        if self._file is not None:
            self._file.start()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._readings is not None:
            self._readings.close()

    def find(self, word: str) -> "Offer":
        """The slots that a word names; raises EasyScaleError where they are not here."""
        from easyscale.agent.hardware import devices  # noqa: PLC0415 - loads much

        choice = devices.parse_devices(word, option="--set")
        machine = devices.Machine(visible=self._visible)
        return devices.resolve(choice, machine, threads_per_worker=1)

    def changed(self, found: "Offer", *, reason: str, wish_id: str = "") -> SlotsChanged:
        """The event that offers them from now on; workers of the next round see them."""
        from easyscale.agent.hardware.devices import slot_environment  # noqa: PLC0415 - loads much

        self._environments = {slot.name: slot_environment(slot) for slot in found.slots}
        self._see(self._environments)
        places = tuple(self._environments)
        return SlotsChanged(places=places, reason=reason, wish_id=wish_id)

    def grant(self, asked: FindSlots) -> None:
        """The same for whoever asked from elsewhere; a driver in trouble keeps nobody waiting."""
        threading.Thread(target=self._grant, args=(asked,), daemon=True).start()

    def _grant(self, asked: FindSlots) -> None:
        try:
            found = self.find(asked.wish.target)
        except EasyScaleError as error:
            self._post(SlotsRefused(wish_id=asked.wish_id, reason=error.message))
            return
        self._post(self.changed(found, reason=asked.wish.by or "a wish", wish_id=asked.wish_id))

    def _follow(self, path: Path, tell: Callable[[str], None]) -> "DevicesFile":
        """A packed job's slots may change while it runs: its ranks then start again on others."""
        from easyscale.agent.hardware import devices_file  # noqa: PLC0415 - loads much

        return devices_file.DevicesFile(
            path,
            threads_per_worker=1,
            visible=self._visible,
            offered=lambda: self._environments,
            offer=lambda found, reason: self._post(self.changed(found, reason=reason)),
            refuse=tell,
        )

    def readings(self, state: State) -> "Mapping[str, Reading]":
        """How busy this node's places are: a GPU as it is, a CPU by all processes that it runs."""
        from easyscale.agent.doors.readings import Readings, together  # noqa: PLC0415 - loads much
        from easyscale.agent.events import Slot  # noqa: PLC0415 - loads much

        with self._lock:
            if self._readings is None:
                self._readings = Readings()
        running = _processes(state)
        names = {place: self._names(place, running) for place in state.places}
        slots = [
            Slot(name=name, uuid=self._uuid(place))
            for place, each in names.items()
            for name in each
        ]
        pids = {f"{place} {pid}": pid for place, found in running.items() for pid in found}
        read = self._readings.of(tuple(slots), pids)
        return {place: together([read[name] for name in each]) for place, each in names.items()}

    def _names(self, place: str, running: Mapping[str, list[int]]) -> list[str]:
        """What is read of a place, each by a name of its own."""
        if self._uuid(place):
            return [place]
        return [f"{place} {pid}" for pid in running.get(place, ())]

    def _uuid(self, place: str) -> str:
        """Of the GPU that a packed slot is; plain workers see all of theirs."""
        seen = self._environments.get(place, {}) if self._is_packed else {}
        return seen.get("CUDA_VISIBLE_DEVICES", "")


def _processes(state: State) -> dict[str, list[int]]:
    """Place -> the processes of its workers."""
    found: dict[str, list[int]] = {}
    for local_rank, worker in state.workers.items():
        if state.member is not None and worker.pid is not None and not worker.has_ended:
            found.setdefault(state.member.places[local_rank], []).append(worker.pid)
    return found
