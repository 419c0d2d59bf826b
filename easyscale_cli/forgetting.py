"""Jobs that have ended leave an etcd: all their records in one transaction, or none of them."""

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from easyscale.errors import FormatError
from easyscale.model import JobState, Outcome, decode
from easyscale.rendezvous.keys import ROOT, JobKeys, job_of
from easyscale.rendezvous.store import DeletePrefix, Modified, Store, absent

_CALL_TIMEOUT_S = 5.0


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A job that nobody trains any more, and how it ended."""

    job: str
    state: JobState
    step: int
    digest: str
    reason: str
    #: Of the outcome that was read: a job that has begun again since has another one, or none.
    revision: int

    @property
    def is_finished(self) -> bool:
        return self.state is JobState.FINISHED


def endings(store: Store) -> Sequence[Ended]:
    """The jobs that have an outcome and no node, by name."""
    view = store.read(ROOT, timeout_s=_CALL_TIMEOUT_S)
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
                    revision=entry.mod_revision,
                )
            )
    return found


def forget(store: Store, ended: Ended) -> bool:
    """Delete a job's records unless somebody has taken it up since; whether they went."""
    keys = JobKeys.of(ended.job)
    compares = (Modified(keys.outcome, ended.revision), absent(keys.leader))
    result = store.transact(compares, (DeletePrefix(keys.prefix),), timeout_s=_CALL_TIMEOUT_S)
    return result.succeeded
