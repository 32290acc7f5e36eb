"""`outrider plan` as users type it: the formulas, what is refused, what is kept, Ctrl-C, JSON, picture and commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from outrider.cli.app import app
from outrider.cli.plan import DEFAULT_BATCHES, DEFAULT_NEW_TOKENS, DEFAULT_TEMPERATURES, DRAFTERS_OF_EMBEDDED
from outrider.planning import kept
from outrider.planning.kept import Asked, keep
from outrider.planning.plan import Cell, Interval, Plan, from_json
from outrider.planning.speedup import RoundCost, speedups
from outrider.training import curve
from training_runs import toy_target

SMALL = ("--precision", "float32", "--temperature", "0", "--batch", "2", "--max-new-tokens", "8")


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return str(toy_target(tmp_path_factory.mktemp("target")))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "the river carries the river"}\n{"prompt": "seven letters and seven letters"}\n')
    return str(path)


def typed(*arguments):
    return CliRunner().invoke(app, ["plan", *(str(argument) for argument in arguments)], env={"COLUMNS": "80"})


def refused(*arguments):
    """The one line that says why."""
    found = typed(*arguments)
    assert found.exit_code == 2, found.output
    assert found.stdout == ""
    line = found.stderr.splitlines()[-1]
    assert line.startswith("Error: ")
    return line


def shown(*arguments):
    found = typed(*arguments)
    assert found.exit_code == 0, found.stderr
    return found


# ---------------------------------------------------------------- the formulas


def test_the_formulas_answer_alone():
    found = shown("--alpha", "0.8", "--cost-ratio", "0.1", "--max-k", "5").stdout
    for speedup in speedups(0.8, RoundCost(per_token=0.1), 5):
        assert f"{float(speedup):.2f}" in found
    assert "Recommended: k = 5, 2.46 times as fast" in found
    assert "It pays above an acceptance of 0.100" in " ".join(found.split())


def test_the_formulas_say_when_not_to_speculate():
    assert "do not speculate" in shown("--alpha", "0.3", "--cost-ratio", "0.5").stdout
    never = " ".join(shown("--alpha", "1", "--cost-ratio", "2").stdout.split())
    assert "which takes more than certain acceptance" in never


def test_the_formulas_as_json():
    found = json.loads(shown("--alpha", "0.8", "--cost-ratio", "0.1", "--json").stdout)
    assert [row["k"] for row in found["table"]] == list(range(17))
    assert found["table"][4]["speedup"] == pytest.approx(float(speedups(0.8, RoundCost(per_token=0.1), 4)[4]))


# ---------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--alpha", "1.1", "--cost-ratio", "0.1"), "--alpha is 1.1; allowed: 0 to 1. Give the share"),
        (("--alpha", "-0.1", "--cost-ratio", "0.1"), "--alpha is -0.1; allowed: 0 to 1"),
        (("--alpha", "nan", "--cost-ratio", "0.1"), "--alpha is nan; allowed: 0 to 1"),
        (("--alpha", "much", "--cost-ratio", "0.1"), "--alpha is 'much'; allowed: a number, 0 to 1"),
        (("--alpha", "0.5", "--cost-ratio", "-1"), "--cost-ratio is -1.0; allowed: 0 or more. Give the time"),
        (("--alpha", "0.5", "--cost-ratio", "inf"), "--cost-ratio is inf; allowed: 0 or more"),
        (("--alpha", "0.5"), "--cost-ratio is 'missing'; allowed: a number. --alpha and --cost-ratio go together"),
        (("--cost-ratio", "0.5"), "--alpha is 'missing'"),
        (("--max-k", "3"), "--alpha is 'missing'"),
        (("--alpha", "0.5", "--cost-ratio", "0", "--max-k", "0"), "--max-k is 0; allowed: a whole number from 1"),
        (("--alpha", "0.5", "--cost-ratio", "0", "--target", "x"), "--target is 'x'; allowed: left out with --alpha"),
        (("--temperature", "-1"), "--temperature is -1.0; allowed: 0 or more"),
        (("--temperature", "warm"), "--temperature is 'warm'; allowed: a number"),
        (("--batch", "0"), "--batch is 0; allowed: a whole number, 1 or more"),
        (("--batch", "2.5"), "--batch is '2.5'; allowed: a whole number, 1 or more"),
        (("--batch", "5000"), "--batch is 5000; allowed: 1 to 1024"),
        (("--max-new-tokens", "1"), "--max-new-tokens is 1; allowed: a whole number, 2 or more"),
        (("--emit", "tgi"), "--emit is 'tgi'; allowed: vllm, sglang, llama.cpp"),
        (("--plot", "no/such/folder.png"), "allowed: a file in a folder that exists. Make the folder"),
        (("--plot", "picture.xyz"), "--plot is 'picture.xyz'; allowed: a file that ends in .png, .svg, .pdf, .jpg"),
        (("--plot", "."), "--plot is '.'; allowed: a file that ends in .png"),
        (("--alpha", "0.5", "--cost-ratio", "nan"), "--cost-ratio is nan; allowed: 0 or more"),
        (("--temperature", "nan"), "--temperature is nan; allowed: 0 or more"),
        (("--drafter", "magic"), "--drafter is 'magic'; allowed: none, ngram"),
        (("--drafter", "none"), "--drafter is 'none'; allowed: one that drafts"),
        (("--drafter", "suffix:depth=1"), "an option of the drafter suffix is 'depth'"),
        (("--target", "nothing-here"), "There is no model 'nothing-here'"),
        (("--target", ""), "There is no model ''"),
        (("--precision", "int3"), "--precision is 'int3'; allowed: auto, float32"),
        (("--threads", "0"), "--threads is 0; allowed: a whole number, 1 or more"),
    ],
)
def test_what_can_be_refused_without_a_target_is(arguments, message):
    assert message in refused(*arguments)


def test_a_picture_that_could_not_be_drawn_is_refused_at_the_start(monkeypatch):
    monkeypatch.setattr(curve, "find_spec", lambda name: None)
    message = refused("--plot", "out.png")
    assert message.startswith("Error: --plot is 'out.png'")
    assert "pip install 'outrider[plot]'" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one prompt"),
        ("\n\n", "at least one prompt"),
        ('{"prompt": "the river"}\nnot json\n', "1 of 2 lines are broken: line 2: "),
        ('{"prompt": "' + 300 * "river " + '"}\n', "tokens in prompt 1'; allowed: at most 248: the target's context"),
    ],
)
def test_prompts_that_cannot_be_used_are_refused(text, message, target, tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text(text)
    found = refused("--target", target, "--prompts", path, "--drafter", "suffix", *SMALL)
    assert message in found
    assert "--prompts is " in found


def test_more_new_tokens_than_the_context_holds_are_refused(target, prompts):
    found = refused("--target", target, "--prompts", prompts, *SMALL[:-1], "256")
    assert "--max-new-tokens is 256; allowed: 2 to 255. The target's context is 256 tokens." in found


def test_prompts_that_are_not_there_are_refused(target):
    assert "--prompts is 'missing.jsonl'" in refused("--target", target, "--prompts", "missing.jsonl", *SMALL)


# ---------------------------------------------------------------- measured and kept


@pytest.fixture
def measured(target, prompts):
    """Arguments, and what came of them."""
    arguments = ("--target", target, "--prompts", prompts, "--drafter", "suffix", "--drafter", "early-exit:1", *SMALL)
    return arguments, shown(*arguments)


def test_a_plan_is_measured_shown_and_kept(measured, tmp_path):
    arguments, first = measured
    table = first.stdout
    assert "Temperature 0, 2 texts together" in table
    assert "k=1" in table
    assert "early-exit:1" in table
    assert max(map(len, table.splitlines())) <= 80
    assert "do not speculate" in table.lower() or "Recommended: " in table
    assert "2 prompts, 8 tokens of each" in " ".join(table.split())
    begun = time.monotonic()
    again = shown(*arguments)
    assert again.stdout == table
    assert "timing" not in again.stderr
    assert time.monotonic() - begun < 100
    fresh = shown(*arguments, "--fresh")
    assert "timing" in fresh.stderr
    assert fresh.stdout != table  # other seconds


def test_json_is_a_plan_and_has_the_advice(measured):
    arguments, _ = measured
    found = json.loads(shown(*arguments, "--json").stdout)
    plan = from_json(json.dumps(found))
    assert [advice["batch"] for advice in found["recommendations"]] == [2]
    assert found["recommendations"][0]["reason"]
    assert {cell.drafter for cell in plan.cells} == {"suffix", "early-exit:1"}
    assert plan.precision == "float32"
    assert plan.drafts


def test_a_plan_of_another_machine_is_measured_again_and_that_is_said(measured, tmp_path):
    arguments, _ = measured
    (path,) = (tmp_path / "cache" / "plans").iterdir()
    plan = from_json(path.read_text())
    asked = Asked(**{name: tuple(v) if isinstance(v, list) else v for name, v in plan.asked.items()})
    assert asked.path == path
    keep(replace(plan, machine={**plan.machine, "processor": "Other 3000"}), asked)
    again = shown(*arguments)
    assert "of another machine (processor Other 3000, here " in " ".join(again.stderr.split())
    assert "timing" in again.stderr
    assert from_json(path.read_text()).machine == plan.machine


def a_kept_plan(**changes):
    """Of the embedded model, by default; no measured figure."""
    asked = Asked("smollm2", DRAFTERS_OF_EMBEDDED, DEFAULT_TEMPERATURES, DEFAULT_BATCHES)
    assert asked.max_new_tokens == DEFAULT_NEW_TOKENS
    cells = tuple(
        Cell(drafter, k, temperature, batch, Interval(1, 1.5, 2), Interval(0.9, 2 / batch + 0.1 * k, 3))
        for drafter in DRAFTERS_OF_EMBEDDED
        for k in (1, 2)
        for temperature in DEFAULT_TEMPERATURES
        for batch in DEFAULT_BATCHES
    )
    here = kept.this_machine(), kept.this_model("smollm2", DRAFTERS_OF_EMBEDDED)
    plan = Plan(asked.as_dict(), *here, "q4", 12, cells=cells, auto="suffix+eagle:smollm2", **changes)
    keep(plan, asked)
    return plan


def test_a_kept_plan_is_shown_without_torch_and_without_what_other_commands_need():
    a_kept_plan()
    needless = "torch", "transformers", "numpy", "rich.progress", "outrider.cli.bench", "outrider.cli.train"
    probe = (
        "import sys; from outrider.cli import main; sys.argv = ['outrider', 'plan', '--emit', 'llama.cpp']\n"
        f"try: main()\nfinally: sys.stderr.write(' '.join({set(needless)} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "to stop paying at a batch of" in " ".join(found.stdout.split())
    assert "llama-server -m " in found.stdout
    assert found.stderr == ""


def test_a_partial_plan_is_marked():
    a_kept_plan(missing=("ngram",))
    asked = Asked("smollm2", DRAFTERS_OF_EMBEDDED, DEFAULT_TEMPERATURES, DEFAULT_BATCHES)
    plan = kept.find(asked).plan
    assert plan is not None
    assert plan.partial


def test_a_picture_that_cannot_be_written_is_refused(tmp_path):
    a_kept_plan()
    (tmp_path / "out.png").mkdir()
    assert "out.png'; allowed: a file that ends in" in refused("--plot", tmp_path / "out.png")
    (tmp_path / "link.png").symlink_to(tmp_path / "gone" / "out.png")
    assert "allowed: a file that can be written. No such file" in refused("--plot", tmp_path / "link.png")


def test_the_picture_is_drawn(tmp_path):
    a_kept_plan()
    shown("--plot", tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("server", "words"),
    [("vllm", "vllm serve HuggingFaceTB/SmolLM2-135M-Instruct"), ("sglang", "python -m sglang.launch_server")],
)
def test_a_launch_command_names_its_dialect(server, words):
    a_kept_plan()
    lines = shown("--emit", server).stdout.splitlines()
    assert lines[-1].startswith(words)
    assert [line for line in lines if line.lower().startswith(f"# {server}")]


def test_with_json_the_launch_command_goes_to_the_notes():
    a_kept_plan()
    found = shown("--json", "--emit", "vllm")
    json.loads(found.stdout)
    assert "vllm serve" in found.stderr


def test_ctrl_c_shows_and_keeps_what_was_measured_and_the_same_command_goes_on(target, prompts, tmp_path):
    names = ("suffix", "early-exit:1", "early-exit:2", "early-exit:3")
    drafters = [word for name in names for word in ("--drafter", name)]
    arguments = ["plan", "--target", target, "--prompts", prompts, *drafters, *SMALL[:-1], "150", "--threads", "1"]
    command = [sys.executable, "-m", "outrider", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("walking rounds"):
                break
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=100)
    assert process.returncode == 130, errors
    assert "suffix" in out
    assert "PARTIAL: interrupted before these were measured: early-exit:1, early-exit:2, early-exit:3" in " ".join(
        out.split()
    )
    assert "Interrupted. What was measured is kept; to go on: outrider plan" in " ".join(errors.split())
    rest = subprocess.run(command, capture_output=True, text=True, timeout=200, env=dict(os.environ))
    assert rest.returncode == 0, rest.stderr
    assert "timing:" not in rest.stderr  # the target's costs were kept
    assert "early-exit:3" in rest.stdout
