"""Every kind of drafter that can be trained, from nothing but a target: it learns, it resumes, it drafts."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

import outrider
from outrider.drafters.heads.files import read, read_head
from outrider.drafters.heads.formats import Hints
from outrider.errors import CheckpointError, InvalidOption, VocabularyMismatch
from outrider.models.opening import open_model
from outrider.training import judge
from outrider.training.batches import Batches
from outrider.training.command import command_line, run
from outrider.training.distill import Distill
from outrider.training.eagle import Recipe
from outrider.training.eagle_kind import DRAFT_VOCABULARY, Eagle1, Eagle3
from outrider.training.kind import Setting
from outrider.training.medusa import Medusa
from outrider.training.run import Options, identity
from outrider.training.states import store_states
from outrider.training.texts import Sample
from outrider.training.trainer import BEST, LATEST, SCORE
from outrider.training.work import prepare
from training_runs import END, NUM_LAYERS, conversation, toy_target

FAST = {"learning_rate": 6e-3, "tokens_per_batch": 1024}
KINDS = {
    "eagle1": Eagle1(recipe=Recipe(3), **FAST),
    "eagle3": Eagle3(128, recipe=Recipe(3), **FAST),
    "medusa": Medusa(3, **FAST),
    "distill": Distill(layers=2, **FAST),
}
GAIN = {"eagle1": 1.0, "eagle3": 0.6, "medusa": 0.5, "distill": 1.0}
"""Tokens per round that training adds at least, at temperature 0."""

PROMPT = "seven letters under"


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return toy_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def setting(target):
    return Setting(open_model(str(target), "float32", torch.device("cpu"), None), str(target), 0)


def options(target, **changes):
    chosen = {"num_tokens": 1200, "steps": 45, "max_answer": 40, "max_prompt": 60, "looks": 1, "precision": "float32"}
    return Options(str(target), **{**chosen, **changes})


def quiet(*_):
    """Watches nothing."""


def press_after(step):
    """Presses Ctrl-C once so many steps of training are done."""

    def told(what, done, _):
        if what.startswith("training") and done == step:
            os.kill(os.getpid(), signal.SIGINT)

    return told


@pytest.fixture(scope="module", autouse=True)
def short_walks():
    """Half as far as users' heads are judged on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "TOKENS", 32)
        yield


@pytest.fixture(scope="module")
def trained(target, tmp_path_factory):
    """Folders by kind, each trained once."""
    folders = {}

    def folder(name):
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp(name) / "out"
            work = prepare(folders[name], identity(KINDS[name], options(target)), resume=False)
            if len(folders) > 1:  # all kinds learn from the same texts, which take longest
                shutil.copytree(next(iter(folders.values())) / "work" / "texts", work / "texts")
            run(KINDS[name], options(target), folders[name], resume=True, told=quiet)
        return folders[name]

    return folder


def card_of(folder):
    return json.loads((folder / "card.json").read_text())


# ---------------------------------------------------------------- learning


@pytest.mark.parametrize("name", KINDS)
def test_training_lifts_the_walked_acceptance_length(name, trained):
    card = card_of(trained(name))
    for temperature in ("0.0", "0.8"):
        before, after = (card[when][f"walked_{temperature}"] for when in ("untrained", "held_out"))
        assert after > before + (GAIN[name] if temperature == "0.0" else GAIN[name] / 3), (before, after)
    places = [key for key in card["held_out"] if key.startswith("accepted_")]
    assert len(places) == {"distill": 1}.get(name, 3)
    assert all(card["held_out"][place] > card["untrained"][place] for place in places)


@pytest.mark.parametrize("name", KINDS)
def test_what_was_trained_drafts_the_targets_own_text(name, trained, target):
    folder, common = trained(name), {"precision": "float32", "num_draft_tokens": 3, "slots": 1}
    plain = outrider.load(str(target), drafter="none", precision="float32", slots=1)
    drafting = outrider.load(str(target), drafter=f"{KINDS[name].drafter}:{folder}", **common)
    asked = {"max_new_tokens": 48, "temperature": 0.0}
    wanted, found = (engine.generate(PROMPT, **asked) for engine in (plain, drafting))
    assert found.token_ids == wanted.token_ids
    assert found.stats.num_rounds < 0.75 * wanted.stats.num_rounds


