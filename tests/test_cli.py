from __future__ import annotations

import importlib.metadata
import inspect
import io
import itertools
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

from outrider.cli import main
from outrider.cli.app import answer, app
from outrider.cli.chat import Chat
from outrider.cli.options import MODEL_OPTIONS, REAL, TEXT_OPTIONS, WHOLE
from outrider.cli.runs import Comparison, decode, plain_twin
from outrider.cli.screen import Screen, open_screen
from outrider.drafters import CATALOGUE, NoDrafter, SuffixDrafter
from outrider.engine import Engine
from outrider.errors import InvalidOption
from outrider.generation import DEFAULT_MAX_NEW_TOKENS, TextEngine
from outrider.loading import load
from outrider.options import Sampling
from outrider.planning.pace import MAX_K, AutoPace, FixedPace
from outrider.rules import RULES
from toy import BrokenDrafter, ByteTokenizer, ScriptedDrafter, TableModel, rule_law

ASSISTANT = 256 + ByteTokenizer.specials.index("<assistant>")
RHYME = "row the boat, row the boat, row the boat, gently down the stream"


def toy_engine(reply=RHYME, *, drafter=None, rule="point-mass", certainty=0.9, context_length=600, k=4):
    """A target whose likeliest answer to every message is `reply`."""
    script = [*reply.encode(), ByteTokenizer.eos_id]

    def next_token(context):
        start = len(context) - context[::-1].index(ASSISTANT)
        return script[min(len(context) - start, len(script) - 1)]

    law = rule_law(ByteTokenizer.vocab_size, next_token, certainty)
    target = TableModel(ByteTokenizer.vocab_size, order=None, law=law, context_length=context_length)
    drafter = SuffixDrafter() if drafter is None else drafter
    return TextEngine(Engine(target, drafter, RULES[rule], FixedPace(k)), ByteTokenizer())


@pytest.fixture(scope="module")
def smollm2_engine(smollm2, smollm2_tokenizer):
    engine = Engine(smollm2("q4"), SuffixDrafter(), RULES["point-mass"], AutoPace(), context_length=512)
    return TextEngine(engine, smollm2_tokenizer)


class Shown(Screen):
    """A screen that remembers: `out` is the text, `err` everything else."""

    def __init__(self, *, quiet=False, terminal=False, json=False, environ=None):
        settings = {
            "markup": False,
            "emoji": False,
            "highlight": False,
            "width": 100,
            "force_terminal": terminal,
            "color_system": "truecolor" if terminal else None,
            "_environ": environ or {},
        }
        self.consoles = [Console(file=io.StringIO(), **settings) for _ in range(2)]
        text, notes = self.consoles
        super().__init__(None if json else text, notes, quiet=quiet)

    @property
    def out(self):
        return self.consoles[0].file.getvalue()

    @property
    def err(self):
        return self.consoles[1].file.getvalue()


def run(*arguments, stdin=None):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def command_line(*arguments):
    return [sys.executable, "-m", "outrider", *arguments]


# ---------------------------------------------------------------- help and defaults


def options_of(command):
    return {p.name: p for p in get_command(app).commands[command].params}


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_help_names_every_option_and_loads_no_torch(command):
    probe = (
        "import sys; from outrider.cli import main; sys.argv = ['outrider', sys.argv[1], '--help']\n"
        "try: main()\nfinally: sys.stderr.write(' '.join({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", probe, command], capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    own = ["prompt-file", "raw", "compare", "json", "prediction"] if command == "generate" else []
    for name in (*MODEL_OPTIONS, *TEXT_OPTIONS, "system", "quiet", *own):
        assert f"--{name.replace('_', '-')} " in shown.stdout
    for rule in RULES:
        assert rule in shown.stdout


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_the_defaults_in_the_help_are_those_of_the_library(command):
    parameters = inspect.signature(load).parameters
    facts = {name: parameters[name].default for name in MODEL_OPTIONS}
    facts |= {name: getattr(Sampling(), name) for name in TEXT_OPTIONS if hasattr(Sampling(), name)}
    facts |= {"max_new_tokens": DEFAULT_MAX_NEW_TOKENS}
    in_words = {
        "context_length": "the target's own",
        "threads": "torch's choice",
        "top_k": "all",
        "seed": "a fresh one",
    }
    for name, option in options_of(command).items():
        if name in in_words:
            assert facts.get(name) is None
            assert option.show_default == in_words[name]
        elif name in facts and not isinstance(facts[name], bool) and facts[name] is not None:
            assert option.show_default == str(facts[name]), name
        elif name in facts:
            assert option.default is facts[name]
            assert facts[name] in (False, None)


def test_what_is_a_number_in_the_library_is_read_as_one():
    assert set(REAL) | {"min_new_tokens", "top_k"} == {n for n in TEXT_OPTIONS if n in Sampling.__dataclass_fields__}
    assert WHOLE["num_draft_tokens"] == (0, MAX_K)


