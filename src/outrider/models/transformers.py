"""Any causal language model of `transformers` whose cache can be rolled back, behind `core.Model`.

Every slot has a `transformers` cache of its own and every sequence of a block runs alone, so a row equals its own
run alone bit for bit. What a forward wrote past the committed length is cropped before the next one.

Models whose past cannot be cut (sliding windows, recurrent and hybrid layers, encoder-decoders) are refused when the
adapter is made: first by what their config and cache declare, then by what they do (see `_probe`). Whether trees can be
verified is found out in the same way (see `_takes_trees`); chains never get an attention mask.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, PreTrainedModel

import outrider.tree as tree
from outrider.core import Block, Output
from outrider.errors import CheckpointError, InvalidOption, UnsupportedModel
from outrider.models.config import check_feature_layers
from outrider.models.declared import INSTEAD, first_line, refuse_declared, window
from outrider.models.transformers_cache import TransformersCache, crop, empty_cache

UNBOUNDED_CONTEXT = 1 << 20
"""Context length of a model whose config states none (ALiBi models such as BLOOM)."""


class TransformersModel:
    """A `core.Model` around a loaded causal language model.

    The model is put into eval mode; nothing else of it changes, and its generation config is not read.

    Args:
        model: a decoder-only model with a language modelling head, already on its device.
        context_length: fewer tokens than the config allows; a model with a sliding window is exact, and accepted,
            up to the window's length.

    Raises:
        InvalidOption: not a `PreTrainedModel`, or a context length outside what the config allows.
        UnsupportedModel: the model's past cannot be rolled back; the message names the class or layer type.
    """

    feature_layers: tuple[int, ...] = ()

    def __init__(self, model: PreTrainedModel, *, context_length: int | None = None) -> None:
        if not isinstance(model, PreTrainedModel):
            fix = "Load one with load_transformers(name)."
            raise InvalidOption("model", type(model).__name__, "a transformers PreTrainedModel", fix)
        self.model = model.eval()
        self.device: torch.device = model.device
        self.precision = str(model.dtype).removeprefix("torch.")
        self.context_length = _context_length(model.config, context_length)
        self._parameters = frozenset(inspect.signature(type(model).forward).parameters)
        refuse_declared(model, self._parameters, self.context_length)
        self.vocab_size = _probe(self)

    @cached_property
    def takes_trees(self) -> bool:
        """Whether trees can be verified; found out by trial when it is first asked."""
        return _takes_trees(self)

    def new_cache(self, slots: int, capacity: int) -> TransformersCache:
        """An empty cache for so many slots; its capacity is at most the model's context length."""
        for name, value in (("slots", slots), ("capacity", capacity)):
            if value < 1:
                raise InvalidOption(name, value, "at least 1")
        return TransformersCache(self.model.config, slots, min(capacity, self.context_length))

    def forward(self, block: Block, cache: TransformersCache) -> Output:
        """Run each sequence of the block on the committed rows of its slot; no length moves.

        Rows past the context length may be in a block that was padded to a fixed width, but not be committed.

        Returns:
            Logits [B, N, V] in float32 on the model's device, or None for a prefill block.

        Raises:
            UnsupportedModel: a tree, for a model that takes chains only.
        """
        logits = None if block.prefill else torch.zeros(*block.tokens.shape, self.vocab_size, device=self.device)
        shown = list[torch.Tensor]()
        for row, (slot, width) in enumerate(zip(block.slots, block.widths, strict=True)):
            tokens, positions = block.tokens[row, :width], block.positions[row, :width]
            start = cache.lengths[slot]
            ancestors = None if block.ancestors is None else _unless_chain(block.ancestors[row, :width, :width])
            if ancestors is not None and not self.takes_trees:
                raise UnsupportedModel(f"{type(self.model).__name__} takes no attention mask for trees, only chains.")
            depths = torch.arange(width) if ancestors is None else ancestors.sum(-1) - 1
            assert positions.tolist() == (start + depths).tolist(), "positions do not continue the slot"
            positions = positions.clamp(max=self.context_length - 1)  # rows past the context are padding
            output = self._call(tokens, positions, cache.open(slot, width), ancestors, all_logits=not block.prefill)
            if logits is not None:
                logits[row, :width] = output.logits[0].float()
            if self.feature_layers:
                shown.append(torch.cat([output.hidden_states[layer][0].float() for layer in self.feature_layers], -1))
        return Output(logits, pad_sequence(shown, batch_first=True) if shown else None)

    def showing(self, feature_layers: tuple[int, ...]) -> TransformersModel:
        """The same model with these states in `Output.hidden` (see `decoder.Decoder`).

        Raises:
            InvalidOption: a state that the model does not have.
        """
        check_feature_layers(feature_layers, self.model.config.get_text_config(decoder=True).num_hidden_layers)
        shown = copy.copy(self)
        shown.feature_layers = feature_layers
        return shown

    @torch.inference_mode()
    def run(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        cache: Any,
        ancestors: torch.Tensor | None = None,
        *,
        all_logits: bool = True,
    ) -> torch.Tensor:
        """Run [n] tokens of one sequence on its own `transformers` cache, which they are appended to.

        Args:
            tokens: [n] ids.
            positions: [n] absolute.
            cache: holds what came before, and nothing else.
            ancestors: [n, n] bool, what each token sees of the others; None for a chain.
            all_logits: False where only the cache rows are wanted.

        Returns:
            Logits [n, V], or [1, V] of the last token where the model can leave out the others.
        """
        output = self._call(tokens, positions, cache, ancestors, all_logits=all_logits)
        return output.logits[0].float()  # type: ignore[no-any-return]

    @torch.inference_mode()
    def _call(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        cache: Any,
        ancestors: torch.Tensor | None,
        *,
        all_logits: bool,
    ) -> Any:
        positions = positions.to(self.device)
        offered = {
            "cache": cache,
            "past_key_values": cache,  # the name of `cache` in earlier versions
            "position_ids": positions[None],
            "cache_position": positions,
            "use_cache": True,
            "logits_to_keep": 0 if all_logits else 1,  # 0 means all
        }
        if ancestors is not None:
            offered["attention_mask"] = _additive(ancestors, cache.get_seq_length()).to(self.device, self.model.dtype)
        taken = {name: value for name, value in offered.items() if name in self._parameters}
        if self.feature_layers:
            taken["output_hidden_states"] = True
        return self.model(input_ids=tokens[None].to(self.device), return_dict=True, **taken)


