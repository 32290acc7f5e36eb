"""A text in the ids of another vocabulary: in step with the target's tokens, whatever was accepted."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from checkpoints import TRAINING_TEXT, byte_level_tokenizer
from outrider.drafters.translation import Translation
from outrider.drafters.vocabularies import Speller, Vocabularies, translate
from outrider.errors import InvalidOption, VocabularyMismatch
from outrider.models.tokenizer import Tokenizer, wrap_tokenizer

TEXT = "naïve café, the quick 東京は日本 🎉🎉 isn't it 👩‍👩‍👧 e\u0301 \n\n    return 3.14159  # ok\u200d Привет"
METHODS = ("token", "string")


def wrapped(backend: Backend, **options: Any) -> Tokenizer:
    return wrap_tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, **{"eos_token": "<|im_end|>", **options}))


@cache
def byte_level(vocab_size: int = 320, by_word: bool = True) -> Tokenizer:
    """Other sizes and splittings have other merges."""
    splitting = None if by_word else pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return wrapped(byte_level_tokenizer(splitting, vocab_size))


@cache
def sentencepiece() -> Tokenizer:
    """Words with their space as ▁, single letters, and bytes for all else; a space stands before every text."""
    words = {f"\u2581{word}" for text in TRAINING_TEXT for word in text.split() if word.isascii() and word.isalpha()}
    letters = {letter for word in words for letter in word} | set(".,\n")
    specials = ["<unk>", "<s>", "<|im_end|>"]
    pieces = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), *sorted(letters - {"\n"})]
    merges = []
    for word in sorted(words):
        for end in range(2, len(word) + 1):
            merges.append((word[: end - 1], word[end - 1]))
            pieces.append(word[:end])
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    model = models.BPE(vocabulary, list(dict.fromkeys(merges)), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    backend = Backend(model)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    joined = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(joined)
    return wrapped(backend, bos_token="<s>", unk_token="<unk>")


def in_draft_ids(both: Vocabularies, tokens: list[int], prompt_length: int) -> list[int] | None:
    translation = Translation(both, tokens, prompt_length)
    translation.read_on(tokens)
    return translation.ids()


def heard(speller: Speller, ids: list[int]) -> bytes:
    """The text of ids, without the space that some vocabularies put in front of every text."""
    text = speller.text_of(ids)
    return text.removeprefix(b" ") if speller.puts_space else text


# ---------------------------------------------------------------- pieces


def test_pieces_spell_the_text_in_every_kind_of_vocabulary(smollm2_tokenizer: Tokenizer) -> None:
    for tokenizer in (smollm2_tokenizer, byte_level(), sentencepiece()):
        pieces = tokenizer.pieces()
        spelled = b"".join(pieces[token] or b"" for token in tokenizer.encode(TEXT))
        assert spelled.decode().removeprefix(" ") == TEXT
        assert all(pieces[token] is None for token in tokenizer.special_ids)
        assert len(pieces) == tokenizer.vocab_size


def test_a_token_added_as_text_is_its_own_piece() -> None:
    backend = byte_level_tokenizer()
    backend.add_tokens(["<note> 東"])
    tokenizer = wrapped(backend)
    assert tokenizer.pieces()[tokenizer.encode("<note> 東")[0]] == "<note> 東".encode()


def test_a_vocabulary_that_does_not_spell_text_has_no_pieces() -> None:
    backend = byte_level_tokenizer()
    backend.decoder = decoders.WordPiece()
    assert set(wrapped(backend).pieces()) == {None}


# ---------------------------------------------------------------- what is shared


def test_shared_tokens_are_the_same_text_one_to_one() -> None:
    for target, draft in (
        (byte_level(), byte_level(290)),
        (byte_level(), sentencepiece()),
        (sentencepiece(), byte_level()),
    ):
        shared = translate(target, draft).shared
        assert len(set(shared.values())) == len(shared) > 100
        for mine, other in shared.items():
            assert target.pieces()[mine] == draft.pieces()[other]
    both = translate(byte_level(), sentencepiece())
    names = sentencepiece().strings()
    assert names[both.shared[byte_level().encode("a")[0]]] == "a"  # not <0x61>
    assert names[both.shared[byte_level().encode("\n")[0]]] == "<0x0A>"


def test_the_same_strings_under_other_ids_are_all_shared() -> None:
    state = json.loads(byte_level_tokenizer().to_str())
    size = len(state["model"]["vocab"])
    state["model"]["vocab"] = {token: (7 * i + 3) % size for token, i in state["model"]["vocab"].items()}
    for added in state["added_tokens"]:
        added["id"] = state["model"]["vocab"][added["content"]]
    target, draft = byte_level(), wrapped(Backend.from_str(json.dumps(state)))
    both = translate(target, draft)
    assert both.method == "token"
    assert both.note == "token level, 320 of 320 tokens shared"
    assert all(target.strings()[mine] == draft.strings()[other] for mine, other in both.shared.items())


def test_special_tokens_are_shared_by_name_and_ends_by_meaning() -> None:
    target = byte_level()
    assert {0, 1, 2} <= set(translate(target, target).shared)
    named = translate(target, sentencepiece())
    assert [(token, named.shared.get(token)) for token in range(3)] == [(0, None), (1, None), (2, 2)]
    backend = byte_level_tokenizer()
    other = wrap_tokenizer(
        PreTrainedTokenizerFast(tokenizer_object=sentencepiece()._inner.backend_tokenizer, eos_token="<s>")
    )
    ends = translate(wrapped(backend, eos_token="<|endoftext|>"), other)
    assert ends.shared[0] == 1
    assert ends.shared[2] == 2


def test_the_method_follows_from_what_is_shared_and_is_said(smollm2_tokenizer: Tokenizer) -> None:
    few = translate(smollm2_tokenizer, byte_level())
    assert (few.method, few.note) == ("string", "string level, 282 of 49,152 tokens shared")
    many = translate(byte_level(), smollm2_tokenizer)
    assert (many.method, many.note) == ("token", "token level, 282 of 320 tokens shared")
    assert many.covered > 0.9 > 0.5 > few.covered


def test_vocabularies_that_cannot_be_brought_together_are_refused_with_the_numbers() -> None:
    backend = byte_level_tokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(["<|other|>"])
    mute = wrapped(backend)
    mute.special_ids = frozenset({mute.vocab_size - 1})
    mute.eos_id = None
    for method in ("auto", *METHODS):
        with pytest.raises(VocabularyMismatch, match="0 of the target's 320 tokens and the draft's 321 are the same"):
            translate(byte_level(), mute, method=method)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="method is 'letter'"):
        translate(byte_level(), mute, method="letter")  # type: ignore[arg-type]


# ---------------------------------------------------------------- the context


def random_texts(count: int) -> list[str]:
    rng = random.Random(7)
    letters = [*TEXT, *"the quick brown fox  \n", "🎉", "e\u0301", "京", "\U0001f469\u200d", "ß", "\ufffd"]
    return ["".join(rng.choices(letters, k=rng.randrange(1, 60))) for _ in range(count)]


PAIRS = {
    "byte-level": (lambda: byte_level(), lambda: byte_level(290)),
    "other words": (lambda: byte_level(320, by_word=False), lambda: byte_level(300)),
    "to sentencepiece": (lambda: byte_level(), sentencepiece),
    "from sentencepiece": (sentencepiece, lambda: byte_level(290)),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pair", PAIRS)
def test_the_draft_reads_exactly_the_targets_text_at_every_token(method: Any, pair: str) -> None:
    target, draft = (make() for make in PAIRS[pair])
    both = translate(target, draft, method=method)
    for text in [TEXT, *random_texts(12)]:
        tokens = target.encode(text)
        for cut in range(1, len(tokens) + 1):
            ids = in_draft_ids(both, tokens[:cut], min(cut, 3))
            assert ids is not None
            assert heard(both.draft, ids) == heard(both.target, tokens[:cut])


@pytest.mark.parametrize("pair", PAIRS)
def test_random_ids_with_parts_of_characters_are_read_to_the_last_byte(pair: str) -> None:
    target, draft = (make() for make in PAIRS[pair])
    rng = random.Random(5)
    for method in METHODS:
        both = translate(target, draft, method=method)  # type: ignore[arg-type]
        texts = [i for i, piece in enumerate(target.pieces()) if piece]
        for _ in range(60):
            tokens = rng.choices(texts, k=rng.randrange(1, 30))
            ids = in_draft_ids(both, tokens, rng.randrange(len(tokens) + 1))
            assert ids is not None
            assert heard(both.draft, ids) == heard(both.target, tokens)


def test_a_prompt_is_spelled_as_the_drafts_tokenizer_would(smollm2_tokenizer: Tokenizer) -> None:
    for target, draft in (
        (smollm2_tokenizer, byte_level()),
        (byte_level(), smollm2_tokenizer),
        (byte_level(), sentencepiece()),
    ):
        for method in METHODS:
            both = translate(target, draft, method=method)  # type: ignore[arg-type]
            tokens = target.encode(TEXT)
            assert in_draft_ids(both, tokens, len(tokens)) == draft.encode(TEXT)


def test_behind_the_prompt_a_shared_token_stays_one_token_and_others_are_spelled_by_the_word() -> None:
    target, draft = byte_level(320), byte_level(300)
    both = translate(target, draft)
    unshared = [i for i, piece in enumerate(target.pieces()) if piece and i not in both.shared]
    prompt = target.encode("fox ")
    t, h, space = (target.encode(letter)[0] for letter in "th ")
    assert in_draft_ids(both, [*prompt, t, h], len(prompt)) == [*draft.encode("fox "), both.shared[t], both.shared[h]]
    strange = [*prompt, unshared[-1], t, space, unshared[-1]]
    piece = (target.pieces()[unshared[-1]] or b"").decode()
    expected = [*draft.encode("fox "), *draft.encode(piece), both.shared[t], both.shared[space], *draft.encode(piece)]
    assert in_draft_ids(both, strange, len(prompt)) == expected


def test_a_character_in_parts_is_spelled_anew_when_it_is_complete() -> None:
    target, draft = byte_level(259), byte_level(320)
    both, parts = translate(target, draft), target.encode("🎉")
    assert (len(parts), len(draft.encode("🎉"))) == (4, 1)
    first = both.shared[parts[0]]
    assert in_draft_ids(both, parts[:1], 0) == [first]
    halves = in_draft_ids(both, parts[:3], 0)
    assert halves is not None
    assert both.draft.text_of(halves) == "🎉".encode()[:3]
    assert in_draft_ids(both, parts, 0) == draft.encode("🎉")


def test_what_stands_before_a_prompt_gives_way_to_the_drafts_own() -> None:
    target, draft = byte_level(), sentencepiece()
    target_ids, draft_ids = target.encode("the fox"), draft.encode("the fox")
    for mine, other in (((), (1,)), ((1,), ()), ((1,), (1,))):
        target.prefix_ids, draft.prefix_ids = mine, other
        try:
            assert in_draft_ids(translate(target, draft), [*mine, *target_ids], 0 + len(mine) + len(target_ids)) == [
                *other,
                *draft_ids,
            ]
        finally:
            target.prefix_ids = draft.prefix_ids = ()


def test_special_tokens_of_the_target_alone_are_read_as_they_are_spelled() -> None:
    both = translate(byte_level(), sentencepiece())
    tokens = [1, *byte_level().encode("user"), 2]
    ids = in_draft_ids(both, tokens, len(tokens))
    assert ids is not None
    assert ids[-1] == 2
    assert both.draft.text_of(ids) == b" <|im_start|>user"


# ---------------------------------------------------------------- respelling


@pytest.mark.parametrize("pair", PAIRS)
def test_text_goes_on_as_the_target_spells_it(pair: str) -> None:
    target, draft = (make() for make in PAIRS[pair])
    both = translate(target, draft, method="string")
    for text in [TEXT, *random_texts(12)]:
        tokens = target.encode(text)
        for cut in range(len(tokens)):
            rest = both.target.text_of(tokens[cut:])
            assert both.respell(tokens[:cut], rest) in (tokens[cut:], both.target.spell(rest))
            part = both.respell(tokens[:cut], rest[:2])
            assert rest.startswith(both.target.text_of(part))


def test_spaces_between_words_survive_sentencepiece() -> None:
    both = translate(sentencepiece(), byte_level(), method="string")
    the, fox = sentencepiece().encode("the"), sentencepiece().encode("fox")
    assert both.respell(the, b" fox") == fox
    assert both.respell([*the, *fox], b"es") != sentencepiece().encode("es")
