"""The tokenizer that a GGUF file describes, built with the `tokenizers` library.

A GGUF file names its text splitting instead of storing it; the definitions here are those of the models' own
tokenizer.json files. Vocabularies: byte-level BPE ("gpt2") and SentencePiece BPE ("llama").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from outrider.errors import CheckpointError, UnsupportedModel

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Values of tokenizer.ggml.token_type."""

SPACE = "\u2581"
"""How SentencePiece spells a space."""

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
_SINGLE_DIGITS = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _GPT2])


def _split(pattern: str) -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior="isolated"), _BYTES])


@dataclass(frozen=True)
class _Splitting:
    """How text is cut before merging; `whole_words`: a piece that is a token is not merged; `nfc`: normalised first."""

    cut: Any
    whole_words: bool = False
    nfc: bool = False


SPLITTINGS = {
    "gpt-2": _Splitting(_GPT2),
    "default": _Splitting(_GPT2),
    "smollm": _Splitting(_SINGLE_DIGITS),
    "starcoder": _Splitting(_SINGLE_DIGITS),
    "llama-bpe": _Splitting(_split(_LLAMA3), whole_words=True),
    "llama3": _Splitting(_split(_LLAMA3), whole_words=True),
    "llama-v3": _Splitting(_split(_LLAMA3), whole_words=True),
    "qwen2": _Splitting(_split(_QWEN2), nfc=True),
    "deepseek-r1-qwen": _Splitting(_split(_QWEN2), nfc=True),
}
"""tokenizer.ggml.pre -> splitting, for byte-level vocabularies."""


@dataclass(frozen=True)
class Vocabulary:
    """What a GGUF file says of its tokens.

    Args:
        tokens: strings by id.
        kinds: token types by id.
        backend: the tokenizer built from it; adds no BOS or EOS.
        bos_id: beginning of text, if there is one.
        eos_id: end of text, if there is one.
        adds_bos: whether a prompt starts with `bos_id`.
        stop_ids: `eos_id` and every other token that the file marks as an end.
        chat_template: Jinja source, if there is one.
    """

    tokens: tuple[str, ...]
    kinds: tuple[int, ...]
    backend: Tokenizer
    bos_id: int | None
    eos_id: int | None
    adds_bos: bool
    stop_ids: frozenset[int]
    chat_template: str | None


def read_vocabulary(metadata: Mapping[str, Any], path: Path) -> Vocabulary:
    """Build the tokenizer that a GGUF header describes.

    Args:
        metadata: keys and values of the header.
        path: named in errors.

    Raises:
        CheckpointError: no vocabulary, or one that does not fit together.
        UnsupportedModel: another kind of vocabulary or splitting; named.
    """
    values = {key[len("tokenizer.ggml.") :]: metadata[key] for key in metadata if key.startswith("tokenizer.ggml.")}
    tokens = values.get("tokens")
    if not isinstance(tokens, list) or not tokens:
        raise CheckpointError(f"{path} has no tokens (tokenizer.ggml.tokens).")
    kinds = _per_token(values, "token_type", len(tokens), path) or [NORMAL] * len(tokens)
    backend = _backend(values, tokens, kinds, path)
    template = metadata.get("tokenizer.chat_template")
    usually = values["model"] == "llama" or values.get("pre") in ("llama-bpe", "llama3", "llama-v3")
    eos_id = _token_id(values, "eos_token_id", len(tokens), path)
    ends = [eos_id, *(_token_id(values, f"{name}_token_id", len(tokens), path) for name in ("eot", "eom"))]
    return Vocabulary(
        tokens=tuple(tokens),
        kinds=tuple(kinds),
        backend=backend,
        bos_id=_token_id(values, "bos_token_id", len(tokens), path),
        eos_id=eos_id,
        adds_bos=_flag(values, "add_bos_token", usually, path),
        stop_ids=frozenset(i for i in ends if i is not None),
        chat_template=template if isinstance(template, str) else None,
    )


