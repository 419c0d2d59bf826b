"""Writes the map of files in architecture.md from the first sentence of each module.

Run by `make map`; a test says when the page no longer agrees with the tree.
"""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
BEGIN = "<!-- the map begins: written by `make map` -->"
END = "<!-- the map ends -->"
#: In the order in which the layers stand on each other, bottom first.
FOLDERS = {
    "easyscale": "What all parts share",
    "easyscale/runtime": "The runtime: torch lives here and nowhere else",
    "rendezvous": "The rendezvous: etcd, and what is agreed there",
    "easyscale/torchrun": "For torchrun's own users: torch, and our store",
    "agent": "The agent of a node: its machine, and the leader's decisions",
    "agent/balance": "Its load balancer: which ranks lie where, and whether a move pays",
    "agent/hardware": "What it knows of the node: devices, cores, their troubles",
    "agent/processes": "What it starts and ends: zygote, workers, their output, its own guard",
    "agent/doors": "What it tells whoever asks: commands, other agents, Prometheus",
    "agent/verify": "What `verify` and `doctor --bits` compare",
    "agent/checkup": "What `doctor` looks at",
    "agent/plain": "The agent of a job without logical workers, or of a packed one",
    "easyscale_cli": "The command line",
    "easyscale_cli/commands": "Its commands, a file each",
    "easyscale_cli/views": "Its views: values in, lines out",
}


def modules() -> list[str]:
    """Every module that is more than a folder's mark, by its path in the repository."""
    found = []
    for top in sorted({folder.partition("/")[0] for folder in FOLDERS}):
        for path in sorted((ROOT / top).rglob("*.py")):
            relative = path.relative_to(ROOT)
            # easyscale/agent and easyscale/rendezvous are links to the folders at the top.
            linked = any((ROOT / parent).is_symlink() for parent in relative.parents)
            if not linked and path.read_text(encoding="utf-8").strip():
                found.append(relative.as_posix())
    return found


def first_sentence(module: str) -> str:
    tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
    paragraph = (ast.get_docstring(tree) or "").split("\n\n")[0]
    return " ".join(paragraph.split()).split(". ")[0].rstrip(".").replace("|", "\\|")


def folder_map() -> str:
    """The map as Markdown: a table per folder."""
    here = modules()
    parts = []
    for folder, title in FOLDERS.items():
        inside = [name for name in here if name.rpartition("/")[0] == folder]
        rows = [f"| `{name}` | {first_sentence(name)} |" for name in inside]
        if rows:
            parts.append("\n".join([f"### {title}", "", "| file | idea |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def with_map(page: str, new_map: str) -> str:
    """The page with what stands between the two marks replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{new_map}\n\n{END}{after}"


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_map(page, folder_map()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
