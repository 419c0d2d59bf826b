"""`easyscale migrate`: what a node or slot holds moves to another in one switch."""

from typing import Any

import click

from easyscale.errors import EasyScaleError, UsageError
from easyscale.job_status import Glance, SlotFacts
from easyscale.kinds import bits_of
from easyscale.model import Wish
from easyscale_cli.connection import Job
from easyscale_cli.lookup import check_place, found
from easyscale_cli.options import look_options, store_options, user_name
from easyscale_cli.output import Output
from easyscale_cli.parameters import NumberRange
from easyscale_cli.telling import show_event, told_since
from easyscale_cli.views.help import PageCommand
from easyscale_cli.waiting import Asking, wait_until


class NothingToMove(UsageError):
    """Raised when the place holds no logical worker of the job."""

    code = "nothing_to_move"


class OtherKind(UsageError):
    """Raised when the target computes other bits than the job, so that it can take nothing over."""

    code = "other_kind"


class CannotTakeOver(EasyScaleError):
    """Raised when nothing moves: the target has gone, or somebody has withdrawn the wish."""

    code = "cannot_take_over"


@click.command(cls=PageCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("job")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "--timeout",
    "limit_s",
    type=NumberRange(min=0.0),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait so long until it has moved.",
)
@store_options
@look_options
def command(job: str, source: str, target: str, *, limit_s: float, **asked: Any) -> int:
    """Move what FROM holds, a NODE or NODE/SLOT of JOB, to TO, and have FROM leave."""
    output = Output(asked)
    with output.answering(), found(job, asked, command="migrate") as it:
        before = it.glance()
        node, slot = _place(source, it, before)
        _place(target, it, before)
        if _is_within(source, target) or _is_within(target, source):
            raise UsageError(f"{source} and {target} are one place", hint="name another one")
        if not any(each.ranks for each in _there(before, node, slot)):
            raise NothingToMove(
                f"{source} holds no logical worker of job {it.id!r}",
                hint=f"easyscale drain {it.id} {source}",
            )
        check_kind(before, _there(before, node, slot), target)
        check_target(before, target)
        by, slots = f"asked by {user_name()}", (slot,) if slot else ()
        wish = Wish(kind="migrate", node=node, slots=slots, target=target, by=by)
        asking = Asking(it, wish, output, name="the migration")

        def has_moved(glance: Glance) -> bool:
            if not any(each.ranks for each in _there(glance, node, slot)):
                return True
            try:
                check_target(glance, target)
            except CannotTakeOver as error:
                raise CannotTakeOver(f"{error.message}; {asking.withdraw()}") from None
            if asking.is_gone():
                raise CannotTakeOver(f"{source} has not moved: its migration was withdrawn")
            return False

        with asking.waited_for():
            wait_until(
                has_moved,
                job=it,
                output=output,
                what=lambda glance: (
                    f"a worker of {target} to take over, at step {glance.status.job.step:,}"
                ),
                limit_s=limit_s,
                at_end=asking.withdraw,
            )
        show_event(told_since(it, before, "migrated"), output)
    return 0


def _place(text: str, job: Job, glance: Glance) -> tuple[str, str]:
    node, _, slot = text.partition("/")
    if not node or text.endswith("/"):
        raise UsageError(f"{text!r} is no place", hint="NODE or NODE/SLOT, as status shows them")
    offered = [(each.node, each.slot) for each in glance.status.slots]
    check_place(offered, job=job.id, node=node, slot=slot)
    return node, slot


def check_kind(glance: Glance, sources: list[SlotFacts], target: str) -> None:
    """A job whose bits are those of one kind of slots takes no slot of another kind."""
    job = glance.status.job
    node, _, slot = target.partition("/")
    kinds = {bits_of(each.kind) for each in sources}
    others = {bits_of(each.kind) for each in _there(glance, node, slot)}
    # A slot whose worker has not started yet is of a kind that nobody knows.
    if others and "" not in others and not kinds & others:
        raise OtherKind(
            f"{target} is of kind {', '.join(sorted(others))},"
            f" job {job.id!r} of kind {', '.join(sorted(kinds))}: it would compute other bits",
            hint=f"easyscale devices {job.id}",
        )


def check_target(glance: Glance, target: str) -> None:
    """Whoever has gone or is about to go takes nothing over, however long one waits."""
    node, _, slot = target.partition("/")
    if all(each.state == "draining" for each in _there(glance, node, slot)):
        raise CannotTakeOver(
            f"{target} is gone or drains: it takes nothing over",
            hint=f"easyscale devices {glance.status.job.id}",
        )


def _is_within(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}/")


def _there(glance: Glance, node: str, slot: str) -> list[SlotFacts]:
    return [
        each
        for each in glance.status.slots
        if each.node == node and slot in ("", each.slot) and each.state != "gone"
    ]
