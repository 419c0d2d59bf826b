"""Two versions of easyscale at one job: who is refused, and which side has to be upgraded.

Every record says its format. What is newer than ours cannot be read; what is older could not read
what we would write.
"""

import re
from importlib.metadata import PackageNotFoundError, version

import msgspec

from easyscale.errors import FormatError
from easyscale.model import FORMAT_VERSION

UPGRADE = "pip install -U easyscale-torch"


class FormatConflict(FormatError):
    """Raised when a job is run by another version of easyscale, in another format."""

    code = "format_conflict"


class Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """What every version writes into a job's first record."""

    version: int
    release: str = ""


def our_release() -> str:
    try:
        return version("easyscale-torch")
    except PackageNotFoundError:  # a source tree that is not installed
        return ""


def read_stamp(text: str, *, source: str) -> Stamp:
    """Read who wrote a job's record, whatever else is in it; raises FormatError."""
    try:
        return msgspec.json.decode(text, type=Stamp)
    except msgspec.DecodeError as error:
        raise FormatError(f"{source} is no record of easyscale: {error}") from error


def refuse_other_format(job_id: str, text: str, *, source: str, is_running: bool) -> None:
    """Raise FormatConflict where the writer of a job's record and we would not read each other.

    A job of an older format that nobody runs may go on in ours.
    """
    stamp = read_stamp(text, source=source)
    ours = our_release()
    if stamp.version > FORMAT_VERSION:
        raise FormatConflict(
            f"job {job_id!r} was written by {_named(stamp.release)}, format {stamp.version}; "
            f"this is {_short(ours)}, format {FORMAT_VERSION}",
            hint=f"{UPGRADE}; the job is untouched",
        )
    if stamp.version < FORMAT_VERSION and is_running:
        raise FormatConflict(
            f"job {job_id!r} is run by {_named(stamp.release)}, format {stamp.version}, which "
            f"cannot read what {_short(ours)} writes, format {FORMAT_VERSION}",
            hint=f"on the job's nodes: easyscale stop {job_id}, {UPGRADE}, and launch again",
        )


def _named(release: str) -> str:
    return f"easyscale {_short(release)}" if release else "another easyscale"


def _short(release: str) -> str:
    """`0.1` of `0.1.0`: a format changes with a minor release at most."""
    found = re.match(r"\d+\.\d+", release)
    return found[0] if found else "another easyscale"
