"""`outrider convert`, and what other programs make of the heads that it writes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
import typer
from torch.nn import functional as F
from typer.testing import CliRunner

from checkpoints import byte_level_tokenizer, save_folder, save_tokenizer, tiny_model
from head_files import differences, edited, save, written
from heads import TinyTarget, eagle_head, medusa_head, mlp_head, tiny_target
from outrider.cli.convert import convert, verdict
from outrider.convert import Agreement, HeadCheck, eagle_logits, gather, own_text
from outrider.drafters.heads.files import FORMATS, read_head
from outrider.drafters.heads.formats_readers import PROGRAMS, fates
from outrider.models.opening import full_matrices, open_model

TINY = tiny_target()
REDUCED = (0, 2, 3, 7, 11)
WIDTH, DEPTH = 48, 4

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(convert)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A folder with a tiny model and its tokenizer."""
    folder = tmp_path_factory.mktemp("target")
    model = tiny_model("llama", hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=DEPTH, head_dim=16)
    for name, parameter in model.named_parameters():
        if "_proj" in name or "embed" in name:
            parameter.data *= 3
    model.lm_head.weight.data *= 6
    save_folder(model, folder)
    return save_tokenizer(byte_level_tokenizer(), folder)


@pytest.fixture(scope="module")
def trained(target):
    """A head that knows the text by heart which the target writes with 96 tokens."""
    opened = open_model(str(target), "float32", torch.device("cpu"), None)
    shared, tokens = full_matrices(opened), own_text(opened, 96)
    head = eagle_head(TinyTarget(opened.model, shared.embedding, shared.output, DEPTH), feature_layers=(1, 2, 3))
    found = gather(opened.model, tokens, (1, 2, 3))
    features, guesses = torch.cat([found.states[i] for i in (1, 2, 3)], dim=-1).clone(), found.guesses.clone()
    weights = {name: torch.nn.Parameter(w.clone()) for name, w in head.weights.items()}
    optimiser = torch.optim.Adam(weights.values(), lr=0.01)
    for _ in range(60):
        logits = eagle_logits(replace(head, weights=weights), features, found.tokens.clone(), shared)
        optimiser.zero_grad()
        sum(F.cross_entropy(rows, guesses[step:]) for step, rows in enumerate(logits, 1)).backward()
        optimiser.step()
    return replace(head, weights={name: w.detach() for name, w in weights.items()})


def checked(folder, target):
    return run(folder, "--check", "--target", target, "--tokens", 96, "--precision", "float32")


# ---------------------------------------------------------------- the command


def test_the_text_of_a_target_is_as_long_as_wanted_and_the_same_for_a_seed(target):
    opened = open_model(str(target), "float32", torch.device("cpu"), None)
    tokens = own_text(opened, 96)
    assert len(tokens) == 96
    assert tokens == own_text(opened, 96) != own_text(opened, 96, seed=1)


def test_a_check_finds_nothing_wrong_and_exits_with_0(trained, target, tmp_path):
    found = checked(written(tmp_path, trained, "safeailab-eagle3"), target)
    assert found.exit_code == 0, found.output
    assert "No other reading is clearly better" in found.output
    assert "layer ids -1: 0, 1, 2" in found.output


