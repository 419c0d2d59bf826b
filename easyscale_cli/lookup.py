"""Which job a command means: by its name or by being the only one, here or in an etcd."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from easyscale.agent.doors.control import LocalAgent, ask
from easyscale.agent.doors.dialogue import AgentRefused, AgentSilent
from easyscale.errors import EasyScaleError, UsageError
from easyscale_cli.connection import Job, LocalJob, NodeUnknown, agents_here
from easyscale_cli.views.errors import near_miss, some_of

_ASK_TIMEOUT_S = 2.0


class JobUnknown(EasyScaleError):
    """Raised when no job of that name is where the person looks for it."""

    code = "job_unknown"


@contextlib.contextmanager
def found(
    name: str | None, asked: Mapping[str, Any], *, command: str, apart_from: str = ""
) -> Iterator[Job]:
    """The job that is meant; raises JobUnknown or UsageError with what there is instead."""
    here = agents_here()
    if not asked["etcd"]:
        agents = here[_choose(name, list(here), place="on this machine", command=command)]
        yield LocalJob(agents, apart_from=apart_from)
        return
    from easyscale_cli import stored
    from easyscale_cli.stored_plain import StoredPlainJob, stored_plain_jobs

    settings = stored.etcd_settings(asked)
    if name in here and _is_in(here[name], str(settings)):
        yield LocalJob(here[name], apart_from=apart_from)
        return
    with contextlib.closing(stored.connect(settings)) as store:
        if name is not None and stored.exists(store, name):
            yield stored.StoredJob(name, store, apart_from=apart_from)
            return
        plain = stored_plain_jobs(store)
        if name in here and name not in plain:  # an etcd of its own, whatever is named
            yield LocalJob(here[name], apart_from=apart_from)
            return
        known = sorted({*stored.stored_jobs(store), *plain})
        job = _choose(name, known, place=f"in {settings}", command=command)
        kind = StoredPlainJob if job in plain else stored.StoredJob
        yield kind(job, store, apart_from=apart_from)


def _is_in(agents: Sequence[LocalAgent], endpoints: str) -> bool:
    """Whether the job of these agents has its records in that etcd."""
    with contextlib.suppress(AgentSilent, AgentRefused):
        answer = ask(Path(agents[0].socket), "store", timeout_s=_ASK_TIMEOUT_S)
        return bool(answer["endpoints"] == endpoints)
    return False


def _choose(name: str | None, known: Sequence[str], *, place: str, command: str) -> str:
    if name is not None and name in known:
        return name
    elsewhere = "its etcd: --etcd HOST:2379"
    if not known:
        what = "no job" if name is None else f"no job {name!r}"
        raise JobUnknown(
            f"{what} {place}", hint=f"start one: easyscale launch, or name {elsewhere}"
        )
    if name is not None:
        near = near_miss(name, known)
        raise JobUnknown(
            f"no job {name!r} {place}; it has {some_of(known)}",
            hint=f"easyscale {command} {near}" if near else f"easyscale jobs, or name {elsewhere}",
        )
    if len(known) > 1:
        raise UsageError(
            f"{len(known)} jobs {place}: {some_of(known)}", hint=f"easyscale {command} {known[0]}"
        )
    return known[0]


def check_place(slots: Sequence[tuple[str, str]], *, job: str, node: str, slot: str = "") -> None:
    """Refuse a node or slot that the job has not; `slots` are its (node, slot)."""
    nodes = sorted({each for each, _ in slots})
    if node not in nodes:
        near = near_miss(node, nodes)
        has = f"it has {some_of(nodes)}" if nodes else "it has none now"
        raise NodeUnknown(f"job {job!r} has no node {node!r}; {has}", hint=near or "")
    names = [each for owner, each in slots if owner == node]
    if slot and slot not in names:
        near = near_miss(slot, names)
        raise NodeUnknown(
            f"node {node} has no slot {slot!r}; it has {some_of(names)}",
            hint=f"{node}/{near or names[0]}",
        )
