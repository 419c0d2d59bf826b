"""A file that says which slots a node offers: read at the start, followed while the agent runs.

It holds one word as `--devices` takes it (`cpu:3`, `cuda:0,1`); lines that begin with # are notes.
"""

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from easyscale.agent.hardware.devices import Machine, Offer, parse_devices, resolve
from easyscale.errors import EasyScaleError, UsageError

_LOOK_EVERY_S = 0.5
_CLOSE_TIMEOUT_S = 5.0
_MOST_BYTES = 4096


class _Mark(NamedTuple):
    """What tells that a file was written anew."""

    inode: int
    modified_ns: int
    size: int


def read_word(path: Path) -> str:
    """The word in the file; raises UsageError when there is not exactly one."""
    try:
        with path.open(encoding="utf-8") as file:
            lines = [line.strip() for line in file.read(_MOST_BYTES).splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"{path} cannot be read: {reason}", hint=f"echo cpu:2 > {path}") from error
    words = [line for line in lines if line and not line.startswith("#")]
    if len(words) != 1:
        raise UsageError(
            f"{path} holds {len(words)} lines where one says the slots of this node",
            hint=f"echo cpu:2 > {path}",
        )
    return words[0]


class DevicesFile:
    """Follows the file in a thread; `offer` hears of other slots, `refuse` of what cannot be.

    `offered` names the slots as they are now: `easyscale devices --set` changes them too, and a
    file that is written anew afterwards counts again.
    """

    def __init__(
        self,
        path: Path,
        *,
        threads_per_worker: int,
        workers_per_device: int = 1,
        visible: str | None,
        offered: Callable[[], Iterable[str]],
        offer: Callable[[Offer, str], None],
        refuse: Callable[[str], None],
    ) -> None:
        self._path = path
        self._threads_per_worker = threads_per_worker
        self._workers_per_device = workers_per_device
        self._visible = visible
        self._offered = offered
        self._offer = offer
        self._refuse = refuse
        self._mark = self._look()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="devices-file", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_TIMEOUT_S)

    def _follow(self) -> None:
        while not self._closing.wait(_LOOK_EVERY_S):
            self.take()

    def take(self) -> None:
        """Offer what the file says, if it was written anew and names other slots than those now."""
        mark = self._look()
        if mark in (None, self._mark):
            return
        self._mark = mark
        try:
            word, offer = self._read()
        except EasyScaleError as error:
            self._refuse(f"{error.message}; the slots stay as they are")
            return
        if {slot.name for slot in offer.slots} != set(self._offered()):
            self._offer(offer, f"{self._path.name} says {word}")

    def _look(self) -> _Mark | None:
        """None while the file is away or empty: whoever writes it is not done yet."""
        try:
            facts = self._path.stat()
        except OSError:
            return None
        if facts.st_size == 0:
            return None
        return _Mark(facts.st_ino, facts.st_mtime_ns, facts.st_size)

    def _read(self) -> tuple[str, Offer]:
        """The word, and the slots of this machine that it names."""
        word = read_word(self._path)
        offer = resolve(
            parse_devices(word, option=f"{self._path.name}:"),
            Machine(visible=self._visible),
            threads_per_worker=self._threads_per_worker,
            workers_per_device=self._workers_per_device,
        )
        return word, offer
