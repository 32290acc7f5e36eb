"""Other engines on the same weights, prompts and threads: whatever is installed of them, at settings that suit a CPU.

They decode one prompt at a time, take part in the same turns, and are reported as missing where they are not installed.
Each gets token ids and makes exactly as many new ones as our own ways do: stop tokens do not end a text. Their time of
decoding begins with their first token, for the prompt's own time is not told apart; that token is not counted in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import torch

from outrider.benching.ways import Asked, Measured, Way, WayFailed
from outrider.errors import OutriderError, UnsupportedModel
from outrider.models.checkpoint import Checkpoint
from outrider.models.config import MODEL_TYPES, transformers_settings
from outrider.models.locate import locate
from outrider.models.opening import Opened
from outrider.models.rope import PLAIN_ROPE

TRANSFORMERS_LOOKUP = {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 3}
"""As the method's author proposes; a longest match of 2 is transformers' default."""

LLAMA_LOOKUP = {"num_pred_tokens": 2, "max_ngram_size": 2}
"""llama-cpp-python's own advice for machines without a GPU."""

OPENVINO_LOOKUP = {"num_assistant_tokens": 5, "max_ngram_size": 3}
"""As in OpenVINO GenAI's own prompt look-up sample."""

NO_DRAFT = "It needs a draft model of the target's vocabulary: add --drafter model:ID."

ReadOne = Callable[[int], None]
"""Called with the number of tokens that have just come."""


@dataclass(frozen=True)
class Source:
    """What the others decode with.

    Args:
        path: the target's file or folder.
        opened: the target.
        context_length: tokens of the longest prompt and its text.
        threads: of a CPU.
        draft: name of a draft model, or None.
    """

    path: Path
    opened: Opened
    context_length: int
    threads: int
    draft: str | None = None


@dataclass(frozen=True)
class Peer:
    """One way of another engine, and whether it could be had.

    Args:
        name: what the report calls it.
        settings: how it runs, in words.
        state: "ready", "missing" (it, or what it needs, is not there) or "failed".
        reason: why it is not ready.
        version: of its package, if that is installed.
        way: to run, if it is ready.
    """

    name: str
    settings: str
    state: Literal["ready", "missing", "failed"] = "ready"
    reason: str = ""
    version: str | None = None
    way: Way | None = None


class Missing(Exception):
    """What a peer needs is not there; the message says what."""


class PeerWay:
    """A way of another engine: it takes one prompt at a time.

    Args:
        name: what the report calls it.
        decode: from what is asked, told of every token as it comes, to the new ids.
    """

    most = 1

    def __init__(self, name: str, decode: Callable[[Asked, ReadOne], list[int]]) -> None:
        self.name, self._decode = name, decode

    def run(self, asked: Asked) -> Measured:
        """See `ways.Way.run`."""
        arrivals: list[tuple[float, int]] = []
        start = perf_counter()
        try:
            ids = self._decode(asked, lambda count: arrivals.append((perf_counter(), count)))
        except Exception as error:  # anything may come from there
            raise WayFailed(_in_a_line(error)) from error
        end = perf_counter()
        if len(ids) != asked.max_new_tokens or not arrivals:
            raise WayFailed(f"it made {len(ids)} tokens where {asked.max_new_tokens} were asked for")
        first, at_once = arrivals[0]
        return Measured(
            (tuple(ids),),
            seconds=end - start,
            first_token_seconds=first - start,
            decoded=len(ids) - at_once,
            decoding_seconds=max(end - first, 1e-9),
        )


Make = Callable[[Source], Callable[[Asked, ReadOne], list[int]]]
"""Loads an engine; raises `Missing` for what it cannot do without."""


@dataclass(frozen=True)
class _Kind:
    module: str
    package: str
    settings: str
    make: Make


def open_peers(source: Source, told: Callable[[str], None] = lambda name: None) -> list[Peer]:
    """All peers: loaded, or with the reason why they are not.

    Args:
        source: what they decode with.
        told: called with the name of each before it is loaded.
    """
    found = []
    for name, kind in _kinds().items():
        told(name)
        found.append(_opened(name, kind, source))
    return found


