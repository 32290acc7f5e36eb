"""Corpora from text files: tokenised as a whole would be, kept on disk, never trusted when damaged, clear refusals."""

import json
import os
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from outrider.drafters import corpus_build
from outrider.drafters.corpus import open_corpus
from outrider.drafters.corpus_build import PIECE, pieces
from outrider.drafters.suffix import SuffixDrafter
from outrider.errors import InvalidOption
from toy import ByteTokenizer, make_sequence


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "corpora"


def write(folder, name, content):
    path = Path(folder) / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def random_text(seed, size):
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdeé", k=rng.randrange(1, 6))) for _ in range(30)]
    return " ".join(rng.choices(words, k=size))


def finds(corpus, text):
    """What a corpus answers to every beginning of a text."""
    tokens = ByteTokenizer().encode(text)
    answers = [corpus.find(tokens[:end]) for end in range(len(tokens))]
    return [(length, places.tolist()) for length, places in answers]


# ---------------------------------------------------------------- tokenising


MIXED = "".join(
    f"def f{i}(x):\r\n    return x.y_{i}  \n\n\n  # what, {i}?\n\n- so: {i}\n\tünï-cödé 文字 {i}…\n"
    for i in range(1500)
)
assert len(MIXED) > 4 * PIECE


def test_pieces_are_the_text_at_most_so_long_and_end_at_line_breaks():
    for text in (MIXED, "x" * 100_000, "word " * 20_000, "", "a\n" * PIECE):
        parts = list(pieces(text))
        assert "".join(parts) == text
        assert max(map(len, parts)) <= PIECE
    for before, after in pairwise(pieces(MIXED)):
        assert before[-1].isalnum()
        assert after[0] in "\r\n"


def test_pieces_give_the_tokens_of_the_whole_text_and_other_cuts_do_not(smollm2_tokenizer):
    whole = smollm2_tokenizer.encode(MIXED)
    assert [token for piece in pieces(MIXED) for token in smollm2_tokenizer.encode(piece)] == whole
    blind = [MIXED[start : start + 1001] for start in range(0, len(MIXED), 1001)]
    assert [token for piece in blind for token in smollm2_tokenizer.encode(piece)] != whole


def test_a_byte_order_mark_is_not_part_of_the_text(cache, tmp_path):
    corpus = open_corpus(write(tmp_path, "marked.txt", b"\xef\xbb\xbfhello"), ByteTokenizer())
    assert corpus.num_tokens == 5


# ---------------------------------------------------------------- the cache


def open_counted(files):
    """A corpus, and whether it had to be built."""
    built = []
    corpus = open_corpus(files, ByteTokenizer(), progress=lambda done, total: built.append((done, total)))
    return corpus, built


def test_a_corpus_is_built_once_and_then_mapped(cache, tmp_path):
    texts = [random_text(seed, 8000) for seed in (1, 2)]
    files = [write(tmp_path, f"{i}.txt", text) for i, text in enumerate(texts)]
    first, progress = open_counted(files)
    total = sum(len(text.encode()) for text in texts)
    assert [done for done, _ in progress] == sorted({done for done, _ in progress})
    assert progress[-1] == (total, total)
    second, progress = open_counted([str(file) for file in files])
    assert progress == []
    assert finds(first, texts[0][500:900]) == finds(second, texts[0][500:900])
    assert [path.name.startswith("building") for path in cache.iterdir()] == [False]


def test_other_text_or_another_tokenizer_is_another_corpus(cache, tmp_path):
    class Renamed(ByteTokenizer):
        def strings(self):
            return [*super().strings()[:-1], "<other>"]

    file = write(tmp_path, "a.txt", "one two")
    open_corpus(file, ByteTokenizer())
    open_corpus(file, Renamed())
    open_corpus([file, file], ByteTokenizer())
    write(tmp_path, "a.txt", "one two three")
    open_corpus(file, ByteTokenizer())
    assert len(list(cache.iterdir())) == 4


def truncate(path):
    path.write_bytes(path.read_bytes()[:-3])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [truncate, flip, empty, os.remove], ids=["cut", "one bit", "empty", "gone"])
def test_a_damaged_cache_is_built_again(cache, tmp_path, damage):
    text = random_text(3, 300)
    file = write(tmp_path, "a.txt", text)
    answers = finds(open_counted(file)[0], text)
    for name in ("header.json", "symbols.npy", "order.npy", "keys.npy"):
        damage(next(cache.iterdir()) / name)
        corpus, progress = open_counted(file)
        assert progress, name
        assert finds(corpus, text) == answers
        assert open_counted(file)[1] == []


