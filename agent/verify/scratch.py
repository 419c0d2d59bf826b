"""A private folder in the place of the one a person is in: what is written there is thrown away.

Files are copied up to a limit and linked beyond it, folders are made anew, so that reading works
and a checkpoint that a compared run writes never lands on a real one.
"""

import contextlib
import os
import shutil
from pathlib import Path

#: Larger files are linked, which a script that writes to them in place would write through.
COPIED_BYTES = 64 * 1024 * 1024
_ALL_COPIED_BYTES = 512 * 1024 * 1024
#: A folder that holds more than is left of these is linked as a whole.
_MOST_ENTRIES = 4000
_LEFT_OUT = frozenset({".git", "__pycache__", "runs"})


class Mirror:
    """Fills a folder with what stands in another one."""

    def __init__(self) -> None:
        self._entries = _MOST_ENTRIES
        self._bytes = _ALL_COPIED_BYTES

    def fill(self, folder: Path, origin: Path) -> None:
        """Level by level, so that what lies deep is linked first."""
        level = [(folder, origin)]
        while level:
            deeper: list[tuple[Path, Path]] = []
            for into, of in level:
                deeper += self._fill_level(into, of)
            level = deeper

    def _fill_level(self, folder: Path, origin: Path) -> list[tuple[Path, Path]]:
        try:
            entries = sorted(os.scandir(origin), key=lambda entry: entry.name)
        except OSError:
            return []
        folder.mkdir(parents=True, exist_ok=True)
        self._entries -= len(entries)
        deeper = []
        for entry in entries:
            if entry.name in _LEFT_OUT:
                continue
            made = folder / entry.name
            if entry.is_dir(follow_symlinks=False) and self._entries > 0:
                deeper.append((made, Path(entry.path)))
            elif not (entry.is_file() and self._copy(entry, made)):
                made.symlink_to(Path(entry.path).absolute())
        return deeper

    def _copy(self, entry: "os.DirEntry[str]", made: Path) -> bool:
        size = entry.stat().st_size
        if size > COPIED_BYTES or size > self._bytes:
            return False
        with contextlib.suppress(OSError):
            shutil.copy2(entry.path, made)
            self._bytes -= size
            return True
        return False
