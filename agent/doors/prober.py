"""Asks the agents of other nodes whether they hear us, each at its own door, in a thread.

Who answers knows the job's token, so an answer proves the way there and back.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from easyscale.agent.actions import Probe
from easyscale.agent.doors.dialogue import AgentRefused, AgentSilent
from easyscale.agent.doors.remote_door import ask_at
from easyscale.agent.events import Probed
from easyscale.errors import FormatError, StoreError
from easyscale.model import NodeRecord, decode
from easyscale.rendezvous.keys import JobKeys
from easyscale.rendezvous.store import Store

log = logging.getLogger(__name__)

#: What an agent is asked; the answer says nothing.
QUESTION = "here"
_READ_S = 2.0
_ANSWER_S = 2.0
_MOST_AT_ONCE = 16


def probe(
    action: Probe, *, keys: JobKeys, store: Store, token: str, post: Callable[[Probed], None]
) -> None:
    """Ask them in a thread of its own; one Probed comes back whatever happens."""

    def ask() -> None:
        reached, absent = _ask_all(action.nodes, keys=keys, store=store, token=token)
        post(Probed(asked=action.nodes, reached=reached, absent=absent))

    threading.Thread(target=ask, name="probe", daemon=True).start()


def _ask_all(
    nodes: tuple[str, ...], *, keys: JobKeys, store: Store, token: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    try:
        view = store.read(*(keys.node(node) for node in nodes), timeout_s=_READ_S)
    except StoreError as error:
        log.debug("nobody could be asked: %s", error.message)
        return (), ()
    entries = {node: view.get(keys.node(node)) for node in nodes}
    there = [(node, entry.value) for node, entry in entries.items() if entry is not None]
    with ThreadPoolExecutor(_MOST_AT_ONCE, "probe") as pool:
        answered = pool.map(lambda one: _answers(*one, token=token), there)
        reached = tuple(node for (node, _), heard in zip(there, answered, strict=True) if heard)
    return reached, tuple(node for node, entry in entries.items() if entry is None)


def _answers(node: str, text: str, *, token: str) -> bool:
    try:
        address = decode(text, NodeRecord, source=f"the registration of {node}").address
        if not address:
            return True  # it has no door to be asked at: its workers find out for themselves
        ask_at(address, token, QUESTION, timeout_s=_ANSWER_S)
    except AgentRefused:
        return True  # an answer like any other
    except (AgentSilent, FormatError) as error:
        log.debug("node %s does not answer: %s", node, error)
        return False
    return True
