"""Every key of a job in one place; a folder ends in a slash. `<g>` is `<era>.<number>`.

    /easyscale/v1/<job>/
        head                            what every write of truth compares
        job                             fixed for the job's life; the token
        code                            digests of the script and its local modules
        leader                          lease; its create_revision is the leader's token
        nodes/<node>                    lease; a registration
        gone/<worker>                   how a worker ended
        gone/<node>/<incarnation>       how an agent ended
        wishes/<id>                     what a person or an agent asks of the leader
        plan/<g>                        members, map, mode
        ready/<g>/<worker>              lease; the worker holds the plan
        commit/<g>                      the self-contained record
        in/<g>/<worker>                 lease; the worker formed the generation
        broken/<g>/<worker>             lease; its wait ended without a result
        profile                         throughput against number and kind of slots
        progress                        position, step, metrics, once a second
        proposals                       what more slots would bring, for the level above
        snapshots/<name>                a durable snapshot
        speed                           which slots are slow, how the plan came about
        outcome                         how the job ended

`<worker>` is `<node>/<incarnation>/<slot>/<spawn>`, where a slot may itself hold a slash.
"""

from dataclasses import dataclass
from functools import lru_cache

from easyscale.errors import FormatError, UsageError
from easyscale.model import GenerationNumber, WorkerId

ROOT = "/easyscale/v1/"
MAX_NAME_LENGTH = 64
#: Keys whose meaning is kept: a leader of a thousand agents reads some three thousand at each look.
_MOST_KEYS = 1 << 14


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One life of a node's agent."""

    node: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class JobKeys:
    """The keys of one job; build it with `JobKeys.of`, which checks the id."""

    prefix: str

    @classmethod
    def of(cls, job_id: str) -> "JobKeys":
        check_name(job_id, what="job id")
        return cls(f"{ROOT}{job_id}/")

    @property
    def job_id(self) -> str:
        return job_of(self.prefix)

    @property
    def head(self) -> str:
        return f"{self.prefix}head"

    @property
    def job(self) -> str:
        return f"{self.prefix}job"

    @property
    def code(self) -> str:
        return f"{self.prefix}code"

    @property
    def leader(self) -> str:
        return f"{self.prefix}leader"

    @property
    def progress(self) -> str:
        return f"{self.prefix}progress"

    @property
    def profile(self) -> str:
        return f"{self.prefix}profile"

    @property
    def proposals(self) -> str:
        return f"{self.prefix}proposals"

    @property
    def speed(self) -> str:
        return f"{self.prefix}speed"

    @property
    def outcome(self) -> str:
        return f"{self.prefix}outcome"

    @property
    def nodes(self) -> str:
        return f"{self.prefix}nodes/"

    def node(self, node: str) -> str:
        return f"{self.nodes}{check_name(node, what='node name')}"

    @property
    def gone(self) -> str:
        return f"{self.prefix}gone/"

    def gone_worker(self, worker: WorkerId) -> str:
        return f"{self.gone}{worker}"

    def gone_agent(self, node: str, incarnation: str) -> str:
        return f"{self.gone}{node}/{incarnation}"

    @property
    def wishes(self) -> str:
        return f"{self.prefix}wishes/"

    def wish(self, wish_id: str) -> str:
        return f"{self.wishes}{check_name(wish_id, what='wish id')}"

    @property
    def plans(self) -> str:
        return f"{self.prefix}plan/"

    def plan(self, generation: GenerationNumber) -> str:
        return f"{self.plans}{generation}"

    @property
    def readies(self) -> str:
        return f"{self.prefix}ready/"

    def ready_in(self, generation: GenerationNumber) -> str:
        return f"{self.readies}{generation}/"

    def ready(self, generation: GenerationNumber, worker: WorkerId) -> str:
        return f"{self.ready_in(generation)}{worker}"

    @property
    def commits(self) -> str:
        return f"{self.prefix}commit/"

    def commit(self, generation: GenerationNumber) -> str:
        return f"{self.commits}{generation}"

    @property
    def entries(self) -> str:
        return f"{self.prefix}in/"

    def entries_in(self, generation: GenerationNumber) -> str:
        return f"{self.entries}{generation}/"

    def entry(self, generation: GenerationNumber, worker: WorkerId) -> str:
        return f"{self.entries_in(generation)}{worker}"

    @property
    def breaks(self) -> str:
        return f"{self.prefix}broken/"

    def breaks_in(self, generation: GenerationNumber) -> str:
        return f"{self.breaks}{generation}/"

    def broken(self, generation: GenerationNumber, worker: WorkerId) -> str:
        return f"{self.breaks_in(generation)}{worker}"

    @property
    def snapshots(self) -> str:
        return f"{self.prefix}snapshots/"

    def snapshot(self, name: str) -> str:
        return f"{self.snapshots}{check_name(name, what='snapshot name')}"


def check_name(name: str, *, what: str) -> str:
    """Return a name that may stand in a key and name a folder; raises UsageError for others."""
    if not name or len(name) > MAX_NAME_LENGTH:
        message = f"a {what} has 1 to {MAX_NAME_LENGTH} characters; {name!r} has {len(name)}"
        raise UsageError(message)
    if not (name.isascii() and name.isprintable()) or "/" in name:
        raise UsageError(f"a {what} is printable ASCII without '/'; {name!r} is not")
    if name in {".", ".."} or name != name.strip():
        raise UsageError(f"a {what} must be able to name a folder; {name!r} cannot")
    return name


def job_of(key: str) -> str:
    """The job that a key belongs to."""
    return _parts(key)[0]


def node_of(key: str) -> str:
    """The node of a key below `nodes/`."""
    return _below(key, "nodes")


def name_of(key: str) -> str:
    """The last part of a key below `wishes/` or `snapshots/`."""
    return _below(key, "wishes", "snapshots")


@lru_cache(_MOST_KEYS)
def generation_of(key: str) -> GenerationNumber:
    """The generation of a key below `plan/`, `ready/`, `commit/`, `in/` or `broken/`."""
    rest = _below(key, "plan", "ready", "commit", "in", "broken")
    return GenerationNumber.parse(rest.partition("/")[0])


@lru_cache(_MOST_KEYS)
def worker_of(key: str) -> WorkerId:
    """The worker of a key below `ready/`, `in/` or `broken/`."""
    return WorkerId.parse(_below(key, "ready", "in", "broken").partition("/")[2])


def ended_of(key: str) -> WorkerId | Incarnation:
    """Who a key below `gone/` says has ended: a worker, or an agent with all its workers."""
    rest = _below(key, "gone")
    node, _, incarnation = rest.partition("/")
    if incarnation and "/" not in incarnation:
        return Incarnation(node, incarnation)
    return WorkerId.parse(rest)


def _below(key: str, *folders: str) -> str:
    _, folder, rest = _parts(key)
    if folder not in folders or not rest:
        raise FormatError(f"{key!r} is not a key below {' or '.join(folders)}")
    return rest


def _parts(key: str) -> tuple[str, str, str]:
    job, _, rest = key.removeprefix(ROOT).partition("/")
    if not key.startswith(ROOT) or not job:
        raise FormatError(f"{key!r} is not a key of easyscale")
    folder, _, below = rest.partition("/")
    return job, folder, below
