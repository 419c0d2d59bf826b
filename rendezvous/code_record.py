"""The code of a job and its script's arguments, as records hold them: others are refused by name.

What differs is named file by file, word by word; a person may say aloud that it shall be so.
"""

import hashlib
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from easyscale.errors import JobConflict, OutcomeUnknown
from easyscale.guide import Paragraph, see
from easyscale.model import Record, decode, encode
from easyscale.rendezvous.keys import JobKeys
from easyscale.rendezvous.store import Modified, Put, Store, absent

_CALL_TIMEOUT_S = 2.0
_MOST_NAMED = 3
_MOST_CHARACTERS = 60
#: What an option's name ends with whose value nobody else is to read.
_SECRET = frozenset({"token", "password", "passwd", "passphrase", "secret", "key", "credentials"})


class CodeRecord(Record, frozen=True, kw_only=True):
    """The digest of each file that a job's script consists of, by its name in the project."""

    files: Mapping[str, str]
    #: The script's own words; of a secret its digest. None in a record of an older release.
    arguments: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What a launch brings that is not the job's, told; both empty: nothing."""

    code: str
    arguments: str

    @classmethod
    def between(cls, stands: CodeRecord, own: CodeRecord) -> "Change":
        return cls(
            describe_change(stands.files, own.files),
            ""
            if stands.arguments is None or own.arguments is None
            else describe_arguments(stands.arguments, own.arguments),
        )

    def __bool__(self) -> bool:
        return bool(self.code or self.arguments)

    @property
    def what(self) -> str:
        return " and ".join(
            name for name, told in (("code", self.code), ("arguments", self.arguments)) if told
        )

    @property
    def told(self) -> str:
        return "; ".join(filter(None, (self.code, self.arguments)))


def agree_on_code(store: Store, keys: JobKeys, own: CodeRecord, *, allow_change: bool) -> str:
    """Record a job's code, or hold ours against what stands; returns what a person should know.

    Raises JobConflict where ours is other code. With `allow_change` it is let in, and replaces
    what stands where nobody trains by it.
    """
    with suppress(OutcomeUnknown):  # what stands is read back either way
        store.transact(
            [absent(keys.code)], [Put(keys.code, encode(own))], timeout_s=_CALL_TIMEOUT_S
        )
    view = store.read(keys.code, keys.nodes, timeout_s=_CALL_TIMEOUT_S)
    entry = view.get(keys.code)
    if entry is None:  # removed with the job's other records just now: as good as new
        return ""
    stands = decode(entry.value, CodeRecord, source=entry.key)
    change = Change.between(stands, own)
    if not change:
        return ""
    if not allow_change:
        raise other_code(keys.job_id, change)
    if not any(key.startswith(keys.nodes) for key in view.entries):
        with suppress(OutcomeUnknown):
            store.transact(
                [Modified(keys.code, entry.mod_revision)],
                [Put(keys.code, encode(own))],
                timeout_s=_CALL_TIMEOUT_S,
            )
    return allowed(change)


def other_code(job_id: str, change: Change) -> JobConflict:
    """The refusal, which names the files and the words."""
    same = change.what.replace("code", "files")
    return JobConflict(
        f"job {job_id!r} was begun with other {change.what}: {change.told}",
        hint=f"the same {same} on every node, or --allow-code-change ({see(Paragraph.CODE)})",
    )


def allowed(change: Change) -> str:
    """What is said aloud instead."""
    return (
        f"other {change.what} than the job began with, by --allow-code-change: {change.told};"
        " its bits may differ"
    )


def without_secrets(arguments: Sequence[str]) -> tuple[str, ...]:
    """A script's words as records keep them: the value of `--api-key` is its digest."""
    kept: list[str] = []
    is_secret = False
    for word in arguments:
        name, equals, value = word.partition("=")
        if equals and _names_secret(name):
            kept.append(f"{name}={_hidden(value)}")
        else:
            kept.append(_hidden(word) if is_secret and not _is_option(word) else word)
        is_secret = not equals and word.startswith("-") and _names_secret(word)
    return tuple(kept)


def _names_secret(name: str) -> bool:
    return name.lower().replace("_", "-").rpartition("-")[2] in _SECRET


def _hidden(value: str) -> str:
    return f"<hidden {hashlib.blake2b(value.encode(errors='replace'), digest_size=4).hexdigest()}>"


def _is_option(word: str) -> bool:
    """`-x` and `--long`; `-1` is a number."""
    return word.startswith("-") and not word[1:2].isdigit() and word not in {"-", "--"}


def describe_arguments(stands: Sequence[str], own: Sequence[str]) -> str:
    """Which words the job's script has and this launch's has not, and the other way round."""
    if tuple(stands) == tuple(own):
        return ""
    theirs, ours = Counter(_options(stands)), Counter(_options(own))
    missing, added = list((theirs - ours).elements()), list((ours - theirs).elements())
    if not (missing or added):
        return "the same words in another order"
    return f"the job has {_shown(missing)}, this launch {_shown(added)}"


def _options(words: Sequence[str]) -> list[str]:
    """Each option with the words behind it; words that belong to none stand alone."""
    parts: list[list[str]] = []
    for word in words:
        if _is_option(word) or not parts or not _is_option(parts[-1][0]):
            parts.append([word])
        else:
            parts[-1].append(word)
    return [shlex.join(part) for part in parts]


def _shown(parts: Sequence[str]) -> str:
    if not parts:
        return "none of these"
    shown = " ".join(
        part if len(part) <= _MOST_CHARACTERS else f"{part[:_MOST_CHARACTERS]}..."
        for part in parts[:_MOST_NAMED]
    )
    more = len(parts) - _MOST_NAMED
    return f"{shown}{f' and {more} more' if more > 0 else ''}"


def describe_change(stands: Mapping[str, str], own: Mapping[str, str]) -> str:
    """Which files are not the same, or nothing."""
    differ = sorted(name for name in stands.keys() & own.keys() if stands[name] != own[name])
    parts = [
        _named(differ, "differs", "differ"),
        _named(
            sorted(own.keys() - stands.keys()), "is imported only here", "are imported only here"
        ),
        _named(sorted(stands.keys() - own.keys()), "is not imported here", "are not imported here"),
    ]
    return "; ".join(filter(None, parts))


def _named(names: list[str], one: str, many: str) -> str:
    if not names:
        return ""
    shown = ", ".join(names[:_MOST_NAMED])
    more = len(names) - _MOST_NAMED
    return f"{shown}{f' and {more} more' if more > 0 else ''} {one if len(names) == 1 else many}"
