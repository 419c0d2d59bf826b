"""Where the guide says what to write instead of what is refused: each paragraph, named once."""

from enum import StrEnum

PAGE = "docs/from-ddp.md"


class Paragraph(StrEnum):
    """The headings of the guide that refusals point to, as its anchors spell them."""

    LAUNCH = "the-launch"
    PROCESS_GROUP = "the-process-group-goes"
    WRAPPERS = "the-wrapper-goes"
    SAMPLERS = "the-sampler-goes"
    DATASETS = "datasets-without-sample-numbers"
    SYNC_BATCH_NORM = "syncbatchnorm"
    SPARSE = "sparse-gradients"
    LOOPS = "two-loops-instead-of-one"
    EVALUATION = "evaluation"
    STATE = "what-survives"
    CODE = "a-script-that-changes"


def see(paragraph: Paragraph) -> str:
    """What a hint ends with: `docs/from-ddp.md#the-sampler-goes`."""
    return f"{PAGE}#{paragraph}"
