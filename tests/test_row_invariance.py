"""At float16 and q4 on a CPU the logits of a position are the same bits in any block and any batch (design 2.5)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from checkpoints import save_folder, tiny_model
from outrider.cache import KEY_BLOCK, KVCache
from outrider.models import decoder as decoder_module
from outrider.models.checkpoint import open_checkpoint
from outrider.models.decoder import Decoder
from outrider.models.load import load_decoder
from test_decoder import advance, block, logits_of

CAPACITY = 1100
TEXT = torch.randint(3, 49152, (CAPACITY,), generator=torch.Generator().manual_seed(5)).tolist()
EDGES = [e + d for e in (KEY_BLOCK, 2 * KEY_BLOCK, 3 * KEY_BLOCK, 4 * KEY_BLOCK) for d in (-2, -1, 0, 1)]


class Bench:
    """The embedded model with TEXT in every slot of a cache, its length freely set."""

    def __init__(self, model: Decoder) -> None:
        self.model, self.cache = model, model.new_cache(5, CAPACITY)
        for start in range(0, CAPACITY, 250):
            advance(model, TEXT[start : start + 250], self.cache)
        for slot in range(1, 5):
            self.cache.copy(0, slot)
        self.pristine = self.cache.data.clone()

    def row(self, position: int, width: int, place: int, others: list[tuple[int, int]]) -> torch.Tensor:
        """Logits at `position`, the `place`-th of a block of `width` rows, beside other sequences' blocks."""
        spans = [(position - place, width), *others]
        rows = [TEXT[start : start + n] for start, n in spans]
        self.cache.lengths[: len(spans)] = [start for start, _ in spans]
        output = self.model.forward(block(rows, [s for s, _ in spans], list(range(len(spans)))), self.cache)
        assert output.logits is not None
        return output.logits[0, place].clone()


def tries(count: int, seed: int = 0) -> list[tuple[int, int, int, list[tuple[int, int]]]]:
    """Random positions (half of them at the edges of key blocks), widths 1 to 12, places, and 0 to 4 neighbours."""
    rng = random.Random(seed)
    cases = []
    for _ in range(count):
        position = rng.choice(EDGES) if rng.random() < 0.5 else rng.randrange(1, CAPACITY - 20)
        width = rng.randint(1, 12)
        place = rng.randrange(min(width, position + 1))
        neighbours = [(rng.randrange(CAPACITY - 20), rng.randint(1, 12)) for _ in range(rng.randint(0, 4))]
        cases.append((position, width, place, neighbours))
    return cases


def differing(bench: Bench, cases: list[tuple[int, int, int, list[tuple[int, int]]]]) -> Iterator[int]:
    """Positions whose logits are not the bits that decoding them alone gives."""
    for position, width, place, others in cases:
        if not torch.equal(bench.row(position, 1, 0, []), bench.row(position, width, place, others)):
            yield position


@pytest.fixture(scope="module")
def float16(smollm2: Callable[[str], Decoder]) -> Bench:
    return Bench(smollm2("float16"))


@pytest.fixture(scope="module")
def q4(smollm2: Callable[[str], Decoder]) -> Bench:
    return Bench(smollm2("q4"))


@pytest.mark.parametrize("precision", ["float16", "q4"])
def test_logits_are_the_same_bits_in_any_block_and_batch(precision: str, request: pytest.FixtureRequest) -> None:
    bench: Bench = request.getfixturevalue(precision)
    assert bench.model.row_invariant
    assert list(differing(bench, tries(50))) == []


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float16", "q4"])
def test_logits_are_the_same_bits_in_many_blocks_and_batches(precision: str, request: pytest.FixtureRequest) -> None:
    assert list(differing(request.getfixturevalue(precision), tries(1000, seed=1))) == []


@pytest.mark.parametrize("precision", ["float16", "q4"])
def test_one_token_each_of_many_sequences_is_the_same_bits_too(
    precision: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench: Bench = request.getfixturevalue(precision)
    dice, crowds = random.Random(3), list[int]()
    honest = decoder_module._crowd
    monkeypatch.setattr(decoder_module, "_crowd", lambda run: crowds.append(len(run)) or honest(run))
    for _ in range(15):
        starts = [dice.choice([1, 40, 255, 256, 300, 511, 512, 1000]) for _ in range(5)]
        assert list(differing(bench, [(starts[0], 1, 0, [(start, 1) for start in starts[1:]])])) == []
    assert max(crowds) == 5
    assert min(crowds) < 5


@pytest.mark.parametrize("precision", ["float16", "q4"])
def test_every_width_and_place_at_an_edge(precision: str, request: pytest.FixtureRequest) -> None:
    bench: Bench = request.getfixturevalue(precision)
    cases = [(KEY_BLOCK + 3, width, place, []) for width in range(1, 13) for place in {0, width // 2, width - 1}]
    assert list(differing(bench, cases)) == []


@pytest.mark.parametrize("precision", ["float16", "q4"])
def test_the_cached_rows_are_the_same_bits_too(precision: str, request: pytest.FixtureRequest) -> None:
    bench: Bench = request.getfixturevalue(precision)
    cache: KVCache = bench.cache
    for position in (100, KEY_BLOCK - 1, 2 * KEY_BLOCK):
        bench.row(position, 1, 0, [])
        alone = cache.data[:, 0, position].clone()
        bench.row(position, 8, 5, [(40, 3)])
        assert torch.equal(cache.data[:, 0, position], alone)


def test_ordinary_attention_would_be_caught(float16: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: with all rows of a block in one attention call, as everywhere else, bits do differ."""
    honest = decoder_module._attend_one_by_one

    def attend(q: torch.Tensor, kv: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        same_keys = kv.stride(0) == 0
        return decoder_module._attend_together(q, kv[0], mask) if same_keys else honest(q, kv, mask)

    monkeypatch.setattr(decoder_module, "_attend_one_by_one", attend)
    assert any(differing(float16, tries(50)))


def test_shorter_key_blocks_would_be_caught(float16: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: keys padded to 1 instead of KEY_BLOCK."""
    monkeypatch.setattr(decoder_module, "KEY_BLOCK", 1)
    assert any(differing(float16, tries(50)))


def test_wide_blocks_are_the_same_bits_too(q4: Bench) -> None:
    cases = [(position, width, width // 3, []) for position in (300, 700) for width in (17, 24, 33, 65)]
    assert list(differing(q4, cases)) == []


@pytest.fixture
def odd_rows(tmp_path: Path) -> Callable[[], bool]:
    """A model whose rows three threads cannot share evenly: do rows of a block equal the rows alone?"""
    folder = save_folder(tiny_model("llama", intermediate_size=8960, head_dim=80), tmp_path)
    model = load_decoder(open_checkpoint(folder), "float16")
    tokens = [token % 320 for token in TEXT[:8]]

    def equal() -> bool:
        together = logits_of(model, [tokens], model.new_cache(1, 64))[0]
        cache = model.new_cache(1, 64)
        for i, token in enumerate(tokens):
            if not torch.equal(logits_of(model, [[token]], cache)[0, 0], together[i]):
                return False
            cache.commit(0, [0])
        return True

    return equal


def test_rows_that_threads_cannot_share_evenly(odd_rows: Callable[[], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert odd_rows()
        monkeypatch.setattr(decoder_module, "UNDIVIDED", 10**9)
        assert not odd_rows(), "negative control: work that is cut inside a row changes its bits"
    finally:
        torch.set_num_threads(threads)
