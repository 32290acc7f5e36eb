"""`outrider train` as users type it: what is refused before anything is written, Ctrl-C, time and memory."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from typer.testing import CliRunner

from checkpoints import byte_level_tokenizer, save_tokenizer
from outrider.cli.app import app
from outrider.drafters.none import NoDrafter
from outrider.engine import Engine
from outrider.errors import InvalidOption
from outrider.models.opening import open_model
from outrider.planning.pace import FixedPace
from outrider.rules import choose_rule
from outrider.training import budget, curve
from outrider.training.budget import tokens_within
from outrider.training.command import command_line, run
from outrider.training.distill import Distill
from outrider.training.eagle import Recipe
from outrider.training.eagle_kind import DRAFT_VOCABULARY, Eagle1, Eagle3
from outrider.training.kind import Setting
from outrider.training.medusa import Medusa
from outrider.training.memory import _Counter, batch_within, slots_within
from outrider.training.run import NUM_STEPS, NUM_TOKENS, Options, identity
from outrider.training.texts import opening
from outrider.training.typed import RANGES, allowed
from outrider.training.typed import typed as typed_name
from outrider.training.work import prepare
from training_runs import HIDDEN_SIZE, toy_target

SMALL = ("--precision", "float32", "--tokens", "1000", "--steps", "4")


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return toy_target(tmp_path_factory.mktemp("target"))


def typed(*arguments):
    return CliRunner().invoke(app, ["train", *(str(argument) for argument in arguments)])


class Stop(Exception):
    """Ends a training where it is told of its progress."""


def stop_at(wanted):
    def told(what, done, total):
        if what.startswith(wanted):
            raise Stop

    return told


def options(target, **changes):
    """Of a training that is small in every way."""
    small = {"num_tokens": 1000, "steps": 4, "max_answer": 40, "max_prompt": 60, "looks": 1, "precision": "float32"}
    return Options(str(target), **{**small, **changes})


def refused(out, *arguments):
    """The message of a command that exits with 2 and leaves OUT as it was."""
    before = sorted(out.rglob("*")) if out.is_dir() else out.exists()
    found = typed(*arguments, "--out", out)
    assert found.exit_code == 2, found.output
    assert before == (sorted(out.rglob("*")) if out.is_dir() else out.exists())
    return " ".join(found.output.split())


# ---------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("eagle3", "--steps", "0"), "--steps is 0; allowed: 1 to 10,000,000"),
        (("eagle3", "--steps", "many"), "--steps is 'many'; allowed: a whole number"),
        (("eagle1", "--tokens", "999"), "--tokens is 999; allowed: 1,000 to"),
        (("medusa", "--memory", "0"), "--memory is 0.0; allowed: 0.5 to"),
        (("medusa", "--minutes", "0.5"), "--minutes is 0.5; allowed: 1 to"),
        (("medusa", "--minutes", "nan"), "--minutes is nan; allowed: 1 to"),
        (("distill", "--seed", "-1", "--layers", "2"), "--seed is -1; allowed: 0 to"),
        (("eagle3", "--precision", "int3"), "precision is 'int3'; allowed: auto, float32"),
        (("eagle3", "--threads", "0"), "threads is 0; allowed: a whole number, 1 or more"),
        (("eagle3", "--target", "nothing-here"), "There is no model 'nothing-here'"),
        (("eagle3", "--resume"), "a folder in which a training was begun"),
        (("eagle1", "--learning-rate", "0"), "--learning-rate is 0.0; allowed: above 0 to 1"),
        (("medusa", "--learning-rate", "1.5"), "--learning-rate is 1.5; allowed: above 0 to 1"),
        (("distill", "--learning-rate", "nan", "--layers", "2"), "--learning-rate is nan; allowed: above 0 to 1"),
        (("medusa", "--batch-tokens", "63"), "--batch-tokens is 63; allowed: 64 to"),
        (("eagle1", "--unroll", "0"), "--unroll is 0; allowed: 1 to 8"),
        (("eagle3", "--unroll", "9"), "--unroll is 9; allowed: 1 to 8"),
        (("eagle3", "--layers", "2,x"), "--layers is '2,x'; allowed: whole numbers, such as 2,15,27"),
        (("medusa", "--device", "tpu"), "--device is 'tpu'; allowed: cpu, cuda"),
    ],
)
def test_what_can_be_refused_without_a_target_is(arguments, message, tmp_path):
    assert message in refused(tmp_path / "out", *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("eagle3", "--draft-vocabulary", "4"), "--draft-vocabulary is 4; allowed: 16 to "),
        (("eagle3", "--draft-vocabulary", "100000"), "--draft-vocabulary is 100000; allowed: 16 to "),
        (("eagle1", "--init", "nothing-here"), "There is no model 'nothing-here'"),
        (("eagle3", "--layers", "0,5"), "--layers is '0,5'; allowed: 1 to 8 different ids from 0 to 4"),
        (("eagle3", "--layers", "-1,2"), "--layers is '-1,2'; allowed: 1 to 8 different ids from 0 to 4"),
        (("eagle3", "--layers", "2,2"), "--layers is '2,2'; allowed: 1 to 8 different ids from 0 to 4"),
        (("medusa", "--heads", "17"), "--heads is 17; allowed: 1 to 16"),
        (("distill",), "either --layers N or --draft ID"),
        (("distill", "--layers", "4"), "--layers is 4; allowed: 2 to 3"),
        (("medusa", "--data", "missing.jsonl"), "--data is 'missing.jsonl'; allowed: a JSONL file"),
    ],
)
def test_what_does_not_fit_the_target_is_refused(arguments, message, target, tmp_path):
    assert message in refused(tmp_path / "out", *arguments, "--target", target, "--precision", "float32")


def test_a_folder_that_is_not_empty_is_refused(target, tmp_path):
    (tmp_path / "mine").write_text("precious")
    assert "does not exist or is empty. Or add --resume" in refused(tmp_path, "eagle3", "--target", target)


def test_broken_data_is_refused_with_the_numbers_of_its_lines(target, tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "the river"}\nnot json\n{"prompt": 3}\n')
    message = refused(tmp_path / "out", "medusa", "--target", target, "--data", data, *SMALL)
    assert "2 of 3 lines are broken: line 2: " in message
    assert "line 3: " in message


def test_prompts_that_are_all_too_long_are_refused(target, tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"prompt": 200 * "river "}) + "\n")
    message = refused(tmp_path / "out", "medusa", "--target", target, "--data", data, *SMALL)
    assert "allowed: prompts of at most 64 tokens. The shortest of 1 has" in message


def test_a_target_without_a_template_needs_data(target, tmp_path):
    plain, data = tmp_path / "plain", tmp_path / "data.jsonl"
    plain.mkdir()
    for path in target.iterdir():
        if path.suffix == ".safetensors" or path.name == "config.json":
            (plain / path.name).write_bytes(path.read_bytes())
    save_tokenizer(byte_level_tokenizer(), plain, chat_template=None)
    assert "This target has no chat template" in refused(tmp_path / "out", "medusa", "--target", plain, *SMALL)
    data.write_text('{"prompt": "the river"}\n{"prompt": "seven letters"}\n')
    with pytest.raises(Stop):
        run(Medusa(2), options(plain, data=str(data)), tmp_path / "out", resume=False, told=stop_at("training"))
    texts = (tmp_path / "out" / "work" / "texts" / "000.jsonl").read_text().splitlines()
    tokenizer = open_model(str(plain), "float32", torch.device("cpu"), None).tokenizer
    found = {tokenizer.decode(text["tokens"][: text["answer"]]) for text in map(json.loads, texts)}
    assert found == {"the river", "seven letters"}


def test_a_picture_that_could_not_be_drawn_is_refused_at_the_start(target, tmp_path, monkeypatch):
    monkeypatch.setattr(curve, "find_spec", lambda name: None)
    assert "pip install 'outrider[plot]'" in refused(tmp_path / "out", "medusa", "--target", target, *SMALL)


# ---------------------------------------------------------------- going on


def test_resuming_with_other_options_is_refused_by_name(target, tmp_path):
    out = tmp_path / "out"
    begun = Options(str(target), num_tokens=1000, steps=4, precision="float32")
    prepare(out, identity(Medusa(), begun), resume=False)
    message = refused(out, "medusa", "--target", target, *SMALL[:-1], "5", "--heads", "3", "--resume")
    assert "These differ: heads was 4, is 3, steps was 4, is 5" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--learning-rate", "0.01"), "learning-rate was 0.002, is 0.01"),
        (("--batch-tokens", "64"), "batch-tokens was 2048, is 64"),
        (("--unroll", "2"), "unroll was 5, is 2"),
        (("--layers", "0,2"), "layers was None, is [0, 2]"),
    ],
)
def test_what_a_kind_was_given_is_what_it_must_be_resumed_with(arguments, message, target, tmp_path):
    out = tmp_path / "out"
    prepare(out, identity(Eagle3(), Options(str(target), num_tokens=1000, steps=4, precision="float32")), resume=False)
    assert f"These differ: {message}" in refused(out, "eagle3", "--target", target, *SMALL, *arguments, "--resume")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one here")
def test_a_device_that_is_not_there_is_refused_by_name(target, tmp_path):
    message = refused(tmp_path / "out", "medusa", "--target", target, *SMALL, "--device", "cuda")
    assert "--device is 'cuda'; allowed: cpu, or a device this torch can use" in message


DEFAULTS = {"eagle3": Eagle3(), "eagle1": Eagle1(), "medusa": Medusa(), "distill": Distill(layers=2)}


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_help_tells_ranges_and_defaults(name):
    found = CliRunner().invoke(app, ["train", name, "--help"], env={"COLUMNS": "400", "TERM": "dumb"})
    lines = {line.split()[1]: line for line in found.stdout.splitlines() if line.startswith("│    --")}
    lines |= {line.split()[2]: line for line in found.stdout.splitlines() if line.startswith("│ *  --")}
    kind = {each: getattr(DEFAULTS[name], each, None) for each in ("learning_rate", "tokens_per_batch", "num_heads")}
    kind["recipe.steps"] = getattr(getattr(DEFAULTS[name], "recipe", None), "steps", None)
    defaults = {**kind, "num_tokens": f"{NUM_TOKENS:,}, or", "steps": f"{NUM_STEPS:,}, or", "seed": 0, "memory": "no"}
    for field in RANGES:
        line = lines.get(f"--{typed_name(field)}")
        assert (line is None) == (field in kind and kind[field] is None)
        if line is not None:
            assert allowed(field) in line
            assert field == "minutes" or f"[default: ({defaults[field]}" in line
    if name == "eagle3":
        assert f"({DRAFT_VOCABULARY})" in lines["--draft-vocabulary"]
        assert {"--layers", "--device"} <= lines.keys()


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (Eagle3(), ""),
        (Eagle3(64, layers=(0, 2), recipe=Recipe(3)), "--draft-vocabulary 64 --layers 0,2 --unroll 3"),
        (Eagle1(learning_rate=0.01, tokens_per_batch=512), "--learning-rate 0.01 --batch-tokens 512"),
        (Medusa(2, "ce", own_output=True), "--heads 2 --loss ce --own-output"),
    ],
)
def test_the_command_of_a_card_makes_the_same_training_again(kind, wanted, target, tmp_path):
    """Going on with it, only a seed that was another one differs."""
    asked, out = Options(str(target), seed=3), tmp_path / "out"
    line = command_line(kind, asked)
    assert line == f"outrider train {kind.command} --out FOLDER --target {target} --seed 3 {wanted}".rstrip()
    prepare(out, identity(kind, replace(asked, seed=4)), resume=False)
    message = refused(out, *line.replace("--out FOLDER ", "").split()[2:], "--resume")
    assert message.endswith("These differ: seed was 4, is 3.")


def test_ctrl_c_finishes_the_step_saves_and_says_how_to_go_on(target, tmp_path):
    out = tmp_path / "out"
    arguments = ["train", "medusa", "--target", str(target), "--tokens", "1000", "--steps", "100000", "--out", str(out)]
    command = [sys.executable, "-m", "outrider", *arguments, "--precision", "float32", "--threads", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        latest, end = out / "work" / "latest.safetensors", time.monotonic() + 100
        while not latest.is_file() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        saved = latest.stat().st_mtime_ns
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=100)
    assert process.returncode == 130, errors
    shown = " ".join(errors.split())
    assert "Interrupted. What was done is kept; to go on: outrider train medusa" in shown
    assert f"--out {out} --precision float32 --threads 1 --resume" in shown
    assert latest.stat().st_mtime_ns > saved


# ---------------------------------------------------------------- time and memory


def sizes_of(out):
    return json.loads((out / "work" / "options.json").read_text())["chosen"]


def test_minutes_become_tokens_and_steps_that_a_resumed_training_keeps(target, tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "WRITING_SHARE", 0.001)
    out, wanted, before = tmp_path / "out", options(target, num_tokens=None, steps=None, minutes=1), dict[str, int]()
    for place, resume in (("writing", False), ("training", True), ("training", True)):
        with pytest.raises(Stop):
            run(Medusa(2), wanted, out, resume=resume, told=stop_at(place))
        now = json.loads((out / "work" / "options.json").read_text())["chosen"]
        assert before.items() <= now.items()
        before = now
    assert now["num_tokens"] == budget.FEWEST_TOKENS
    assert now["steps"] > budget.FEWEST_STEPS


def test_more_minutes_are_more_tokens(target, setting):
    begun = [opening(setting.opened.tokenizer)]
    rule = choose_rule("auto", "point_mass", allow_lossy=False)
    engine = Engine(setting.opened.model, NoDrafter(), rule, FixedPace(0), slots=4, context_length=100)
    short, long = (tokens_within(minutes, engine, begun) for minutes in (5, 5000))
    assert engine.num_unfinished == 0
    assert long > 50 * short > 50_000


@pytest.fixture(scope="module")
def setting(target):
    return Setting(open_model(str(target), "float32", torch.device("cpu"), None), str(target), 0)


def test_less_memory_means_smaller_batches_until_it_is_refused(setting):
    kind = Eagle3(128)
    trainee, features = kind.begin(setting, ()), len(kind.feature_layers(setting)) * HIDDEN_SIZE

    def batch(gigabytes):
        return batch_within(gigabytes, setting, trainee, features, 100, 4096)

    sizes = [batch(gigabytes) for gigabytes in (64, 1.2, 1.1, 1.05, 1.02)]
    assert sizes[0] == 4096
    assert all(large > small >= 100 for large, small in pairwise(sizes))
    assert batch(1.1) == sizes[2]
    with pytest.raises(InvalidOption, match=r"memory is 0.9; allowed: 1\.\d or more, in GB"):
        batch(0.9)


def test_less_memory_means_fewer_texts_side_by_side(setting):
    slots = [slots_within(gigabytes, setting, 200, 48) for gigabytes in (8, 1.01, 1.005, 1.002)]
    assert slots[0] == 48
    assert all(more > fewer >= 1 for more, fewer in pairwise(slots))
    with pytest.raises(InvalidOption, match=r"memory is 1.0; allowed: 1\.1 or more"):
        slots_within(1.0, setting, 200, 48)


def test_memory_is_counted_from_birth_to_death():
    with _Counter() as counter:
        first = torch.zeros(1000)
        second = first + 1
        view = second[10:]
        del first
        third = view * 2
        del second, view, third
        torch.zeros(100)
    assert counter.peak == 4 * (1000 + 1000)  # and not 990 more, nor 100: they came after the first was gone


def test_too_little_memory_is_refused_before_anything_is_written(target, tmp_path):
    message = refused(tmp_path / "out", "eagle3", "--target", target, *SMALL, "--memory", "0.5")
    assert "--memory is 0.5; allowed: 1.1 or more" in message
