"""Jobs that have ended leave an etcd: all their records in one transaction, or none of them.

An elastic job that has failed or was stopped could go on. A plain or packed one begins anew each
time, so what is left of it may always go.
"""

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from easyscale.agent.plain import records as plain
from easyscale.agent.plain.values import ReportState, Sight
from easyscale.errors import FormatError
from easyscale.model import JobState, Outcome, decode
from easyscale.rendezvous.keys import ROOT, JobKeys, job_of
from easyscale.rendezvous.store import DeletePrefix, Modified, Store, View, absent

_CALL_TIMEOUT_S = 5.0


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A job that nobody trains any more, and how it ended."""

    job: str
    state: JobState
    step: int
    digest: str
    reason: str
    #: Where its records are, and the one of them that is another, or gone, if it began again since.
    keys: JobKeys
    witness: str
    revision: int
    #: The same command would go on with it.
    can_go_on: bool = True

    @property
    def is_finished(self) -> bool:
        return self.state is JobState.FINISHED


def endings(store: Store) -> Sequence[Ended]:
    """The jobs that have ended and have no node: elastic ones, then the others, by name."""
    elastic = store.read(ROOT, timeout_s=_CALL_TIMEOUT_S)
    others = store.read(plain.ROOT, timeout_s=_CALL_TIMEOUT_S)
    return [*_elastic_endings(elastic), *_plain_endings(others)]


def _elastic_endings(view: View) -> Sequence[Ended]:
    names = sorted({job_of(key) for key in view.entries})
    found = []
    for name in names:
        keys = JobKeys.of(name)
        entry = view.get(keys.outcome)
        if entry is None or any(key.startswith(keys.nodes) for key in view.entries):
            continue
        with suppress(FormatError):  # of a newer easyscale: not ours to judge
            outcome = decode(entry.value, Outcome, source=entry.key)
            found.append(
                Ended(
                    job=name,
                    state=outcome.state,
                    step=outcome.step,
                    digest=outcome.digest,
                    reason=outcome.reason,
                    keys=keys,
                    witness=keys.outcome,
                    revision=entry.mod_revision,
                )
            )
    return found


def _plain_endings(view: View) -> Sequence[Ended]:
    """Whose outcome went with the lease of the node that wrote it is judged by its reports."""
    names = sorted({key.removeprefix(plain.ROOT).partition("/")[0] for key in view.entries})
    found = []
    for name in names:
        keys = plain.PlainKeys(name)
        entry = view.get(keys.terms)
        if entry is None or any(view.under(keys.common.nodes)):
            continue
        with suppress(FormatError):
            sight = plain.sight_of(view, keys)
            found.append(
                Ended(
                    job=name,
                    state=_plain_state(sight),
                    step=0,
                    digest="",
                    reason=sight.outcome.reason if sight.outcome else "all its nodes have left",
                    keys=keys.common,
                    witness=keys.terms,
                    revision=entry.mod_revision,
                    can_go_on=False,
                )
            )
    return found


def _plain_state(sight: Sight) -> JobState:
    ends = {report.state for report in sight.reports.values()}
    if (sight.outcome is not None and sight.outcome.is_finished) or ends == {ReportState.DONE}:
        return JobState.FINISHED
    if ReportState.FAILED in ends:
        return JobState.FAILED
    return JobState.STOPPED


def forget(store: Store, ended: Ended) -> bool:
    """Delete a job's records unless somebody has taken it up since; whether they went."""
    compares = (Modified(ended.witness, ended.revision), absent(ended.keys.leader))
    result = store.transact(compares, (DeletePrefix(ended.keys.prefix),), timeout_s=_CALL_TIMEOUT_S)
    return result.succeeded
