"""The keys of a plain or packed job, and the transactions that may change them.

    /easyscale/plain/v1/<job>/
        terms                   what all its nodes agree on
        round                   the start of all workers that stands, or is being stopped
        report/<round>/<node>   what became of a node's workers
        outcome                 how it ended
        wishes/<id>             what a person asks of it
        nodes/ leader gone/     as in every job: membership.py

Every write of the leader compares its token and the round that it has seen.
"""

from collections.abc import Sequence

import msgspec

from easyscale.agent.plain.actions import Write
from easyscale.agent.plain.values import Offer, Outcome, Report, Round, RoundPhase, Sight, Terms
from easyscale.errors import JobConflict
from easyscale.model import Wish, decode, encode
from easyscale.rendezvous.keys import JobKeys, check_name
from easyscale.rendezvous.store import (
    Compare,
    Created,
    Delete,
    DeletePrefix,
    LeaseId,
    Modified,
    Operation,
    Put,
    View,
    absent,
)

ROOT = "/easyscale/plain/v1/"


class PlainKeys:
    """The keys of one job."""

    def __init__(self, job_id: str) -> None:
        self.prefix = f"{ROOT}{check_name(job_id, what='job id')}/"
        #: What membership and lease guard need.
        self.common = JobKeys(self.prefix)
        self.terms = f"{self.prefix}terms"
        self.round = f"{self.prefix}round"
        self.outcome = f"{self.prefix}outcome"
        self.reports = f"{self.prefix}report/"

    def report(self, round_number: int, node: str) -> str:
        return f"{self.reports}{round_number}/{node}"

    def ranges(self, *, leads: bool) -> tuple[str, ...]:
        """What an agent follows: the leader everything, others what it or a person decides."""
        followed = (self.terms, self.round, self.outcome, self.common.wishes)
        return (self.prefix,) if leads else followed


def sight_of(view: View, keys: PlainKeys) -> Sight:
    """The job as the store had it at one revision."""
    nodes = sorted(view.under(keys.common.nodes), key=lambda entry: entry.create_revision)
    found = view.get(keys.round)
    round_ = None if found is None else decode(found.value, Round, source=keys.round)
    reports: dict[str, Report] = {}
    if round_ is not None:
        folder = keys.report(round_.number, "")
        written = sorted(view.under(folder), key=lambda entry: entry.create_revision)
        for each in written:
            name = each.key.removeprefix(folder)
            reports[name] = decode(each.value, Report, source=each.key)
    entry, terms = view.get(keys.outcome), view.get(keys.terms)
    wishes = {
        each.key.removeprefix(keys.common.wishes): decode(each.value, Wish, source=each.key)
        for each in view.under(keys.common.wishes)
    }
    return Sight(
        offers=tuple(decode(each.value, Offer, source=each.key) for each in nodes),
        round=round_,
        revision=found.mod_revision if found else 0,
        reports=reports,
        outcome=None if entry is None else decode(entry.value, Outcome, source=keys.outcome),
        wishes=wishes,
        terms=None if terms is None else decode(terms.value, Terms, source=keys.terms),
    )


Transaction = tuple[Sequence[Compare], Sequence[Operation]]


def put(
    keys: PlainKeys, decision: Write, *, token: int, lease: LeaseId | None = None
) -> Transaction:
    """What a leader has decided; a round that follows another takes its reports away."""
    compares: list[Compare] = [
        Created(keys.common.leader, token),
        Modified(keys.round, decision.revision),
        absent(keys.outcome),
    ]
    value = decision.value
    if isinstance(value, Outcome):
        return compares, [Put(keys.outcome, encode(value), lease)]
    operations: list[Operation] = [Put(keys.round, encode(value))]
    if value.phase is RoundPhase.RUNNING:
        operations.append(DeletePrefix(keys.report(value.number - 1, "")))
    return compares, operations


def begin_anew(view: View, keys: PlainKeys, terms: Terms) -> Transaction:
    """Put a job that nobody runs any more back to its beginning."""
    before = {key: view.get(key) for key in (keys.round, keys.outcome, keys.terms)}
    compares = [Modified(k, entry.mod_revision if entry else 0) for k, entry in before.items()]
    return compares, [
        Delete(keys.round),
        Delete(keys.outcome),
        DeletePrefix(keys.reports),
        DeletePrefix(keys.common.wishes),
        Put(keys.terms, encode(terms)),
    ]


def refuse_other_terms(job_id: str, *, stands: Terms, asked: Terms) -> None:
    """Raise JobConflict where this launch asks for what the job's other nodes do not."""
    if msgspec.structs.replace(stands, token=asked.token) == asked:
        return
    raise JobConflict(
        f"job {job_id!r} runs with {_told(stands)}; this launch says {_told(asked)}",
        hint="the same line on every node, or another --rdzv-id",
    )


def _told(terms: Terms) -> str:
    most = "" if terms.max_nodes is None else terms.max_nodes
    words = [f"--nnodes {terms.min_nodes}:{most}", f"--max-restarts {terms.max_restarts}"]
    if terms.logical_workers is not None:
        words.append(f"--packed --logical-workers {terms.logical_workers}")
    return " ".join(words)
