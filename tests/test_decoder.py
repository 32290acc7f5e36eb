"""The native decoder against transformers, and against itself in blocks of every shape."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf.constants import GGMLQuantizationType as Kind

from checkpoints import FAMILIES, save_folder, tiny_model, write_gguf
from outrider.cache import KVCache
from outrider.core import Block
from outrider.errors import CacheTooLarge, InvalidOption
from outrider.models.checkpoint import open_checkpoint
from outrider.models.decoder import Decoder
from outrider.models.load import load_decoder
from outrider.tree import ancestors, depths, paths

TOKENS = torch.randint(0, 320, (64,), generator=torch.Generator().manual_seed(1)).tolist()
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 10_000.0,
    },
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "rope_theta": 10_000.0,
    },
}


def block(rows: list[list[int]], starts: list[int], slots: list[int], *, prefill: bool = False) -> Block:
    width = max(map(len, rows))
    return Block(
        torch.tensor([row + [0] * (width - len(row)) for row in rows]),
        torch.tensor([[start + i for i in range(width)] for start in starts]),
        tuple(slots),
        tuple(map(len, rows)),
        prefill=prefill,
    )


def logits_of(model: Decoder, rows: list[list[int]], cache: KVCache, slots: list[int] | None = None) -> torch.Tensor:
    slots = list(range(len(rows))) if slots is None else slots
    output = model.forward(block(rows, [cache.lengths[s] for s in slots], slots), cache)
    assert output.logits is not None
    return output.logits


def advance(model: Decoder, tokens: list[int], cache: KVCache, slot: int = 0) -> None:
    model.forward(block([tokens], [cache.lengths[slot]], [slot], prefill=True), cache)
    cache.commit(slot, range(len(tokens)))


def loaded(reference: Any, folder: Path, precision: str = "float32", **options: Any) -> Decoder:
    return load_decoder(open_checkpoint(save_folder(reference, folder)), precision, **options)


def expected(reference: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = reference(torch.tensor([tokens])).logits[0]
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_gives_the_logits_of_transformers(family: str, tmp_path: Path) -> None:
    reference = tiny_model(family)
    model = loaded(reference, tmp_path)
    torch.testing.assert_close(
        logits_of(model, [TOKENS], model.new_cache(1, 64))[0], expected(reference, TOKENS), atol=2e-4, rtol=1e-4
    )


@pytest.mark.parametrize("scaling", SCALINGS)
def test_each_rope_scaling_gives_the_logits_of_transformers(scaling: str, tmp_path: Path) -> None:
    reference = tiny_model("llama", rope_parameters=SCALINGS[scaling])
    model = loaded(reference, tmp_path)
    torch.testing.assert_close(
        logits_of(model, [TOKENS], model.new_cache(1, 64))[0], expected(reference, TOKENS), atol=2e-4, rtol=1e-4
    )
    plain = loaded(tiny_model("llama"), tmp_path / "plain")
    assert not torch.allclose(
        logits_of(plain, [TOKENS], plain.new_cache(1, 64))[0], expected(reference, TOKENS), atol=2e-4, rtol=1e-4
    ), "the scaling must matter, or this test could not fail"


def test_a_tied_head_and_many_heads_per_group(tmp_path: Path) -> None:
    reference = tiny_model("llama", tie_word_embeddings=True, num_key_value_heads=1)
    model = loaded(reference, tmp_path)
    torch.testing.assert_close(
        logits_of(model, [TOKENS], model.new_cache(1, 64))[0], expected(reference, TOKENS), atol=2e-4, rtol=1e-4
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_any_chunking_gives_the_logits_of_one_forward(family: str, tmp_path: Path) -> None:
    reference = tiny_model(family)
    model = loaded(reference, tmp_path)
    whole = expected(reference, TOKENS)
    for widths in ((1,) * 64, (20, 1, 3, 40), (5, 17, 2, 16, 24)):
        cache, done = model.new_cache(1, 64), 0
        for width in widths:
            logits = logits_of(model, [TOKENS[done : done + width]], cache)[0]
            torch.testing.assert_close(logits, whole[done : done + width], atol=2e-4, rtol=1e-4)
            cache.commit(0, range(width))
            done += width


def test_rows_that_were_not_committed_leave_no_trace(tmp_path: Path) -> None:
    model = loaded(tiny_model("llama"), tmp_path)
    cache = model.new_cache(1, 64)
    advance(model, TOKENS[:10], cache)
    wanted = logits_of(model, [TOKENS[10:14]], cache)[0]
    logits_of(model, [[7] * 12], cache)  # a block that is rejected whole
    torch.testing.assert_close(logits_of(model, [TOKENS[10:14]], cache)[0], wanted, atol=0, rtol=0)
    cache.commit(0, range(2))
    cache.truncate(0, 10)
    torch.testing.assert_close(logits_of(model, [TOKENS[10:14]], cache)[0], wanted, atol=0, rtol=0)


def test_ragged_batches_equal_each_sequence_alone(tmp_path: Path) -> None:
    model = loaded(tiny_model("qwen3"), tmp_path)
    cache = model.new_cache(4, 64)
    for slot, length in enumerate((3, 20, 0, 11)):
        if length:
            advance(model, TOKENS[:length], cache, slot)
    rows = [TOKENS[3:4], TOKENS[20:29], TOKENS[0:2], TOKENS[11:16]]
    together = logits_of(model, rows, cache)
    for slot, row in enumerate(rows):
        alone = logits_of(model, [row], cache, [slot])[0]
        torch.testing.assert_close(together[slot, : len(row)], alone, atol=1e-4, rtol=1e-4)


def test_a_copied_slot_is_independent(tmp_path: Path) -> None:
    model = loaded(tiny_model("llama"), tmp_path)
    cache = model.new_cache(2, 64)
    advance(model, TOKENS[:9], cache, 0)
    cache.copy(0, 1)
    wanted = logits_of(model, [TOKENS[9:12]], cache, [1])
    advance(model, [5, 6, 7], cache, 0)
    cache.truncate(0, 2)
    advance(model, [8, 9], cache, 0)
    assert torch.equal(logits_of(model, [TOKENS[9:12]], cache, [1]), wanted)


def test_tree_nodes_see_their_own_path_only_and_a_committed_path_is_a_chain(tmp_path: Path) -> None:
    # pending 3 ── 10 ── 12 ── 14
    #          └── 11 ── 13
    tokens, parents = (10, 11, 12, 13, 14), (-1, -1, 0, 1, 2)
    model = loaded(tiny_model("llama"), tmp_path)
    cache = model.new_cache(1, 64)
    advance(model, TOKENS[:8], cache)
    tree = Block(
        torch.tensor([[3, *tokens]]),
        torch.tensor([[8 + depth for depth in depths(parents)]]),
        (0,),
        (6,),
        ancestors=ancestors(parents, len(parents) + 1)[None],
    )
    logits = model.forward(tree, cache).logits
    assert logits is not None
    for node, path in enumerate(paths(tokens, parents)):
        own = model.new_cache(1, 64)
        advance(model, TOKENS[:8], own)
        chain = logits_of(model, [[3, *path]], own)[0, -1]
        torch.testing.assert_close(logits[0, node], chain, atol=1e-4, rtol=1e-4)
    cache.commit(0, [0, 2, 4])  # the pending token, 11, 13: rows that do not lie side by side
    fresh = model.new_cache(1, 64)
    advance(model, [*TOKENS[:8], 3, 11, 13], fresh)
    torch.testing.assert_close(cache.data[:, 0, :11], fresh.data[:, 0, :11], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("ids", [(0, 1, 2), (2, 1), (3,), (1, 3)])
def test_features_are_the_hidden_states_of_transformers_in_the_order_asked_for(ids, tmp_path: Path) -> None:
    reference = tiny_model("llama", num_hidden_layers=3)
    model = loaded(reference, tmp_path, feature_layers=ids)
    with torch.inference_mode():
        states = reference(torch.tensor([TOKENS]), output_hidden_states=True).hidden_states
    wanted = torch.cat([states[i][0] for i in ids], -1)
    for shown in (model, loaded(reference, tmp_path / "again").showing(ids)):
        for prefill in (False, True):
            given = replace(block([TOKENS], [0], [0]), prefill=prefill)
            hidden = shown.forward(given, shown.new_cache(1, 64)).hidden
            assert hidden is not None
            torch.testing.assert_close(hidden[0], wanted, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("ids", [(4,), (-1,)])
def test_features_of_layers_that_are_not_there_are_refused(ids, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"feature layer is .*0 to 3"):
        loaded(tiny_model("llama", num_hidden_layers=3), tmp_path, feature_layers=ids)


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1])
def test_q4_runs_the_stored_groups(kind: Kind, tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", tiny_model("llama"), kind)
    checkpoint = open_checkpoint(tmp_path / "model.gguf")
    exact, coarse = load_decoder(checkpoint, "float32"), load_decoder(checkpoint, "q4")
    wanted = logits_of(exact, [TOKENS], exact.new_cache(1, 64))[0]
    found = logits_of(coarse, [TOKENS], coarse.new_cache(1, 64))[0]
    # bfloat16 activations: about three digits, and the same likeliest tokens nearly everywhere
    assert (found - wanted).abs().mean() < 0.02 * wanted.std()


def test_every_precision_is_near_float32(tmp_path: Path) -> None:
    reference = tiny_model("qwen2")
    wanted = expected(reference, TOKENS)
    for precision, allowed in (("bfloat16", 0.05), ("float16", 0.005)):
        model = loaded(reference, tmp_path / precision, precision)
        assert model.precision == precision
        found = logits_of(model, [TOKENS], model.new_cache(1, 64))[0]
        assert (found - wanted).abs().mean() < allowed * wanted.std()


def test_q4_is_refused_for_other_checkpoints_naming_what_they_have(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="precision is 'q4'; allowed: float32, bfloat16, float16"):
        loaded(tiny_model("llama"), tmp_path, "q4")


def test_a_cache_that_cannot_fit_says_how_much_was_asked(tmp_path: Path) -> None:
    model = loaded(tiny_model("llama"), tmp_path)
    with pytest.raises(CacheTooLarge, match=r"1000000 slots of 512 tokens needs \d+\.\d GiB; this machine has"):
        model.new_cache(1_000_000, 512)
