"""Who leads: one key under the lease of a registration, its create_revision the fencing token.

Decisions are pure; nobody's safety rests on them, since every transaction of a leader compares
the token. Stepping down in time only spares others a wait.
"""

import time
from dataclasses import dataclass, replace

from easyscale.rendezvous.store import Entry


def boottime_s() -> float:
    """A clock that runs on while the host is suspended, as the lease does in the store."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Office:
    """One agent's part in elections."""

    #: What we write into the key, so that we know it as ours after a lost answer.
    name: str
    stands: bool = False
    #: Token of the term we are in, None while we do not lead.
    token: int | None = None
    #: When the last renewal of our lease was *sent*, boot time.
    renewed_s: float = 0.0

    def leads_until(self, *, ttl_s: float, margin_s: float) -> float:
        """From then on our lease could have ended without our knowing."""
        return self.renewed_s + ttl_s - margin_s


@dataclass(frozen=True, slots=True)
class Term:
    """What follows for us from the leader key or the clock."""

    office: Office
    elected: int | None = None
    deposed: str = ""
    #: The key is vacant: try to take it.
    try_now: bool = False


def see(office: Office, entry: Entry | None) -> Term:
    """The leader key as the store has it now, or its absence."""
    is_ours = entry is not None and entry.value == office.name
    if is_ours and entry is not None and office.token != entry.create_revision:
        taken = replace(office, token=entry.create_revision)
        return Term(taken, elected=entry.create_revision) if office.stands else Term(taken)
    if not is_ours and office.token is not None:
        who = f"{entry.value} leads" if entry is not None else "the leader key is gone"
        return Term(
            replace(office, token=None), deposed=who, try_now=entry is None and office.stands
        )
    return Term(office, try_now=entry is None and office.stands)


def watch_clock(office: Office, now: float, *, ttl_s: float, margin_s: float) -> Term:
    """Step down when the lease could have ended: by the clock alone, the store may be away."""
    if office.token is None or now < office.leads_until(ttl_s=ttl_s, margin_s=margin_s):
        return Term(office)
    silent_s = now - office.renewed_s
    return Term(
        replace(office, token=None), deposed=f"the lease was not renewed for {silent_s:.1f} s"
    )
