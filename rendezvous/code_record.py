"""The code of a job, as its records hold it: a node that brings other code is refused by name.

What differs is named file by file; a person may say aloud that it shall be so.
"""

from collections.abc import Mapping
from contextlib import suppress

from easyscale.errors import JobConflict, OutcomeUnknown
from easyscale.guide import Paragraph, see
from easyscale.model import Record, decode, encode
from easyscale.rendezvous.keys import JobKeys
from easyscale.rendezvous.store import Modified, Put, Store, absent

_CALL_TIMEOUT_S = 2.0
_MOST_NAMED = 3


class CodeRecord(Record, frozen=True, kw_only=True):
    """The digest of each file that a job's script consists of, by its name in the project."""

    files: Mapping[str, str]


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
    told = describe_change(stands.files, own.files)
    if not told:
        return ""
    if not allow_change:
        raise other_code(keys.job_id, told)
    if not any(key.startswith(keys.nodes) for key in view.entries):
        with suppress(OutcomeUnknown):
            store.transact(
                [Modified(keys.code, entry.mod_revision)],
                [Put(keys.code, encode(own))],
                timeout_s=_CALL_TIMEOUT_S,
            )
    return allowed(told)


def other_code(job_id: str, told: str) -> JobConflict:
    """The refusal, which names the files."""
    return JobConflict(
        f"job {job_id!r} was begun with other code: {told}",
        hint=f"the same files on every node, or --allow-code-change ({see(Paragraph.CODE)})",
    )


def allowed(told: str) -> str:
    """What is said aloud instead."""
    return (
        f"other code than the job began with, by --allow-code-change: {told}; its bits may differ"
    )


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
