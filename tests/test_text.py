"""Streamed text against the decode of all tokens, over random texts cut into random tokens; and careless streamers."""

import re
import unicodedata

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from outrider.errors import CheckpointError, InvalidOption
from outrider.models.locate import EMBEDDED_NAME, locate
from outrider.models.tokenizer import load_tokenizer
from outrider.text import TextStream, visible

quickly = settings(deadline=None, derandomize=True, database=None, report_multiple_bugs=False, max_examples=300)
unshrunk = settings(quickly, phases=[Phase.generate])
REPLACEMENT = "\ufffd"
ALPHABET = "aab b\n\té你😀\u0301\u200d👩‍👧\ufffd"


class Pieces:
    """A tokenizer whose tokens are any byte strings; b"" stands for a special token."""

    def __init__(self):
        self.pieces = []

    def ids(self, pieces):
        self.pieces = list(pieces)
        return list(range(len(self.pieces)))

    def decode(self, ids):
        return b"".join(self.pieces[i] for i in ids).decode("utf-8", errors="replace")


class SentencePieces(Pieces):
    """Tokens in the manner of Llama 2: "▁" for a space, single bytes as "<0x..>", one leading space removed."""

    decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )

    def decode(self, ids):
        return self.decoder.decode([self.pieces[i] for i in ids if self.pieces[i]])


# What is right, computed from scratch for every token


def without_unfinished(text):
    return text[:-3] + text[-3:].rstrip(REPLACEMENT)


def longest_held(text, stops):
    return max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)


def check(stream_type, tokenizer, pieces, stops=(), texts=None):
    """Every delivery is exactly what is final by then, and the whole is the decode of all, up to the stop string.

    Args:
        stream_type: what is tested.
        tokenizer: gives ids and decodes.
        pieces: the tokens.
        stops: stop strings, none with U+FFFD.
        texts: the final text after each token; by default the decode so far without up to three trailing U+FFFD.
    """
    ids = tokenizer.ids(pieces)
    stream, delivered = stream_type(tokenizer.decode, tuple(stops)), ""
    for n, token in enumerate(ids):
        final = without_unfinished(tokenizer.decode(ids[: n + 1])) if texts is None else texts[n]
        delivered += stream.push(token)
        hits = sorted((final.find(stop), len(stop), stop) for stop in stops if stop in final)
        if hits:
            assert (delivered, stream.stopped) == (final[: hits[0][0]], hits[0][2])
            assert [stream.push(later) for later in ids[n + 1 :]] == [""] * (len(ids) - n - 1)
            assert (stream.finish(), stream.text, stream.stopped) == ("", delivered, hits[0][2])
            return
        assert stream.stopped is None
        assert delivered == final[: len(final) - longest_held(final, stops)]
    delivered += stream.finish()
    assert delivered == tokenizer.decode(ids) == stream.text
    assert stream.finish() == ""
    assert stream.stopped is None


@st.composite
def cuts(draw, data):
    """The bytes cut into tokens of 1 to 5 bytes, then of single ones, with special tokens among them."""
    pieces, begin = [], 0
    for size in draw(st.lists(st.integers(0, 5), max_size=40)):
        pieces.append(data[begin : begin + size])
        begin += size
    return [*pieces, *(data[i : i + 1] for i in range(begin, len(data)))]


@st.composite
def stop_strings(draw, text):
    """Mostly strings that occur in the text, whole or in part."""
    stops = []
    for _ in range(draw(st.integers(0, 3))):
        begin = draw(st.integers(0, max(0, len(text) - 1)))
        part = text[begin : begin + draw(st.integers(1, 6))]
        stops.append(part + draw(st.sampled_from(["", "", "a", "b"])))
    return [stop for stop in stops if stop and REPLACEMENT not in stop]


texts = st.one_of(st.text("ab", max_size=30), st.text(ALPHABET, max_size=30), st.text(max_size=30))


@st.composite
def byte_cases(draw):
    text = draw(texts)
    data = text.encode("utf-8", errors="surrogatepass")
    if draw(st.booleans()):
        data += draw(
            st.one_of(st.binary(max_size=8), st.sampled_from([b"\xf0\x9f\x98", b"\xe2\x82", b"\xc3", b"\xff" * 9]))
        )
        data += draw(texts).encode("utf-8", errors="surrogatepass")
    return draw(cuts(data)), draw(stop_strings(text))


