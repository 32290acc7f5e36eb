"""The EAGLE-3 head that ships with the embedded model: what is in the package, that it is used, that it survives."""

from __future__ import annotations

import json

import pytest
import torch

import outrider
from outrider.attaching import attach, check_fit, showing
from outrider.convert import complete, missing
from outrider.drafters.heads.files import read_head, write_head
from outrider.loading import default_drafter
from outrider.models.locate import SHIPPED_HEAD, locate_head
from outrider.models.opening import Matrices, full_matrices, open_model
from outrider.training.walk import walk

PROMPTS = ("What is a tide, and why does it come twice a day?", "Write a Python function that reverses a string.")


@pytest.fixture(scope="module")
def opened():
    return open_model("smollm2", "float32", torch.device("cpu"), None)


def walked(head, opened):
    """Tokens per round and how often each place of a draft was kept."""
    prompts = [opened.tokenizer.encode_chat([{"role": "user", "content": prompt}]) for prompt in PROMPTS]
    drafter = attach(head, opened, slots=1, capacity=128)
    model, stops = showing(head, opened), opened.tokenizer.stop_ids
    settings = {"num_drafted": 3, "temperature": 0.0, "max_new_tokens": 40, "stop_ids": stops, "context_length": 128}
    found = walk(model, drafter, prompts, **settings)
    return found.acceptance_length, found.conditional


def test_it_is_small_and_its_card_says_how_it_was_made():
    assert sum(path.stat().st_size for path in SHIPPED_HEAD.iterdir()) <= 12_000_000
    assert {path.suffix for path in SHIPPED_HEAD.iterdir()} == {".json", ".safetensors"}
    card = json.loads((SHIPPED_HEAD / "card.json").read_text())
    assert card["command"].startswith("outrider train eagle3 --out FOLDER")
    assert card["target"] == "smollm2"
    assert card["options"]["seed"] == 0
    assert card["tokens_written"] >= 400_000
    assert card["minutes"] > 30
    assert card["held_out"]["walked_0.0"] > card["untrained"]["walked_0.0"] + 0.3


def test_auto_drafts_with_it_beside_the_look_up(tmp_path, monkeypatch):
    assert default_drafter("smollm2") == "suffix+eagle:smollm2,tree=auto"
    assert default_drafter("another/model") == default_drafter() == "suffix"
    assert default_drafter("smollm2", invariant=True) == "suffix+eagle:smollm2"  # trees have no equal bits
    assert default_drafter("smollm2", "token") == "suffix"  # chains only, and drawn ones only
    assert default_drafter("smollm2", "typical") == "suffix"  # a rule that does not take both kinds of draft
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    outrider.load(precision="float16", slots=1, context_length=128)
    (costs,) = (tmp_path / "costs").iterdir()  # as on a machine on which drafts are cheap
    known = json.loads(costs.read_text())
    costs.write_text(json.dumps({name: 0.01 if "level" in name else known["1x1"] for name in known}))
    engine = outrider.load(precision="float16", slots=1, context_length=128)
    spoken = engine.generate(PROMPTS[0], max_new_tokens=24, temperature=0.0)
    assert spoken.stats.drafter == "suffix+eagle"
    assert "eagle in 0 rounds" not in spoken.stats.note
    plain = outrider.load(drafter="none", precision="float16", slots=1, context_length=128)
    assert spoken.token_ids == plain.generate(PROMPTS[0], max_new_tokens=24, temperature=0.0).token_ids


def test_a_folder_of_another_name_is_a_folder(tmp_path):
    assert locate_head("smollm2") == SHIPPED_HEAD
    assert locate_head(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["safeailab-eagle3", "speculators-eagle3"])
def test_a_round_trip_through_each_format_leaves_its_acceptance_as_it_is(name, opened, tmp_path):
    head = read_head(SHIPPED_HEAD)
    check_fit(head, opened)
    before = walked(head, opened)
    assert before[0] > 1.2
    write_head(complete(head, missing(head, name), full_matrices(opened)), tmp_path / name, name, target="smollm2")
    assert walked(read_head(tmp_path / name), opened) == before


def test_a_round_trip_that_lost_its_vocabulary_would_be_caught(opened, tmp_path):
    """Negative control: the drafted tokens' names moved by one."""
    head = read_head(SHIPPED_HEAD)
    matrices, name = full_matrices(opened), "safeailab-eagle3"
    moved = Matrices(matrices.embedding, matrices.output.roll(1, 0), matrices.bias)
    write_head(complete(head, missing(head, name), moved), tmp_path / name, name, target="smollm2")
    assert walked(read_head(tmp_path / name), opened)[0] < walked(head, opened)[0]
