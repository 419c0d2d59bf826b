"""Curves as pictures, for a report or a browser; the only place that draws with matplotlib."""

from collections import defaultdict
from pathlib import Path

from easyscale.balance import ProfilePoint, ProfileRecord
from easyscale.kinds import short_kind

_INCHES = (7.0, 4.2)
_DOTS_PER_INCH = 120


def draw_profile(job: str, record: ProfileRecord, path: Path) -> None:
    """Throughput against slots, a curve for each mix of kinds; nothing is left half written."""
    # Without pyplot there is no state beside the figure, and no display is looked for.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, points in sorted(_curves(record).items()):
        ordered = sorted(points, key=lambda point: sum(point.slots.values()))
        slots = [sum(point.slots.values()) for point in ordered]
        axes.plot(slots, [point.micro_steps_per_s for point in ordered], marker="o", label=name)
    axes.set_title(f"{job}: {record.logical_workers} logical workers")
    axes.set_xlabel("slots")
    axes.set_ylabel("micro-steps/s")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    partial = path.with_name(f".{path.name}.partial")
    try:
        figure.savefig(partial, format="png")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _curves(record: ProfileRecord) -> dict[str, list[ProfilePoint]]:
    """By the kinds that take part."""
    found: dict[str, list[ProfilePoint]] = defaultdict(list)
    for point in record.points:
        found[" + ".join(short_kind(kind) or "slots" for kind in sorted(point.slots))].append(point)
    return found
