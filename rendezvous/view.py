"""One job as the store held it at one revision: parsed once, immutable, asked by the leader.

A record that cannot be read is named in `unreadable` and left out; nothing raises.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TypeVar

from easyscale.balance import ProfileRecord, ProposalsRecord, SpeedRecord
from easyscale.errors import FormatError
from easyscale.model import (
    BrokenReport,
    Commit,
    Ending,
    Entry,
    GenerationNumber,
    Head,
    JobSpec,
    NodeRecord,
    Outcome,
    Plan,
    ProgressRecord,
    Readiness,
    Record,
    SnapshotRecord,
    Wish,
    WorkerId,
    decode,
)
from easyscale.rendezvous import keys as key_names
from easyscale.rendezvous.keys import Incarnation, JobKeys
from easyscale.rendezvous.store import Entry as StoredKey
from easyscale.rendezvous.store import View

R = TypeVar("R", bound=Record)
_NOTHING: Mapping[str, tuple[str, Record]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Node:
    """A registration; (name, create_revision) is its identity."""

    record: NodeRecord
    create_revision: int

    @property
    def incarnation(self) -> Incarnation:
        return Incarnation(self.record.node, self.record.incarnation)


@dataclass(frozen=True)  # no slots: what is derived is computed once, when first asked for
class JobView:
    """Everything below a job's prefix, or the part of it that a follower watches."""

    revision: int = 0
    head: Head | None = None
    #: mod_revision of `head`, 0 where it is absent: what every write of truth compares.
    head_revision: int = 0
    spec: JobSpec | None = None
    spec_revision: int = 0
    #: create_revision of `leader`, 0 where nobody leads.
    leader_token: int = 0
    nodes: Mapping[str, Node] = field(default_factory=dict)
    gone: Mapping[WorkerId, Ending] = field(default_factory=dict)
    #: Workers in the order in which their endings were recorded.
    gone_order: tuple[WorkerId, ...] = ()
    gone_agents: Mapping[Incarnation, Ending] = field(default_factory=dict)
    plans: Mapping[GenerationNumber, Plan] = field(default_factory=dict)
    plan_revisions: Mapping[GenerationNumber, int] = field(default_factory=dict)
    ready: Mapping[GenerationNumber, Mapping[WorkerId, Readiness]] = field(default_factory=dict)
    commits: Mapping[GenerationNumber, Commit] = field(default_factory=dict)
    entries: Mapping[GenerationNumber, Mapping[WorkerId, Entry]] = field(default_factory=dict)
    breaks: Mapping[GenerationNumber, Mapping[WorkerId, BrokenReport]] = field(default_factory=dict)
    #: In the order in which they were asked.
    wishes: Mapping[str, Wish] = field(default_factory=dict)
    progress: ProgressRecord | None = None
    snapshots: Mapping[str, SnapshotRecord] = field(default_factory=dict)
    outcome: Outcome | None = None
    outcome_revision: int = 0
    speed: SpeedRecord | None = None
    profile: ProfileRecord | None = None
    proposals: ProposalsRecord | None = None
    #: Key -> why it could not be read.
    unreadable: Mapping[str, str] = field(default_factory=dict)
    #: Key -> (text, value), so that the next view parses only what changed. Revisions would not
    #: tell: a store that was emptied counts anew.
    parsed: Mapping[str, tuple[str, Record]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, view: View, keys: JobKeys, *, before: "JobView | None" = None) -> "JobView":
        """Parse what changed since `before`."""
        reader = _Reader(keys, before.parsed if before else _NOTHING)
        for entry in view.entries.values():
            reader.take(entry)
        return reader.build(view.revision)

    # --- what follows from it -----------------------------------------------------------------

    @cached_property
    def newest(self) -> Commit | None:
        """The newest committed generation."""
        return self.commits[max(self.commits)] if self.commits else None

    @cached_property
    def base(self) -> Commit | None:
        """The newest committed generation that has members: a pause has none."""
        grown = [generation for generation, commit in self.commits.items() if commit.members]
        return self.commits[max(grown)] if grown else None

    @cached_property
    def open(self) -> tuple[Commit, ...]:
        """The generations that could still run, oldest first.

        They are the committed ones from the newest on that all its members have entered.
        """
        since = [g for g, commit in self.commits.items() if self.is_entered(commit)]
        first = max(since, default=GenerationNumber(0, 0))
        return tuple(self.commits[g] for g in sorted(self.commits) if g >= first)

    @cached_property
    def forgotten(self) -> tuple[Commit, ...]:
        """What registered agents know and the store has lost: generations newer than its head."""
        head = self.head
        known = GenerationNumber(head.era, head.committed) if head else GenerationNumber(0, 0)
        offers = (node.record.commit for node in self.nodes.values())
        return tuple(c for c in offers if c is not None and c.members and c.generation > known)

    def is_entered(self, commit: Commit) -> bool:
        """All members said that they formed it. A pause is never entered by anybody."""
        entered = self.entries.get(commit.generation, {})
        return bool(commit.members) and all(worker in entered for worker in commit.workers)

    @property
    def open_plan(self) -> Plan | None:
        """The plan that is neither committed nor given up, if any."""
        if self.head is None or self.head.planned == self.head.committed:
            return None
        return self.plans.get(GenerationNumber(self.head.era, self.head.planned))

    def ended(self, worker: WorkerId) -> bool:
        """Is it *known* to have ended? An expired lease alone is no proof."""
        if worker in self.gone:
            return True
        agent = Incarnation(worker.node, worker.incarnation)
        if agent in self.gone_agents:
            return True
        node = self.nodes.get(worker.node)
        if node is None or node.record.incarnation == worker.incarnation:
            return False
        return outlives(node.record.incarnation, worker.incarnation)

    def is_present(self, worker: WorkerId) -> bool:
        """Its agent is registered, and nothing says that it ended."""
        node = self.nodes.get(worker.node)
        here = node is not None and node.record.incarnation == worker.incarnation
        return here and not self.ended(worker)

    @cached_property
    def _holders(self) -> frozenset[WorkerId]:
        entered = (
            worker
            for entered in self.entries.values()
            for worker, entry in entered.items()
            if entry.has_state
        )
        # An agent that has lost its lease registers first, and writes its workers' entries after.
        registered = (
            slot.worker
            for node in self.nodes.values()
            for slot in node.record.slots
            if slot.worker is not None and slot.has_state
        )
        return frozenset((*entered, *registered))

    def holds_state(self, worker: WorkerId) -> bool:
        """It formed a generation, as its entry or its registration says: it holds the state."""
        return worker in self._holders

    def may_hold_state(self, worker: WorkerId) -> bool:
        """It may hold state: it said so, or its agent, which would say so, cannot be asked."""
        return self.holds_state(worker) or not self.is_present(worker)


