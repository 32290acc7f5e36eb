"""The toys are sound: a faultless cache gives the table's law, and every kind of cache fault changes it."""

import pytest
import torch

from outrider.core import Block
from outrider.options import Sampling
from toy import (
    ByteTokenizer,
    Dice,
    KeyedDice,
    ScriptedDrafter,
    TableModel,
    exact_string_law,
    make_sequence,
    random_laws,
)

WHOLE_TEXT = TableModel(5, order=None, law=random_laws(5, seed=3, zeros=0.3))


def run(cache, slots, rows, positions=None, ancestors=None):
    """Logits [B, N, V] of a block on top of the cache."""
    width = max(len(row) for row in rows)
    lengths = [cache.lengths[slot] for slot in slots]
    if positions is None:
        positions = [range(length, length + len(row)) for length, row in zip(lengths, rows, strict=True)]
    tokens, places = (torch.tensor([[*row, *[0] * (width - len(row))] for row in each]) for each in (rows, positions))
    mask = None if ancestors is None else torch.tensor([ancestors], dtype=torch.bool)
    return WHOLE_TEXT.forward(Block(tokens, places, tuple(slots), tuple(map(len, rows)), mask), cache).logits


def holding(*tokens):
    cache = WHOLE_TEXT.new_cache(3, 20)
    run(cache, [1], [tokens])
    cache.commit(1, range(len(tokens)))
    return cache


def test_a_ragged_batch_of_chains_gives_the_tables_laws():
    cache = holding(1, 2)
    logits = run(cache, [2, 1], [[4], [3, 0, 0]])
    assert torch.equal(logits[0, 0], WHOLE_TEXT.logits([4]))
    for node in range(3):
        assert torch.equal(logits[1, node], WHOLE_TEXT.logits([1, 2, 3, 0, 0][: 3 + node]))
    assert cache.lengths == [0, 2, 0]


# pending 3 --- 0
#           \-- 1 --- 2
TREE = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]


def test_a_tree_gives_each_node_the_law_after_its_own_path_and_commits_by_gathering():
    cache = holding(1, 2)
    logits = run(cache, [1], [[3, 0, 1, 2]], [[2, 3, 3, 4]], TREE)[0]
    for node, path in enumerate([[3], [3, 0], [3, 1], [3, 1, 2]]):
        assert torch.equal(logits[node], WHOLE_TEXT.logits([1, 2, *path]))
    cache.commit(1, [0, 2, 3])
    assert cache.committed(1) == [1, 2, 3, 1, 2]


def spoil_by_committing_a_rejected_row(cache):
    run(cache, [1], [[3, 0]])
    cache.commit(1, [0, 1])
    return [1, 2, 3], 4


def spoil_by_losing_a_row(cache):
    cache.truncate(1, 1)
    return [1, 2], 2


def spoil_by_using_a_stale_row(cache):
    run(cache, [1], [[3]])
    run(cache, [1], [[4]])
    cache.lengths[1] += 1
    return [1, 2, 3], 3


def spoil_by_a_wrong_position(cache):
    return [1, 2], 3


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_by_committing_a_rejected_row,
        spoil_by_losing_a_row,
        spoil_by_using_a_stale_row,
        spoil_by_a_wrong_position,
    ],
)
def test_a_cache_fault_changes_the_law(spoil):
    cache = holding(1, 2)
    believed, position = spoil(cache)
    logits = run(cache, [1], [[4]], [[position]])[0, 0]
    assert not torch.equal(logits, WHOLE_TEXT.logits([*believed, 4]))


def test_rows_in_the_wrong_order_fail_the_audit():
    cache = holding(1, 2)
    run(cache, [1], [[3, 0]])
    cache.commit(1, [1, 0])
    with pytest.raises(AssertionError):
        cache.committed(1)


@pytest.mark.parametrize("fault", ["twice", "unwritten row", "after truncate"])
def test_a_row_that_no_forward_wrote_cannot_be_committed(fault):
    cache = holding(1, 2)
    run(cache, [1], [[3]])
    if fault == "twice":
        cache.commit(1, [0])
    elif fault == "after truncate":
        cache.truncate(1, 2)
    with pytest.raises(AssertionError, match="do not exist"):
        cache.commit(1, [1] if fault == "unwritten row" else [0])


@pytest.mark.parametrize(
    ("tokens", "position"),
    [([5], 2), ([-1], 2), ([0], 4096), ([0] * 19, 2)],
    ids=["id", "negative", "position", "rows"],
)
def test_what_a_transformer_could_not_index_is_an_index_error(tokens, position):
    with pytest.raises(IndexError):
        run(holding(1, 2), [1], [tokens], [range(position, position + len(tokens))])


def test_copied_slots_are_independent():
    cache = holding(1, 2)
    cache.copy(1, 0)
    run(cache, [0], [[3]])
    cache.commit(0, [0])
    assert (cache.committed(0), cache.committed(1)) == ([1, 2, 3], [1, 2])


def test_the_string_law_sums_to_one_and_stops_at_a_stop_id():
    model = TableModel(3, law=random_laws(3, seed=2, zeros=0.3))
    law = exact_string_law(model, [0, 1], 3, stop_ids=[2])
    assert sum(law.values()) == pytest.approx(1)
    assert all(len(string) == 3 or string[-1] == 2 for string in law)
    assert all(2 not in string[:-1] for string in law)
    for string, probability in law.items():
        product = 1.0
        for place, token in enumerate(string):
            product *= model.law([0, 1, *string[:place]])[token]
        assert probability == pytest.approx(product, rel=1e-5)


def test_the_greedy_string_law_is_the_greedy_string():
    assert exact_string_law(WHOLE_TEXT, [1, 2], 4, Sampling()) == {tuple(WHOLE_TEXT.greedy([1, 2], 4)): 1.0}


def test_dice_never_throw_a_zero_and_keyed_dice_repeat_by_position():
    weights = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0]).numpy()
    plain, keyed = Dice(1), KeyedDice(1)
    assert {plain.categorical(weights, 0) for _ in range(50)} == {1, 3}
    draws = [keyed.categorical(weights, position) for position in range(50)]
    assert set(draws) == {1, 3}
    assert draws == [KeyedDice(1).categorical(weights, position) for position in range(50)]
    assert not any(plain.bernoulli(0.0) for _ in range(50))
    assert all(plain.bernoulli(1.0) for _ in range(50))


def test_scripted_drafts_are_right_as_far_as_asked():
    sequence, reference = make_sequence([1, 2]), [1, 2, 3, 4, 0, 1, 2]
    drafts = [ScriptedDrafter([[9], reference], 5, right).propose([sequence], [4])[0] for right in (None, 0, 2)]
    assert [draft.tokens for draft in drafts] == [(3, 4, 0, 1), (4, 0, 1, 2), (3, 4, 1, 2)]
    assert ScriptedDrafter([reference], 5).propose([make_sequence([2])], [4])[0].tokens == ()


def test_bytes_survive_the_tokenizer_and_the_strings_name_every_id():
    tokenizer = ByteTokenizer()
    text = "naïve 🙂"
    assert tokenizer.decode(tokenizer.encode_prompt(text)) == text
    chat = tokenizer.encode_chat([{"role": "user", "content": "hi"}])
    assert [tokenizer.strings()[token] for token in chat] == [
        "<bos>",
        "<user>",
        "<0x68>",
        "<0x69>",
        "<end>",
        "<assistant>",
    ]
    assert len(set(tokenizer.strings())) == tokenizer.vocab_size
    assert tokenizer.stop_ids == {tokenizer.eos_id}
