"""Which nodes an agent counts as out of reach, whom it asks, and who may join meanwhile."""

from easyscale.agent import machine, reaching
from easyscale.agent.actions import Probe
from easyscale.agent.events import Probed
from easyscale.agent.settings import Identity
from easyscale.agent.state import OwnWorker, Phase, Turn
from easyscale.messages import Broken
from easyscale.model import Commit, Ending, Mode, NodeRecord, Position, WorkerId
from easyscale.rendezvous.agreement import JobView
from easyscale.rendezvous.view import Node
from tests.support.views import commit, launch_settings, number, worker

A, B, C = worker("a"), worker("b"), worker("c")


class Agent:
    """Node a, whose worker is in every generation unless a test says otherwise."""

    def __init__(self) -> None:
        identity = Identity(node="a", incarnation="i", boot_id="boot", host="a", address="")
        state = machine.begin(launch_settings(), identity, now=machine.Now(s=100.0))
        self.turn = Turn(state, machine.Now(s=100.0), "test")

    def at(self, now_s: float) -> "Agent":
        self.turn = Turn(self.turn.state, machine.Now(s=now_s), "test")
        return self

    def suspects(self, *workers: WorkerId) -> "Agent":
        said = Broken(generation=number(1), position=Position(1), suspects=workers, reason="reset")
        reaching.suspect(self.turn, said)
        return self

    def asks(self) -> tuple[str, ...]:
        self.turn.actions.clear()
        reaching.probe(self.turn)
        return tuple(n for a in self.turn.actions if isinstance(a, Probe) for n in a.nodes)

    def hears(
        self, *asked: str, reached: tuple[str, ...] = (), absent: tuple[str, ...] = ()
    ) -> None:
        reaching.probed(self.turn, Probed(asked=asked, reached=reached, absent=absent))

    @property
    def cut(self) -> list[str]:
        return sorted(self.turn.state.cuts)


def test_a_node_out_of_reach_is_asked_until_it_answers_ever_more_rarely() -> None:
    agent = Agent()
    reaching.dropped(agent.turn, commit(2, [B, C], mode=Mode.NOW))
    assert agent.cut == ["b", "c"]
    assert agent.asks() == ("b", "c")
    assert agent.asks() == (), "an answer is due: nobody is asked twice"
    agent.hears("b", "c", reached=("c",))
    assert agent.cut == ["b"]
    assert agent.at(100.4).asks() == ()
    assert agent.at(100.5).asks() == ("b",)
    agent.hears("b")
    assert agent.at(101.4).asks() == ()
    assert agent.at(101.5).asks() == ("b",)
    agent.hears("b", absent=("b",))
    assert agent.cut == []


def test_a_link_that_was_cut_before_is_held_ever_longer() -> None:
    agent = Agent()
    for times, hold_s in enumerate((0.0, 1.0, 2.0, 4.0)):
        agent.at(1000.0 * (times + 1))
        reaching.cut(agent.turn, ["b"])
        assert agent.asks() == ("b",)
        agent.hears("b", reached=("b",))
        if hold_s:
            assert agent.cut == ["b"], "it answers too early to be trusted"
            agent.at(1000.0 * (times + 1) + hold_s)
            assert agent.asks() == ("b",)
            agent.hears("b", reached=("b",))
        assert agent.cut == []


def test_nobody_is_asked_while_the_store_is_away() -> None:
    agent = Agent()
    reaching.cut(agent.turn, ["b"])
    agent.turn.set(away_s=90.0)
    assert agent.asks() == ()


def judged(agent: Agent, view: JobView, newest: Commit) -> list[str]:
    agent.turn.put_worker(OwnWorker(A, Phase.MEMBER, 1.0))
    agent.turn.set(view=view, commit=newest)
    reaching.judge(agent.turn)
    return agent.cut


def test_who_is_suspected_and_left_out_alive_is_out_of_reach() -> None:
    newest = commit(2, [A, C], mode=Mode.NOW)
    known = {newest.generation: newest}
    assert judged(Agent().suspects(B), JobView(commits=known), newest) == ["b"]
    fenced = JobView(commits=known, gone={B: Ending(how="fenced", drained=True)})
    assert judged(Agent().suspects(B), fenced, newest) == ["b"]
    killed = JobView(commits=known, gone={B: Ending(how="SIGKILL", signal=9)})
    assert judged(Agent().suspects(B), killed, newest) == [], "its process is to blame"
    assert judged(Agent().suspects(B), JobView(), newest) == [], "the view is older than the commit"
    assert judged(Agent().suspects(C), JobView(commits=known), newest) == [], "tried once more"


def test_one_side_that_does_not_reach_the_other_keeps_a_node_out() -> None:
    base = commit(1, [A, C], mode=Mode.NOW)

    def view(**cuts: tuple[str, ...]) -> JobView:
        nodes = {
            name: Node(
                NodeRecord(
                    node=name, incarnation="i", boot_id="b", host=name, address="", slots=(),
                    cut=cuts.get(name, ()),
                ),
                1,
            )
            for name in "abc"
        }  # fmt: skip
        return JobView(nodes=nodes, commits={base.generation: base})

    assert reaching.apart(view(), "b") == ()
    assert reaching.apart(view(b=("a",)), "b") == ("a",)
    assert reaching.apart(view(c=("b",)), "b") == ("c",)
    assert reaching.apart(view(b=("elsewhere",)), "b") == ()