def test_a_cache_of_another_format_is_built_again(cache, tmp_path):
    file = write(tmp_path, "a.txt", random_text(3, 300))
    open_counted(file)
    header = next(cache.iterdir()) / "header.json"
    header.write_text(json.dumps({**json.loads(header.read_text()), "format": 0}))
    assert open_counted(file)[1]


IN_ANOTHER_PROCESS = """
import json, sys
from outrider.drafters.corpus import open_corpus
from test_corpus_files import proposals
from toy import ByteTokenizer
print(json.dumps(proposals(open_corpus(sys.argv[1], ByteTokenizer()))))
"""


def proposals(corpus):
    """Drafts for some texts, as lists."""
    drafter, drafts = SuffixDrafter(corpus=corpus, branches=3, min_match=1), []
    for seed in range(20):
        tokens = ByteTokenizer().encode(random_text(4, 300)[seed * 7 : seed * 9 + 5])
        drafts += drafter.propose([make_sequence(tokens)], [12])
    return [[list(draft.tokens), list(draft.parents)] for draft in drafts]


def test_another_process_proposes_the_same_from_the_same_files(cache, tmp_path):
    file = write(tmp_path, "a.txt", random_text(4, 2000))
    ours = proposals(open_corpus(file, ByteTokenizer()))
    assert sum(len(tokens) for tokens, _ in ours) > 100
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS, str(file)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(run.stdout) == ours


# ---------------------------------------------------------------- refusals


REFUSED = {
    "NUL": (b"text\0more", "Byte 4 is NUL"),
    "not UTF-8": (b"caf\xe9 au lait", "Byte 3 is not UTF-8"),
    "half a character": ("né".encode()[:-1], "Byte 1 is not UTF-8"),
    "empty": (b"", "not one token"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_text_is_refused_by_name(cache, tmp_path, kind):
    content, message = REFUSED[kind]
    with pytest.raises(InvalidOption, match=message):
        open_corpus(write(tmp_path, "a.txt", content), ByteTokenizer())
    assert not cache.exists()


def test_a_bad_file_among_good_ones_is_named(cache, tmp_path):
    good, bad = write(tmp_path, "good.txt", "fine"), write(tmp_path, "bad.bin", b"\0")
    with pytest.raises(InvalidOption, match=r"bad\.bin"):
        open_corpus([good, bad], ByteTokenizer())


def test_an_empty_file_among_others_is_no_error(cache, tmp_path):
    files = [write(tmp_path, "a.txt", "ab"), write(tmp_path, "b.txt", ""), write(tmp_path, "c.txt", "ab")]
    assert open_corpus(files, ByteTokenizer()).num_tokens == 4


def test_what_cannot_be_read_is_refused_with_the_reason(cache, tmp_path):
    for path, message in [
        (tmp_path / "missing.txt", "no such file"),
        (tmp_path, "a folder"),
        (tmp_path / ("x" * 300), "cannot be read"),
        (Path(os.devnull), "a device"),
    ]:
        with pytest.raises(InvalidOption, match=message):
            open_corpus(path, ByteTokenizer())


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="permissions are another matter here")
def test_a_file_without_permission_is_refused(cache, tmp_path):
    file, user = write(tmp_path, "secret.txt", "text"), os.geteuid()
    file.chmod(0)
    if user == 0:
        os.seteuid(65534)  # root may read everything
    try:
        with pytest.raises(InvalidOption, match="Permission denied"):
            open_corpus(file, ByteTokenizer())
    finally:
        os.seteuid(user)


def test_more_than_memory_allows_is_refused_before_it_is_read(cache, tmp_path):
    file = write(tmp_path, "sparse.txt", "text")
    os.truncate(file, corpus_build.physical_memory() // 8)
    with pytest.raises(InvalidOption, match="as much memory"):
        open_corpus(file, ByteTokenizer())


def test_no_files_are_refused(cache):
    with pytest.raises(InvalidOption, match="not one token"):
        open_corpus([], ByteTokenizer())


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTRIDER_CACHE", str(write(tmp_path, "a-file", "not a folder")))
    with pytest.raises(InvalidOption, match="OUTRIDER_CACHE"):
        open_corpus(write(tmp_path, "a.txt", "text"), ByteTokenizer())
