"""A target's own checkpoint in a narrower precision: near the target, accepted nearly always, never a target itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoints import Kind, save_folder, tiny_model, write_gguf
from engine_runs import finish
from outrider.drafters.model import ModelDrafter
from outrider.engine import Engine
from outrider.errors import InvalidOption
from outrider.models import quantise
from outrider.models.checkpoint import Checkpoint, Groups4, open_checkpoint
from outrider.models.decoder import Decoder
from outrider.models.linear import Grouped4, PackedHalf
from outrider.models.load import load_decoder
from outrider.models.precision import mean_kl
from outrider.models.quantise import load_quantised, narrower_precisions, rounded
from outrider.options import Sampling
from outrider.planning.pace import FixedPace
from outrider.rules import choose_rule

TOKENS = torch.randint(0, 320, (64,), generator=torch.Generator().manual_seed(1)).tolist()
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(save_folder(tiny_model("qwen3"), tmp_path_factory.mktemp("float")))


@pytest.fixture(scope="module")
def target(checkpoint: Checkpoint) -> Decoder:
    return load_decoder(checkpoint, "float32")


def folder(path: Path, family: str = "llama", **changes: Any) -> Checkpoint:
    return open_checkpoint(save_folder(tiny_model(family, **changes), path))


def weights_of(groups: Groups4) -> torch.Tensor:
    """What the codes stand for."""
    steps = groups.codes.float().view(len(groups.codes), -1, 32)
    return (steps * groups.scales[:, :, None] + groups.mins[:, :, None]).view(groups.codes.shape)


# ---------------------------------------------------------------- rounding


def test_no_weight_moves_by_more_than_half_a_step_and_what_bfloat16_takes_from_scale_and_middle() -> None:
    weight = torch.randn(48, 128, generator=torch.Generator().manual_seed(2))
    moved = (weights_of(rounded(weight)) - weight).abs().view(48, -1, 32)
    grouped = weight.view(48, -1, 32)
    step = (grouped.amax(-1) - grouped.amin(-1)) / 15
    lost = 2**-8 * (8 * step + grouped.amin(-1).abs() + 8 * step)
    assert (moved.amax(-1) <= step / 2 + lost).all()
    # Evenly spread over a step, the distance is step / sqrt(12) on average.
    assert moved.square().mean() < 1.1 * step.square().mean() / 12


def test_sixteen_even_steps_of_bfloat16_numbers_are_kept_as_they_are() -> None:
    codes = torch.stack([torch.randperm(32, generator=torch.Generator().manual_seed(i)) % 16 for i in range(16)])
    weight = (codes - 8.0) * 0.125 + 0.5
    groups = rounded(weight)
    assert torch.equal(groups.codes.long(), codes)
    assert torch.equal(weights_of(groups), weight)


@pytest.mark.parametrize("value", [0.0, 0.375, -1e-30])
def test_a_group_of_equal_weights_stays_what_it_is(value: float) -> None:
    torch.testing.assert_close(
        weights_of(rounded(torch.full((16, 32), value))), torch.full((16, 32), value), rtol=4e-3, atol=0
    )


def test_the_kernel_multiplies_by_the_rounded_weights() -> None:
    generator = torch.Generator().manual_seed(3)
    weight, x = torch.randn(48, 128, generator=generator), torch.randn(5, 128, generator=generator).bfloat16().float()
    groups = rounded(weight)
    torch.testing.assert_close(Grouped4(groups)(x), x @ weights_of(groups).T, rtol=0.02, atol=0.15)
    assert not torch.allclose(x @ weight.T, x @ weights_of(groups).T, rtol=0.02, atol=0.15), "or nothing was rounded"


# ---------------------------------------------------------------- models


@pytest.mark.parametrize("family", ["llama", "qwen2"])  # heads that are re-ordered, and biases
def test_four_bit_drafts_are_near_the_target_and_half_ones_nearer(family: str, tmp_path: Path) -> None:
    checkpoint = folder(tmp_path / "own", family)
    exact, stranger = (
        load_decoder(checkpoint, "float32"),
        load_decoder(folder(tmp_path / "other", family, seed=5), "float32"),
    )
    distances = [
        mean_kl(exact, model, TOKENS)
        for model in (load_quantised(checkpoint, "float32", "float16"), load_quantised(checkpoint, "float32"), stranger)
    ]
    assert distances[0] < 1e-5
    assert distances[0] < distances[1] < 0.1 * distances[2]


def test_rounding_along_the_wrong_axis_would_be_seen_by_the_distance(
    checkpoint: Checkpoint, target: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: groups whose scales belong to their neighbours."""

    def shifted(weight: torch.Tensor) -> Groups4:
        groups = rounded(weight)
        return Groups4(groups.codes, groups.scales.roll(1, 0), groups.mins.roll(1, 0))

    sound = mean_kl(target, load_quantised(checkpoint, "float32"), TOKENS)
    monkeypatch.setattr(quantise, "rounded", shifted)
    assert mean_kl(target, load_quantised(checkpoint, "float32"), TOKENS) > 3 * sound


