"""Single keys without echo; whatever else is to be seen wakes the wait too."""

import contextlib
import os
import re
import select
import signal
import sys
import termios
import tty
from types import FrameType
from typing import Self

_ESCAPES = {
    "[A": "up",
    "[B": "down",
    "OA": "up",
    "OB": "down",
    "[5~": "page up",
    "[6~": "page down",
}
_NAMES = {"\x1b": "escape", "\r": "enter", "\n": "enter", "\x7f": "backspace", "\b": "backspace"}
#: An escape sequence, or one character.
_KEY = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O[@-~])|.", re.DOTALL)


def keys_in(data: bytes) -> list[str]:
    """What was pressed: characters, and names for the keys that have none; others are left out."""
    keys = []
    for found in _KEY.finditer(data.decode("utf-8", "ignore")):
        text = found.group()
        if len(text) > 1:
            name = _ESCAPES.get(text[1:])
            keys += [name] if name is not None else []
        elif text in _NAMES:
            keys.append(_NAMES[text])
        elif text.isprintable():
            keys.append(text)
    return keys


class Keyboard:
    """The keys of the terminal that standard input is."""

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        self._input = sys.stdin.fileno()
        self._is_terminal = sys.stdin.isatty()
        if self._is_terminal:
            before = termios.tcgetattr(self._input)
            self._stack.callback(termios.tcsetattr, self._input, termios.TCSADRAIN, before)
            tty.setcbreak(self._input)
        self._woken, self._wakes = os.pipe()
        for end in (self._woken, self._wakes):
            os.set_blocking(end, False)
            self._stack.callback(os.close, end)
        former = signal.signal(signal.SIGWINCH, self._note_resize)
        self._stack.callback(signal.signal, signal.SIGWINCH, former)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def wait(self, timeout_s: float) -> list[str]:
        """Keys, or none after the time, after a resize, or when somebody wakes the wait."""
        sources = [self._woken, *([self._input] if self._is_terminal else [])]
        ready, _, _ = select.select(sources, [], [], timeout_s)
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._input not in ready:
            return []
        data = os.read(self._input, 1024)
        if not data:
            self._is_terminal = False  # the terminal has gone; nobody presses a key any more
        return keys_in(data)

    def wake(self) -> None:
        """End the wait: there is something new to be drawn. Any thread may call it."""
        with contextlib.suppress(OSError):
            os.write(self._wakes, b"\0")

    def _note_resize(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.wake()
