"""`outrider certify` as users type it: what comes out, what is refused before a model is loaded, exit codes."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from outrider.certifying import bugs, run
from outrider.cli.app import app
from training_runs import toy_target

FEW = ("--samples", "100", "--distance", "0.7", "--quick", "--precision", "float32", "--drafter", "suffix")


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return str(toy_target(tmp_path_factory.mktemp("target")))


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    evil = {"prompt": "<script>river</script> the river the river carries the river the river"}
    path.write_text(json.dumps(evil) + '\n{"prompt": "seven letters and seven letters and seven letters"}\n')
    return str(path)


def typed(*arguments):
    return CliRunner().invoke(app, ["certify", *(str(argument) for argument in arguments)], env={"COLUMNS": "160"})


def refused(*arguments):
    found = typed(*arguments)
    assert found.exit_code == 2, found.output
    return " ".join(found.output.split())


def test_a_target_is_certified_and_the_certificate_written(target, prompts, tmp_path):
    files = ("--json", tmp_path / "c.json", "--html", tmp_path / "c.html")
    found = typed("--target", target, "--prompts", prompts, *FEW, "--temperature", "0", *files)
    assert found.exit_code == 0, found.output
    assert "CERTIFIED" in found.stdout
    assert "It does not say that" in " ".join(found.stdout.split())
    record = json.loads((tmp_path / "c.json").read_text())
    assert record["certified"] is True
    assert record["provenance"]["target"] == target
    assert "<script" not in (tmp_path / "c.html").read_text()


def test_json_on_standard_output_is_one_object(target, prompts):
    found = typed("--target", target, "--prompts", prompts, *FEW, "--temperature", "0", "--json", "-")
    assert json.loads(found.stdout)["verdict"] == "CERTIFIED"


def test_a_lossy_rule_ends_with_1_and_its_distance(target, prompts):
    found = typed("--target", target, "--prompts", prompts, *FEW, "--rule", "typical", "--allow-lossy")
    assert found.exit_code == 1, found.output
    assert "LOSSY, not certified" in found.stdout
    assert "measured total variation" in " ".join(found.stdout.split())


def test_a_wrong_engine_ends_with_1_and_names_the_tier(target, prompts, monkeypatch):
    honest = run.decode

    def decode(engine, *arguments, **told):
        with run.changed(engine, rule=bugs.Favours(engine.rule, 0.05)):
            honest(engine, *arguments, **told)

    init = run.Harvest.__init__
    monkeypatch.setattr(run, "decode", decode)
    monkeypatch.setattr(run.Harvest, "__init__", lambda self, rule, *rest: init(self, bugs.Favours(rule, 0.05), *rest))
    found = typed("--target", target, "--prompts", prompts, *FEW, "--temperature", "1")
    assert found.exit_code == 1, found.output
    assert "law: total variation of a round is" in " ".join(found.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--samples", "99"), "--samples is 99; allowed: a whole number, 100 or more"),
        (("--samples", "many"), "--samples is 'many'"),
        (("--samples", "200", "--distance", "0.1"), "--samples is 200; allowed: at least 2,397"),
        (("--distance", "2"), "--distance is 2.0; allowed: a number between 0 and 1"),
        (("--confidence", "x"), "--confidence is 'x'"),
        (("--rule", "typical"), "--rule is 'typical'"),
        (("--rule", "mine"), "--rule is 'mine'"),
        (("--temperature", "-1"), "--temperature is -1.0"),
        (("--prompts", "nowhere.jsonl"), "--prompts is 'nowhere.jsonl'"),
        (("--json", "a.json", "--html", "a.json"), "--html is 'a.json'; allowed: another file than --json"),
        (("--json", "nowhere/a.json"), "--json is 'nowhere/a.json'; allowed: a file that can be written"),
        (("--html", "/proc/a.html"), "--html is '/proc/a.html'; allowed: a file that can be written"),
        (("--target", "nowhere/nothing.gguf"), "nowhere/nothing.gguf"),
    ],
)
def test_what_cannot_be_is_refused_before_a_model_is_loaded(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("outrider.loading.load", lambda *arguments, **options: pytest.fail("it loaded a model"))
    assert message in refused(*arguments)
    assert list(tmp_path.iterdir()) == []
