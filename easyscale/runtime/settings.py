"""What a job is, fixed for its life: the command line wins over the environment over the script.

An argument of `init` that does not stand is named in one line, never dropped in silence.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from easyscale.errors import ScriptError, UsageError
from easyscale.guide import Paragraph
from easyscale.messages import WorkerSettings
from easyscale.model import Determinism

#: Set by torchrun and by our own plain and packed modes, never for an elastic worker.
_FOREIGN_RANKS = ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What the script passed to `init`; None where it said nothing."""

    logical_workers: int | None = None
    seed: int | None = None
    determinism: Determinism | None = None
    threads_per_worker: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """The job's numbers after everybody was heard."""

    logical_workers: int
    seed: int
    determinism: Determinism
    threads_per_worker: int
    offload_partials: bool = False


def read_arguments(
    *,
    logical_workers: int | None,
    seed: int | None,
    determinism: str | None,
    threads_per_worker: int | None,
) -> Arguments:
    """Check what the script passed to `init`."""
    return Arguments(
        logical_workers=_at_least(logical_workers, 1, "init(logical_workers=...)"),
        seed=_at_least(seed, 0, "init(seed=...)"),
        determinism=_determinism(determinism, "init(determinism=...)"),
        threads_per_worker=_at_least(threads_per_worker, 1, "init(threads_per_worker=...)"),
    )


def launched(
    arguments: Arguments,
    worker: WorkerSettings,
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> JobSettings:
    """Take the numbers of the launch; the script's seed stands where it names none."""
    given = {
        "logical_workers": worker.logical_workers,
        "seed": worker.seed,
        "determinism": worker.determinism,
        "threads_per_worker": worker.threads_per_worker,
    }
    for name, value in given.items():
        if name in worker.left_open:
            _refuse_other(name, getattr(arguments, name), value)
        by = _named_by(name, value, environment)
        _name_overruled(name, getattr(arguments, name), value, by=by, say=say)
    return JobSettings(
        logical_workers=worker.logical_workers,
        seed=worker.seed if worker.seed is not None else arguments.seed or 0,
        determinism=worker.determinism,
        threads_per_worker=worker.threads_per_worker,
        offload_partials=worker.partials == "host",
    )


def alone(
    arguments: Arguments, environment: Mapping[str, str], say: Callable[[str], None]
) -> JobSettings:
    """Settle the numbers of a script that runs without a launcher."""
    refuse_platform(sys.platform)
    refuse_foreign_launcher(environment)
    logical_workers = _number(environment, "EASYSCALE_LOGICAL_WORKERS", minimum=1)
    seed = _number(environment, "EASYSCALE_SEED", minimum=0)
    threads = _number(environment, "EASYSCALE_THREADS_PER_WORKER", minimum=1)
    named = environment.get("EASYSCALE_DETERMINISM")
    determinism = _determinism(named, "EASYSCALE_DETERMINISM")
    for name, value in {
        "logical_workers": logical_workers,
        "seed": seed,
        "determinism": determinism,
        "threads_per_worker": threads,
    }.items():
        by = f"EASYSCALE_{name.upper()}"
        _name_overruled(name, getattr(arguments, name), value, by=by, say=say)
    workers = logical_workers or arguments.logical_workers
    if workers is None:
        say("1 logical worker: neither init(logical_workers=...) nor EASYSCALE_LOGICAL_WORKERS")
    return JobSettings(
        logical_workers=workers or 1,
        seed=seed if seed is not None else arguments.seed or 0,
        determinism=determinism or arguments.determinism or Determinism.SAME_KIND,
        threads_per_worker=threads or arguments.threads_per_worker or 1,
        offload_partials=environment.get("EASYSCALE_PARTIALS") == "host",
    )


def refuse_platform(platform: str) -> None:
    """Refuse where a process alone cannot keep the promise either."""
    if platform == "win32":
        raise ScriptError("easyscale needs Linux, or macOS; this is Windows", hint="WSL2")


def refuse_foreign_launcher(environment: Mapping[str, str]) -> None:
    """Refuse to run beside ranks that somebody else has given out."""
    found = [name for name in _FOREIGN_RANKS if name in environment]
    if found:
        hint = "easyscale launch SCRIPT --logical-workers N"
        refused = ScriptError(
            f"easyscale.init was called in a worker of another launcher ({found[0]} is set): "
            "each of its processes would train the whole job",
            hint=hint,
            see=Paragraph.LAUNCH,
        )
        refused.add_note(f"try: {hint}")  # the other launcher shows python's own traceback
        raise refused


def _named_by(name: str, value: object, environment: Mapping[str, str]) -> str:
    """Where a launch has this value from: a variable that says the same is what was read."""
    for variable in (f"EASYSCALE_{name.upper()}", f"PET_{name.upper()}"):
        # Every worker is told its N by a variable, whoever named it.
        if environment.get(variable) == str(value) and variable != "EASYSCALE_LOGICAL_WORKERS":
            return variable
    return "the command line"


def _refuse_other(name: str, passed: object, stands: object) -> None:
    """What the launcher needed before the script ran cannot be the script's choice any more."""
    if passed is not None and passed != stands:
        flag = f"--{name.replace('_', '-')}"
        raise ScriptError(
            f"init({name}={passed}), and this launch has {stands}, as nothing else was said: the "
            "bits would not be those of the script alone",
            hint=f"easyscale launch {flag} {passed}",
            see=Paragraph.LAUNCH,
        )


def _name_overruled(
    name: str, passed: object, stands: object, *, by: str, say: Callable[[str], None]
) -> None:
    if passed is not None and stands is not None and passed != stands:
        say(f"{name} = {stands} from {by}; init({name}={passed}) is not used")


def _at_least(value: int | None, minimum: int, name: str) -> int | None:
    if value is None:
        return None
    if type(value) is not int or value < minimum:
        raise ScriptError(f"{name} is {value!r}; it takes a whole number from {minimum} up")
    return value


def _number(environment: Mapping[str, str], name: str, *, minimum: int) -> int | None:
    text = environment.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < minimum:
        raise UsageError(f"{name} is {text!r}; it takes a whole number from {minimum} up")
    return int(text)


def _determinism(text: str | None, name: str) -> Determinism | None:
    if text is None:
        return None
    try:
        return Determinism(text)
    except ValueError:
        known = " or ".join(member.value for member in Determinism)
        raise UsageError(f"{name} is {text!r}; it takes {known}") from None