@st.composite
def sentence_cases(draw):
    """Words with and without a leading space, lone spaces, specials, and characters spelled byte by byte."""
    pieces, finals, text = [], [], ""
    kinds = st.sampled_from(["▁", "▁▁", "▁a", "▁ab", "a", "ba", "", "é", "你", "😀", "\u0301"])
    for piece in draw(st.lists(kinds, max_size=30)):
        as_bytes = piece in ("你", "😀") or (piece in ("a", "é", "\u0301") and draw(st.booleans()))
        parts = [f"<0x{byte:02X}>" for byte in piece.encode()] if as_bytes else [piece]
        pieces += parts
        finals += [text] * (len(parts) - 1)
        text += piece.replace("▁", " ")
        finals.append(text)
    finals = [final.removeprefix(" ") for final in finals]
    return pieces, draw(stop_strings(text.removeprefix(" "))), finals


def check_bytes(stream_type):
    @unshrunk
    @given(byte_cases())
    def run(case):
        check(stream_type, Pieces(), *case)

    run()


def check_sentences(stream_type):
    @unshrunk
    @given(sentence_cases())
    def run(case):
        pieces, stops, finals = case
        check(stream_type, SentencePieces(), pieces, stops, finals)

    run()


def test_byte_level_text_is_delivered_as_soon_as_it_is_final_and_not_before():
    check_bytes(TextStream)


def test_sentence_piece_text_is_delivered_as_soon_as_it_is_final_and_not_before():
    check_sentences(TextStream)


# Careless streamers that the same checks must catch


class Careless:
    """Delivers `self.new_text()` at once and looks for stop strings in all text so far."""

    def __init__(self, decode, stops):
        self.decode, self.stops, self.ids, self.text, self.stopped = decode, stops, [], "", None

    def push(self, token):
        if self.stopped is not None:
            return ""
        self.ids.append(token)
        piece = self.new_text()
        hits = sorted(
            ((self.text + piece).find(stop), len(stop), stop) for stop in self.stops if stop in self.text + piece
        )
        if hits:
            self.stopped, piece = hits[0][2], piece[: max(0, hits[0][0] - len(self.text))]
        self.text += piece
        return piece

    def finish(self):
        return ""


class OneTokenAtATime(Careless):
    def new_text(self):
        return self.decode(self.ids[-1:])


class CutByLength(Careless):
    def new_text(self):
        return self.decode(self.ids)[len(self.text) :]


class LeaksStops(Careless):
    """Right about characters, but the first part of a stop string is out before the rest comes."""

    def new_text(self):
        return without_unfinished(self.decode(self.ids))[len(self.text) :]

    def finish(self):
        piece = self.decode(self.ids)[len(self.text) :] if self.stopped is None else ""
        self.text += piece
        return piece


class NoContext(TextStream):
    """Decodes each finished group of tokens without those before it."""

    def _shorten_window(self, decoded, num_unfinished):
        if not num_unfinished:
            self._window, self._settled = [], ""


class CutsInsideCharacters(TextStream):
    """Shortens its window wherever that is, without a look at what the rest then means."""

    def _shorten_window(self, decoded, num_unfinished):
        self._window = self._window[-2:]
        tail = self._decode(self._window)
        self._settled = tail[: len(tail) - num_unfinished]


class ForgetsTheEnd(TextStream):
    def finish(self):
        return ""


class LastPieceOnly(TextStream):
    """Looks for a stop string within one delivery only."""

    def _deliver(self, fresh, last):
        self._held = ""
        return super()._deliver(fresh, last)


class HoldsEverything(TextStream):
    """Never wrong at the end, but delivers nothing before it."""

    def push(self, token):
        super().push(token)
        return ""

    def finish(self):
        super().finish()
        return self.text


class LatestStop(TextStream):
    def _deliver(self, fresh, last):
        self._stop_strings = tuple(sorted(self._stop_strings, key=len, reverse=True))[:1]
        return super()._deliver(fresh, last)


@pytest.mark.parametrize(
    "careless",
    [
        OneTokenAtATime,
        CutByLength,
        LeaksStops,
        CutsInsideCharacters,
        ForgetsTheEnd,
        LastPieceOnly,
        HoldsEverything,
        LatestStop,
    ],
)
def test_a_careless_streamer_of_bytes_would_be_noticed(careless):
    with pytest.raises(AssertionError):
        check_bytes(careless)


@pytest.mark.parametrize("careless", [OneTokenAtATime, CutByLength, LeaksStops, NoContext, CutsInsideCharacters])
def test_a_careless_streamer_of_sentence_pieces_would_be_noticed(careless):
    with pytest.raises(AssertionError):
        check_sentences(careless)


# Single cases, for the eye


def deliveries(pieces, stops=()):
    tokenizer = Pieces()
    ids = tokenizer.ids(piece.encode() if isinstance(piece, str) else piece for piece in pieces)
    stream = TextStream(tokenizer.decode, stops)
    return [stream.push(token) for token in ids], stream.finish(), stream.stopped


