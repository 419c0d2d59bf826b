"""`easyscale plan`: a job's plan and why it is this one, or the best plan of slots to come."""

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

#: More slots than this are not listed one by one, nor planned without a word.
_MOST_SLOTS = 100_000


class SlotsType(click.ParamType[tuple[KindOfSlot, ...]]):
    """`KIND:COUNT@MICRO-STEPS-PER-SECOND,...`; the numbers are taken exactly as written."""

    name = "KIND:COUNT@RATE,..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[KindOfSlot, ...]:
        kinds = tuple(self._kind(word.strip(), param, ctx) for word in str(value).split(","))
        names = [kind.name for kind in kinds]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            self.fail(f"{twice} stands there twice", param, ctx)
        if sum(kind.slots for kind in kinds) > _MOST_SLOTS:
            self.fail(f"more than {_MOST_SLOTS:,} slots", param, ctx)
        return kinds

    def _kind(
        self, word: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> KindOfSlot:
        name, _, rest = word.partition(":")
        count, _, rate = rest.partition("@")
        try:
            speed = Fraction(rate)
        except (ValueError, ZeroDivisionError):
            speed = Fraction(0)
        if not name or not count.isdecimal() or speed <= 0:
            self.fail(f"{word!r} is no KIND:COUNT@RATE, such as fast:2@4.0", param, ctx)
        return KindOfSlot(name, int(count), speed)


@click.command(cls=PageCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("job", required=False)
@click.option("--explain", is_flag=True, help="Also the other plans that were looked at.")
@click.option(
    "--slots",
    type=SlotsType(),
    metavar="KIND:COUNT@RATE,...",
    help="Slots that need not exist: their kind, number and micro-steps per second.",
)
@click.option(
    "--logical-workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --slots: the job's logical workers.",
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
