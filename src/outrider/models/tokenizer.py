"""Text to token ids and back, for a checkpoint folder or a GGUF file, and the check that two models speak the same.

Knows nothing of models or sampling.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Ordered
from pathlib import Path
from typing import Any

from outrider.errors import CheckpointError, InvalidOption, VocabularyMismatch
from outrider.models.gguf_file import read_gguf
from outrider.models.gguf_vocabulary import CONTROL, read_vocabulary
from outrider.models.settings import read_json

TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_turn|>", "<end_of_turn>", "<|end|>")
"""Tokens that end a turn; they stop generation where the model's chat template uses them."""

TEXT_END = "<|endoftext|>"
"""GGUF files name one end token only; this one, if it is a control token, ends text too."""

_PADDING = re.compile(r"\[PAD\d+\]")
_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")


class Tokenizer:
    """A tokenizer with the handful of answers that generation needs.

    Args:
        inner: a `transformers` tokenizer.
        stop_ids: tokens that end generation.
        prefix_ids: what a raw prompt starts with: BOS where the model wants one, else nothing.

    Besides these it shows `bos_id`, `eos_id`, `special_ids`, `vocab_size` (highest id + 1) and `chat_template` (its
    Jinja source, or None).
    """

    def __init__(self, inner: Any, *, stop_ids: frozenset[int], prefix_ids: tuple[int, ...]) -> None:
        self._inner = inner
        self.stop_ids = stop_ids
        self.prefix_ids = prefix_ids
        self.bos_id: int | None = inner.bos_token_id
        self.eos_id: int | None = inner.eos_token_id
        self.chat_template = _template(inner)
        self.special_ids = frozenset(_special_ids(inner))
        self.vocab_size = max(inner.get_vocab().values()) + 1

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without BOS or EOS; special tokens written out in the text become their ids.

        Raises:
            InvalidOption: it is not text, or not valid Unicode.
        """
        if not isinstance(text, str) or not _is_unicode(text):
            raise InvalidOption("text", text, "a str of valid Unicode (no lone surrogates)")
        ids: list[int] = self._inner.encode(text, add_special_tokens=False)
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a raw prompt, with BOS where the model's tokenizer adds one."""
        return [*self.prefix_ids, *self.encode(text)]

    def encode_chat(self, messages: Ordered[Mapping[str, Any]], add_generation_prompt: bool = True) -> list[int]:
        """Ids of a conversation in the model's chat template.

        Args:
            messages: dictionaries with "role" and "content", oldest first.
            add_generation_prompt: end with the opening of the assistant's turn.

        Raises:
            InvalidOption: no chat template, or messages that are malformed or that the template refuses.
        """
        if self.chat_template is None:
            raise InvalidOption("messages", messages, "a model with a chat template", "Give this model a raw prompt.")
        _check_messages(messages)
        try:
            text = self._inner.apply_chat_template(
                [dict(message) for message in messages], tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except Exception as error:  # the template is the model's own code: it raises what it likes
            allowed = "what the model's chat template takes"
            raise InvalidOption("messages", messages, allowed, f"It says: {error}") from error
        return self.encode(text)

    def decode(self, ids: Ordered[int]) -> str:
        """Text of ids: special tokens left out, spaces kept as they are."""
        text: str = self._inner.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def strings(self) -> list[str | None]:
        """How the vocabulary spells each id (byte-level vocabularies spell a space as Ġ); None for unused ids."""
        spelled: list[str | None] = [None] * self.vocab_size
        for token, index in self._inner.get_vocab().items():
            spelled[index] = token
        return spelled

    def save(self, folder: Path) -> None:
        """Write the files of a Hugging Face tokenizer, chat template and all, into a folder."""
        self._inner.save_pretrained(folder)

    def pieces(self) -> list[bytes | None]:
        """[vocab_size] the UTF-8 bytes that each id adds to a text; None for special and unused ids.

        All are None where the vocabulary does not say how its tokens join to a text, as WordPiece does not.
        """
        read = _reader(self._inner)
        spelled = enumerate(self.strings())
        return [None if read is None or s is None or i in self.special_ids else read(s) for i, s in spelled]


def _reader(inner: Any) -> Callable[[str], bytes] | None:
    """From a token as the vocabulary spells it to its bytes, as the tokenizer's decoder joins them."""
    backend = getattr(inner, "backend_tokenizer", None)
    if backend is None:
        return None
    if backend.decoder is None:
        return str.encode
    steps = json.loads(backend.decoder.__getstate__())  # of the whole tokenizer it would be megabytes
    kinds = {step["type"] for step in steps.get("decoders", [steps])}
    if "ByteLevel" in kinds:
        return _byte_level_bytes
    return _sentencepiece_bytes if kinds & {"ByteFallback", "Metaspace"} else None


def _byte_level_bytes(spelled: str) -> bytes:
    if all(char in _BYTE_OF for char in spelled):
        return bytes(_BYTE_OF[char] for char in spelled)
    return spelled.encode()  # a token that was added to the vocabulary as text


def _sentencepiece_bytes(spelled: str) -> bytes:
    if _BYTE.fullmatch(spelled):
        return bytes([int(spelled[3:5], 16)])
    return spelled.replace("\u2581", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """How byte-level vocabularies spell the 256 bytes: printable ones as themselves, the others from Ā on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _template(inner: Any) -> str | None:
    found = inner.chat_template
    return found.get("default") if isinstance(found, dict) else found


def _special_ids(inner: Any) -> set[int]:
    return {i for i, token in inner.added_tokens_decoder.items() if token.special} | set(inner.all_special_ids)


def _check_messages(messages: Any) -> None:
    shape = 'a non-empty list of {"role": ..., "content": ...} with text in both'
    fits = isinstance(messages, (list, tuple)) and len(messages) > 0
    if not fits or not all(isinstance(m, Mapping) and _is_message(m) for m in messages):
        raise InvalidOption("messages", messages, shape)


def _is_message(message: Mapping[str, Any]) -> bool:
    return isinstance(message.get("role"), str) and isinstance(message.get("content"), str)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a checkpoint: a .gguf file or a folder. No code of the checkpoint is run, nothing is downloaded.

    Raises:
        CheckpointError: missing or damaged.
        UnsupportedModel: a kind of vocabulary that is not read; named.
    """
    path = Path(path)
    return _from_folder(path) if path.is_dir() else _from_gguf(path)


def _from_gguf(path: Path) -> Tokenizer:
    from transformers import PreTrainedTokenizerFast

    v = read_vocabulary(read_gguf(path).metadata, path)
    control = {token: i for i, (token, kind) in enumerate(zip(v.tokens, v.kinds, strict=True)) if kind == CONTROL}
    inner = PreTrainedTokenizerFast(
        tokenizer_object=v.backend,
        bos_token=None if v.bos_id is None else v.tokens[v.bos_id],
        eos_token=None if v.eos_id is None else v.tokens[v.eos_id],
        chat_template=v.chat_template,
        clean_up_tokenization_spaces=False,
    )
    ends = v.stop_ids | _turn_ends(inner, v.chat_template)
    if TEXT_END in control:
        ends |= {control[TEXT_END]}
    prefix = (v.bos_id,) if v.adds_bos and v.bos_id is not None else ()
    return Tokenizer(inner, stop_ids=ends, prefix_ids=prefix)


def _from_folder(path: Path) -> Tokenizer:
    from transformers import AutoTokenizer

    try:
        inner = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False, local_files_only=True)
        source = path / "generation_config.json"
        ends = read_json(source if source.exists() else path / "config.json").get("eos_token_id")
        return _wrapped(inner, ends)
    except CheckpointError:
        raise
    except Exception as error:  # transformers raises whatever the files provoke
        raise CheckpointError(f"{path} has no tokenizer that transformers can read: {error}") from error


def wrap_tokenizer(inner: Any, generation_config: Any = None) -> Tokenizer:
    """A `transformers` tokenizer that the caller has loaded.

    Args:
        inner: the tokenizer.
        generation_config: of its model, whose `eos_token_id` stops generation too.
    """
    return _wrapped(inner, getattr(generation_config, "eos_token_id", None))


def _wrapped(inner: Any, ends: Any) -> Tokenizer:
    """`ends` is a token id, a list of them or None."""
    stated = {i for i in (*(ends if isinstance(ends, list) else [ends]), inner.eos_token_id) if isinstance(i, int)}
    prefix = tuple(i for i in inner.encode("", add_special_tokens=True)[:1] if i == inner.bos_token_id)
    return Tokenizer(inner, stop_ids=frozenset(stated | _turn_ends(inner, _template(inner))), prefix_ids=prefix)


def _turn_ends(inner: Any, template: str | None) -> set[int]:
    vocabulary = inner.get_vocab()
    return {vocabulary[token] for token in TURN_ENDS if template and token in template and token in vocabulary}


def compare_vocabularies(target: Tokenizer, draft: Tokenizer) -> None:
    """Check that two tokenizers mean the same by every id; unused ids at the end of one do not matter.

    Raises:
        VocabularyMismatch: they do not, naming the first id that differs.
    """
    ours, theirs = _meaningful(target), _meaningful(draft)
    longest = max(len(ours), len(theirs))
    pairs = zip(_padded(ours, longest), _padded(theirs, longest), strict=True)
    for index, (mine, other) in enumerate(pairs):
        if mine != other:
            raise VocabularyMismatch(
                f"Draft and target have different vocabularies: id {index} is {mine!r} in the target and {other!r} in "
                "the draft. Use a draft model of the target's own family."
            )
    for name in ("bos_id", "eos_id"):
        mine_id, other_id = getattr(target, name), getattr(draft, name)
        if mine_id != other_id and (name == "eos_id" or None not in (mine_id, other_id)):
            raise VocabularyMismatch(
                f"Draft and target have the same tokens but not the same {name}: {mine_id} in the target, {other_id} "
                "in the draft. Use a draft model of the target's own family."
            )


def _meaningful(tokenizer: Tokenizer) -> list[str | None]:
    return [None if s is None or _PADDING.fullmatch(s) else s for s in tokenizer.strings()]


def _padded(spelled: list[str | None], length: int) -> list[str | None]:
    return spelled + [None] * (length - len(spelled))
