"""`easyscale plan`: a job's plan and why it is this one, or the best plan of slots to come."""

import re
from fractions import Fraction
from typing import Any

import click

from easyscale.agent.balance.explain import KindOfSlot, of_kinds
from easyscale.errors import UsageError
from easyscale.plan_facts import PlanFacts
from easyscale_cli.lookup import found
from easyscale_cli.options import look_options, store_options
from easyscale_cli.output import Output
from easyscale_cli.views.help import PageCommand
from easyscale_cli.views.plan import plan_json, plan_lines

#: What is planned in about a second, and more than any one question needs.
_MOST_KINDS = 8
_MOST_SLOTS = 1_000
_MOST_LOGICAL_WORKERS = 10_000
#: A number that is taken exactly as written, and short enough for that: `4`, `13.2`, `1/3`, `2e3`.
_NUMBER = re.compile(
    r"(?:[0-9]{1,10}(?:\.[0-9]{0,6})?|\.[0-9]{1,6})(?:[eE][+-]?[0-9]{1,2})?|[0-9]{1,10}/[0-9]{1,6}"
)
_COUNT = re.compile(r"[0-9]{1,9}")
_LEAST_RATE, _MOST_RATE = Fraction(1, 1_000_000), Fraction(1_000_000_000)
#: A word that cannot be meant is quoted up to here.
_MOST_QUOTED = 40


class SlotsType(click.ParamType[tuple[KindOfSlot, ...]]):
    """`KIND:COUNT@MICRO-STEPS-PER-SECOND,...`; the numbers are taken exactly as written."""

    name = "KIND:COUNT@RATE,..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[KindOfSlot, ...]:
        words = str(value).split(",")
        if len(words) > _MOST_KINDS:
            self.fail(f"{len(words):,} kinds; {_MOST_KINDS} are planned with at most", param, ctx)
        kinds = tuple(self._kind(word.strip(), param, ctx) for word in words)
        names = [kind.name for kind in kinds]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            self.fail(f"{twice} stands there twice", param, ctx)
        slots = sum(kind.slots for kind in kinds)
        if slots > _MOST_SLOTS:
            told = f"{slots:,} slots; {_MOST_SLOTS:,} are planned with at most"
            self.fail(told, param, ctx)
        return kinds

    def _kind(
        self, word: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> KindOfSlot:
        name, _, rest = word.partition(":")
        count, _, rate = rest.partition("@")
        quoted = word if len(word) <= _MOST_QUOTED else f"{word[: _MOST_QUOTED - 3]}..."
        if not name or not _COUNT.fullmatch(count) or not _NUMBER.fullmatch(rate):
            self.fail(f"{quoted!r} is no KIND:COUNT@RATE, such as fast:2@4.0", param, ctx)
        try:
            speed = Fraction(rate)
        except ZeroDivisionError:
            speed = Fraction(0)
        if not _LEAST_RATE <= speed <= _MOST_RATE:
            told = f"{quoted!r}: a rate lies between 0.000001 and 1,000,000,000 micro-steps/s"
            self.fail(told, param, ctx)
        return KindOfSlot(name, int(count), speed)


@click.command(cls=PageCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("job", required=False)
@click.option("--explain", is_flag=True, help="Also the other plans that were looked at.")
@click.option(
    "--slots",
    type=SlotsType(),
    metavar="KIND:COUNT@RATE,...",
    help="Slots that need not exist: their kind, number and micro-steps per second; "
    f"up to {_MOST_KINDS} kinds and {_MOST_SLOTS:,} slots.",
)
@click.option(
    "--logical-workers",
    type=click.IntRange(min=1, max=_MOST_LOGICAL_WORKERS),
    metavar="N",
    help=f"With --slots: the job's logical workers, up to {_MOST_LOGICAL_WORKERS:,}.",
)
@store_options
@look_options
def command(
    job: str | None,
    *,
    explain: bool,
    slots: tuple[KindOfSlot, ...] | None,
    logical_workers: int | None,
    **asked: Any,
) -> int:
    """Show who computes what in JOB and why; with --slots, what a job would do on those."""
    output = Output(asked)
    with output.answering():
        if slots is None and logical_workers is None:
            with found(job, asked, command="plan") as it:
                _show(it.plan(), output, explain=explain)
            return 0
        if slots is None or logical_workers is None or job is not None:
            raise UsageError(
                "slots that need not exist are planned for a number of logical workers, no job",
                hint="easyscale plan --slots fast:2@4.0,slow:1@1.0 --logical-workers 16",
            )
        _show(of_kinds(slots, logical_workers), output, explain=explain)
    return 0


def _show(plan: PlanFacts, output: Output, *, explain: bool) -> None:
    if output.as_json:
        output.say(plan_json(plan))
        return
    output.show(
        plan_lines(plan, cells=output.cells, glyphs=output.glyphs, zone=None, explain=explain)
    )