@pytest.mark.parametrize("name", KINDS)
def test_a_folder_tells_how_it_was_made(name, trained, target):
    folder = trained(name)
    card, curve = card_of(folder), (folder / "curve.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in curve] == [0, 45]
    assert card["steps"] == 45
    assert card["tokens_written"] >= 1200
    assert card["command"].startswith(f"outrider train {name} --out FOLDER --target {target} --tokens 1200 --steps 45")
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert not (folder / "work" / "states").exists()
    assert card["held_out"][SCORE] == max(json.loads(line)[SCORE] for line in curve)


def test_the_kept_weights_are_those_that_were_judged_best(trained):
    best = load_file(trained("eagle3") / "work" / BEST)
    head = read_head(trained("eagle3"), NUM_LAYERS)
    assert all(torch.equal(head.weights[name], weight) for name, weight in best.items())


# ---------------------------------------------------------------- again


@pytest.mark.parametrize("name", ["eagle3", "medusa"])
def test_a_training_is_a_function_of_its_seed_and_resumes_to_the_same_weights(name, trained, target, tmp_path):
    """Another run from the same seed, interrupted on the way; of one kind from the texts on, which are the same."""
    out, kind = tmp_path / "out", KINDS[name]
    work = prepare(out, identity(kind, options(target)), resume=False)
    if name != "eagle3":
        shutil.copytree(trained(name) / "work" / "texts", work / "texts")
    with pytest.raises(KeyboardInterrupt):
        run(kind, options(target), out, resume=True, told=press_after(25))
    assert not (out / "card.json").exists()
    run(kind, options(target), out, resume=True, told=quiet)
    texts = [sorted((folder / "work" / "texts").iterdir()) for folder in (trained(name), out)]
    assert [path.read_bytes() for path in texts[0]] == [path.read_bytes() for path in texts[1]]
    wanted, found = (load_file(folder / "work" / LATEST) for folder in (trained(name), out))
    assert wanted.keys() == found.keys()
    assert all(torch.equal(wanted[key], found[key]) for key in wanted)


def test_another_seed_is_another_beginning(setting):
    one, other = (Eagle3(128).begin(replace(setting, seed=seed), ()).parameters for seed in (0, 1))
    same = Eagle3(128).begin(setting, ()).parameters
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_a_finished_training_is_not_done_again(trained, target):
    folder, told = trained("medusa"), []
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    report = run(KINDS["medusa"], options(target), folder, resume=True, told=lambda *each: told.append(each))
    assert report.startswith("It is finished already.")
    assert told == []
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


# ---------------------------------------------------------------- what is learnt from what


@pytest.fixture(scope="module")
def batch(setting, tmp_path_factory):
    """Three texts of the language, the target's own from the sixth token on."""
    import numpy as np

    dice, samples = np.random.default_rng(5), []
    for _ in range(3):
        tokens = setting.opened.tokenizer.encode(conversation(dice))
        samples.append(Sample(tuple(tokens), 20, 6))
    folder = tmp_path_factory.mktemp("states")
    layers = {"feature_layers": (), "num_layers": NUM_LAYERS}
    return Batches(store_states(samples, setting.opened.model, setting.output, folder, **layers), 4096, 5, 0).at(0)


def laws(setting, batch):
    """[B, S, V] log-probabilities of the target after each token, from the stored states."""
    return setting.output.logits(batch.last).log_softmax(-1)


def medusa_loss(trainee, setting, batch, loss):
    """The definition: head k at token t guesses token t + 2 + k, of those that the target wrote."""
    wanted, total, weights = laws(setting, batch), 0.0, 0.0
    for k in range(3):
        texts = []
        for row in range(3):
            places = [p for p in range(batch.tokens.shape[1]) if batch.counts[row, p]]  # the law after token p
            found = []
            for t in (p - 1 - k for p in places if p >= 3):  # guessed by all three
                law = trainee._heads.logits(batch.last[row, t], k).log_softmax(-1)
                if loss == "ce":
                    found.append(-law[batch.tokens[row, t + 2 + k]])
                else:
                    found.append(F.kl_div(law, wanted[row, t + 1 + k], log_target=True, reduction="sum"))
            texts.append(torch.stack(found).mean())
        total, weights = total + 0.8**k * torch.stack(texts).mean(), weights + 0.8**k
    return float((total / weights).detach())


@pytest.mark.parametrize("loss", ["kl", "ce"])
def test_a_medusa_head_learns_the_token_that_it_will_guess(loss, setting, batch):
    trainee = Medusa(3, loss=loss).begin(setting, ())
    for name, parameter in trainee.parameters.items():
        if "weight" in name:
            parameter.data.normal_(0, 0.2, generator=torch.Generator().manual_seed(len(name)))
    assert float(trainee.loss(batch, 0.0).detach()) == pytest.approx(
        medusa_loss(trainee, setting, batch, loss), rel=1e-4
    )


def test_medusa_heads_begin_as_the_targets_own_output(setting, batch):
    trainee = Medusa(3, own_output=True).begin(setting, ())
    for k in range(3):
        found = trainee._heads.logits(batch.last, k)
        assert torch.allclose(found, setting.output.logits(batch.last), atol=1e-4)


def test_own_outputs_are_trained_and_written(target, setting, batch, tmp_path):
    kind = Medusa(2, loss="ce", own_output=True)
    trainee = kind.begin(setting, ())
    optimizer = torch.optim.SGD(trainee.parameters.values(), lr=0.1)
    trainee.loss(batch, 0.0).backward()
    optimizer.step()
    trainee.write(tmp_path / "out")
    reading = read(tmp_path / "out", Hints())
    assert reading.format == "medusa"
    outputs = [reading.head.weights[f"{k}.1.weight"] for k in range(2)]
    for k, output in enumerate(outputs):
        assert torch.equal(output, trainee.parameters[f"{k}.1.weight"].half().float())
        assert not torch.allclose(output, setting.output.weight, atol=1e-3)
    assert command_line(kind, options(target)).endswith("--precision float32 --heads 2 --loss ce --own-output")


def test_a_student_that_is_the_target_has_nothing_to_learn(target, setting, batch):
    """Which shows that laws of student and target stand at the same places."""
    student = Distill(draft=str(target), loss="kl").begin(setting, ())
    assert float(student.loss(batch, 0.0).detach()) < 1e-3
    ((total, count),) = student.accepted(batch)
    assert total / count > 0.995
    student._output = type(student._output)(student._output.weight.roll(1, 0))
    ((total, count),) = student.accepted(batch)
    assert total / count < 0.5


def test_only_the_layers_of_a_student_are_trained(setting):
    student = Distill(layers=2).begin(setting, ())
    assert not any("embed" in name or "lm_head" in name for name in student.parameters)
    assert sum("layers.1." in name for name in student.parameters) == 9
    assert student.facts(())["layers_kept"] == [0, NUM_LAYERS - 1]


def test_a_given_draft_model_is_where_training_goes_on(trained, setting, batch):
    kind = Distill(draft=str(trained("distill")))
    kind.check(setting)
    ((before, count),), ((after, _),) = (k.begin(setting, ()).accepted(batch) for k in (Distill(layers=2), kind))
    assert after / count > before / count + 0.2
    assert kind.begin(setting, ()).facts(())["layers_kept"] == [0, 1]


# ---------------------------------------------------------------- what cannot be trained


def test_options_of_a_kind_that_cannot_be_are_refused(setting, tmp_path):
    for kind, message in {
        Medusa(0): r"heads is 0; allowed: 1 to 16",
        Medusa(loss="tv"): r"loss is 'tv'; allowed: kl, ce",
        Eagle3(4): r"draft-vocabulary is 4; allowed: 16 to",
        Eagle3(10**5): r"draft-vocabulary is 100000; allowed: 16 to",
        Eagle3(recipe=Recipe(9)): r"unroll is 9; allowed: 1 to 8",
        Eagle1(recipe=Recipe(0)): r"unroll is 0; allowed: 1 to 8",
        Eagle3(layers=()): r"layers is ''; allowed: 1 to 8 different ids from 0 to 4",
        Eagle3(layers=(1, 5)): r"layers is '1,5'; allowed: 1 to 8 different ids from 0 to 4",
        Distill(): r"either --layers N or --draft ID",
        Distill(draft="x", layers=2): r"either --layers N or --draft ID",
        Distill(layers=1): r"layers is 1; allowed: 2 to 3",
        Distill(layers=NUM_LAYERS): r"layers is 4; allowed: 2 to 3",
        Distill(layers=2, loss="ce"): r"loss is 'ce'; allowed: kl, reverse-kl, tv, hybrid",
    }.items():
        with pytest.raises(InvalidOption, match=message):
            kind.check(setting)


def test_a_target_of_fewer_tokens_than_usual_has_them_all_drafted(setting):
    kind, there = Eagle3(), setting.checkpoint.config.vocab_size
    kind.check(setting)
    assert there < DRAFT_VOCABULARY
    assert kind.begin(setting, ()).stored().config.draft_vocab_size == there


@pytest.mark.parametrize("layers", [(0, 1, 3), (4, 0), (3,)])
def test_a_head_reads_the_layers_that_it_was_asked_to_read(layers, setting, tmp_path):
    kind = Eagle3(64, layers=layers)
    kind.check(setting)
    assert kind.feature_layers(setting) == layers
    kind.begin(setting, ()).write(tmp_path / "head")
    assert read_head(tmp_path / "head", NUM_LAYERS).config.feature_layers == layers


def test_a_draft_model_of_another_vocabulary_is_refused(setting):
    with pytest.raises(VocabularyMismatch):
        Distill(draft="smollm2").check(setting)


def test_end_of_turn_can_always_be_drafted(setting):
    head = Eagle3(16).begin(setting, ()).stored()
    assert END in head.draft_ids.tolist()


# ---------------------------------------------------------------- going on from a head


@pytest.mark.parametrize("name", ["eagle1", "eagle3"])
def test_a_head_is_gone_on_with_as_it_is(name, trained, setting):
    """Its weights, its draft vocabulary and its layers; a new one differs."""
    head, kind = read_head(trained(name), NUM_LAYERS), {"eagle1": Eagle1, "eagle3": Eagle3}[name]
    few = {"draft_vocab_size": 128} if name == "eagle3" else {}
    begun, new = kind(init=str(trained(name))).begin(setting, []), kind(**few).begin(setting, [])
    assert kind(init=str(trained(name))).feature_layers(setting) == head.config.feature_layers
    mine, others = begun.stored(), new.stored()
    assert mine.config == head.config
    assert (mine.draft_ids is None) == (name == "eagle1")
    assert name == "eagle1" or mine.draft_ids.equal(head.draft_ids)
    assert mine.weights.keys() == others.weights.keys()
    assert all(weight.equal(head.weights[each]) for each, weight in mine.weights.items())
    assert not all(weight.equal(others.weights[each]) for each, weight in mine.weights.items())


def test_training_goes_on_from_a_head_that_was_trained(trained, target, tmp_path):
    kind = replace(KINDS["eagle3"], draft_vocab_size=None, init=str(trained("eagle3")), recipe=Recipe(3, 0.0, 0.0))
    asked, out = options(target, steps=4), tmp_path / "out"
    work = prepare(out, identity(kind, asked), resume=False)
    shutil.copytree(trained("eagle3") / "work" / "texts", work / "texts")
    run(kind, asked, out, resume=True, told=quiet)
    first, further = card_of(trained("eagle3")), card_of(out)
    assert further["untrained"]["accepted_1"] == pytest.approx(first["held_out"]["accepted_1"], abs=1e-3)
    assert further["command"].endswith(
        f"--unroll 3 --init {trained('eagle3')} --learning-rate 0.006 --batch-tokens 1024"
    )


def test_heads_that_cannot_be_gone_on_with_are_refused_by_name(trained, setting, tmp_path):
    def refusal(kind):
        with pytest.raises((InvalidOption, CheckpointError)) as caught:
            kind.check(setting)
        return str(caught.value)

    eagle3 = str(trained("eagle3"))
    assert "an EAGLE-1 head. Train it with eagle3." in refusal(Eagle1(init=eagle3))
    assert "an EAGLE-3 head. Train it with eagle1." in refusal(Eagle3(init=str(trained("eagle1"))))
    assert "medusa:PATH for this head" in refusal(Eagle3(init=str(trained("medusa"))))
    assert "left out with --draft-vocabulary and --layers" in refusal(Eagle3(128, init=eagle3))
    assert "left out with --draft-vocabulary and --layers" in refusal(Eagle3(layers=(0, 1), init=eagle3))
    assert "is not one of a target with 4 layers" in refusal(Eagle3(init="smollm2"))
    weights = load_file(trained("eagle3") / "model.safetensors")
    weights["lm_head.weight"] += 1
    shutil.copytree(trained("eagle3"), tmp_path / "own", ignore=shutil.ignore_patterns("work"))
    save_file(weights, tmp_path / "own" / "model.safetensors")
    assert "It has its own lm_head.weight." in refusal(Eagle3(init=str(tmp_path / "own")))
