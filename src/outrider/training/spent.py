"""What a training has cost so far, all its runs together."""

from __future__ import annotations

import json
from pathlib import Path
from time import perf_counter

from outrider.training.trainer import read_kept, write_whole


class Spent:
    """Seconds by part, in a file, so that a resumed training goes on counting.

    A run that is killed loses what passed since they were written last.

    Args:
        path: of the file.
        since: `perf_counter()` at the beginning of this run; what passes until the first part is "loading".

    Attributes:
        seconds: by part, of all runs, until they were written last.
    """

    def __init__(self, path: Path, since: float) -> None:
        self.seconds: dict[str, float] = read_kept(path) if path.is_file() else {}
        self._path, self._part, self._since = path, "loading", since

    def begin(self, part: str) -> None:
        """What passes from here on is spent on this part."""
        self.keep()
        self._part = part

    def keep(self) -> float:
        """Write down what passed until now; all seconds of all runs.

        Raises:
            OutriderError: the disk is full; what was written before is still there.
        """
        now = perf_counter()
        self.seconds[self._part] = self.seconds.get(self._part, 0.0) + now - self._since
        self._since = now
        text = json.dumps(self.seconds)
        write_whole(self._path, lambda path: path.write_text(text, encoding="utf-8"))
        return sum(self.seconds.values())
