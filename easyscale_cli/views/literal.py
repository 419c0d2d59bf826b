r"""Text from users, nodes and files is data: shown literally, so that it cannot steer a terminal.

Colours (SGR) may pass on a terminal; every other escape, C0 and C1 control and bidirectional
override is shown as `\x1b`-style text.
"""

import re

_SGR = re.compile(r"\x1b\[[0-9;:]*m")
#: C0 without the tab, DEL, C1, and the marks that reorder or break a line of text.
_CONTROL = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
)
_END_OF_STYLE = "\x1b[0m"
_LAST_BYTE = 0xFF


def literal(text: str) -> str:
    """`text` on one line, with everything that is not to be read shown by its number."""
    return _CONTROL.sub(_number_of, text).replace("\t", " ")


def literal_output(text: str, *, with_colours: bool) -> str:
    """A line of a worker's output: as `literal`, but tabs stay, and colours pass where they may.

    A colour that the line leaves open is closed at its end; without colours they are dropped, since
    they carry no word.
    """
    pieces: list[str] = []
    end = 0
    for found in _SGR.finditer(text):
        pieces.append(_CONTROL.sub(_number_of, text[end : found.start()]))
        if with_colours:
            pieces.append(found.group())
        end = found.end()
    pieces.append(_CONTROL.sub(_number_of, text[end:]))
    shown = "".join(pieces)
    return shown + _END_OF_STYLE if with_colours and "\x1b" in shown else shown


def _number_of(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code <= _LAST_BYTE else f"\\u{code:04x}"
