"""What the user of this machine asks an elastic agent to do: each becomes an event of its loop."""

import secrets
import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from easyscale.agent import events
from easyscale.agent.actions import FindSlots
from easyscale.agent.doors.dialogue import Handler
from easyscale.agent.hardware.devices import Machine, Offer, parse_devices, resolve
from easyscale.agent.settings import LaunchSettings
from easyscale.agent.state import Stage, State
from easyscale.agent.wishes import addressed
from easyscale.errors import EasyScaleError, UsageError
from easyscale.model import Wish
from easyscale.rendezvous.agreement import JobView
from easyscale.rendezvous.keys import check_name


class Orders:
    """Wishes and other slots, from this machine or from elsewhere."""

    def __init__(
        self,
        settings: LaunchSettings,
        *,
        state: Callable[[], State],
        view: Callable[[], JobView],
        post: Callable[[events.AgentEvent], None],
    ) -> None:
        self._settings = settings
        self._state = state
        self._view = view
        self._post = post

    @property
    def handlers(self) -> Mapping[str, Handler]:
        return {
            "wish": self._take_wish,
            "withdraw": self._withdraw,
            "devices": self._take_devices,
        }

    def _take_wish(self, arguments: Mapping[str, Any]) -> object:
        wish = msgspec.convert(arguments, Wish)
        if wish.node:
            wish = addressed(wish, self._view())
        wish_id = secrets.token_hex(8)
        self._post(events.Asked(wish_id=wish_id, wish=wish))
        return {"wish": wish_id}

    def _withdraw(self, arguments: Mapping[str, Any]) -> object:
        wish_id = check_name(str(arguments["wish"]), what="wish id")
        self._post(events.Withdrawn(wish_id=wish_id))
        return {"wish": wish_id}

    def _take_devices(self, arguments: Mapping[str, Any]) -> object:
        """Offer other slots from now on; refused at once where this node cannot grant them."""
        word, by = str(arguments["devices"]), str(arguments.get("by", ""))
        if self._state().stage is not Stage.RUNNING:
            raise UsageError(
                f"node {self._settings.node_name} is leaving; its slots stay withdrawn"
            )
        offer = self._resolve(word)
        self._post(events.SlotsFound(slots=offer.slots, reason=by))
        return {"slots": [slot.name for slot in offer.slots], "notes": offer.notes}

    def find_slots(self, asked: FindSlots) -> None:
        """The same for whoever asked from elsewhere; a driver in trouble keeps nobody waiting."""
        thread = threading.Thread(target=self._answer_wish, args=(asked,), daemon=True)
        thread.start()

    def _answer_wish(self, asked: FindSlots) -> None:
        try:
            offer = self._resolve(asked.devices)
        except EasyScaleError as error:
            self._post(events.SlotsRefused(wish_id=asked.wish_id, reason=error.message))
            return
        found = events.SlotsFound(slots=offer.slots, reason=asked.by, wish_id=asked.wish_id)
        self._post(found)

    def _resolve(self, word: str) -> Offer:
        return resolve(
            parse_devices(word, option="--set"),
            Machine(visible=self._settings.environment.get("CUDA_VISIBLE_DEVICES")),
            threads_per_worker=self._settings.threads_per_worker,
            workers_per_device=self._settings.workers_per_device,
        )