def test_a_character_is_never_split():
    assert deliveries(["x", b"\xf0\x9f", b"\x98", b"\x80!", b"\xc3", b"\xa9"]) == (
        ["x", "", "", "😀!", "", "é"],
        "",
        None,
    )


def test_text_in_front_of_an_unfinished_character_is_delivered_at_once():
    assert deliveries([b"so \xf0\x9f", b"\x98\x80"]) == (["so ", "😀"], "", None)


def test_an_unfinished_character_at_the_end_becomes_one_replacement_character():
    assert deliveries(["ab", b"\xf0\x9f", b"\x98"]) == (["ab", "", ""], REPLACEMENT, None)


def test_a_replacement_character_in_the_text_itself_is_kept():
    assert deliveries(["a", REPLACEMENT, "b", REPLACEMENT]) == (["a", "", REPLACEMENT + "b", ""], REPLACEMENT, None)


def test_bytes_that_never_become_a_character_do_not_hold_the_text_back():
    pieces, rest, _ = deliveries([b"\xff"] * 10)
    assert pieces == ["", "", "", *[REPLACEMENT] * 7]
    assert rest == REPLACEMENT * 3


def test_a_stop_string_over_several_tokens_is_held_back_and_never_delivered():
    assert deliveries(["one E", "N", "D two"], ("END",)) == (["one ", "", ""], "", "END")


def test_what_only_looked_like_a_stop_string_is_delivered_when_that_is_clear():
    assert deliveries(["one E", "N", "E", "!"], ("END",)) == (["one ", "", "EN", "E!"], "", None)
    assert deliveries(["one E", "N"], ("END",)) == (["one ", ""], "EN", None)


def test_a_stop_string_counts_from_the_token_that_completes_it_whatever_follows():
    assert deliveries(["a", b"b!\xf0\x9f", b"\x98\x80"], ("!",)) == (["a", "b", ""], "", "!")


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "stopped"),
    [
        (["xabcd"], ("cd", "bc"), "xa", "bc"),
        (["xabcd"], ("bc", "abcd"), "x", "abcd"),
        (["xabcd"], ("abc", "ab"), "x", "ab"),
        (["xab", "cd"], ("abc", "ab"), "x", "ab"),
        (["xab", "cd"], ("abcd", "bc"), "x", "abcd"),
        (["xab", "c", "d"], ("abcd", "bc"), "xa", "bc"),
        (["aab"], ("ab",), "a", "ab"),
        (["a", "a", "b"], ("ab",), "a", "ab"),
        (["abab", "c"], ("ababc", "bc"), "", "ababc"),
        (["\n", "\n"], ("\n\n",), "", "\n\n"),
        (["你", "好吗"], ("好",), "你", "好"),
        (["a", "b"], ("ab", "ab"), "", "ab"),
    ],
)
def test_of_several_stop_strings_the_first_complete_then_the_earliest_then_the_shortest_wins(
    pieces, stops, text, stopped
):
    delivered, rest, found = deliveries(pieces, stops)
    assert ("".join(delivered), rest, found) == (text, "", stopped)


def test_a_stop_string_with_a_replacement_character_is_found_at_the_end_at_last():
    assert deliveries(["a", REPLACEMENT], (REPLACEMENT,)) == (["a", ""], "", REPLACEMENT)


def test_special_tokens_have_no_text():
    assert deliveries(["", "a", "", "", "b", ""]) == (["", "a", "", "", "b", ""], "", None)


def test_many_special_tokens_inside_a_character_do_not_break_it():
    specials = [""] * 40
    pieces, rest, _ = deliveries(["x", b"\xe2", *specials, b"\x82", *specials, b"\xac", "y"])
    assert "".join(pieces) == "x€y"
    assert rest == ""


def test_no_tokens_have_no_text():
    assert deliveries([]) == ([], "", None)


def test_whole_characters_stay_when_byte_fallback_takes_them_back():
    tokenizer = SentencePieces()
    ids = tokenizer.ids(["<0xC3>", "<0xA9>", "<0xFF>", "a", "▁b"])
    assert tokenizer.decode(ids) == REPLACEMENT * 3 + "a b"
    stream = TextStream(tokenizer.decode)
    assert [stream.push(token) for token in ids] == ["", "é", "", REPLACEMENT * 2 + "a", " b"]


@pytest.mark.parametrize("stops", ["END", ("a", ""), ("a", None), (1,), ("a", b"b")])
def test_stop_strings_that_are_none_are_refused(stops):
    with pytest.raises(InvalidOption, match=r"stop_strings is .*; allowed: a tuple of non-empty strings"):
        TextStream(str, stops)


