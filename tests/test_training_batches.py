"""Stored states and the batches made of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from heads import tiny_target
from outrider.core import Block
from outrider.errors import InvalidOption
from outrider.training.batches import Batches
from outrider.training.states import Output, States, bytes_needed, open_states, store_states
from outrider.training.texts import Sample

LENGTHS = [5, 9, 3, 9, 4, 12, 7, 7, 3, 6]


def numbered(lengths=LENGTHS, own=2):
    """States in which every number says of which text, or of which token, it is."""
    starts = np.array([0, *np.cumsum(lengths)])
    texts = np.repeat(np.arange(len(lengths)), lengths)
    tokens = np.arange(len(texts))
    return States(
        tokens=tokens.astype(np.int32),
        starts=starts,
        own=np.full(len(lengths), own),
        features=np.stack([texts, tokens], 1).astype(np.float16),
        last=np.stack([tokens, texts], 1).astype(np.float16),
        log_norms=tokens.astype(np.float32),
    )


def texts_of(batch):
    """Which texts a batch holds, by its features."""
    return batch.features[:, 0, 0].int().tolist()


def uneven_epochs(batches, count):
    """Epochs, of so many texts, in which some text does not come exactly once."""
    seen = [[], [], []]
    for step in range(3 * len(batches)):
        seen[step // len(batches)] += texts_of(batches.at(step))
    return sum(Counter(epoch) != Counter(range(count)) for epoch in seen)


class DrawsAnew(Batches):
    """Takes any group in any step."""

    def at(self, step):
        return super().at(int(np.random.default_rng(step).integers(100)))


def test_every_text_comes_once_per_epoch():
    assert uneven_epochs(Batches(numbered(), 20, 2, 0), len(LENGTHS)) == 0


def test_batches_drawn_anew_are_caught():
    assert uneven_epochs(DrawsAnew(numbered(), 20, 2, 0), len(LENGTHS)) > 0


def test_the_order_is_a_function_of_the_seed_and_another_in_every_epoch():
    def order(seed):
        batches = Batches(numbered(), 12, 2, seed)
        return [texts_of(batches.at(step)) for step in range(2 * len(batches))]

    assert order(0) == order(0) != order(1)
    half = len(order(0)) // 2
    assert order(0)[:half] != order(0)[half:]
    assert Batches(numbered(), 12, 2, 0).at(7).tokens.equal(Batches(numbered(), 12, 2, 0).at(7).tokens)


@pytest.mark.parametrize("tokens_per_batch", [1, 12, 24, 1000])
def test_batches_are_no_larger_than_asked_but_for_single_texts(tokens_per_batch):
    batches = Batches(numbered(), tokens_per_batch, 2, 0)
    for step in range(len(batches)):
        rows, size = batches.at(step).features.shape[:2]
        assert rows == 1 or rows * size <= tokens_per_batch


def test_a_text_stands_where_it_belongs_with_room_behind_it():
    states, batches = numbered(), Batches(numbered(), 24, 3, 0)
    for step in range(len(batches)):
        batch = batches.at(step)
        size = batch.features.shape[1]
        assert batch.tokens.shape[1] == batch.last.shape[1] == batch.counts.shape[1] == size + 3
        for row, text in enumerate(texts_of(batch)):
            place, length = slice(states.starts[text], states.starts[text + 1]), LENGTHS[text]
            own = list(range(place.start, place.stop))
            assert batch.tokens[row, :length].tolist() == batch.log_norms[row, :length].tolist() == own
            assert batch.features[row, :length, 1].tolist() == batch.last[row, :length, 0].tolist() == own
            assert batch.tokens[row, length:].eq(0).all()
            # The laws after tokens own - 1 to length - 2 are those by which the target wrote own to length - 1.
            assert batch.counts[row].nonzero().flatten().tolist() == list(range(1, length - 1))


# ---------------------------------------------------------------- states


SAMPLES = [Sample(tuple(range(i, i + 6)), 3, 2) for i in range(4)]


def stored(tmp_path, layers=(1, 2, 4)):
    target = tiny_target()
    output = Output(target.output)
    return store_states(SAMPLES, target.model, output, tmp_path / "states", feature_layers=layers, num_layers=4)


def test_states_are_the_targets_in_half(tmp_path):
    target, states = tiny_target(), stored(tmp_path)
    for number, sample in enumerate(SAMPLES):
        place = slice(states.starts[number], states.starts[number + 1])
        wanted = target.states(list(sample.tokens))
        features = torch.cat([wanted[1], wanted[2], wanted[4]], -1)
        assert torch.allclose(torch.from_numpy(states.features[place].copy()).float(), features, rtol=2e-3, atol=2e-3)
        assert torch.allclose(torch.from_numpy(states.last[place].copy()).float(), wanted[4], rtol=2e-3, atol=2e-3)
        assert states.tokens[place].tolist() == list(sample.tokens)
    assert states.own.tolist() == [2] * 4


def test_laws_follow_from_the_last_states_and_the_norms(tmp_path):
    target, states = tiny_target(), stored(tmp_path)
    tokens = torch.tensor([SAMPLES[1].tokens])
    cache = target.model.new_cache(1, 8)
    logits = target.model.forward(Block(tokens, torch.arange(6)[None], (0,), (6,)), cache).logits[0]
    last, norms = torch.from_numpy(states.last[6:12].copy()).float(), torch.from_numpy(states.log_norms[6:12].copy())
    found = Output(target.output).logits(last) - norms[:, None]
    assert torch.allclose(found, logits.log_softmax(-1), atol=0.02)


def test_states_without_features_are_the_last_ones_alone(tmp_path):
    states = stored(tmp_path, layers=())
    assert states.features.shape == (24, 0)
    assert np.array_equal(states.last, stored(tmp_path / "more").last)
    assert Batches(open_states(tmp_path / "states"), 100, 0, 0).at(0).features.shape == (4, 6, 0)


def test_bytes_on_disk_are_foreseen(tmp_path):
    stored(tmp_path)
    header, files = 128, [*(tmp_path / "states").glob("*.npy")]
    found = sum(file.stat().st_size - header for file in files)
    assert 0.95 * bytes_needed(SAMPLES, 3 * 48, 48) < found <= bytes_needed(SAMPLES, 3 * 48, 48)


def test_states_that_are_not_whole_are_refused(tmp_path):
    stored(tmp_path)
    (tmp_path / "states" / "states.json").unlink()
    with pytest.raises(InvalidOption, match=r"Delete it and begin again"):
        open_states(tmp_path / "states")
