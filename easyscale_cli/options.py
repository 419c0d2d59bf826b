"""What the options of all commands share: the names of their environment variables."""

from collections.abc import Sequence


def environment_names(names: Sequence[str]) -> list[str]:
    """The variables that set an option: `EASYSCALE_<NAME>` of each spelling, then `PET_<NAME>`."""
    words = [
        name.removeprefix("--").replace("-", "_").upper() for name in names if name[:2] == "--"
    ]
    return [f"EASYSCALE_{word}" for word in words] + [f"PET_{word}" for word in words]