# Cost


class Counting(Pieces):
    decoded = 0

    def decode(self, ids):
        self.decoded += len(ids)
        return super().decode(ids)


@pytest.mark.parametrize(
    "piece",
    ["word ", "你", REPLACEMENT, b"\xff", b"\x80", "", "ab"],
    ids=["words", "characters", "replacement characters", "invalid bytes", "stray bytes", "specials", "stops"],
)
def test_the_work_grows_with_the_length_and_not_with_its_square(piece):
    piece = piece.encode() if isinstance(piece, str) else piece
    tokenizer = Counting()
    ids = tokenizer.ids([b"x", *[piece] * 3000])
    stream = TextStream(tokenizer.decode, ("abc", "b" * 50))
    for token in ids:
        stream.push(token)
    assert tokenizer.decoded < 30 * len(ids)


def test_characters_spelled_in_bytes_cost_no_more():
    tokenizer = type("CountingSentences", (Counting, SentencePieces), {})()
    ids = tokenizer.ids(f"<0x{byte:02X}>" for byte in ("你好é" * 300).encode())
    stream = TextStream(tokenizer.decode)
    assert "".join(stream.push(token) for token in ids) == "你好é" * 300
    assert tokenizer.decoded < 30 * len(ids)


# A real tokenizer


@pytest.fixture(scope="module")
def smollm2():
    try:
        return load_tokenizer(locate(EMBEDDED_NAME))
    except CheckpointError as error:
        pytest.skip(str(error))


class Real:
    """A real tokenizer behind the interface of `check`, which hands over ids instead of pieces."""

    def __init__(self, tokenizer):
        self.decode = tokenizer.decode

    def ids(self, pieces):
        return list(pieces)


SAMPLES = [
    "Hello,  world!\n\n\tdef f(x):\n    return x ** 2  # four\r\n",
    "Grüße aus Köln, naïve café — “quoted” … 100 €",
    "日本語のテキストと中文字符，한국어도",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪 e\u0301 \ufffd ok \ufffd\ufffd",
    "العربية עברית ไทย हिन्दी",
    "<|im_start|>user\nhi<|im_end|>\n",
]


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_real_tokenizer_streams_every_script(smollm2, sample):
    ids = smollm2.encode(sample)
    check(TextStream, Real(smollm2), ids)
    for begin in range(0, len(sample), 3):
        stops = [stop for stop in (sample[begin : begin + 2], sample[begin + 1 : begin + 5]) if stop]
        check(TextStream, Real(smollm2), ids, [stop for stop in stops if REPLACEMENT not in stop])


@settings(quickly, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 49151), max_size=40), st.integers(0, 60), st.integers(1, 5))
def test_a_real_tokenizer_streams_random_ids(smollm2, ids, begin, size):
    stop = smollm2.decode(ids)[begin : begin + size]
    assume(REPLACEMENT not in stop)
    check(TextStream, Real(smollm2), ids, [stop] if stop else [])


@pytest.mark.parametrize("careless", [OneTokenAtATime, CutByLength])
def test_a_careless_streamer_of_a_real_tokenizer_would_be_noticed(smollm2, careless):
    with pytest.raises(AssertionError):
        check(careless, Real(smollm2), smollm2.encode(SAMPLES[3]))


# Terminals


def test_plain_text_is_shown_as_it_is():
    for text in (*SAMPLES[1:4], "a\n\tb", "नमस्ते", "שלום", "👩‍👧", "", " ~\\x1b"):
        assert visible(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("a\rb\x08c\x00", r"a\x0db\x08c\x00"),
        ("\x7f\x9b2J\x85", r"\x7f\x9b2J\x85"),
        ("\u202eevil\u202c \u2066x\u2069", r"\u202eevil\u202c \u2066x\u2069"),
        ("half \ud83d", r"half \ud83d"),
        ("\u2028", "\u2028"),
    ],
)
def test_what_would_command_a_terminal_is_escaped(text, shown):
    assert visible(text) == shown


@quickly
@given(st.text(st.characters(categories=["Cc", "Cf", "Cs", "L", "N", "P", "S", "Z"])))
def test_nothing_that_commands_a_terminal_is_left_and_pieces_add_up(text):
    shown = visible(text)
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t"]
    assert not [
        c
        for c in shown
        if unicodedata.bidirectional(c) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    ]
    shown.encode()
    assert shown == "".join(map(visible, text))
    assert len(re.sub(r"\\(x..|u....)", "?", shown)) <= len(text)