def _per_token(values: Mapping[str, Any], name: str, num_tokens: int, path: Path) -> list[Any] | None:
    """An array of one number per token."""
    found = values.get(name)
    if found is None:
        return None
    numbers = found.tolist() if hasattr(found, "tolist") else found
    if not isinstance(numbers, list) or len(numbers) != num_tokens or isinstance(numbers[0], str):
        raise CheckpointError(f"{path}: tokenizer.ggml.{name} is not a list of {num_tokens} numbers, one per token.")
    return numbers


def _token_id(values: Mapping[str, Any], name: str, num_tokens: int, path: Path) -> int | None:
    found = values.get(name)
    if found is None:
        return None
    if not isinstance(found, int) or not 0 <= found < num_tokens:
        raise CheckpointError(f"{path}: tokenizer.ggml.{name} is {found!r}; the vocabulary has {num_tokens} tokens.")
    return found


def _flag(values: Mapping[str, Any], name: str, default: bool, path: Path) -> bool:
    found = values.get(name, default)
    if not isinstance(found, bool):
        raise CheckpointError(f"{path}: tokenizer.ggml.{name} is {found!r}; it must be true or false.")
    return found


def _backend(values: Mapping[str, Any], tokens: list[str], kinds: list[int], path: Path) -> Tokenizer:
    model = values.get("model")
    try:
        if model == "gpt2":
            backend = _byte_level(tokens, values)
        elif model == "llama":
            backend = _sentencepiece(tokens, kinds, values, path)
        else:
            raise UnsupportedModel(f"{path}: vocabularies of kind {model!r} are not read, only 'gpt2' and 'llama'.")
        added = [_added(token, kind) for token, kind in zip(tokens, kinds, strict=True) if _is_whole(kind)]
        backend.add_tokens(added)
    except (UnsupportedModel, CheckpointError):
        raise
    except Exception as error:  # what the `tokenizers` library raises has no narrower type
        raise CheckpointError(f"{path}: the vocabulary does not fit together: {error}.") from error
    if backend.get_vocab_size() > len(tokens):
        raise CheckpointError(f"{path}: the vocabulary does not fit together: added tokens are not among its tokens.")
    return backend


def _is_whole(kind: int) -> bool:
    """Whether such a token is found in the text before it is split."""
    return kind in (CONTROL, USER_DEFINED)


def _added(token: str, kind: int) -> AddedToken:
    return AddedToken(token, normalized=False, special=kind == CONTROL)


def _byte_level(tokens: list[str], values: Mapping[str, Any]) -> Tokenizer:
    name = values.get("pre", "default")
    if name not in SPLITTINGS:
        known = ", ".join(SPLITTINGS)
        raise UnsupportedModel(f"Text splitting {name!r} (tokenizer.ggml.pre) is not known here ({known}).")
    splitting = SPLITTINGS[name]
    merges = [tuple(merge.split(" ")) for merge in values.get("merges", [])]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=splitting.whole_words))
    if splitting.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = splitting.cut
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(tokens: list[str], kinds: list[int], values: Mapping[str, Any], path: Path) -> Tokenizer:
    scores = _per_token(values, "scores", len(tokens), path)
    if scores is None:
        raise CheckpointError(f"{path} has a SentencePiece vocabulary without tokenizer.ggml.scores.")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = _token_id(values, "unknown_token_id", len(tokens), path)
    unknown_token = None if unknown is None else tokens[unknown]
    merges = _merges_by_score(tokens, kinds, scores)
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown_token, fuse_unk=True, byte_fallback=True))
    spelled: list[Any] = [normalizers.Replace(" ", SPACE)]
    steps: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if _flag(values, "add_space_prefix", True, path):
        # As llama.cpp and the models' own tokenizer.json do: a space before the text and after each special token.
        spelled = [normalizers.Prepend(SPACE), *spelled]
        steps.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(spelled)
    backend.decoder = decoders.Sequence(steps)
    return backend


def _merges_by_score(tokens: list[str], kinds: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to make a token from two others, best score first: SentencePiece's order of merging."""
    pieces = {token: index for index, token in enumerate(tokens) if kinds[index] == NORMAL}
    found = []
    for token, index in pieces.items():
        cuts = ((token[:i], token[i:]) for i in range(1, len(token)))
        found += [(-scores[index], pieces[a], pieces[b], a, b) for a, b in cuts if a in pieces and b in pieces]
    return [(left, right) for *_, left, right in sorted(found)]