def test_the_version_is_the_package_s():
    assert run("--version").stdout == f"outrider {importlib.metadata.version('outrider')}\n"


def test_the_console_script_is_main():
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="outrider")
    assert script.load() is main


# ---------------------------------------------------------------- mistakes


@pytest.fixture
def damaged(tmp_path):
    """A model file that cannot be loaded: whatever is refused with another message was refused before."""
    path = tmp_path / "broken[red]\x1b.gguf"
    path.write_bytes(b"GGUF" + bytes(20))
    return path


WHOLE_FROM_1 = "a whole number, 1 or more"
BAD = {
    "--temperature -1": "0 (greedy) or a number up to",
    "--temperature nan": "0 (greedy) or a number up to",
    "--temperature warm": "a number",
    "--top-k 0": WHOLE_FROM_1,
    "--top-k 1.5": WHOLE_FROM_1,
    "--top-p 0": "a number above 0, at most 1",
    "--top-p 1.1": "a number above 0, at most 1",
    "--min-p 2": "a number from 0 to 1",
    "--repetition-penalty 0": "a number above 0",
    "--presence-penalty inf": "a number up to",
    "--frequency-penalty nan": "a number up to",
    "--max-new-tokens 0": WHOLE_FROM_1,
    "--max-new-tokens -1": WHOLE_FROM_1,
    "--min-new-tokens -1": "a whole number, 0 or more",
    "--seed -1": "a whole number from 0 to 9223372036854775807",
    "--seed 9223372036854775808": "a whole number from 0 to 9223372036854775807",
    "--threads 0": WHOLE_FROM_1,
    "--context-length 1": "a whole number, 2 or more",
    "--num-draft-tokens 65": "a whole number from 0 to 64, or auto",
    "--num-draft-tokens -1": "a whole number from 0 to 64, or auto",
    "--num-draft-tokens many": "a whole number from 0 to 64, or auto",
    "--drafter falcon": "none, ngram, suffix, lookahead, recycling, early-exit:LAYERS, quantised, model:ID, "
    "eagle:PATH, medusa:PATH, mlp:PATH, A+B, auto",
    "--drafter model:": "model:ID, with options",
    "--rule best": "auto, block, coupled, point-mass, recursive, token, traversal, typical",
    "--precision int3": "auto, float32, bfloat16, float16, q4",
}


@pytest.mark.parametrize("typed", BAD)
def test_a_bad_value_is_refused_before_loading_with_its_range(typed, damaged):
    option, value = typed.split(" ")
    result = run("generate", "--target", damaged, option, value, "hello")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"Error: {option} is ")
    assert value in result.stderr
    assert f"allowed: {BAD[typed]}" in result.stderr.replace("+-", "")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["--rule", "typical"], ["'typical'", "a lossless rule", "--allow-lossy"]),
        (["--rule", "block"], ["'block'", "point-mass"]),
        (["--rule", "token", "--drafter", "ngram"], ["'token'", "point-mass"]),
        (["--drafter", "none", "--num-draft-tokens", "3"], ["--num-draft-tokens is 3", "0 or auto"]),
        (["--invariant", "--num-draft-tokens", "16"], ["--num-draft-tokens is 16", "0 to 15"]),
        (["--stop", ""], ["--stop is ''", "at least one character"]),
        (["--stop", "a", "--stop", "\udcff"], ["--stop is '\\udcff'", "UTF-8"]),
        (["--system", ""], ["--system is ''", "at least one character"]),
        (["--raw", "--system", "Be brief."], ["--raw", "chat template"]),
        (["--compare", "--quiet"], ["--quiet", "--json"]),
        (["--target", "/no/such/model"], ["'/no/such/model'", "a folder, a .gguf file"]),
        (["--drafter", "model:/no/such/model"], ["'/no/such/model'", "a folder, a .gguf file"]),
        (["--no-such-option"], ["--no-such-option"]),
        (["--top-k"], ["--top-k"]),
    ],
)
def test_a_bad_combination_is_refused_before_loading(typed, words, damaged):
    result = run("generate", "hello", "--target", damaged, *typed)
    assert (result.exit_code, result.stdout) == (2, "")
    assert isinstance(result.exception, SystemExit)
    for word in words:
        assert word in result.stderr


