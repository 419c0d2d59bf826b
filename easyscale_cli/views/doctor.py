"""What a checkup found, a line each, with what to do about whatever is not good; pure."""

from collections.abc import Sequence

from easyscale.agent.checkup.doctor_report import Check, Level
from easyscale_cli.views import numbers, plain
from easyscale_cli.views.glyphs import Glyphs
from easyscale_cli.views.layout import blank, hang, line, width, wrap
from easyscale_cli.views.style import Line, Role, Span

#: The longest name and a space.
_NAME_CELLS = 14


def doctor_lines(checks: Sequence[Check], *, cells: int, glyphs: Glyphs) -> list[Line]:
    """All checks in their order, then how many are of which level and what follows."""
    return [
        *check_lines(checks, cells=cells, glyphs=glyphs),
        *verdict_lines(checks, cells=cells, glyphs=glyphs),
    ]


def check_lines(checks: Sequence[Check], *, cells: int, glyphs: Glyphs) -> list[Line]:
    """Some of the checks, in their order."""
    return [row for check in checks for row in _check_lines(check, cells, glyphs)]


def verdict_lines(checks: Sequence[Check], *, cells: int, glyphs: Glyphs) -> list[Line]:
    """How many of all are of which level, below a blank line."""
    return [(), *wrap(line(glyphs.prose(verdict(checks))), cells)]


def verdict(checks: Sequence[Check]) -> str:
    """`5 good, 2 warnings, 1 fault; fix the fault before you launch   exit 1`."""
    good, warnings, faults = (
        sum(check.level is level for check in checks)
        for level in (Level.GOOD, Level.WARNING, Level.FAULT)
    )
    parts = [f"{good} good"]
    parts += [numbers.counted(warnings, "warning")] if warnings else []
    parts += [numbers.counted(faults, "fault")] if faults else []
    told = ", ".join(parts)
    if faults:
        return f"{told}; fix the fault{'s' if faults > 1 else ''} before you launch   exit 1"
    return f"{told}; nothing stops a launch"


def _check_lines(check: Check, cells: int, glyphs: Glyphs) -> list[Line]:
    mark = {
        Level.GOOD: Span(glyphs.done, Role.GOOD),
        Level.WARNING: Span(glyphs.look, Role.LOOK),
        Level.FAULT: Span(glyphs.failed, Role.FAILED),
    }[check.level]
    role = Role.TEXT if check.level is Level.GOOD else Role.NAME
    lead = line(mark, " ", Span(check.name, role))
    lead += blank(_NAME_CELLS + 2 - width(lead))
    room = max(cells - width(lead), 1)
    lines = hang(lead, wrap(line(glyphs.prose(check.facts)), room))
    if check.cure:
        arrow = blank(_NAME_CELLS + 2) + line(f"{glyphs.arrow}  ")
        cure = wrap(line(glyphs.prose(check.cure)), max(cells - width(arrow), 1))
        lines += hang(arrow, cure)
    return lines


def doctor_json(checks: Sequence[Check]) -> str:
    """The one object of `doctor --json`."""
    rows = [
        {
            "name": check.name,
            "level": str(check.level),
            "nodes": list(check.nodes),
            "facts": check.facts,
            "try": check.cure,
        }
        for check in checks
    ]
    code = 1 if any(check.level is Level.FAULT for check in checks) else 0
    return plain.to_json({"version": plain.JSON_VERSION, "checks": rows, "exit_code": code})