def _opened(name: str, kind: _Kind, source: Source) -> Peer:
    peer = Peer(name, kind.settings)
    if find_spec(kind.module) is None:
        return replace(peer, state="missing", reason=f"{kind.package} is not installed.")
    peer = replace(peer, version=_version(kind.package))
    try:
        return replace(peer, way=PeerWay(name, kind.make(source)))
    except Missing as missing:
        return replace(peer, state="missing", reason=str(missing))
    except Exception as error:  # anything may come from there, an import that fails among it
        return replace(peer, state="failed", reason=_in_a_line(error))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _in_a_line(error: Exception) -> str:
    text = str(error) if isinstance(error, OutriderError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:300]


def _kinds() -> dict[str, _Kind]:
    """In the order in which they are shown; the ways of transformers share one model."""
    made: dict[str, Any] = {}

    def model(source: Source) -> Any:
        if "model" not in made:
            made["model"] = transformers_model(source.opened)
        return made["model"]

    def transformers(settings: str, more: Callable[[Source], Mapping[str, Any]]) -> _Kind:
        return _Kind(
            "transformers",
            "transformers",
            f"float32, eager, scaled_dot_product_attention{settings}",
            lambda source: _transformers(model(source), more(source)),
        )

    lookup, guess = ", ".join(f"{k}={v}" for k, v in LLAMA_LOOKUP.items()), OPENVINO_LOOKUP
    return {
        "transformers": transformers("", lambda source: {}),
        "transformers prompt lookup": transformers(
            "".join(f", {k}={v}" for k, v in TRANSFORMERS_LOOKUP.items()), lambda source: TRANSFORMERS_LOOKUP
        ),
        "transformers assistant": transformers(", the draft model in float32", _assistant),
        "llama.cpp": _Kind("llama_cpp", "llama-cpp-python", "the file as it is", lambda source: _llama(source, None)),
        "llama.cpp prompt lookup": _Kind(
            "llama_cpp",
            "llama-cpp-python",
            f"the file as it is, {lookup}",
            lambda source: _llama(source, LLAMA_LOOKUP),
        ),
        "openvino": _Kind("openvino_genai", "openvino-genai", "the file as it is", lambda s: _openvino(s, None)),
        "openvino prompt lookup": _Kind(
            "openvino_genai",
            "openvino-genai",
            "the file as it is" + "".join(f", {k}={v}" for k, v in guess.items()),
            lambda source: _openvino(source, guess),
        ),
    }


# ---------------------------------------------------------------- transformers


def transformers_model(opened: Opened) -> Any:
    """The target as a transformers model in float32: the very weights that the native decoder reads, or the adapter's.

    Raises:
        UnsupportedModel: a GGUF file whose settings have no counterpart here.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if opened.checkpoint is None:
        return opened.model.model  # type: ignore[attr-defined]
    checkpoint = opened.checkpoint
    if checkpoint.path.is_dir():
        return AutoModelForCausalLM.from_pretrained(checkpoint.path, dtype=torch.float32).eval()
    model_type = next(known for known, name in MODEL_TYPES.items() if name == checkpoint.config.architecture)
    config = AutoConfig.for_model(model_type, **_settings(checkpoint))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    weights = {name: checkpoint.tensor(name) for name in checkpoint.names}
    keys = model.load_state_dict(weights, strict=False)
    if keys.unexpected_keys or set(keys.missing_keys) - {"lm_head.weight"}:
        raise UnsupportedModel(f"transformers has other weights than {checkpoint.path}: {keys}.")
    model.tie_weights()
    return model


def _settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """The checkpoint's shape as transformers names it."""
    c = checkpoint.config
    if c.rope != PLAIN_ROPE:
        raise UnsupportedModel(f"The stretched rotary frequencies of {checkpoint.path} are not carried over.")
    return transformers_settings(c)


def _assistant(source: Source) -> Mapping[str, Any]:
    """The draft model that the user named, for assisted decoding."""
    from transformers import AutoModelForCausalLM

    if source.draft is None:
        raise Missing(NO_DRAFT)
    path = locate(source.draft)
    if not path.is_dir():
        raise Missing(f"transformers opens a folder or a Hugging Face id, not {path.name}.")
    return {"assistant_model": AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()}