def load_transformers(
    name_or_path: str,
    dtype: torch.dtype | str = "auto",
    device: torch.device | str = "cpu",
    *,
    context_length: int | None = None,
) -> TransformersModel:
    """Load a folder or a Hugging Face id and wrap it; safetensors only, and no code of the checkpoint's own is run.

    Args:
        name_or_path: what `from_pretrained` takes.
        dtype: a torch dtype; "auto" is what the checkpoint was saved in.
        device: where the model runs.
        context_length: see `TransformersModel`.

    Raises:
        InvalidOption: a dtype or device that cannot be used.
        CheckpointError: nothing there, a damaged file, or weights that do not fit the config.
        UnsupportedModel: not a causal language model that can be decoded exactly here.
    """
    _check_placement(dtype, device)
    if Path(name_or_path).is_dir() and not Path(name_or_path, "config.json").is_file():
        raise CheckpointError(f"{name_or_path!r} has no config.json; give the folder that holds it and the weights.")
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            name_or_path, dtype=dtype, trust_remote_code=False, use_safetensors=True, output_loading_info=True
        )
    except OSError as error:
        raise CheckpointError(
            f"No model could be read at {name_or_path!r}: {first_line(error)} "
            "Give a folder with config.json and *.safetensors files, or the id of one on the Hugging Face hub."
        ) from error
    except ValueError as error:
        raise UnsupportedModel(
            f"transformers has no causal language model for {name_or_path!r}: {first_line(error)} "
            "Checkpoints that bring their own code are not run; use an architecture that transformers includes."
        ) from error
    except Exception as error:  # safetensors and torch raise their own kinds for damaged files and wrong shapes
        raise CheckpointError(
            f"The weights at {name_or_path!r} cannot be loaded: {first_line(error)} Download or convert them again."
        ) from error
    for kind in ("missing_keys", "unexpected_keys"):
        if info[kind]:
            raise CheckpointError(
                f"The weights at {name_or_path!r} do not fit its config: {len(info[kind])} {kind.replace('_', ' ')}, "
                f"first {min(info[kind])!r}. If that is right, load it yourself and give it to TransformersModel."
            )
    return TransformersModel(model.to(device), context_length=context_length)


def _check_placement(dtype: torch.dtype | str, device: torch.device | str) -> None:
    if dtype != "auto" and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InvalidOption("dtype", dtype, '"auto" or a floating-point torch dtype')
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InvalidOption("device", str(device), "a device of this torch and machine", first_line(error)) from error


def _unless_chain(ancestors: torch.Tensor) -> torch.Tensor | None:
    """[n, n] bool, or None if every token sees all before it."""
    return None if torch.equal(ancestors, torch.ones_like(ancestors).tril()) else ancestors


def _additive(ancestors: torch.Tensor, start: int) -> torch.Tensor:
    """[1, 1, n, start + n] float32, what is added to attention scores: 0 where a token may look, -inf elsewhere."""
    hidden = torch.nn.functional.pad(~ancestors, (start, 0))
    return torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)[None, None]


def _context_length(config: Any, wanted: int | None) -> int:
    text = config.get_text_config(decoder=True)
    stated = (getattr(text, name, None) for name in ("max_position_embeddings", "max_seq_len", "n_positions"))
    limit = next((value for value in stated if isinstance(value, int) and value > 0), UNBOUNDED_CONTEXT)
    ropes = getattr(text, "rope_parameters", None) or {}
    for rope in (ropes, *ropes.values()):
        # Beyond its original length, longrope turns new rows by other angles than the rows already cached.
        if isinstance(rope, dict) and rope.get("rope_type") == "longrope":
            limit = min(limit, rope["original_max_position_embeddings"])
    if wanted is not None and not 1 <= wanted <= limit:
        raise InvalidOption("context_length", wanted, f"1 to {limit} for this model")
    return wanted or limit