def test_chat_refuses_the_same_way():
    result = run("chat", "--temperature", "-1", stdin="hello\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--temperature is -1.0" in result.stderr


def test_a_damaged_model_file_is_named(damaged):
    result = run("generate", "hello", "--target", damaged)
    assert result.exit_code == 2
    assert "broken[red]\\x1b.gguf" in result.stderr


def test_an_error_shows_typed_text_as_data():
    result = run("generate", "hello", "--drafter", "[red]\x1b[31m[/red")
    assert result.exit_code == 2
    assert "\x1b" not in result.stderr
    assert "[red]\\x1b[31m[/red" in result.stderr


def test_a_bug_shows_its_traceback_and_none_of_the_values():
    # What typer would print prettily holds the values of variables: prompts.
    assert app.pretty_exceptions_enable is False


# ---------------------------------------------------------------- the prompt


PROMPT_FAULTS = {
    "missing": (["/no/such/file"], "No such file"),
    "a folder": (["."], "directory"),
    "binary": ([b"\x80\x81"], "UTF-8 text"),
    "with a zero byte": ([b"abc\0def"], "binary"),
    "empty": ([b""], "at least one character"),
    "a line end only": ([b"\n"], "at least one character"),
    "a byte order mark only": ([b"\xef\xbb\xbf"], "at least one character"),
    "a name with a zero": (["a\0b"], "a text file"),
}


@pytest.mark.parametrize("fault", PROMPT_FAULTS)
def test_a_prompt_file_that_cannot_be_used_is_refused(fault, tmp_path):
    ((content,), words) = PROMPT_FAULTS[fault]
    name = content
    if isinstance(content, bytes):
        name = tmp_path / "prompt.txt"
        name.write_bytes(content)
    result = run("generate", "--prompt-file", name)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "--prompt-file" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        ([], b"", "Try: outrider generate"),
        ([], b"\xff", "UTF-8 text"),
        (["--prompt-file", "-"], b"", "at least one character"),
        ([""], None, "at least one character"),
        (["\udcff"], None, "UTF-8"),
        (["hello", "--prompt-file", "file"], None, "one prompt only"),
    ],
)
def test_a_prompt_that_is_missing_empty_or_given_twice_is_refused(arguments, stdin, words):
    result = run("generate", *arguments, stdin=stdin)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


def test_without_a_prompt_on_a_terminal_there_is_an_example():
    ours, theirs = os.openpty()
    try:
        shown = subprocess.run(command_line("generate"), stdin=theirs, capture_output=True, text=True, timeout=60)
    finally:
        os.close(ours)
        os.close(theirs)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert 'Try: outrider generate "' in shown.stderr


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"a\nb\n", "a\nb"), (b"a\r\n", "a"), (b"a\n\n", "a\n"), (b"\xef\xbb\xbf\xc3\xa9", "é"), (b" a ", " a ")],
)
def test_a_prompt_is_taken_as_it_is_but_for_one_line_end(content, text, tmp_path, monkeypatch):
    from outrider.cli.options import read_prompt

    path = tmp_path / "prompt.txt"
    path.write_bytes(content)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert read_prompt(None, str(path)) == text
    assert read_prompt(None, "-") == text
    assert read_prompt("given", None) == "given"


# ---------------------------------------------------------------- what is shown


def test_text_goes_to_one_stream_and_everything_else_to_the_other():
    screen = Shown()
    assert answer(toy_engine(), screen, {"prompt": "sing"}) == 0
    assert screen.out == RHYME + "\n"
    for word in ("suffix", "point-mass, lossless", "tokens/s", "acceptance length", "time: verification", "position"):
        assert word in screen.err
    assert RHYME not in screen.err


def test_quiet_shows_the_text_alone():
    screen = Shown(quiet=True, terminal=True)
    screen.legend()
    answer(toy_engine(), screen, {"prompt": "sing"})
    assert (screen.out, screen.err) == (RHYME + "\n", "")


def test_tokens_are_coloured_by_origin_after_a_legend_on_a_terminal():
    screen = Shown(terminal=True)
    screen.legend()
    reference = ByteTokenizer().encode_chat([{"role": "user", "content": "sing"}]) + list(b"abcd")
    answer(toy_engine("abcd", drafter=ScriptedDrafter([reference], 261), k=2), screen, {"prompt": "sing"})
    accepted, following = "\x1b[1;32m{}\x1b[0m", "\x1b[33m{}\x1b[0m"
    assert accepted.format("accepted draft") in screen.err
    assert following.format("next token") in screen.err
    # Two drafted tokens and the next one, then the last drafted one; the end token has no text.
    assert (
        screen.out == accepted.format("a") + accepted.format("b") + following.format("c") + accepted.format("d") + "\n"
    )


def test_without_colours_origins_still_differ():
    screen = Shown(terminal=True, environ={"NO_COLOR": "1"})
    screen.legend()
    screen.token("a", "accepted")
    screen.token("b", "next")
    assert screen.out == "\x1b[1ma\x1b[0mb"


def test_no_escape_sequence_leaves_for_a_file():
    screen = Shown()
    screen.legend()
    answer(toy_engine(), screen, {"prompt": "sing"}, compare=True)
    assert "\x1b" not in screen.out + screen.err


HOSTILE = "\x1b[2J\x1b]0;x\x07[red]not red[/red] [/] [bold :smile: \\[x] \t|\x9b31m\u202e\r" + "wide " * 60


