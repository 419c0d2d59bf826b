"""The help page of `easyscale launch`: what a person decides, in that order."""

from dataclasses import replace

from easyscale_cli.torchrun_flags import FLAGS, Flag, told
from easyscale_cli.views.help import Entry, Example, Group, Note, Page

LAUNCH_PAGE = Page(
    summary="Train SCRIPT on the devices there are now; same bits on any of them.",
    usage="easyscale launch [OPTIONS] SCRIPT [--logical-workers N] [ARGS...]",
    groups=(
        Group(
            "Where it runs",
            "torchrun's words",
            (
                Entry(
                    "--nnodes N|MIN:MAX",
                    "nodes to start with and to allow\n[1, elastic 1 and up]; also --nodes",
                ),
                Entry(
                    "--workers-per-device M",
                    "slots on each device, cuda:3/0 and cuda:3/1, where one leaves it idle [1]",
                ),
                Entry("--devices auto|cuda[:LIST]|cpu[:COUNT]", "slots here [elastic auto]"),
                Entry(
                    "--devices-file FILE", "holds that word; slots follow it while training goes on"
                ),
                Entry("--nproc-per-node N|auto", "the same: a number, gpu, cpu or auto [plain 1]"),
                Entry("--standalone", "one machine, own etcd, nothing else to start"),
                Entry(
                    "--max-restarts N",
                    "failures without progress that are borne; joins and drains are free "
                    "[0, elastic 3]",
                ),
                Entry("-m, --module", "SCRIPT is a module, as python -m"),
                Entry("--no-python, --run-path", "SCRIPT is a program; is run by runpy"),
            ),
        ),
        Group(
            "Where nodes meet",
            "etcd, no master node",
            (
                Entry(
                    "--rdzv-endpoint HOST:PORT,...",
                    "etcd v3 servers, the same on every node; also --etcd [one machine: its own]",
                ),
                Entry(
                    "--rdzv-backend etcd|c10d",
                    "c10d: the agent on HOST serves that etcd; etcd: it runs by itself [etcd]",
                ),
                Entry(
                    "--rdzv-id NAME",
                    "the job; the same name goes on with it [new]; also --job-id",
                ),
                Entry("--node-name NAME", "this node [host name]"),
                Entry(
                    "--node-rank N, --master-addr HOST, --master-port PORT",
                    "plain nodes that do not meet: each is told its number",
                ),
                Entry(
                    "--rdzv-conf KEY=SECONDS,...",
                    "join_timeout: wait for the least nodes [600]; last_call_timeout: for more [3]",
                ),
                Entry(
                    "--local-addr HOST",
                    "what others are told to connect to [own end of the connection to etcd]",
                ),
                Entry(
                    "--etcd-ca, --etcd-cert, --etcd-key FILE; --etcd-user NAME",
                    "TLS and user; password only from\nEASYSCALE_ETCD_PASSWORD",
                ),
            ),
        ),
        Group(
            "What it computes",
            "fixed for the job's life",
            (
                Entry(
                    "--logical-workers N",
                    "shares of each step; N decides the bits, devices do not. Without it: plain "
                    "torchrun",
                ),
                Entry("--packed", "an unmodified DDP script, N ranks on the slots there are"),
                Entry(
                    "--determinism same-kind|heterogeneous",
                    "keep bits on one kind of device (D1), or on mixed CPUs (D2) [same-kind]",
                ),
                Entry("--seed N", "stands over the script's init(seed=...) [0]"),
                Entry("--threads-per-worker N", "part of the bits on CPUs [1]"),
                Entry(
                    "--layout RANKS|RANKS...",
                    "ranks of each slot in turn, 0,2|1,3, to compare layouts",
                ),
            ),
        ),
        Group(
            "When things change",
            "",
            (
                Entry(
                    "--hang-timeout SECONDS",
                    "kill a silent worker after this [from step time]",
                ),
                Entry(
                    "--grace SECONDS, --shutdown-timeout SECONDS", "from SIGTERM to a hard end [30]"
                ),
                Entry(
                    "--signals-to-handle NAME,...",
                    "that end a plain job here [SIGTERM,SIGINT,SIGHUP,SIGQUIT]",
                ),
                Entry(
                    "--takeover-after SECONDS|never",
                    "when all workers are silent, restore elsewhere [60]",
                ),
                Entry(
                    "--allow-code-change",
                    "go on, or join, with another script, or with other arguments of it",
                ),
                Entry(
                    "--slow-from TIMES, --slow-steps N, --slow-seconds SECONDS",
                    "a slot is slow from this multiple of its kind's median on, beyond noise and "
                    "for so long [1.2, 5, 2]",
                ),
                Entry(
                    "--least-gain SHARE, --pays-within STEPS",
                    "ranks move for a step so much shorter that pays within these [0.05, 200]",
                ),
                Entry(
                    "--trial-steps N, --probe-share SHARE",
                    "a move is judged after these; looking at emptied slots again costs this share "
                    "of the time, from the second look on [20, 0.04]",
                ),
                Entry(
                    "--standby",
                    "start one process more: a surplus slot's, or that of the next CPU slot",
                ),
                Entry("--preload MODULES", "import once per node, before the fork"),
                Entry(
                    "--partials device|host",
                    "where sums of gradients wait for the reduction [device]",
                ),
                Entry("--snapshot-every N|SECONDSs", "steps or seconds between snapshots [300s]"),
                Entry("--snapshot-dir DIR", "where [runs/JOB]"),
                Entry("--snapshot-keep N", "how many [3]"),
            ),
        ),
        Group(
            "What you see",
            "",
            (
                Entry("--log-dir DIR", "every worker's raw output [runs/JOB/logs]"),
                Entry("--metrics-port PORT", "where Prometheus may ask [nowhere]"),
                Entry(
                    "-t, --tee / -r, --redirects 0-3|RANK:N,...",
                    "plain: streams to files too, or only",
                ),
                Entry(
                    "--local-ranks-filter N,...",
                    "plain: whose lines the console shows [all]",
                ),
                Entry("--progress auto|live|plain|none", "live on a terminal, else plain [auto]"),
                Entry("--progress-every SECONDS", "between two progress lines of plain [30]"),
                Entry("--color auto|always|never", "colours; NO_COLOR and FORCE_COLOR too [auto]"),
                Entry("--ascii", "marks from ASCII only"),
                Entry("--json", "one JSON object per event on standard output"),
            ),
        ),
    ),
    notes=(
        Note(
            "Also accepted, as torchrun",
            (f"easyscale launch --help-all: what becomes of each of its {len(FLAGS)} flags",),
        ),
        Note(
            "Environment",
            ("EASYSCALE_<OPTION>, then PET_<OPTION>; the command line wins",),
        ),
        Note(
            "Exit codes",
            (
                "0 done",
                "1 job failed",
                "2 usage",
                "3 no etcd",
                "4 too few nodes in time",
                "5 restart budget spent",
                "128+n ended by signal n",
            ),
        ),
    ),
    examples=(
        Example(
            "Eight GPUs here, nothing else running",
            (
                "easyscale launch --standalone --nproc-per-node 8 \\",
                "    --logical-workers 16 train.py --lr 0.1",
            ),
        ),
        Example(
            "Two to four nodes, the same line on each, at any time",
            (
                "easyscale launch --nnodes 2:4 --nproc-per-node auto \\",
                "    --rdzv-endpoint etcd-0:2379 --rdzv-id resnet50 \\",
                "    --logical-workers 64 train.py",
            ),
        ),
        Example(
            "A torchrun line, unchanged (here on node 1)",
            (
                "easyscale launch --nnodes 2 --node-rank 1 \\",
                "    --master-addr a --nproc-per-node 8 ddp.py",
            ),
        ),
    ),
)


def full_page() -> Page:
    """The page of `--help-all`: each flag of torchrun with what becomes of it."""
    rows = tuple(Entry(flag.name, _becomes(flag)) for flag in FLAGS)
    torchrun = Group("Every flag of torchrun", "what becomes of it here", rows)
    return replace(LAUNCH_PAGE, groups=(*LAUNCH_PAGE.groups, torchrun))


def _becomes(flag: Flag) -> str:
    plain, elastic = told(flag.plain), told(flag.elastic)
    return plain if plain == elastic else f"plain: {plain}\nelastic: {elastic}"