def incarnation_of(*, host: str, boot_id: str, chance: str) -> str:
    """Name one life of an agent so that a later boot of the same host shows in it."""
    parts = (hashlib.blake2b(part.encode(), digest_size=4).hexdigest() for part in (host, boot_id))
    return "-".join((*parts, chance))


def outlives(newer: str, older: str) -> bool:
    """Tell whether these incarnations prove that the host was booted anew since the older one."""
    (host, boot, _), (old_host, old_boot, _) = (f"{one}--".split("-", 2) for one in (newer, older))
    return bool(host and boot and old_boot) and host == old_host and boot != old_boot


class _Reader:
    """Gathers the parts of a view; one instance per `JobView.of`."""

    def __init__(self, keys: JobKeys, before: Mapping[str, tuple[str, Record]]) -> None:
        self._keys = keys
        self._before = before
        self._parsed: dict[str, tuple[str, Record]] = {}
        self._unreadable: dict[str, str] = {}
        self._head: tuple[int, Head | None] = (0, None)
        self._spec: tuple[int, JobSpec | None] = (0, None)
        self._progress: ProgressRecord | None = None
        self._outcome: tuple[int, Outcome | None] = (0, None)
        self._speed: SpeedRecord | None = None
        self._profile: ProfileRecord | None = None
        self._proposals: ProposalsRecord | None = None
        self._nodes: dict[str, Node] = {}
        self._gone: list[tuple[int, WorkerId, Ending]] = []
        self._gone_agents: dict[Incarnation, Ending] = {}
        self._plans: dict[GenerationNumber, Plan] = {}
        self._plan_revisions: dict[GenerationNumber, int] = {}
        self._ready: dict[GenerationNumber, dict[WorkerId, Readiness]] = {}
        self._commits: dict[GenerationNumber, Commit] = {}
        self._entries: dict[GenerationNumber, dict[WorkerId, Entry]] = {}
        self._breaks: dict[GenerationNumber, dict[WorkerId, BrokenReport]] = {}
        self._wishes: list[tuple[int, str, Wish]] = []
        self._snapshots: dict[str, SnapshotRecord] = {}
        self._leader_token = 0

    def take(self, entry: StoredKey) -> None:
        try:
            self._sort(entry)
        except FormatError as error:
            self._unreadable[entry.key] = error.message

    def _sort(self, entry: StoredKey) -> None:
        folder = entry.key.removeprefix(self._keys.prefix).partition("/")[0]
        match folder:
            case "leader":
                self._leader_token = entry.create_revision
            case "head":
                self._head = (entry.mod_revision, self._read(entry, Head))
            case "job":
                self._spec = (entry.mod_revision, self._read(entry, JobSpec))
            case "progress":
                self._progress = self._read(entry, ProgressRecord)
            case "outcome":
                self._outcome = (entry.mod_revision, self._read(entry, Outcome))
            case "speed":
                self._speed = self._read(entry, SpeedRecord)
            case "profile":
                self._profile = self._read(entry, ProfileRecord)
            case "proposals":
                self._proposals = self._read(entry, ProposalsRecord)
            case "nodes":
                node = self._read(entry, NodeRecord)
                self._nodes[key_names.node_of(entry.key)] = Node(node, entry.create_revision)
            case "gone":
                self._take_ending(entry)
            case "wishes":
                wish = self._read(entry, Wish)
                self._wishes.append((entry.create_revision, key_names.name_of(entry.key), wish))
            case "snapshots":
                name = key_names.name_of(entry.key)
                self._snapshots[name] = self._read(entry, SnapshotRecord)
            case "plan":
                generation = key_names.generation_of(entry.key)
                self._plans[generation] = self._read(entry, Plan)
                self._plan_revisions[generation] = entry.mod_revision
            case "commit":
                self._commits[key_names.generation_of(entry.key)] = self._read(entry, Commit)
            case "ready":
                _below(self._ready, entry)[key_names.worker_of(entry.key)] = self._read(
                    entry, Readiness
                )
            case "in":
                _below(self._entries, entry)[key_names.worker_of(entry.key)] = self._read(
                    entry, Entry
                )
            case "broken":
                _below(self._breaks, entry)[key_names.worker_of(entry.key)] = self._read(
                    entry, BrokenReport
                )
            case _:
                pass  # a newer easyscale may keep more; what it means is not ours to know

    def _take_ending(self, entry: StoredKey) -> None:
        ending = self._read(entry, Ending)
        match key_names.ended_of(entry.key):
            case WorkerId() as worker:
                self._gone.append((entry.create_revision, worker, ending))
            case Incarnation() as agent:
                self._gone_agents[agent] = ending

    def _read(self, entry: StoredKey, form: type[R]) -> R:
        known = self._before.get(entry.key)
        if known is not None and known[0] == entry.value and isinstance(known[1], form):
            self._parsed[entry.key] = known
            return known[1]
        value = decode(entry.value, form, source=entry.key)
        self._parsed[entry.key] = (entry.value, value)
        return value

    def build(self, revision: int) -> JobView:
        head_revision, head = self._head
        spec_revision, spec = self._spec
        outcome_revision, outcome = self._outcome
        gone = sorted(self._gone)
        return JobView(
            revision=revision,
            head=head,
            head_revision=head_revision,
            spec=spec,
            spec_revision=spec_revision,
            leader_token=self._leader_token,
            nodes=self._nodes,
            gone={worker: ending for _, worker, ending in gone},
            gone_order=tuple(worker for _, worker, _ in gone),
            gone_agents=self._gone_agents,
            plans=self._plans,
            plan_revisions=self._plan_revisions,
            ready=self._ready,
            commits=self._commits,
            entries=self._entries,
            breaks=self._breaks,
            wishes={name: w for _, name, w in sorted(self._wishes, key=lambda each: each[:2])},
            progress=self._progress,
            snapshots=self._snapshots,
            outcome=outcome,
            outcome_revision=outcome_revision,
            speed=self._speed,
            profile=self._profile,
            proposals=self._proposals,
            unreadable=self._unreadable,
            parsed=self._parsed,
        )


_V = TypeVar("_V")


def _below(
    table: dict[GenerationNumber, dict[WorkerId, _V]], entry: StoredKey
) -> dict[WorkerId, _V]:
    return table.setdefault(key_names.generation_of(entry.key), {})