@pytest.mark.parametrize("terminal", [False, True])
def test_model_text_is_data_to_the_terminal(terminal):
    from outrider.text import visible

    screen = Shown(terminal=terminal)
    answer(toy_engine(HOSTILE), screen, {"prompt": "sing", "max_new_tokens": 500}, compare=True)
    # Neither control characters nor markup act, tabs stay, no line is wrapped.
    assert screen.out == visible(HOSTILE) + "\n"
    assert "\x1b" not in screen.out
    assert "\\x1b[2J\\x1b]0;x\\x07[red]not red[/red] [/] [bold :smile: \\[x] \t|\\x9b31m\\u202e\\x0d" in screen.out


def test_json_has_hostile_text_exactly_and_in_ascii(capsys):
    answer(toy_engine(HOSTILE), Shown(json=True, quiet=True), {"prompt": "sing", "max_new_tokens": 500}, json=True)
    line = capsys.readouterr().out
    assert line.isascii()
    assert line.isprintable() is False
    assert line.count("\n") == 1
    assert "\x1b" not in line
    assert json.loads(line)["text"] == HOSTILE


def test_a_seed_and_a_lossy_rule_are_announced_and_a_lossless_one_is_not():
    screen = Shown()
    answer(toy_engine(rule="typical"), screen, {"prompt": "sing"})
    assert "typical, LOSSY" in screen.err
    screen = Shown()
    answer(toy_engine(), screen, {"prompt": "sing"})
    assert "LOSSY" not in screen.err


def lossy_engine():
    script = ByteTokenizer().encode_chat([{"role": "user", "content": "sing"}]) + list(RHYME.encode())
    return toy_engine(drafter=ScriptedDrafter([script], 261), rule="typical", certainty=0.5)


def test_a_lossy_rule_shows_how_far_its_law_is_from_the_targets(capsys):
    # Three likely tokens are drafted and kept, so they are certain where the target gives them one half; one is drawn.
    said, screen = compared(lossy_engine(), capsys, seed=1, temperature=1.0, max_new_tokens=4)
    assert said["speculative"]["distance"] == pytest.approx(3 * 0.5 / 4, abs=1e-5)
    (row,) = (line for line in screen.err.splitlines() if "distance from the target's law" in line)
    assert " ".join(row.split()) == "distance from the target's law 0.375 per token -"
    assert "Distance: total variation" in screen.err


def test_a_conversation_with_a_lossy_rule_shows_the_distance():
    screen = Shown()
    chat = Chat(lossy_engine(), screen, {"seed": 1, "temperature": 1.0, "max_new_tokens": 4}, [])
    chat.take("sing")
    chat.take("/stats")
    assert "distance from the target's law" in screen.err


def test_a_lossless_rule_shows_no_distance():
    screen = Shown()
    answer(toy_engine(), screen, {"prompt": "sing"})
    assert "acceptance length" in screen.err
    assert "distance" not in screen.err.lower()


@pytest.mark.filterwarnings("ignore::outrider.errors.DrafterWarning")
def test_a_broken_drafter_is_reported_and_the_text_is_right():
    screen = Shown()
    assert answer(toy_engine(drafter=BrokenDrafter("raises", 261)), screen, {"prompt": "sing"}) == 0
    assert screen.out == RHYME + "\n"
    assert "Warning: " in screen.err
    assert "RuntimeError: the drafter failed" in screen.err


def test_a_drafter_that_works_is_not_reported():
    screen = Shown()
    answer(toy_engine(), screen, {"prompt": "sing"})
    assert "Warning" not in screen.err


def test_a_failed_request_shows_what_there_is_and_ends_with_2():
    def processor(tokens, logits):
        if len(tokens) > 20:
            raise ArithmeticError("no more")
        return logits

    screen = Shown()
    assert answer(toy_engine(), screen, {"prompt": "sing", "processor": processor}) == 2
    assert RHYME.startswith(screen.out.strip("\n"))
    assert screen.out.strip("\n")
    assert "Error: " in screen.err
    assert "ArithmeticError: no more" in screen.err


def test_acceptance_by_position_is_shown_for_every_position():
    screen = Shown()
    reference = ByteTokenizer().encode_chat([{"role": "user", "content": "sing"}]) + list(RHYME.encode())
    answer(toy_engine(drafter=ScriptedDrafter([reference], 261, right=11), k=12), screen, {"prompt": "sing"})
    header = [line.split() for line in screen.err.splitlines() if line.strip().startswith("position")]
    assert [int(word) for line in header for word in line[4:]] == list(range(1, 13))
    rows = [line.split()[-2:] for line in screen.err.splitlines() if line.strip().startswith("accepted up to here")]
    assert rows[-1] == ["100%", "0%"]


# ---------------------------------------------------------------- comparison and JSON


KEYS = {
    "text",
    "token_ids",
    "prompt_token_ids",
    "finish_reason",
    "tokens_per_second",
    "speculative",
    "plain",
    "speedup",
    "identical",
}
SPECULATIVE_KEYS = {
    "drafter",
    "note",
    "rule",
    "lossless",
    "num_rounds",
    "num_draft_tokens",
    "num_accepted_tokens",
    "mean_acceptance_length",
    "distance",
    "acceptance_by_position",
    "seconds",
}


