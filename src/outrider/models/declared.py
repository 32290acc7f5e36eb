"""What a `transformers` model declares about its past, and refusals of what cannot be rolled back."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence as Ordered
from typing import Any

from transformers import DynamicCache, PreTrainedModel

from outrider.errors import UnsupportedModel

_PLAIN_LAYERS = {"DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer"}
"""Cache layers of keys and values alone. Recurrent ones cannot go back; indexed ones (DeepSeek V3.2) can, but choose
their keys by a top-k whose ties fall otherwise in another block."""

INSTEAD = "Decode it with its own generate()."


def refuse_declared(model: PreTrainedModel, parameters: frozenset[str], context_length: int) -> None:
    """Refuse what the class, the config or the kind of cache says cannot be rolled back.

    Args:
        model: a loaded model.
        parameters: names that its forward takes.
        context_length: tokens that must stay in reach.

    Raises:
        UnsupportedModel: naming the class or the layer.
    """
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        raise UnsupportedModel(f"{name} is an encoder-decoder model; only decoder-only models are supported.")
    if not model.can_generate():
        raise UnsupportedModel(f"{name} has no language modelling head; load it with AutoModelForCausalLM.")
    if not parameters & {"cache", "past_key_values"}:
        raise UnsupportedModel(f"{name}.forward takes no key/value cache that could be rolled back. {INSTEAD}")
    kinds = _layer_kinds(model.config)
    for index, layer in enumerate(_declared_cache(model).layers):
        where = f"Layer {index} of {name}" + (f" ({kinds[index]})" if index < len(kinds) else "")
        _refuse_layer(where, layer, context_length)
    if getattr(model, "_is_stateful", False):
        listed = ", ".join(sorted(set(kinds))) or "layer types not listed"
        raise UnsupportedModel(f"{name} ({listed}) keeps a state that cannot be rolled back. {INSTEAD}")


def _declared_cache(model: PreTrainedModel) -> DynamicCache:
    try:
        return DynamicCache(config=model.config)
    except Exception as error:  # an unknown layer type is a KeyError there, a missing window a TypeError
        text = f"transformers makes no cache for {type(model).__name__}: {first_line(error)} {INSTEAD}"
        raise UnsupportedModel(text) from error


def _refuse_layer(where: str, layer: Any, context_length: int) -> None:
    kind = type(layer).__name__
    if kind not in _PLAIN_LAYERS:
        raise UnsupportedModel(
            f"{where} keeps its past in a {kind}, not in plain keys and values that can be rolled back. {INSTEAD}"
        )
    window = getattr(layer, "sliding_window", None)
    if window is not None and window < context_length:
        raise UnsupportedModel(
            f"{where} forgets what is more than {window} tokens back ({kind}), less than the context of "
            f"{context_length}, and cannot be rolled back after that. Pass context_length={window} to stop there."
        )


def _layer_kinds(config: Any) -> Ordered[str]:
    text = config.get_text_config(decoder=True)
    return getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None) or ()


def window(config: Any) -> int:
    """Tokens that every layer can look back, counted by row: what stands side by side in a tree takes room in it.

    A window may be in the attention alone, with every row in the cache (GPT-Neo's is).
    """
    text = vars(config.get_text_config(decoder=True))
    named = (value for name, value in text.items() if re.search(r"window(_size|_length)?$|(chunk|block)_size$", name))
    return min((value for value in named if isinstance(value, int) and value > 0), default=sys.maxsize)


def first_line(error: Exception) -> str:
    """What an error says, short enough to quote."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if line.endswith((".", "!", "?")) else line + "."