@pytest.mark.parametrize(("precision", "share"), [("q4", 0.75), ("float16", 0.99)])
def test_nearly_every_draft_is_accepted(checkpoint: Checkpoint, target: Decoder, precision: str, share: float) -> None:
    drafter = ModelDrafter(load_quantised(checkpoint, "float32", precision), 4)
    engine = Engine(target, drafter, choose_rule("auto", "sampled"), FixedPace(4), slots=4, context_length=128)
    for seed in range(6):
        engine.add(TOKENS[seed : 9 + seed], sampling=Sampling(temperature=1.0), seed=seed, max_new_tokens=60)
    rounds = [r for each in finish(engine).values() for r in each if r.finish_reason is None]
    accepted, drafted = sum(r.num_accepted for r in rounds), sum(r.num_drafted for r in rounds)
    assert drafted > 200
    assert share < accepted / drafted <= 1


def test_only_matrices_of_the_layers_are_rounded(checkpoint: Checkpoint) -> None:
    model = load_quantised(checkpoint, "float16", "q4")
    assert model.precision == "q4"
    assert model.weights.embedding.dtype == torch.float16
    assert isinstance(model.weights.head, PackedHalf)
    for layer in model.weights.layers:
        assert all(isinstance(linear, Grouped4) for linear in (layer.qkv, layer.out, layer.gate_up, layer.down))


def test_a_file_that_has_four_bit_groups_is_run_as_it_is_stored(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", tiny_model("llama"), Kind.Q4_1)
    checkpoint = open_checkpoint(tmp_path / "model.gguf")
    assert mean_kl(load_decoder(checkpoint, "q4"), load_quantised(checkpoint, "float16"), TOKENS) == 0


def test_a_file_of_eight_bits_is_rounded(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", tiny_model("llama"), Kind.Q8_0)
    checkpoint = open_checkpoint(tmp_path / "model.gguf")
    draft = load_quantised(checkpoint, "float16")
    assert draft.precision == "q4"
    assert mean_kl(load_decoder(checkpoint, "float16"), draft, TOKENS) < 0.1


def test_a_matrix_that_does_not_divide_into_groups_stays_in_half_precision(tmp_path: Path) -> None:
    checkpoint = folder(tmp_path, intermediate_size=500)
    model = load_quantised(checkpoint, "float32", "q4")
    assert isinstance(model.weights.layers[0].down, PackedHalf)
    assert isinstance(model.weights.layers[0].qkv, Grouped4)
    assert mean_kl(load_decoder(checkpoint, "float32"), model, TOKENS) < 0.1


# ---------------------------------------------------------------- what may draft for what


@pytest.mark.parametrize(
    ("target_precision", "allowed"),
    [("float32", ("bfloat16", "float16", "q4")), ("bfloat16", ("q4",)), ("float16", ("q4",)), ("q4", ())],
)
def test_what_is_narrower_than_a_target(
    checkpoint: Checkpoint, target_precision: str, allowed: tuple[str, ...]
) -> None:
    assert narrower_precisions(checkpoint, target_precision, CPU) == allowed
    elsewhere = tuple(name for name in allowed if name != "q4")
    assert narrower_precisions(checkpoint, target_precision, torch.device("meta")) == elsewhere
    if allowed:
        assert load_quantised(checkpoint, target_precision).precision == allowed[-1]


@pytest.mark.parametrize(
    ("target_precision", "precision", "message"),
    [
        ("q4", "", "drafter is 'quantised'; allowed: another drafter.*runs in q4, and there is nothing narrower"),
        ("q4", "q4", "drafter is 'quantised:q4'.*nothing narrower"),
        ("float16", "float16", "'quantised:float16'; allowed: quantised:q4.*narrower than the target.*float16"),
        ("float16", "float32", "'quantised:float32'; allowed: quantised:q4"),
        ("float32", "q3", "'quantised:q3'; allowed: quantised:bfloat16, quantised:float16, quantised:q4"),
    ],
)
def test_a_precision_that_is_not_narrower_is_refused(
    checkpoint: Checkpoint, target_precision: str, precision: str, message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        load_quantised(checkpoint, target_precision, precision)


def test_a_model_of_odd_sizes_has_no_four_bit_draft_and_is_told_why(tmp_path: Path) -> None:
    checkpoint = folder(tmp_path, hidden_size=48, intermediate_size=112, head_dim=16)
    assert load_quantised(checkpoint, "float32").precision == "float16"
    with pytest.raises(
        InvalidOption, match=r"quantised:bfloat16, quantised:float16.*q4 takes.*a multiple of 32 columns"
    ):
        load_quantised(checkpoint, "float32", "q4")
    with pytest.raises(InvalidOption, match=r"allowed: another drafter.*a multiple of 32 columns"):
        load_quantised(checkpoint, "float16")


def test_rounded_weights_do_not_become_a_target(checkpoint: Checkpoint) -> None:
    with pytest.raises(InvalidOption, match="precision is 'q4'; allowed: float32, bfloat16, float16"):
        load_decoder(checkpoint, "q4")
