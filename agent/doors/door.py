"""The two doors of one agent: everybody who knows the job's token is told, its own user obeyed.

What there is to tell and to obey, the agent's own view says (`view.py`).
"""

import logging
from collections.abc import Mapping

from easyscale.agent.doors.chronicle import Chronicle
from easyscale.agent.doors.control import ControlServer, run_folder
from easyscale.agent.doors.remote_door import RemoteDoor
from easyscale.agent.doors.teller import Teller
from easyscale.agent.doors.view import AgentView
from easyscale.errors import EasyScaleError

log = logging.getLogger(__name__)


class Door:
    """The two sockets, local and remote, and who answers there."""

    def __init__(
        self, view: AgentView, chronicle: Chronicle, *, environment: Mapping[str, str]
    ) -> None:
        self._view = view
        self._environment = environment
        self._teller = Teller(view, chronicle)
        self._server: ControlServer | None = None
        self._remote: RemoteDoor | None = None

    @property
    def address(self) -> str:
        """Where other machines ask; empty where none can."""
        return self._remote.address if self._remote is not None else ""

    def bind(self, host: str) -> None:
        """Have an address for other machines, before anybody is answered there."""
        try:
            self._remote = RemoteDoor(host)
        except OSError as error:
            log.warning("other machines will not reach this agent at %s: %s", host, error)

    def open(self) -> None:
        """Begin to answer; a machine without a place for sockets is no reason not to train."""
        view, told = self._view, self._teller.handlers
        if self._remote is not None:
            self._remote.open(token=lambda: view.token, handlers=told)
        try:
            self._server = ControlServer(
                run_folder(self._environment),
                job=view.job,
                node=view.node,
                handlers={**told, **view.obeyed},
            )
        except (EasyScaleError, OSError) as error:
            log.warning("the command line will not find this agent by itself: %s", error)

    def say_last_word(self, *, code: int, reason: str) -> None:
        """Tell who watches how it ended here."""
        self._teller.say_last_word(code=code, reason=reason)

    def close(self) -> None:
        """Answer no more; a second call does nothing."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        remote, self._remote = self._remote, None
        if remote is not None:
            remote.close()
        self._view.close()
