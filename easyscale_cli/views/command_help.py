"""Examples of every command, which close its help page; and what its exit codes mean."""

from collections.abc import Mapping

from easyscale_cli.views.help import Example, Note

_CODES = Note("Exit codes", ("0 done", "1 no such job", "2 usage", "3 no etcd"))
_FROM_ELSEWHERE = "From another machine, by the job's etcd"


def _example(wish: str, *lines: str) -> Example:
    return Example(wish, lines)


#: Path of a command -> what stands at the end of its page.
ENDS: Mapping[str, tuple[tuple[Note, ...], tuple[Example, ...]]] = {
    "easyscale status": (
        (_CODES,),
        (
            _example("Watch the only job of this machine", "easyscale status"),
            _example("One frame, for a log", "easyscale status resnet50 --once"),
            _example("Why it is as it is", "easyscale status resnet50 --story"),
            _example(_FROM_ELSEWHERE, "easyscale status resnet50 --etcd etcd-0:2379 --json"),
        ),
    ),
    "easyscale jobs": (
        (_CODES,),
        (
            _example("The jobs of this machine", "easyscale jobs"),
            _example(
                "All jobs of an etcd, for a program", "easyscale jobs --etcd etcd-0:2379 --json"
            ),
            _example("Forget those that have finished", "easyscale jobs prune --etcd etcd-0:2379"),
        ),
    ),
    "easyscale jobs prune": (
        (_CODES,),
        (
            _example(
                "What would be forgotten", "easyscale jobs prune --etcd etcd-0:2379 --dry-run"
            ),
            _example(
                "Also those that failed or were stopped",
                "easyscale jobs prune --etcd etcd-0:2379 --ended",
            ),
        ),
    ),
    "easyscale plan": (
        (_CODES,),
        (
            _example("Who computes what", "easyscale plan resnet50"),
            _example("And why not otherwise", "easyscale plan resnet50 --explain"),
            _example(
                "What slots would do that do not exist",
                "easyscale plan --slots fast:2@4.0,slow:1@1.0 --logical-workers 16",
            ),
        ),
    ),
    "easyscale profile": (
        (_CODES,),
        (
            _example("What each number of slots brings", "easyscale profile resnet50"),
            _example(
                "The same as a picture, 50 steps a size",
                "easyscale profile resnet50 --steps 50 --png curve.png",
            ),
            _example("What was measured last", "easyscale profile resnet50 --show"),
        ),
    ),
    "easyscale migrate": (
        (_CODES,),
        (
            _example("From one node to another", "easyscale migrate resnet50 gpu-4 gpu-7"),
            _example("One slot", "easyscale migrate resnet50 gpu-4/cuda:0 gpu-7/cuda:2"),
        ),
    ),
    "easyscale events": (
        (_CODES,),
        (
            _example("What changed so far", "easyscale events resnet50"),
            _example(
                "Every loss, as it happens",
                "easyscale events resnet50 --follow --json | grep '\"lost\"'",
            ),
        ),
    ),
    "easyscale logs": (
        (_CODES,),
        (
            _example("What logical rank 3 prints", "easyscale logs resnet50 --rank 3 --follow"),
            _example("One slot of one node", "easyscale logs resnet50 --slot gpu-4/cuda:3"),
        ),
    ),
    "easyscale devices": (
        (_CODES,),
        (
            _example("The slots there are", "easyscale devices resnet50"),
            _example(
                "Give two GPUs of node a away, while training goes on",
                "easyscale devices resnet50 a --set cuda:0,1",
            ),
        ),
    ),
    "easyscale drain": (
        (_CODES,),
        (
            _example("A node leaves at the next step", "easyscale drain resnet50 gpu-4"),
            _example("One slot alone", "easyscale drain resnet50 gpu-4/cuda:3"),
        ),
    ),
    "easyscale stop": (
        (_CODES,),
        (
            _example("End it with a snapshot", "easyscale stop resnet50"),
            _example(
                "Go on with it later",
                "easyscale launch --rdzv-id resnet50 --logical-workers 16 train.py",
            ),
        ),
    ),
    "easyscale fence": (
        (_CODES,),
        (
            _example(
                "The power of gpu-4 is off, and its workers with it",
                "easyscale fence resnet50 gpu-4",
            ),
        ),
    ),
    "easyscale verify": (
        (Note("Exit codes", ("0 same bits", "1 bits differ", "2 usage")),),
        (_example("Does my script keep its bits", "easyscale verify train.py"),),
    ),
    "easyscale snapshots": (
        (),
        (
            _example("What a restore would take", "easyscale snapshots ls resnet50"),
            _example("Is every one of them whole", "easyscale snapshots verify resnet50"),
        ),
    ),
    "easyscale snapshots ls": (
        (_CODES,),
        (
            _example(
                "Of a job that runs here, or has ended here", "easyscale snapshots ls resnet50"
            ),
            _example(
                "In a folder of any place", "easyscale snapshots ls --snapshot-dir /data/run7"
            ),
        ),
    ),
    "easyscale snapshots verify": (
        (Note("Exit codes", ("0 all are whole", "1 one is not", "2 usage")),),
        (
            _example("All of them", "easyscale snapshots verify resnet50"),
            _example("Two of them", "easyscale snapshots verify resnet50 6200 6400"),
        ),
    ),
    "easyscale snapshots diff": (
        (Note("Exit codes", ("0 same bits", "1 bits differ", "2 usage")),),
        (
            _example("Two steps of one job", "easyscale snapshots diff resnet50 6200 6400"),
            _example(
                "The same step of two jobs",
                "easyscale snapshots diff resnet50 6400 \\",
                "    runs/other/step-00006400-g1.5-3fa9c2d1",
            ),
        ),
    ),
    "easyscale snapshots prune": (
        (_CODES,),
        (
            _example("What would go", "easyscale snapshots prune resnet50 --keep 1 --dry-run"),
            _example(
                "Those that restore passes over", "easyscale snapshots prune resnet50 --damaged"
            ),
        ),
    ),
    "easyscale doctor": (
        (Note("Exit codes", ("0 nothing faulty", "1 a fault", "2 usage", "4 too few nodes")),),
        (
            _example("This machine alone", "easyscale doctor train.py"),
            _example(
                "Three nodes together, the same line on each",
                "easyscale doctor --nnodes 3 --etcd etcd-0:2379 --snapshot-dir /shared/run7",
            ),
        ),
    ),
    "easyscale completion": (
        (),
        (
            _example("In ~/.bashrc", 'eval "$(easyscale completion bash)"'),
            _example("In ~/.zshrc", 'eval "$(easyscale completion zsh)"'),
            _example("In ~/.config/fish/config.fish", "easyscale completion fish | source"),
        ),
    ),
}