def test_a_compared_run_of_the_command_prints_one_object_with_exactly_these_keys():
    prompt = "Repeat this sentence: the cat sat on the mat, and the cat sat on the mat."
    result = run(
        *("generate", prompt, "--compare", "--json", "--precision", "q4", "--context-length", 256),
        *("--max-new-tokens", 12, "--drafter", "ngram", "--num-draft-tokens", 3),
    )
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("\n") == 1
    said = json.loads(result.stdout)
    assert set(said) == KEYS
    assert set(said["speculative"]) == SPECULATIVE_KEYS
    assert set(said["speculative"]["seconds"]) == {"draft", "target", "verify", "other"}
    assert set(said["plain"]) == {"tokens_per_second", "token_ids"}
    assert said["identical"] is True
    assert said["token_ids"] == said["plain"]["token_ids"]
    assert said["speedup"] == said["tokens_per_second"] / said["plain"]["tokens_per_second"]
    spec = said["speculative"]
    assert (spec["drafter"], spec["rule"], spec["lossless"]) == ("ngram", "point-mass", True)
    assert spec["distance"] is None
    num_next = len(said["token_ids"]) - spec["num_accepted_tokens"]
    assert num_next in (spec["num_rounds"], spec["num_rounds"] - 1)  # the last round may end in the draft
    assert spec["mean_acceptance_length"] == len(said["token_ids"]) / spec["num_rounds"]
    assert 1 <= len(spec["acceptance_by_position"]) <= 3
    assert set(spec["acceptance_by_position"][0]) == {"position", "cumulative", "conditional"}
    assert said["text"] in result.stderr
    assert "same tokens: yes" in result.stderr


def test_without_a_comparison_its_keys_are_missing_and_the_text_is_not_on_standard_output(smollm2_engine, capsys):
    screen = open_screen(json=True)
    answer(smollm2_engine, screen, {"prompt": "Say hi.", "max_new_tokens": 4}, json=True)
    printed = capsys.readouterr()
    said = json.loads(printed.out)
    assert set(said) == KEYS - {"plain", "speedup", "identical"}
    assert said["text"] in printed.err
    prompt_ids = smollm2_engine.tokenizer.encode_chat([{"role": "user", "content": "Say hi."}])
    assert said["prompt_token_ids"] == prompt_ids


def compared(engine, capsys, **request):
    screen = Shown()
    answer(engine, screen, {"prompt": "sing", **request}, compare=True, json=True)
    return json.loads(capsys.readouterr().out), screen


def test_greedy_speculation_is_reported_identical(capsys):
    said, screen = compared(toy_engine(), capsys, seed=1)
    assert said["identical"] is True
    assert "same tokens: yes" in screen.err
    assert "speed-up: " in screen.err
    assert screen.err.count(RHYME) == 1  # the plain text is a note


def test_a_sampled_run_is_reported_as_it_is_with_the_reason(capsys):
    said, screen = compared(toy_engine(certainty=0.5), capsys, seed=1, temperature=1.0)
    assert said["identical"] is False
    assert said["token_ids"] != said["plain"]["token_ids"]
    assert "same law, not same text; use --rule coupled" in screen.err


def test_the_coupled_rule_samples_the_same_text(capsys):
    said, _ = compared(toy_engine(certainty=0.5, rule="coupled"), capsys, seed=1, temperature=1.0)
    assert said["identical"] is True
    assert said["speculative"]["num_draft_tokens"] > 0


def test_a_lossy_difference_is_called_lossy(capsys):
    target_law = {"certainty": 0.02}  # nearly flat: the typical rule accepts what greedy decoding would not
    wrong = ByteTokenizer().encode_chat([{"role": "user", "content": "sing"}]) + list(b"zzzzzzzz")
    engine = toy_engine(drafter=ScriptedDrafter([wrong], 261), rule="typical", **target_law)
    said, screen = compared(engine, capsys, seed=1, temperature=1.0, max_new_tokens=8)
    assert said["identical"] is False
    assert "rule typical is LOSSY" in screen.err


class NearTie(TableModel):
    """In a forward of several rows it prefers another token: what rounding does to a near tie."""

    def forward(self, block, cache):
        output = super().forward(block, cache)
        if output.logits is not None and output.logits.shape[1] > 1:
            output.logits[:, :, ord("!")] = 9.0
        return output


def test_a_greedy_difference_is_located_and_explained(capsys):
    engine = toy_engine("aaaaaaaa")
    engine.engine.target.__class__ = NearTie
    said, screen = compared(engine, capsys)
    assert said["identical"] is False
    place = [a == b for a, b in zip(said["token_ids"], said["plain"]["token_ids"], strict=False)].index(False) + 1
    assert f"they differ from token {place} on" in screen.err
    assert "near tie" in screen.err
    assert "--invariant" in screen.err


