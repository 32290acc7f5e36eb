"""What people see of a training that runs, and what it says it has cost."""

from __future__ import annotations

import io
import json
import os
import signal
import time

import pytest
from rich.console import Console
from typer.testing import CliRunner

from outrider.cli import progress
from outrider.cli.app import app
from outrider.cli.progress import EVERY, lines, watching
from outrider.cli.train import _how_to_resume
from outrider.training import judge
from outrider.training.command import run
from outrider.training.judge import TEMPERATURES, in_words
from outrider.training.medusa import Medusa
from outrider.training.run import Options
from outrider.training.spent import Spent
from outrider.training.trainer import SCORE
from training_runs import toy_target

SMALL = {"num_tokens": 1000, "steps": 4, "max_answer": 40, "max_prompt": 60, "looks": 2, "precision": "float32"}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return toy_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module", autouse=True)
def short_walks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "TOKENS", 16)
        patch.setattr(judge, "PROMPTS", 3)
        yield


def press_in(stage):
    """Presses Ctrl-C once, where a stage is told of."""
    pressed = []

    def told(what, *_):
        if what.startswith(stage) and not pressed:
            pressed.append(what)
            os.kill(os.getpid(), signal.SIGINT)

    return told


def quiet(*_):
    """Watches nothing."""


# ---------------------------------------------------------------- lines and bars


def shown_lines(*told):
    """Lines that are shown of (seconds, what, done, total)."""
    shown, now = [], [0.0]
    show = lines(shown.append, lambda: now[0])
    for seconds, *rest in told:
        now[0] = seconds
        show(*rest)
    return shown


def test_a_line_is_shown_as_a_stage_begins_and_then_one_at_most_every_half_minute():
    assert shown_lines(
        (0, "loading smollm2", 1, 30),
        (1, "loading smollm2", 30, 30),
        (2, "writing texts", 0, 400_000),
        (31.9, "writing texts", 11_000, 400_000),
        (32, "writing texts", 12_000, 400_000),
        (33, "writing texts", 13_000, 400_000),
        (90, "training", 0, 800),
        (91, "training, loss 1.5", 1, 800),
        (120, "training, loss 0.5", 20, 800),
    ) == [
        "loading smollm2: 1 of 30 layers",
        "writing texts: 0 of 400,000 tokens",
        "writing texts: 12,000 of 400,000 tokens",
        "training: 0 of 800 steps",
        "training, loss 0.5: 20 of 800 steps",
    ]
    assert EVERY == 30


def test_what_a_look_found_is_said_in_words():
    record = {"walked_0.0": 1.419, "walked_0.8": 1.38, SCORE: 1.1249}
    assert len(TEMPERATURES) == 2
    wanted = "step 1,300: 1.42 tokens per round at temperature 0, 1.38 at 0.8; predicted speed-up 1.12"
    assert in_words(1300, record) == wanted


def test_a_terminal_shows_bars_and_the_lines_to_keep_above_them(monkeypatch):
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=100, color_system=None)
    monkeypatch.setattr(progress, "Console", lambda stderr: terminal)
    with watching() as watcher:
        watcher.told("training", 0, 800)
        watcher.noted("step 0: [bold]as it is[/bold]")
        watcher.told("training, loss 0.5", 800, 800)
    assert "step 0: [bold]as it is[/bold]" in screen.getvalue()
    assert "800/800" in screen.getvalue()
    assert "of 800 steps" not in screen.getvalue()


def test_a_pipe_gets_lines_and_no_bars(target, tmp_path):
    arguments = ["train", "medusa", "--target", str(target), "--out", str(tmp_path / "out"), "--precision", "float32"]
    found = CliRunner().invoke(app, [*arguments, "--tokens", "1000", "--steps", "3"])
    assert found.exit_code == 0, found.output
    said = found.stderr.splitlines()
    stages = [line for line in said if " of " in line and not line.startswith(("Trained", "Temperature"))]
    assert [line.partition(":")[0] for line in stages] == [
        f"loading {target}",
        "writing texts",
        "the target's states",
        "training",
    ]
    assert stages[1:2] + stages[3:] == ["writing texts: 0 of 1,000 tokens", "training: 0 of 3 steps"]
    looks = [line for line in said if line.startswith("step ")]
    assert [line.partition(":")[0] for line in looks] == ["step 0", "step 1", "step 2", "step 3"]
    assert all(" tokens per round at temperature 0, " in line for line in looks)
    assert "━" not in found.stderr


def test_the_farewell_does_not_promise_texts_that_are_lost(tmp_path):
    assert _how_to_resume(tmp_path) == "Interrupted; nothing was done yet."
    work = tmp_path / "work"
    work.mkdir()
    (work / "options.json").write_text("{}")
    assert "What was done is kept, but for the part of the texts that was begun; to go on" in _how_to_resume(tmp_path)
    (work / "states").mkdir()
    assert "What was done is kept; to go on" in _how_to_resume(tmp_path)


# ---------------------------------------------------------------- what it costs


def test_seconds_are_summed_by_part_over_all_runs(tmp_path):
    path = tmp_path / "seconds.json"
    first = Spent(path, time.perf_counter() - 5)
    first.begin("texts")
    assert first.keep() >= 5
    second = Spent(path, time.perf_counter() - 7)
    second.begin("texts")
    second.begin("training")
    assert second.keep() >= 12
    kept = json.loads(path.read_text())
    assert list(kept) == ["loading", "texts", "training"]
    assert 12 <= kept["loading"] < 100
    assert kept["texts"] < 5


def test_seconds_after_the_last_time_they_were_kept_are_lost_and_no_others(tmp_path):
    path = tmp_path / "seconds.json"
    killed = Spent(path, time.perf_counter() - 5)
    killed.begin("texts")
    killed._since -= 1000
    assert 5 <= Spent(path, time.perf_counter()).keep() < 1000


def test_a_card_tells_what_all_runs_cost_together(target, tmp_path):
    out, kind, wanted = tmp_path / "out", Medusa(2), Options(str(target), **SMALL)
    path, before = out / "work" / "seconds.json", dict[str, float]()
    for stage, resume in (("writing", False), ("the target's", True), ("training", True)):
        with pytest.raises(KeyboardInterrupt):
            run(kind, wanted, out, resume=resume, told=press_in(stage))
        now = json.loads(path.read_text())
        assert now.keys() >= before.keys()
        assert all(now[part] > seconds for part, seconds in before.items() if part in ("loading", "texts"))
        # An hour more, as if the run had taken it: nothing that was kept may be forgotten.
        before = {part: seconds + 3600 for part, seconds in now.items()}
        path.write_text(json.dumps(before))
    run(kind, wanted, out, resume=True, told=quiet)
    card = json.loads((out / "card.json").read_text())
    assert list(card["seconds"]) == ["loading", "texts", "states", "training"]
    assert card["seconds"]["loading"] > 3 * 3600
    assert card["seconds"]["training"] > 3600
    assert card["minutes"] == pytest.approx(sum(card["seconds"].values()) / 60)


def test_looks_and_parts_write_the_seconds_down(target, tmp_path):
    out, kept = tmp_path / "out", []
    path = out / "work" / "seconds.json"

    def note(line):
        kept.append((line, json.loads(path.read_text()).get("training", 0.0)))

    run(Medusa(2), Options(str(target), **SMALL), out, resume=False, told=quiet, noted=note)
    assert [line.partition(":")[0] for line, _ in kept] == ["step 0", "step 2", "step 4"]
    seconds = [each for _, each in kept]
    assert seconds == sorted(set(seconds))
