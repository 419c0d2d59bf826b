"""Where each logical rank has been: the story of a rank, from the generations that moved it."""

import threading
from collections import deque
from typing import NamedTuple

from easyscale.model import Commit, LogicalRank

#: The newest moves of each rank that are kept.
MOST_MOVES = 16


class Move(NamedTuple):
    """A generation that gave a rank to a slot."""

    at: str
    generation: str
    place: str
    reason: str


class Placements:
    """Fed by the agent's loop, asked from other threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moves: dict[LogicalRank, deque[Move]] = {}

    def follow(self, commit: Commit, *, at: str) -> None:
        """Note where the ranks are now; one that stayed has nothing to tell."""
        label = f"{commit.generation.label} {commit.mode}"
        with self._lock:
            for member in commit.members:
                for rank in member.ranks:
                    moves = self._moves.setdefault(rank, deque(maxlen=MOST_MOVES))
                    if not moves or moves[-1].place != member.worker.place:
                        moves.append(Move(at, label, member.worker.place, commit.reason))

    def story(self, rank: LogicalRank) -> list[dict[str, str]]:
        """Its moves as lines of a story, oldest first."""
        with self._lock:
            moves = list(self._moves.get(rank, ()))
        return [
            {
                "at": move.at,
                "node": move.place.partition("/")[0],
                "event": move.generation,
                "decision": f"rank {rank} -> {move.place}",
                "reason": move.reason,
            }
            for move in moves
        ]
