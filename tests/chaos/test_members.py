"""Kills, joins, drains and other maps at random moments of real workers, without agents between.

Each run prints its seed; EASYSCALE_CHAOS_SEED=N repeats the runs from that one on.
"""

import os
import random
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from easyscale import messages
from easyscale.model import Commit, Mode
from tests.support.crew import Crew, Zygote

SCRIPT = Path(__file__).parents[1] / "support" / "scripts" / "small.py"
N = 8
RUNS = 25
MOST_MEMBERS = 4


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("alone")
    command = [sys.executable, str(SCRIPT)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    found = re.search(r"^digest (\w+)", done.stdout, re.MULTILINE)
    assert found is not None
    return found[1]


class Changes:
    """One job and the changes it goes through; plays the leader, one change at a time."""

    def __init__(self, crew: Crew, chance: random.Random) -> None:
        self.crew = crew
        self.chance = chance
        self.members: list[int] = []
        self.story: list[str] = []

    @property
    def is_over(self) -> bool:
        return any(hand.all(messages.Finished) for hand in self.crew.hands)

    def begin(self) -> None:
        self.members = [self.newcomer() for _ in range(self.chance.choice([2, 3]))]
        self.entered(self.crew.commit(Mode.RESTORE, self.shares(self.members)))

    def go_on(self) -> None:
        self.wait(0.25)
        if self.is_over:
            return
        change = self.chance.choice([self.kill, self.join, self.rebalance, self.drain])
        self.story.append(f"{change.__name__} of {self.members}")
        change()

    def kill(self) -> None:
        if len(self.members) == 1:
            return
        victim = self.chance.choice(self.members)
        self.crew.kill(self.crew.hands[victim])
        if self.chance.random() < 0.5:  # else its peers notice before its agent
            self.crew.ended(self.crew.hands[victim])
        self.lose(victim)

    def lose(self, victim: int) -> None:
        self.members.remove(victim)
        self.entered(self.crew.commit(Mode.NOW, self.shares(self.members)))

    def rebalance(self) -> None:
        self.entered(self.crew.commit(Mode.BOUNDARY, self.shares(self.members)))

    def drain(self) -> None:
        if len(self.members) > 1:
            self.members.remove(self.chance.choice(self.members))
            self.rebalance()

    def join(self) -> None:
        if len(self.members) >= MOST_MEMBERS:
            return
        late = self.newcomer()
        if self.is_over:
            return
        old, self.members = self.members, [*self.members, late]
        self.chance.shuffle(self.members)
        commit = self.crew.commit(Mode.BOUNDARY, self.shares(self.members))
        if self.chance.random() < 0.4:
            self.entered(commit)
            return
        # Somebody dies while it comes in, or while it is given the state.
        self.wait(0.12)
        victim = self.chance.choice(self.members)
        if old == [victim]:  # the last holder of state: nothing but a snapshot would help
            self.entered(commit)
            return
        self.crew.kill(self.crew.hands[victim])
        self.crew.ended(self.crew.hands[victim])
        if victim != late and not self.has_entered(late, commit):
            self.members.remove(late)  # a commit of mode now takes no newcomer along
        self.lose(victim)

    def newcomer(self) -> int:
        self.crew.registered(self.crew.start(f"w{len(self.crew.hands)}"))
        return len(self.crew.hands) - 1

    def shares(self, members: list[int]) -> dict[int, list[int]]:
        """Deal the logical ranks at random; some members may get none."""
        ranks = self.chance.sample(range(N), N)
        cuts = sorted(self.chance.sample(range(N + 1), len(members) - 1))
        bounds = [0, *cuts, N]
        return {
            member: sorted(ranks[bounds[at] : bounds[at + 1]]) for at, member in enumerate(members)
        }

    def has_entered(self, member: int, commit: Commit) -> bool:
        said = self.crew.hands[member].all(messages.Entered)
        return any(entered.generation == commit.generation for entered in said)

    def entered(self, commit: Commit) -> None:
        self.crew.until(
            lambda: self.is_over or all(self.has_entered(one, commit) for one in self.members),
            f"all entered {commit.generation}",
        )

    def wait(self, most_s: float) -> None:
        until_s = time.monotonic() + most_s * self.chance.random()
        self.crew.until(lambda: time.monotonic() > until_s, "a moment")

    def digests(self) -> set[str]:
        """What all who were in at the end say; who came too late for it waits in vain."""
        late = {"WAITING", "FORMING", "BROKEN"}
        hands = [self.crew.hands[member] for member in self.members]
        return self.crew.finished(*(hand for hand in hands if hand.beat.phase.name not in late))


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_any_course_of_changes_gives_the_digest_of_one_process(
    zygote: Zygote, tmp_path: Path, reference: str
) -> None:
    first = int(os.environ.get("EASYSCALE_CHAOS_SEED", secrets.randbelow(10**6)))
    for seed in range(first, first + RUNS):
        print(f"EASYSCALE_CHAOS_SEED={seed}")
        folder = tmp_path / str(seed)
        folder.mkdir()
        with Crew(zygote, folder, SCRIPT, "pause=0.002") as crew:
            changes = Changes(crew, random.Random(seed))
            changes.begin()
            while not changes.is_over:
                changes.go_on()
            assert changes.digests() == {reference}, changes.story
