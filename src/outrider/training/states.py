"""What the target makes of the training texts, computed once and kept on disk: a training step costs only the head.

Per token: the features that a head reads, the last state after the final norm, from which any part of the target's law
follows by one product, and the logarithm of the law's denominator over the whole vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ordered
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from outrider.core import Block
from outrider.errors import InvalidOption
from outrider.training.texts import Sample

Progress = Callable[[int, int], None]

MANIFEST = "states.json"
BYTES = 2
"""Of a stored number: states are kept at half precision."""

LARGEST_HALF = 65_504.0


@dataclass(frozen=True)
class Output:
    """The target's output matrix.

    Args:
        weight: [Vt, H].
        bias: [Vt] or None.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """[..., H] last states after the final norm -> [..., Vt]."""
        return torch.nn.functional.linear(states, self.weight, self.bias)


@dataclass(frozen=True)
class States:
    """The stored states of several texts, mapped from disk.

    Args:
        tokens: [T] all texts, one after the other.
        starts: [n + 1] where each begins; the last entry is T.
        own: [n] index, within its text, of the first token that the target wrote.
        features: [T, F] half.
        last: [T, H] half.
        log_norms: [T] float32, logsumexp of the target's logits.
    """

    tokens: np.ndarray[Any, Any]
    starts: np.ndarray[Any, Any]
    own: np.ndarray[Any, Any]
    features: np.ndarray[Any, Any]
    last: np.ndarray[Any, Any]
    log_norms: np.ndarray[Any, Any]

    def __len__(self) -> int:
        return len(self.own)


def bytes_needed(samples: Ordered[Sample], num_features: int, hidden_size: int) -> int:
    """Bytes on disk of the states of these texts."""
    return sum(len(s.tokens) for s in samples) * (BYTES * (num_features + hidden_size) + 12)


def store_states(
    samples: Ordered[Sample],
    model: Any,
    output: Output,
    folder: Path,
    *,
    feature_layers: tuple[int, ...],
    num_layers: int,
    progress: Progress | None = None,
) -> States:
    """Run the target over every text and keep what heads are trained on.

    Args:
        samples: the texts.
        model: the target, with `showing`.
        output: its output matrix, for the denominators.
        folder: made anew.
        feature_layers: ids of the states that a head reads.
        num_layers: of the target.
        progress: called after each text.
    """
    shown = model.showing((*feature_layers, num_layers))
    folder.mkdir(parents=True, exist_ok=True)
    total, hidden_size = sum(len(s.tokens) for s in samples), output.weight.shape[1]
    arrays = _new_arrays(folder, total, len(feature_layers) * hidden_size, hidden_size)
    cache = shown.new_cache(1, max(len(s.tokens) for s in samples))
    start = 0
    for number, sample in enumerate(samples):
        rows = slice(start, start + len(sample.tokens))
        hidden = _hidden(shown, cache, sample.tokens)
        last = hidden[:, -hidden_size:]
        arrays["tokens"][rows] = sample.tokens
        arrays["features"][rows] = _half(hidden[:, :-hidden_size])
        arrays["last"][rows] = _half(last)
        arrays["log_norms"][rows] = _log_norms(last, output)
        start = rows.stop
        if progress is not None:
            progress(number + 1, len(samples))
    starts = [0, *np.cumsum([len(s.tokens) for s in samples]).tolist()]
    manifest = {"starts": starts, "own": [s.own for s in samples], "feature_layers": list(feature_layers)}
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    return open_states(folder)


def open_states(folder: Path) -> States:
    """What `store_states` left in a folder.

    Raises:
        InvalidOption: nothing whole is there.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        names = ("tokens", "features", "last", "log_norms")
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in names}
    except (OSError, ValueError) as error:
        raise InvalidOption("states", str(folder), "a folder of stored states", "Delete it and begin again.") from error
    return States(starts=np.array(manifest["starts"]), own=np.array(manifest["own"]), **arrays)


def _new_arrays(folder: Path, total: int, num_features: int, hidden_size: int) -> dict[str, Any]:
    kinds = {
        "tokens": (np.int32, (total,)),
        "features": (np.float16, (total, num_features)),
        "last": (np.float16, (total, hidden_size)),
        "log_norms": (np.float32, (total,)),
    }
    return {
        name: np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)
        for name, (dtype, shape) in kinds.items()
    }


def _hidden(model: Any, cache: Any, tokens: tuple[int, ...]) -> torch.Tensor:
    """[n, F] features of all tokens of a text."""
    cache.truncate(0, 0)
    row = torch.tensor(tokens)[None]
    block = Block(row, torch.arange(len(tokens))[None], (0,), (len(tokens),), prefill=True)
    hidden = model.forward(block, cache).hidden
    assert hidden is not None
    return hidden[0].float()  # type: ignore[no-any-return]


def _half(states: torch.Tensor) -> Any:
    return states.clamp(-LARGEST_HALF, LARGEST_HALF).half().cpu().numpy()


@torch.inference_mode()
def _log_norms(last: torch.Tensor, output: Output) -> Any:
    with _quick_products():
        return output.logits(last.to(output.weight.dtype)).float().logsumexp(-1).cpu().numpy()


@contextmanager
def _quick_products() -> Iterator[None]:
    """Float32 products from bfloat16 factors, where there is hardware for it: an error of 1e-3 in a logarithm."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