@dataclass(frozen=True)
class _Trial:
    """Logits [3, V] of the same three tokens: after a roll-back, on a fresh cache, and without a cache."""

    rolled: torch.Tensor
    fresh: torch.Tensor
    uncached: torch.Tensor


def _trial(model: TransformersModel, vocab_size: int) -> _Trial:
    """Run three tokens, three wrong ones, roll those back and run three others; and again without the wrong ones."""
    config, first, second = model.model.config, torch.arange(3), torch.arange(3, 6)
    start, wrong, right = (torch.arange(1, 10) * vocab_size // 10).reshape(3, 3)
    rolled, fresh = empty_cache(config), empty_cache(config)
    model.run(start, first, rolled)
    model.run(wrong, second, rolled)
    crop(rolled, 3)
    model.run(start, first, fresh)
    whole = torch.cat((start, right))[None].to(model.device)
    with torch.inference_mode():  # positions of the model's own choosing
        uncached = model.model(input_ids=whole, use_cache=False, return_dict=True).logits[0, 3:].float()
    return _Trial(model.run(right, second, rolled), model.run(right, second, fresh), uncached)


def _probe(model: TransformersModel) -> int:
    """Refuse a model in whose logits a roll-back leaves a trace, or that its cache makes another model.

    Returns:
        The vocabulary size, as the logits have it.
    """
    name, config = type(model.model).__name__, model.model.config
    kinds = ", ".join(sorted({type(layer).__name__ for layer in empty_cache(config).layers})) or "DynamicCache"
    try:
        trial = _trial(model, config.get_text_config(decoder=True).vocab_size)
    except Exception as error:  # a model may fail in any way on a cache that it was not written for
        raise UnsupportedModel(f"{name} failed on a cache of {kinds}: {first_line(error)} {INSTEAD}") from error
    if trial.fresh.ndim != 2 or 0 in trial.fresh.shape or trial.fresh.isnan().any():
        shape = list(trial.fresh.shape)
        raise UnsupportedModel(f"{name} gives logits {shape} for 3 tokens, or NaN; check its weights and dtype.")
    # Roll-back and fresh cache call the same kernels on the same shapes, so they may differ by much less.
    scale, noise = float(trial.fresh.abs().max()), torch.finfo(model.model.dtype).eps ** 0.5
    if not torch.allclose(trial.rolled, trial.fresh, rtol=0, atol=scale * noise / 8):
        raise UnsupportedModel(f"{name} remembers rows that were cropped from its cache of {kinds}. {INSTEAD}")
    if not torch.allclose(trial.uncached, trial.fresh, rtol=0, atol=scale * noise):
        raise UnsupportedModel(f"{name} gives other logits with its cache of {kinds} than without one. {INSTEAD}")
    return trial.fresh.shape[-1]


_TWIGS = ((0, 1, 3, 5), (0, 2, 4, 6))
"""Rows of two chains that share their first token and take turns otherwise: a tree of seven rows."""
_TWO_TWIGS = (-1, -1, 0, 1, 2, 3)

_MASKED_ATTENTION = ("sdpa", "eager")
"""Implementations that take any mask; others ignore it or, like flex attention on a CPU, may end the process."""


def _takes_trees(model: TransformersModel) -> bool:
    """Whether a tree gives the logits of its chains, in the model's own attention on its own device.

    Yes only if the trial could have told: if a forgotten mask, and positions counted by row, make much more difference.
    """
    config = model.model.config
    masked = "attention_mask" in model._parameters and config._attn_implementation in _MASKED_ATTENTION
    if not masked or window(config) < model.context_length:
        return False
    try:
        wanted, found, blind = _tree_trial(model)
    except Exception:  # a kernel that takes no such mask may say so in any way
        return False
    scale, noise = float(wanted.abs().max()), torch.finfo(model.model.dtype).eps ** 0.5
    error, least = float((found - wanted).abs().max()), min(float((each - wanted).abs().max()) for each in blind)
    return error <= scale * noise and error * 8 < least


def _tree_trial(model: TransformersModel) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Logits [7, V] of two twigs as chains; as a tree; and as trees without a mask or with wrong positions."""
    tokens = torch.arange(1, 11) * model.vocab_size // 11
    mask, places = tree.ancestors(_TWO_TWIGS, 7), 3 + torch.tensor(tree.depths(_TWO_TWIGS))

    def run(rows: list[int], positions: torch.Tensor, ancestors: torch.Tensor | None) -> torch.Tensor:
        cache = empty_cache(model.model.config)
        model.run(tokens[:3], torch.arange(3), cache)
        return model.run(tokens[3:][rows], positions, cache, ancestors)

    wanted, rows = torch.empty(7, model.vocab_size, device=model.device), list(range(7))
    for twig in _TWIGS:
        wanted[list(twig)] = run(list(twig), torch.arange(3, 7), None)
    return wanted, run(rows, places, mask), [run(rows, places, None), run(rows, torch.arange(3, 10), mask)]