def test_the_first_difference_counts_a_missing_token(smollm2_engine):
    short, long = (smollm2_engine.generate("Count.", max_new_tokens=n) for n in (3, 5))
    assert Comparison(short, long, 0.0).first_difference == 4
    assert Comparison(long, long, 0.0).first_difference is None


def test_the_plain_twin_shares_target_and_settings():
    engine = toy_engine(rule="coupled")
    twin = plain_twin(engine)
    assert twin.engine.target is engine.engine.target
    assert twin.engine.context_length == engine.engine.context_length
    assert (twin.engine.drafter.name, twin.engine.rule.name) == ("none", "coupled")
    assert plain_twin(toy_engine(rule="typical")).engine.rule.name == "auto"


def test_a_request_that_does_not_fit_is_refused_before_the_plain_run():
    screen = Shown()
    with pytest.raises(InvalidOption, match="context"):
        answer(toy_engine(context_length=20), screen, {"prompt": "a long song" * 3}, compare=True)
    assert (screen.out, screen.err) == ("", "")


# ---------------------------------------------------------------- Ctrl-C


def interrupt_at(count):
    """A `show` that presses Ctrl-C with its `count`-th token, and remembers the tokens."""
    texts = []

    def show(text, origin):
        texts.append(text)
        if len(texts) == count:
            signal.raise_signal(signal.SIGINT)

    return show, texts


def test_the_first_ctrl_c_ends_after_the_round_and_loses_nothing():
    engine, before = toy_engine(), signal.getsignal(signal.SIGINT)
    show, texts = interrupt_at(3)
    result = decode(engine, engine.add("sing"), show).result
    assert result.finish_reason == "cancelled"
    assert result.text == "".join(texts)
    assert RHYME.startswith(result.text)
    assert len(result.text) >= 3
    assert engine.engine.num_unfinished == 0
    assert signal.getsignal(signal.SIGINT) is before


def test_the_second_ctrl_c_does_not_wait_for_the_round():
    engine, before = toy_engine(), signal.getsignal(signal.SIGINT)
    shown = []

    def show(text, origin):
        shown.append(text)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        decode(engine, engine.add("sing"), show)
    assert len(shown) == 1
    assert engine.engine.num_unfinished == 0
    assert signal.getsignal(signal.SIGINT) is before


class PressedScreen(Shown):
    """Ctrl-C comes with the n-th token of the plain run or of the text."""

    def __init__(self, *, plain=None, text=None):
        super().__init__()
        self._plain_press, self._text_press = itertools.count(1), itertools.count(1)
        self._at = plain, text

    def plain_token(self, text, origin="next"):
        super().plain_token(text, origin)
        if next(self._plain_press) == self._at[0]:
            signal.raise_signal(signal.SIGINT)

    def token(self, text, origin="next"):
        super().token(text, origin)
        if next(self._text_press) == self._at[1]:
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_in_the_speculative_run_keeps_the_plain_one(capsys):
    screen = PressedScreen(text=4)
    assert answer(toy_engine(), screen, {"prompt": "sing"}, compare=True, json=True) == 130
    said = json.loads(capsys.readouterr().out)
    assert set(said) == KEYS
    assert (said["finish_reason"], said["identical"]) == ("cancelled", None)
    assert said["speedup"] > 0
    assert said["text"] == screen.out.removesuffix("\n")
    assert "(stopped by Ctrl-C)" in screen.err


def test_ctrl_c_in_the_plain_run_gives_what_it_has(capsys):
    screen = PressedScreen(plain=4)
    assert answer(toy_engine(), screen, {"prompt": "sing"}, compare=True, json=True) == 130
    said = json.loads(capsys.readouterr().out)
    assert set(said) == KEYS
    assert (said["finish_reason"], said["speedup"], said["identical"]) == ("cancelled", None, None)
    assert said["speculative"]["drafter"] == "none"
    assert said["text"] == screen.out.removesuffix("\n") == RHYME[:4]


def test_a_real_interrupt_of_the_command_prints_the_object_and_exits_130():
    arguments = command_line(
        "generate", "Count to a thousand.", "--json", "--precision", "q4", "--max-new-tokens", "4000"
    )
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    started = process.stderr.read(20)  # text streams there, for standard output is kept for the object
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    said = json.loads(out)
    assert said["finish_reason"] == "cancelled"
    assert said["text"].encode().startswith(started)
    assert 0 < len(said["token_ids"]) < 4000
    assert b"Traceback" not in err
    assert b"acceptance length" in err


def test_a_reader_that_leaves_ends_the_command_quietly():
    arguments = command_line("generate", "Count to a thousand.", "--precision", "q4", "--max-new-tokens", "4000")
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.read(1)
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=120) == 1
    assert err == b""


# ---------------------------------------------------------------- chat


def make_chat(engine=None, screen=None, opening=(), **request):
    screen = Shown() if screen is None else screen
    return Chat(engine or toy_engine(), screen, {"seed": 0, **request}, list(opening)), screen