class _Arrivals:
    """A streamer of transformers: it is handed the prompt, then tokens as they come."""

    def __init__(self, read: ReadOne) -> None:
        self._read, self._is_prompt = read, True

    def put(self, ids: torch.Tensor) -> None:
        if not self._is_prompt:
            self._read(ids.numel())
        self._is_prompt = False

    def end(self) -> None:
        """Nothing is left to hand out."""


def _transformers(model: Any, more: Mapping[str, Any]) -> Callable[[Asked, ReadOne], list[int]]:
    for each in (model, more.get("assistant_model")):
        if each is not None:
            each.generation_config.eos_token_id = None  # so that no text ends early

    def decode(asked: Asked, read: ReadOne) -> list[int]:
        prompt = torch.tensor(asked.prompts)
        torch.manual_seed(asked.seeds[0])
        sampled = {"do_sample": True, "temperature": asked.temperature, "top_k": 0, "top_p": 1.0}
        with torch.inference_mode():
            made = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=asked.max_new_tokens,
                pad_token_id=0,
                streamer=_Arrivals(read),
                **(sampled if asked.temperature > 0 else {"do_sample": False}),
                **more,
            )
        return [int(token) for token in made[0, prompt.shape[1] :]]

    return decode


# ---------------------------------------------------------------- llama.cpp


def _gguf(source: Source) -> str:
    if source.path.suffix != ".gguf":
        raise Missing("It reads .gguf files, and this target is none.")
    return str(source.path)


def _llama(source: Source, lookup: Mapping[str, int] | None) -> Callable[[Asked, ReadOne], list[int]]:
    path, library = _gguf(source), import_module("llama_cpp")
    draft = None
    if lookup is not None:
        draft = import_module("llama_cpp.llama_speculative").LlamaPromptLookupDecoding(**lookup)
    # Room for a last draft beyond the text.
    room = source.context_length + LLAMA_LOOKUP["num_pred_tokens"] + 1
    threads = {"n_threads": source.threads, "n_threads_batch": source.threads}
    model = library.Llama(path, n_ctx=room, draft_model=draft, verbose=False, **threads)

    def decode(asked: Asked, read: ReadOne) -> list[int]:
        model.reset()  # or it would reuse what it has cached of an earlier prompt
        model.set_seed(asked.seeds[0] % 2**32)
        law = {"temp": asked.temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}
        ids: list[int] = []
        for token in model.generate(list(asked.prompts[0]), **law):
            read(1)
            ids.append(int(token))
            if len(ids) == asked.max_new_tokens:
                break
        return ids

    return decode


# ---------------------------------------------------------------- OpenVINO GenAI


def _openvino(source: Source, lookup: Mapping[str, int] | None) -> Callable[[Asked, ReadOne], list[int]]:
    path, library = _gguf(source), import_module("openvino_genai")
    tensor = import_module("openvino").Tensor
    looking_up = {} if lookup is None else {"prompt_lookup": True}
    pipeline = library.LLMPipeline(path, "CPU", INFERENCE_NUM_THREADS=source.threads, **looking_up)

    class Arrivals(library.StreamerBase):  # type: ignore[misc, name-defined]
        def __init__(self, read: ReadOne) -> None:
            super().__init__()
            self._read = read

        def write(self, tokens: Any) -> Any:
            self._read(len(tokens) if hasattr(tokens, "__len__") else 1)
            return library.StreamingStatus.RUNNING

        def end(self) -> None:
            """Nothing is left to hand out."""

    def decode(asked: Asked, read: ReadOne) -> list[int]:
        prompt = torch.tensor(asked.prompts)
        config = library.GenerationConfig()
        config.max_new_tokens, config.ignore_eos = asked.max_new_tokens, True
        config.do_sample, config.rng_seed = asked.temperature > 0, asked.seeds[0]
        if asked.temperature > 0:
            config.temperature, config.top_p = asked.temperature, 1.0
        for name, value in (lookup or {}).items():
            setattr(config, name, value)
        both = library.TokenizedInputs(tensor(prompt.numpy()), tensor(torch.ones_like(prompt).numpy()))
        return [int(token) for token in pipeline.generate(both, config, Arrivals(read)).tokens[0]]

    return decode
