"""The agent's end of its lease guard (guard_child.py): others learn of its death in milliseconds.

Without a guard they wait for the lease to expire. It is a help and never a need: where it cannot
work, `reason` says why, and the job runs as well without it.
"""

import json
import logging
import os
import select
import subprocess
import sys
import threading
from pathlib import Path

from easyscale.agent.processes import guard_child
from easyscale.model import Ending, encode
from easyscale.rendezvous.endpoints import EtcdSettings
from easyscale.rendezvous.keys import JobKeys

log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 2.0


class LeaseGuard:
    """One guard process; its methods return at once and may be called from any thread."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._lock = threading.Lock()

    @classmethod
    def start(
        cls,
        etcd: EtcdSettings,
        keys: JobKeys,
        *,
        node: str,
        incarnation: str,
        sockets: Path | None = None,
        python: str = sys.executable,
    ) -> "LeaseGuard":
        """Start it in a process group of its own, out of reach of a terminal's Ctrl-C."""
        process = subprocess.Popen(
            [python, "-I", "-S", str(Path(guard_child.__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            start_new_session=True,
        )
        guard = cls(process)
        guard._tell(
            order="settings",
            endpoints=[[endpoint.host, endpoint.port] for endpoint in etcd.endpoints],
            ca=_text(etcd.ca),
            cert=_text(etcd.cert),
            key=_text(etcd.key),
            user=etcd.user,
            password=etcd.password,
            sockets=str(sockets or ""),
            gone_key=keys.gone_agent(node, incarnation),
            gone_value=encode(Ending(how="its agent was killed")),
        )
        return guard

    @property
    def pid(self) -> int:
        return self._process.pid

    def hold(self, lease: int) -> None:
        """Revoke this lease, and no older one, when the agent is killed."""
        self._tell(order="lease", lease=lease)

    def watch(self, pid: int) -> None:
        """Say that the agent has ended only when this process of its has, too."""
        self._tell(order="process", pid=pid)

    def why_unarmed(self, *, timeout_s: float) -> str:
        """Wait for the verdict on the lease held: empty when etcd can be told, else why not."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            return f"no answer of etcd's JSON gateway within {timeout_s:g} s"
        answer = os.read(self._process.stdout.fileno(), 65536).splitlines()
        return str(json.loads(answer[-1])["reason"]) if answer else "the guard ended"

    def close(self) -> None:
        """End it without a word to etcd: the agent leaves in order by itself."""
        self._tell(order="done")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
        except OSError:
            log.debug("the lease guard ended before its agent")
        try:
            self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _tell(self, **order: object) -> None:
        assert self._process.stdin is not None
        line = json.dumps(order).encode() + b"\n"
        with self._lock:
            try:
                # A pipe takes far more than all orders of a job: this never waits.
                os.write(self._process.stdin.fileno(), line)
            except (OSError, ValueError):
                log.warning(
                    "the lease guard has ended: a kill of this agent shows only by its lease"
                )


def _text(path: Path | None) -> str:
    return "" if path is None else str(path)