def test_every_turn_sends_the_whole_conversation():
    chat, screen = make_chat(toy_engine("yes"), opening=[{"role": "system", "content": "Be brief."}])
    chat.take("one")
    chat.take(" /two ")
    assert [(m["role"], m["content"]) for m in chat.messages] == [
        ("system", "Be brief."),
        ("user", "one"),
        ("assistant", "yes"),
        ("user", "/two"),
        ("assistant", "yes"),
    ]
    assert screen.out == "yes\nyes\n"
    sent = chat.rounds[-1].sequence
    assert sent.tokens[: sent.prompt_length] == ByteTokenizer().encode_chat(chat.messages[:-1])


def test_reset_keeps_the_system_message_alone():
    opening = [{"role": "system", "content": "Be brief."}]
    chat, _ = make_chat(opening=opening)
    chat.take("one")
    chat.take("/reset")
    assert chat.messages == opening


def test_stats_cover_all_answers_so_far():
    chat, screen = make_chat(toy_engine("yes"))
    chat.take("/stats")
    assert screen.err == ""
    chat.take("one")
    chat.take("two")
    chat.take("/stats")
    row = next(line.split() for line in screen.err.splitlines() if line.strip().startswith("tokens "))
    assert row == ["tokens", "8"]  # two answers of three characters and an end


def test_an_unknown_command_is_not_sent():
    chat, screen = make_chat()
    chat.take("/help")
    assert chat.messages == []
    assert "'/help'" in screen.err
    assert "/reset" in screen.err
    assert screen.out == ""


def test_an_empty_line_is_not_sent():
    chat, screen = make_chat()
    chat.take("  ")
    assert (chat.messages, screen.out, screen.err) == ([], "", "")


def test_a_full_context_is_explained_and_the_conversation_goes_on_after_reset():
    chat, screen = make_chat(toy_engine("yes", context_length=30))
    chat.take("one")
    before = list(chat.messages)
    chat.take("a message that is too long")
    assert chat.messages == before
    assert "context of 30 tokens" in screen.err
    assert "/reset" in screen.err
    chat.take("/reset")
    chat.take("two")
    assert screen.out == "yes\nyes\n"


def test_ctrl_c_stops_the_answer_and_keeps_it_in_the_conversation():
    chat, screen = make_chat(screen=PressedScreen(text=5))
    chat.take("sing")
    kept = chat.messages[-1]["content"]
    assert RHYME.startswith(kept)
    assert 5 <= len(kept) < len(RHYME)
    assert screen.out == kept + "\n"
    chat.take("go on")
    assert [m["role"] for m in chat.messages] == ["user", "assistant"] * 2


def test_answers_use_different_seeds_and_a_conversation_repeats_itself():
    flat = {"certainty": 0.3}

    def converse(seed):
        chat, _ = make_chat(toy_engine(**flat), temperature=1.0, max_new_tokens=20, seed=seed)
        for _ in range(2):
            chat.take("sing")
            chat.take("/reset")
        return [r.token_ids for r in chat.rounds]

    assert converse(5) == converse(5)
    assert converse(5) != converse(6)
    chat, screen = make_chat(toy_engine(**flat), temperature=1.0, max_new_tokens=20, seed=2**63 - 1)
    chat.take("sing")
    chat.take("/reset")
    chat.take("sing")
    first, second = screen.out.splitlines()[0], screen.out.splitlines()[-1]
    assert first != second


def test_the_chat_command_answers_the_lines_of_a_pipe():
    result = run(
        *("chat", "--precision", "q4", "--context-length", 256, "--max-new-tokens", 6, "--system", "Be brief."),
        *("--temperature", 0.8),
        stdin="Hi!\n/stats\nBye!\r\n/exit\nnever read\n",
    )
    assert result.exit_code == 0, result.stderr
    assert len(result.stdout.splitlines()) >= 2  # an answer may have several lines
    assert "never read" not in result.stdout
    assert result.stderr.count("acceptance length") == 2
    assert re.search(r"^Seed: \d+$", result.stderr, re.MULTILINE)


SPAWN = """
import os, pty, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)  # a run in the background ignores it, and children inherit that
sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))
"""
TERMINAL_CHAT = """
from test_cli import make_chat, toy_engine
chat, _ = make_chat(toy_engine("yes"))
chat.run()
print([message["content"] for message in chat.messages])
"""


def until_prompt(process, typed):
    """Type, and read until the next prompt. Ctrl-C is repeated: Python may miss one just after it prints a prompt."""
    shown, deadline = b"", time.monotonic() + 100
    process.stdin.write(typed)
    while not shown.endswith(b"> "):
        if select.select([process.stdout], [], [], 2)[0]:
            shown += process.stdout.read(1) or pytest.fail(shown.decode())
        elif typed.endswith(b"\x03"):
            process.stdin.write(b"\x03")
        assert time.monotonic() < deadline, shown
    return shown


