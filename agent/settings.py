"""What a launch was asked for, and every named duration, as two frozen values.

Built once at the entry point; nothing below it reads the environment.
"""

from collections.abc import Mapping

import msgspec

from easyscale.messages import ScriptTarget
from easyscale.model import Determinism, LogicalRank


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Named limits of the protocol. Only the lease and the take-over touch safety."""

    #: Life of a registration after its last renewal; etcd takes whole seconds.
    lease_ttl_s: int = 5
    #: A leader steps down this long before its lease could have ended.
    leader_margin_s: float = 1.0
    #: Changes that come together become one plan.
    settle_s: float = 0.5
    #: A plan whose members do not all hold it by then is given up.
    prepare_timeout_s: float = 60.0
    #: A newcomer that does not say ready is left out for this long, doubling up to the most.
    bench_first_s: float = 5.0
    bench_most_s: float = 600.0
    #: Least silence of a worker inside a micro-step that counts as hung.
    hang_least_s: float = 10.0
    #: The same in steps of the job's median.
    hang_steps: float = 10.0
    #: Silence that counts as hung before the first step and outside the inner loop.
    hang_outside_s: float = 600.0
    #: A worker that waits reacts to a commit at once; one that does not for this long is hung.
    deaf_timeout_s: float = 5.0
    #: Once main has ended in order, the others may take so long for the end of their script.
    script_end_s: float = 60.0
    #: An exchange breaks this much later than a hung worker is killed.
    exchange_margin_s: float = 5.0
    #: A group does not form, or a state does not arrive, when nothing moves for this long. The time
    #: to make and to send a large state does not count: its source shows that it is at it.
    forming_timeout_s: float = 10.0
    #: After a broken report the exit that explains it usually follows; it saves a generation.
    report_window_s: float = 0.03
    #: Whoever is suspected may say so long whom it suspects, before it is left out.
    hearing_window_s: float = 0.25
    #: A node without a lease is left out after this many lives of a lease, while work goes on.
    evict_ttls: float = 6.0
    #: Work that stands still for so long, or for so many steps, when a lease runs out has stopped.
    stall_least_s: float = 2.5
    stall_steps: float = 3.0
    #: After most registrations vanished together, plan nothing for lease life plus this.
    mass_guard_margin_s: float = 2.0
    #: The same set of members is planned again after 0, then this, doubling up to the most.
    replan_first_s: float = 0.5
    replan_most_s: float = 8.0
    #: A worker that a newer generation excludes ends by itself within this time.
    fence_grace_s: float = 2.0
    #: How long the nodes that a job needs to start are waited for.
    meeting_timeout_s: float = 600.0
    #: An agent that serves the job's etcd waits so long for the others to leave before it.
    serve_linger_s: float = 10.0
    #: A failure is behind us when the job has completed this many steps more.
    forgiven_after_steps: int = 10
    #: A slot whose workers fail is started again after 0, then this, doubling up to the most.
    respawn_first_s: float = 0.5
    respawn_most_s: float = 8.0
    #: From so many failures in a row on, a slot rests this long, doubling up to the most.
    quarantine_failures: int = 3
    quarantine_first_s: float = 60.0
    quarantine_most_s: float = 1800.0
    #: Progress is recorded in the store this often.
    progress_every_s: float = 1.0
    #: A measured capability is passed on at most this often, and one that changed a lot this often.
    capability_every_s: float = 5.0
    capability_urgent_s: float = 0.5

    @property
    def evict_after_s(self) -> float:
        return self.evict_ttls * self.lease_ttl_s

    @property
    def hearing_s(self) -> float:
        """The same where it would be the larger part: its lease ends, or its forming fails."""
        return self.lease_ttl_s + self.forming_timeout_s

    @property
    def mass_guard_s(self) -> float:
        return self.lease_ttl_s + self.mass_guard_margin_s

    def hang_timeout_s(self, step_s: float | None, *, chosen_s: float | None) -> float:
        """Silence inside a micro-step that is a hang; `chosen_s` is the person's own word."""
        if chosen_s is not None:
            return chosen_s
        if step_s is None:
            return self.hang_outside_s
        return max(self.hang_least_s, self.hang_steps * step_s)


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """When ranks move between the slots of a running job."""

    #: From this multiple of its kind's median on, for so many steps and so long, a slot is called
    #: slow. Ranks may move before that.
    slow_from: float = 1.2
    slow_steps: int = 5
    slow_least_s: float = 2.0
    #: Noise may pass for slowness up to so many times the spread of steps, over 32 steps; and
    #: promise the gain of a move up to so many, over 8: over more steps less, as their mean would.
    slow_noise: float = 4.0
    move_noise: float = 1.5
    #: A plan must shorten the step by this share to be worth a change, and by as much again for
    #: each change within the last `pays_within` steps, so that ranks do not wander,
    least_gain: float = 0.05
    #: and pay for the pause of the change within so many steps.
    pays_within: int = 200
    #: Slots that say more work than a step takes are waited for so many steps: one of them is old.
    proof_steps: int = 10
    #: What a change is believed to cost until one was measured: a joiner's, and any other in steps.
    join_pause_s: float = 0.5
    rebalance_steps: float = 1.0
    #: A change is judged after so many steps; slower than before by this share, it is undone.
    trial_steps: int = 20
    trial_tolerance: float = 0.05
    #: What was tried may be tried again when a slot's speed has changed by this share.
    other_speed: float = 0.15
    #: A slot that was emptied is given one rank for so many steps and seconds, to see how fast
    #: it is now: as often as costs this share of all time, half as often after each time in vain.
    probe_steps: int = 5
    probe_least_s: float = 1.0
    probe_share: float = 0.04


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where nodes meet. Without endpoints the agent serves a private etcd of its own."""

    endpoints: tuple[str, ...] = ()
    #: The one endpoint, where it is the agent on that host who serves an embedded etcd there.
    serve_at: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    user: str = ""
    password: str = ""


class LaunchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One elastic launch on one node."""

    job_id: str
    node_name: str
    #: The person chose the name: it is refused when taken instead of getting a number.
    node_is_chosen: bool
    #: By a person, so that the same command goes on with the job.
    job_is_named: bool = True
    script: ScriptTarget
    working_directory: str
    environment: Mapping[str, str]
    logical_workers: int
    min_nodes: int = 1
    max_nodes: int | None = None
    #: Ranks of each slot in turn, instead of the planner's own; () lets the planner decide.
    layout: tuple[tuple[LogicalRank, ...], ...] = ()
    #: `auto`, `cuda`, `cuda:0,2`, `cpu` or `cpu:4`.
    devices: str = "auto"
    #: A file that says the same and is followed; empty: there is none.
    devices_file: str = ""
    store: StoreSettings = StoreSettings()
    #: What others are told to connect to; empty: this end of the connection to etcd.
    local_address: str = ""
    #: None where neither command line nor environment named it: then the script's own stands.
    seed: int | None = None
    threads_per_worker: int = 1
    #: Slots on each device: `cuda:3/0`, `cuda:3/1`.
    workers_per_device: int = 1
    determinism: Determinism = Determinism.SAME_KIND
    #: Those of the two that neither command line nor environment named.
    left_open: tuple[str, ...] = ()
    partials: str = "device"
    preload: tuple[str, ...] = ()
    #: Other code than the job's is let in, and said aloud.
    allow_code_change: bool = False
    standby: bool = False
    #: Failures without progress that are borne; the next ends the job.
    max_restarts: int = 3
    hang_timeout_s: float | None = None
    #: None waits for proof that the silent group has ended, without end.
    takeover_after_s: float | None = 60.0
    grace_s: float = 30.0
    snapshot_dir: str
    snapshot_every_steps: int | None = None
    snapshot_every_s: float | None = 300.0
    snapshot_keep: int = 3
    log_dir: str
    #: Where Prometheus may ask; 0: any free port, None: nowhere.
    metrics_port: int | None = None
    timeouts: Timeouts = Timeouts()
    balance: Balance = Balance()


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Which life of which agent this is."""

    node: str
    #: Random per life of the agent: a restarted agent's workers are others.
    incarnation: str
    boot_id: str
    host: str
    #: Where this agent is reached by other agents and tools.
    address: str
    #: Which snapshot folder it sees: the same on all nodes that share one.
    folder: str = ""
