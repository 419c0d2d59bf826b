"""What an agent's doors need of the agent behind them: the seam that every kind of agent fills.

What is the same for all of them (who watches, what was told, the last word) is in `teller.py`.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from easyscale.agent.doors.dialogue import Handler
from easyscale.agent.processes.log_files import LogFile, Piece
from easyscale.job_status import JobStatus, SlotFacts


class AgentView(Protocol):
    """One agent as people and other agents see it; any thread may ask."""

    @property
    def job(self) -> str: ...

    @property
    def node(self) -> str: ...

    @property
    def leads(self) -> bool: ...

    @property
    def token(self) -> str:
        """What the job's members know of each other now; empty: nobody elsewhere is answered."""

    def status(self) -> JobStatus:
        """The job as it is now, this node's part known closely."""

    def own_slots(self) -> Sequence[SlotFacts]:
        """Those of this node alone: whoever asks has the rest, so nothing is read for it."""

    def logs(self) -> Sequence[LogFile]:
        """The logs that can be read here."""

    def log(self, node: str, name: str, *, offset: int, since_s: float | None) -> Piece:
        """A piece of one of them; raises UsageError for what is none."""

    @property
    def told(self) -> Mapping[str, Handler]:
        """What only this kind of agent tells to whoever knows the token."""

    @property
    def obeyed(self) -> Mapping[str, Handler]:
        """What it tells and does for the user of this machine alone."""

    def settle(self) -> None:
        """The agent ends: from now on nothing is read anew for an answer."""

    def close(self) -> None: ...
