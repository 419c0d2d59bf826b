"""The two live lines of `launch`: how far, how fast, how long, and what is odd; pure."""

import math

from easyscale.reports import Progress
from easyscale_cli.views import numbers
from easyscale_cli.views.glyphs import Glyphs
from easyscale_cli.views.launch import WIDE
from easyscale_cli.views.layout import bar, cut, first_that_fits, join, line, sparkline, width
from easyscale_cli.views.style import Line, Role, Span

_LEAST_BAR = 10
_LEAST_SPARK = 5
_WIDEST_SPARK = 40


def live_lines(
    progress: Progress, *, cells: int, glyphs: Glyphs, keys: tuple[str, ...] = ()
) -> list[Line]:
    """Where training is, in two lines of at most `cells`."""
    return [_how_far(progress, cells, glyphs), _how_well(progress, cells, glyphs, keys)]


def _how_far(progress: Progress, cells: int, glyphs: Glyphs) -> Line:
    speed = f"{numbers.rate(progress.steps_per_s)} steps/s"
    up = f"up {numbers.duration(progress.elapsed_s)}"
    if not progress.steps:
        rows = [
            line(Span(f"step {numbers.count(progress.step)}", Role.NAME)),
            line(speed),
            line(up),
        ]
        return first_that_fits(
            [lambda: join(rows, glyphs.between), lambda: join(rows[:2], glyphs.between)],
            cells,
            glyphs.cut,
        )
    share = progress.step / progress.steps
    left = line("?" if progress.left_s is None else numbers.duration(progress.left_s), " left")
    done = [line(numbers.percent(share)), line(speed), left]
    text = join([_step_of(progress, is_wide=cells >= WIDE), *done], glyphs.between)
    room = cells - width(text) - 2
    if room >= _LEAST_BAR:
        return (*bar(share, room, glyphs), Span("  "), *text)
    short = join([_step_of(progress, is_wide=False), done[0]], glyphs.between)
    return first_that_fits([lambda: text, lambda: short], cells, glyphs.cut)


def _step_of(progress: Progress, *, is_wide: bool) -> Line:
    step, steps = numbers.count(progress.step), numbers.count(progress.steps)
    if is_wide:
        return line(Span(f"step {step}", Role.NAME), Span(f" of {steps}", Role.QUIET))
    return line(Span(step, Role.NAME), Span(f"/{steps}", Role.QUIET))


def _how_well(progress: Progress, cells: int, glyphs: Glyphs, keys: tuple[str, ...]) -> Line:
    """The metric, its history as wide as the other facts allow; these leave, last to first."""
    is_wide = cells >= WIDE
    generation = numbers.generation(progress.era, progress.generation)
    places = [
        line(
            f"{numbers.counted(progress.nodes, 'node')}, {numbers.counted(progress.slots, 'slot')}"
        ),
        line(generation),
    ]
    slow = _slow(progress, glyphs)
    hints = line(Span("  ".join(keys), Role.QUIET)) if is_wide and keys else ()
    epoch = _epoch(progress) if is_wide else ()
    rests = ([*places, slow, hints], [*places, slow], [places[0], slow], [slow])
    rows = [
        _with_metric(progress, epoch, [each for each in rest if each], cells, glyphs)
        for rest in rests
    ]
    fitting = next((row for row in rows if width(row) <= cells), rows[-1])
    return cut(fitting, cells, glyphs.cut)


def _epoch(progress: Progress) -> Line:
    of = "" if progress.epochs is None else f" of {numbers.count(progress.epochs)}"
    return line(f"epoch {numbers.count(progress.epoch)}{of}")


def _with_metric(
    progress: Progress, epoch: Line, rest: list[Line], cells: int, glyphs: Glyphs
) -> Line:
    if progress.metric is None or progress.value is None:
        return join([row for row in (epoch, *rest) if row], glyphs.between)
    metric: Line = line(
        f"{glyphs.name(progress.metric)} ", Span(numbers.metric(progress.value), Role.NAME)
    )
    if not math.isfinite(progress.value):
        metric = (*metric, Span(f" {glyphs.look}", Role.LOOK))
    bare = join([row for row in (epoch, metric, *rest) if row], glyphs.between)
    room = min(cells - width(bare) - 1, _WIDEST_SPARK)
    drawing = sparkline(progress.history, room, glyphs) if room >= _LEAST_SPARK else ""
    if drawing:
        metric = (*metric, Span(" "), Span(drawing, Role.LIVE))
    return join([row for row in (epoch, metric, *rest) if row], glyphs.between)


def _slow(progress: Progress, glyphs: Glyphs) -> Line:
    if not progress.slow:
        return ()
    more = f" and {len(progress.slow) - 1} more" if len(progress.slow) > 1 else ""
    words = f"slow: {glyphs.name(progress.slow[0])}{more}"
    return line(Span(glyphs.look, Role.LOOK), Span(f" {words}", Role.NAME))