def test_a_check_finds_swapped_layer_ids_and_exits_with_1(trained, target, tmp_path):
    def swap(settings, tensors):
        settings["eagle_aux_hidden_state_layer_ids"] = [2, 3, 4]
        settings["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [1, 2, 3]

    folder = edited(written(tmp_path, trained, "safeailab-eagle3"), swap)
    found = checked(folder, target)
    assert found.exit_code == 1, found.output
    assert "clearly better than the one in the file: layer ids -1: 1, 2, 3" in found.output
    out = tmp_path / "out"
    assert run(folder, out, "--to", "safeailab-eagle3", "--check", "--target", target, "--tokens", 96).exit_code == 1
    assert not out.exists()
    assert run(folder, "--check", "--target", target, "--tokens", 96, "--layers", "1,2,3").exit_code == 0


def test_a_conversion_takes_the_matrices_of_the_target(trained, target, tmp_path):
    folder = written(tmp_path, trained, "safeailab-eagle3")
    found = run(folder, tmp_path / "out", "--to", "speculators-eagle3", "--target", target)
    assert found.exit_code == 0, found.output
    head = read_head(tmp_path / "out", DEPTH)
    assert differences(head, replace(trained, weights=head.weights)) == []
    assert head.weights.keys() - trained.weights.keys() == {"embed_tokens.weight"}
    settings = json.loads((tmp_path / "out" / "config.json").read_text())
    assert settings["speculators_config"]["verifier"]["name_or_path"] == str(target)
    for program in PROGRAMS:
        assert program in found.output


def test_the_name_of_the_target_is_taken_from_the_files(tmp_path):
    folder = written(tmp_path, medusa_head(TINY), "medusa", target="owner/it")
    assert run(folder, tmp_path / "out", "--to", "vllm-medusa").exit_code == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["base_model_name_or_path"] == "owner/it"


def test_user_errors_exit_with_2_and_name_the_option(tmp_path):
    def contradict(settings, tensors):
        settings["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [9]

    medusa = written(tmp_path, medusa_head(TINY), "medusa")
    eagle = written(tmp_path, eagle_head(TINY), "safeailab-eagle3")
    out, other = tmp_path / "out", tmp_path / "other"
    shutil.copytree(eagle, other)
    edited(other, contradict)
    faults = {
        "OUT is 'missing'": [medusa],
        "--to is 'missing'": [medusa, out],
        "--to is 'eagle9'": [medusa, out, "--to", "eagle9"],
        "--to is 'tgi-medusa'": [eagle, out, "--to", "tgi-medusa"],
        "OUT is": [medusa, medusa, "--to", "tgi-medusa"],
        "--target is 'missing'": [eagle, "--check"],
        "--layers is": [eagle, out, "--to", "safeailab-eagle3", "--layers", "2;3"],
        "--layers is '1,2,-3'": [eagle, out, "--to", "safeailab-eagle3", "--layers", "1,2,-3"],
        "whole numbers from 0 to 10000": [eagle, out, "--to", "safeailab-eagle3", "--layers", "1,2,99999999999999"],
        "--precision is": [eagle, out, "--to", "safeailab-eagle3", "--precision", "zz"],
        "--threads is": [eagle, out, "--to", "safeailab-eagle3", "--threads", "0"],
        "--d2t is": [eagle, out, "--to", "safeailab-eagle3", "--d2t", "both"],
        "There is no model": [tmp_path / "nothing", out, "--to", "medusa"],
        "contradict": [other, out, "--to", "safeailab-eagle3"],
    }
    for message, arguments in faults.items():
        found = run(*arguments)
        assert found.exit_code == 2, found.output
        assert message in found.output.replace("\n", " ")
    assert not out.exists()


def test_names_from_files_cannot_reach_the_terminal(tmp_path):
    def escape(settings, tensors):
        tensors["\x1b[2Jx"] = torch.ones(1)

    folder = edited(written(tmp_path, medusa_head(TINY), "medusa"), escape)
    found = run(folder, tmp_path / "out", "--to", "vllm-medusa")
    assert found.exit_code == 2
    assert "\\x1b[2Jx" in found.output
    assert "\x1b" not in found.output


def test_a_verdict_names_the_better_reading_and_doubts_what_agrees_with_nothing():
    good, bad = (True,) * 40, (False,) * 40
    own, other = Agreement("as read", 0.0, 0.0, bad), Agreement("x\x1b", 1.0, 1.0, good)
    assert verdict(HeadCheck(41, (other, own))) == ["No other reading is clearly better than the one in the file."]
    assert verdict(HeadCheck(41, (own, other))) == [
        "Another reading is clearly better than the one in the file: x\\x1b."
    ]
    assert "is this its target?" in verdict(HeadCheck(41, (own,)))[1]


def test_a_reading_that_wins_a_few_rows_is_not_clearly_better():
    own = Agreement("as read", 0.5, None, (True,) * 20 + (False,) * 20)
    few = replace(own, reading="few", hits=(True,) * 28 + (False,) * 12)
    more = replace(own, reading="more", hits=(True,) * 29 + (False,) * 11)
    assert HeadCheck(41, (own, few)).is_as_read
    assert HeadCheck(41, (own, few)).undecided == ("few",)
    assert not HeadCheck(41, (own, more)).is_as_read


# ---------------------------------------------------------------- other programs


def outcomes(head, kind, depth=DEPTH):
    return {fate.program: fate.outcome for fate in fates(head, kind, depth)}


PORTABLE = eagle_head(TINY, feature_layers=(2, 2, 1), draft_ids=REDUCED)  # the usual states of four layers
PORTABLE = replace(PORTABLE, config=replace(PORTABLE.config, head_dim=12))
NOT, WRONG, RUNS = "does not run", "runs wrong", "runs"

EXPECTED = {
    "the portable head": (PORTABLE, "safeailab-eagle3", (RUNS, RUNS, RUNS, RUNS, NOT)),
    "as speculators": (PORTABLE, "speculators-eagle3", (RUNS, NOT, RUNS, NOT, NOT)),
    "norm_before_residual": ({"norm_before_residual": True}, "safeailab-eagle3", (RUNS, WRONG, RUNS, WRONG, NOT)),
    "norm_before_fc": ({"norm_before_fc": True}, "safeailab-eagle3", (RUNS, RUNS, RUNS, WRONG, NOT)),
    "fc_norm": ({"fc_norm": True}, "safeailab-eagle3", (RUNS, RUNS, NOT, WRONG, NOT)),
    "norm_output": ({"norm_output": True}, "safeailab-eagle3", (RUNS, RUNS, NOT, WRONG, NOT)),
    "other states": ({"feature_layers": (1, 2, 3)}, "safeailab-eagle3", (RUNS, RUNS, RUNS, WRONG, NOT)),
    "two states": ({"feature_layers": (1, 2)}, "safeailab-eagle3", (RUNS, RUNS, NOT, NOT, NOT)),
    "one state": ({"feature_layers": (1,)}, "safeailab-eagle3", (RUNS, WRONG, NOT, NOT, NOT)),
    "wide heads": ({"head_dim": 8}, "safeailab-eagle3", (RUNS, RUNS, RUNS, NOT, NOT)),
    "eagle-1": (eagle_head(TINY, 1), "safeailab-eagle1", (RUNS, NOT, NOT, RUNS, NOT)),
    "eagle-1 with a bias": (eagle_head(TINY, 1, biased=True), "safeailab-eagle1", (NOT, NOT, NOT, RUNS, NOT)),
    "medusa": (medusa_head(TINY), "medusa", (RUNS, NOT, NOT, NOT, RUNS)),
    "vllm": (medusa_head(TINY), "vllm-medusa", (RUNS, NOT, NOT, NOT, NOT)),
    "tgi": (medusa_head(TINY), "tgi-medusa", (RUNS, NOT, NOT, NOT, RUNS)),
    "tgi, shared": (medusa_head(TINY, own_outputs=False), "tgi-medusa", (NOT, NOT, NOT, NOT, RUNS)),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_fate_of_a_head_elsewhere_is_known(name):
    head, kind, expected = EXPECTED[name]
    if isinstance(head, dict):
        head = replace(PORTABLE, config=replace(PORTABLE.config, **head))
    assert outcomes(head, kind) == dict(zip(PROGRAMS, expected, strict=True))


def test_biases_and_norms_of_attention_are_dropped_elsewhere():
    bias = {"layers.0.self_attn.q_proj.bias": torch.ones(48)}
    head = replace(PORTABLE, weights=PORTABLE.weights | bias)
    assert list(outcomes(head, "safeailab-eagle3").values()) == [RUNS, WRONG, NOT, WRONG, NOT]
    normed = eagle_head(TINY, feature_layers=(2, 2, 1), qk_norm=True)
    assert outcomes(normed, "speculators-eagle3")["llama.cpp"] == NOT


def test_every_format_and_every_refusal_has_a_reason():
    assert {kind for _, kind, _ in EXPECTED.values()} == set(FORMATS)
    for head, kind, _ in EXPECTED.values():
        for fate in () if isinstance(head, dict) else fates(head, kind):
            assert fate.outcome == RUNS or fate.reasons


def test_an_mlp_speculator_is_not_written(tmp_path):
    head = mlp_head(TINY)
    settings = {"model_type": "mlp_speculator", "emb_dim": 48, "inner_dim": 24, "n_predict": 3, "vocab_size": 12}
    found = run(save(tmp_path / "mlp", settings, head.weights), tmp_path / "out", "--to", "medusa")
    assert found.exit_code == 2
    assert "only read" in found.output.replace("\n", " ")
