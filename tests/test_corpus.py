"""The corpus finds the longest match in all files and none across them, whatever the vocabulary, and drafts from it."""

import random
from collections import Counter

import numpy as np
import pytest

from outrider.drafters.corpus import Corpus
from outrider.drafters.corpus_build import Arrays, Packing, build
from outrider.drafters.suffix import SuffixDrafter
from outrider.tree import paths
from test_drafter_suffix import count_stale_proposals
from toy import make_sequence


class Letters:
    """A tokenizer of single letters whose ids are spread over a vocabulary of any size, the last id among them."""

    def __init__(self, vocab_size: int, num_letters: int = 4) -> None:
        self.vocab_size = vocab_size
        self.ids = [(vocab_size - 1) * i // (num_letters - 1) for i in range(num_letters)]

    def encode(self, text):
        return [self.ids[ord(letter) - ord("a")] for letter in text]

    def strings(self):
        return [f"{self.vocab_size}"]


def random_documents(rng, num_letters, most=4):
    sizes = [rng.randrange(1, 60) for _ in range(rng.randrange(1, most + 1))]
    return ["".join(rng.choices("abcdefgh"[:num_letters], k=size)) for size in sizes]


def make_corpus(documents, tokenizer):
    return Corpus(build([document.encode() for document in documents], tokenizer), tokenizer.vocab_size)


def places_of(documents, string):
    """Where, counting a separator before, between and after documents, an occurrence of the string goes on."""
    places, start = [], 1
    for document in documents:
        ends = range(len(string), len(document))
        places += [start + end for end in ends if document[end - len(string) : end] == string]
        start += len(document) + 1
    return places


def longest_in(documents, query, depth):
    for length in range(min(len(query), depth), 0, -1):
        places = places_of(documents, query[len(query) - length :])
        if places:
            return length, places
    return 0, []


def count_wrong_finds(new_corpus, vocab_sizes=(4, 300, 49152, 65535, 65536, 70000)):
    """Random documents and queries, most of them cut from the documents and many with a strange letter inside."""
    rng, wrong, deep = random.Random(6), 0, 0
    for number in range(120):
        tokenizer = Letters(vocab_sizes[number % len(vocab_sizes)])
        documents = random_documents(rng, (1, 2, 3, 4)[number % 4])
        corpus = new_corpus(documents, tokenizer)
        for _ in range(12):
            source = rng.choice(["|".join(documents), "".join(random_documents(rng, 4, 1))]).replace("|", "")
            start = rng.randrange(len(source))
            query = source[start : start + rng.randrange(50)]
            expected = longest_in(documents, query, corpus.depth)
            length, places = corpus.find(tokenizer.encode(query), limit=1000)
            wrong += (length, sorted(places.tolist())) != expected
            deep += expected[0] > corpus._packing.span
    assert deep > 100
    return wrong


def test_matches_equal_brute_force_over_all_files_for_every_width_of_vocabulary():
    assert count_wrong_finds(make_corpus) == 0


def without_separators(documents, tokenizer):
    """Planted bug: one long document."""
    return make_corpus(["".join(documents)], tokenizer)


def sorted_by_span_only(documents, tokenizer):
    """Planted bug: places with the same nearest tokens stand in any order."""
    arrays = build([document.encode() for document in documents], tokenizer)
    by_place = np.argsort(arrays.order)
    order, keys = arrays.order[by_place], arrays.keys[by_place]
    again = np.argsort(keys, kind="stable")
    return Corpus(Arrays(arrays.symbols, order[again], keys[again]), tokenizer.vocab_size)


def places_off_by_one(documents, tokenizer):
    """Planted bug: each key has the place of the one before it."""
    corpus = make_corpus(documents, tokenizer)
    corpus._order = np.roll(corpus._order, 1)
    return corpus


@pytest.mark.parametrize("planted_bug", [without_separators, sorted_by_span_only, places_off_by_one])
def test_the_brute_force_comparison_catches_planted_bugs(planted_bug):
    assert count_wrong_finds(planted_bug) > 0


def test_one_file_of_one_token_and_queries_without_a_match_are_found_empty():
    tokenizer = Letters(10)
    corpus = make_corpus(["a"], tokenizer)
    assert corpus.num_tokens == 1
    for query in ([], tokenizer.encode("a"), tokenizer.encode("bbb")):
        length, places = corpus.find(query)
        assert (length, places.tolist()) == (0, [])


def test_ids_that_only_the_model_has_end_the_context():
    corpus = make_corpus(["abcabd"], Letters(10))
    a, b = Letters(10).encode("ab")
    assert corpus.find([10, a, b])[0] == 2
    assert corpus.find([a, b, 10])[0] == 0
    assert corpus.find([a, b, 2**40])[0] == 0


@pytest.mark.parametrize(("vocab_size", "span", "dtype"), [(65535, 4, "u2"), (65536, 3, "u4"), (151_936, 3, "u4")])
def test_vocabularies_that_do_not_fit_in_16_bits_take_wider_symbols(vocab_size, span, dtype):
    packing = Packing(vocab_size)
    assert (packing.span, packing.symbol_type) == (span, np.dtype(dtype))
    symbols = [vocab_size, 1, vocab_size][:span]
    padded = [*symbols, *[0] * (span - len(symbols))]
    assert packing.unpack(packing.pack(symbols)) == padded


def test_of_many_places_an_even_sample_is_given():
    tokenizer = Letters(10)
    corpus = make_corpus(["ab" * 500], tokenizer)
    _, all_places = corpus.find(tokenizer.encode("ba"), limit=10_000)
    length, places = corpus.find(tokenizer.encode("ba"), limit=10)
    assert length == 2
    assert len(all_places) == 499
    assert len(set(places.tolist())) == 10
    assert set(np.diff(np.flatnonzero(np.isin(all_places, places))).tolist()) <= {49, 50}


def test_a_closed_corpus_matches_nothing():
    tokenizer = Letters(10)
    corpus = make_corpus(["abab"], tokenizer)
    corpus.close()
    assert corpus.find(tokenizer.encode("ab"))[0] == 0


# ---------------------------------------------------------------- what follows


def followers(documents, string):
    """What followed each occurrence of a string; "|" for the end of a document."""
    text = "".join(f"{document}|" for document in documents)
    starts = range(len(text) - len(string))
    return Counter(text[i + len(string)] for i in starts if text[i : i + len(string)] == string)


def test_shares_of_what_follows_equal_brute_force():
    rng, tokenizer, compared = random.Random(8), Letters(49152), 0
    letters = dict(zip(tokenizer.ids, "abcd", strict=True))
    for _ in range(30):
        documents = random_documents(rng, 3)
        corpus, string = make_corpus(documents, tokenizer), rng.choice(documents)[:2]
        length, places = corpus.find(tokenizer.encode(string), limit=1000)
        string, path, children = string[len(string) - length :], (), corpus.continuations(places, 6)
        while length and len(path) < 6:
            counts = followers(documents, string)
            if not path:
                del counts["|"]  # where nothing follows is no place
            found = {letters[token]: share for token, share in children(path)}
            expected = {letter: count / counts.total() for letter, count in counts.items() if letter != "|"}
            assert found == pytest.approx(expected)
            assert list(found.values()) == sorted(found.values(), reverse=True)
            compared += 1
            if not found:
                break
            step = rng.choice(sorted(found))
            string, path = string + step, (*path, tokenizer.encode(step)[0])
    assert compared > 80


# ---------------------------------------------------------------- drafting


def propose(drafter, tokens, budget=8):
    return drafter.propose([make_sequence(tokens)], [budget])[0]


def test_the_corpus_is_used_only_where_its_match_is_longer_than_in_the_text():
    tokenizer = Letters(100, num_letters=8)
    encode = tokenizer.encode
    drafter = SuffixDrafter(corpus=make_corpus(["hhbcdefgh"], tokenizer))
    assert propose(drafter, encode("abcd")).tokens == tuple(encode("efg"))
    assert propose(drafter, encode("bcdabcd")).tokens == tuple(encode("abc"))
    assert propose(drafter, encode("cdaabcd")).tokens == tuple(encode("efg"))
    assert propose(drafter, encode("gh")).tokens == ()


def test_a_chain_from_the_corpus_is_its_most_frequent_continuation_as_far_as_it_is_likely():
    tokenizer = Letters(100, num_letters=8)
    encode = tokenizer.encode
    corpus = make_corpus(["abcdee", "abcdff", "abcegg", "abhhhh"], tokenizer)
    assert propose(SuffixDrafter(corpus=corpus, factor=9), encode("ab")).tokens[:2] == tuple(encode("cd"))
    likely = SuffixDrafter(corpus=corpus, factor=9, min_probability=0.6)
    assert propose(likely, encode("ab")).tokens == tuple(encode("c"))


def test_a_tree_from_the_corpus_has_its_frequent_continuations():
    tokenizer = Letters(100, num_letters=8)
    corpus = make_corpus(["abcdee", "abcdff", "abcegg", "abhhhh"], tokenizer)
    draft = propose(SuffixDrafter(corpus=corpus, branches=2), tokenizer.encode("ab"))
    letters = dict(zip(tokenizer.ids, "abcdefgh", strict=True))
    grown = {"".join(letters[token] for token in path) for path in paths(draft.tokens, draft.parents)[1:]}
    assert grown == {"c", "cd", "ce", "h", "hh"}
    assert len(propose(SuffixDrafter(corpus=corpus, branches=2, row_cost=0.3), tokenizer.encode("ab"))) < len(draft)


@pytest.mark.parametrize("branches", [1, 3])
def test_proposals_with_a_corpus_equal_those_of_a_fresh_drafter(branches):
    rng = random.Random(9)
    tokenizer = Letters(3, num_letters=3)
    corpus = make_corpus(random_documents(rng, 3, most=8), tokenizer)

    def new_drafter():
        return SuffixDrafter(branches=branches, corpus=corpus)

    assert count_stale_proposals(new_drafter, new_drafter()) == 0
    assert count_stale_proposals(new_drafter, SuffixDrafter(branches=branches)) > 0