def test_on_a_terminal_ctrl_c_drops_the_typed_line_and_ctrl_d_ends():
    process = subprocess.Popen(
        [sys.executable, "-c", SPAWN, sys.executable, "-c", TERMINAL_CHAT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env={**os.environ, "TERM": "dumb", "PYTHONPATH": str(Path(__file__).parent)},
    )
    for typed in (b"", b"hello\n", b"half a line\x03", b"bye\n"):
        until_prompt(process, typed)
    shown = process.communicate(b"\x04", timeout=100)[0]
    assert process.returncode == 0, shown
    assert b"['hello', 'yes', 'bye', 'yes']" in shown


def test_a_chat_line_that_is_no_text_is_a_clear_error(monkeypatch):
    chat, _ = make_chat()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n")))
    with pytest.raises(InvalidOption, match="UTF-8"):
        chat.run()


# ---------------------------------------------------------------- loading


def test_a_progress_bar_shows_on_a_terminal_and_nowhere_else():
    for terminal in (True, False):
        screen = Shown(terminal=terminal)
        with screen.loading() as progress:
            progress("[red]model\x1b", 1, 2)
        assert ("Loading [red]model\\x1b" in screen.err) is terminal
        assert ("1/2" in screen.err) is terminal


def test_a_plain_run_has_no_drafts_to_tell_apart(capsys):
    engine = toy_engine("yes", drafter=NoDrafter())
    answer(engine, Shown(quiet=True, json=True), {"prompt": "sing"}, json=True)
    said = json.loads(capsys.readouterr().out)
    assert said["speculative"]["num_draft_tokens"] == 0
    assert said["speculative"]["acceptance_by_position"] == []
    assert said["text"] == "yes"


def test_the_demo_prompt_exists_where_make_demo_expects_it():
    root = Path(__file__).parent.parent
    assert (root / "src/outrider/data/demo_prompt.txt").read_text(encoding="utf-8").strip()


# ---------------------------------------------------------------- drafters, texts to look things up in


def test_the_list_of_drafters_names_each_with_needs_costs_and_options():
    shown = CliRunner().invoke(app, ["drafters"], env={"COLUMNS": "200"})
    assert (shown.exit_code, shown.stderr) == (0, "")
    for name, entry in CATALOGUE.items():
        assert name in shown.stdout
        assert entry.needs.split()[0] in shown.stdout
        assert all(f"{option}=" in shown.stdout for option in entry.options)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--prediction", "no-such.txt"], ["--prediction is 'no-such.txt'", "No such file"]),
        (["--prediction", "BINARY"], ["--prediction", "byte"]),
        (["--prediction", "EMPTY"], ["--prediction", "empty"]),
        (["--prediction", "/dev/zero"], ["--prediction is '/dev/zero'", "at most 67,108,864 bytes"]),
        (["--drafter", "early-exit:²"], ["--drafter", "early-exit:N"]),
        (["--drafter", "suffix:branches=3,branches=4"], ["--drafter", "each option once"]),
        (["--drafter", "ngram:max_ngram=99999999999999999999999"], ["max_ngram", "to 64"]),
        (["--prediction", "TEXT", "--drafter", "ngram"], ["--prediction", "ngram", "suffix"]),
        (["--corpus", "no-such.txt"], ["--corpus", "no-such.txt"]),
        (["--corpus", "BINARY"], ["--corpus", "Byte 1"]),
        (["--corpus", "EMPTY"], ["--corpus", "not one token"]),
        (["--corpus", "TEXT", "--drafter", "none"], ["--corpus", "suffix"]),
        (["--drafter", "suffix+nonsense"], ["--drafter", "'nonsense' is unknown"]),
        (["--drafter", "lookahead:window=40"], ["window is 40", "1 to 32"]),
        (["--drafter", "early-exit:30"], ["1 to 29"]),
        (["--drafter", "recycling", "--rule", "block"], ["--rule is 'block'"]),
    ],
)
def test_what_cannot_be_drafted_from_is_one_line_and_exit_code_2(options, parts, tmp_path, monkeypatch):
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    for name, data in {"TEXT": b"some text", "BINARY": b"a\0b", "EMPTY": b""}.items():
        (tmp_path / name).write_bytes(data)
    typed = [str(tmp_path / o) if o in ("TEXT", "BINARY", "EMPTY") else o for o in options]
    result = CliRunner().invoke(app, ["generate", "Hi.", "--context-length", "64", "--max-new-tokens", "2", *typed])
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert all(part in result.stderr for part in parts), result.stderr


def test_a_predicted_text_is_read_from_its_file(tmp_path):
    (tmp_path / "expected.txt").write_text("One, two, three, four, five, six, seven, eight, nine, ten.\n")
    typed = ["generate", "Count from one to ten in words.", "--json", "--quiet", "--max-new-tokens", "20"]
    runs = [CliRunner().invoke(app, [*typed, *more]) for more in ([], ["--prediction", str(tmp_path / "expected.txt")])]
    plain, predicted = (json.loads(run.stdout) for run in runs)
    assert predicted["text"] == plain["text"]
    assert predicted["speculative"]["num_draft_tokens"] > 0
