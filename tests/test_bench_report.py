"""What `outrider bench` gives: the JSON object, the page, the tables, and how the command ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from checkpoints import byte_level_tokenizer, save_folder, save_tokenizer, tiny_model
from outrider.benching.asked import Prompt
from outrider.benching.figures import Cell, Equality, Interval, cells
from outrider.benching.page import as_page
from outrider.benching.peers import Peer
from outrider.benching.plots import Scale
from outrider.benching.provenance import commit_of
from outrider.benching.report import Report, as_json, as_record, check_place, share_after_end, write
from outrider.benching.run import Grid, Job, Outcome, Run
from outrider.benching.tables import tables
from outrider.benching.ways import PLAIN, Measured, Rounds, Strategy
from outrider.benching.words import between, equal, seconds, setting, speedup
from outrider.cli.app import app
from outrider.errors import InvalidOption
from outrider.pages import safe
from outrider.planning import plan as planning
from outrider.planning.kept import this_machine, this_model
from outrider.rounds import Seconds

HOSTILE = "</pre><script>alert('1')</script><img src=http://x/y onerror=\"f()\"> & \x1b[31m \u202e"
LONG = "model:/a/folder/with/a/very/long/name/indeed/and/still/longer,tree=auto"


def run_of(way, kind, place, took, *, temperature=0.0, differs=None, rounds=None, ids=(1, 2, 3, 4)):
    measured = Measured((ids,), took + 0.1, 0.1, len(ids), took, rounds)
    compared = way != PLAIN and temperature == 0
    return Run(way, Job(kind, (place,), temperature, 0, 0), measured, differs if compared else None, compared)


def rounds(count, drafted=0):
    rows = {1 + drafted: count}
    return Rounds(count, count, count * drafted, count * drafted // 2, rows, Seconds(0.1, 0.5, 0.1, 0.1))


def report(*, partial=False, differs=None, broken=0, kinds=("chat", "summarise", "edit", "question", "maths", "code")):
    """A report of two strategies and of peers that are there, missing, and fail."""
    ways = (PLAIN, "suffix", LONG, "transformers prompt lookup")
    runs = tuple(
        run_of(
            way,
            kind,
            place,
            1.0 + place / (1 + number),
            temperature=temperature,
            differs=differs if way == "suffix" else None,
            rounds=None
            if number == 3
            else replace(rounds(3, number), broken=broken if number == 1 else 0, reason="why"),
        )
        for temperature in (0.0, 0.8)
        for kind in kinds
        for place in range(2)
        for number, way in enumerate(ways)
    )
    peers = (
        Peer("transformers prompt lookup", "float32", version="5"),
        Peer("llama.cpp", "the file", "missing", "llama-cpp-python is not installed."),
        Peer("openvino", "the file", version="1"),
    )
    return Report(
        "smollm2",
        "q4",
        (Strategy("suffix"), Strategy(LONG)),
        {kind: [Prompt(HOSTILE, (1, 2)), Prompt("two\nlines", (3,))] for kind in kinds},
        Grid(max_new_tokens=4),
        Outcome(runs, partial, {"openvino": f"RuntimeError: {HOSTILE}"}),
        tuple(cells(runs, lambda rows, batch: 1 + rows / 10)),
        {"command": f"outrider bench --prompts {HOSTILE}", "machine": {"processor": "a", "threads": 2}, "date": "now"},
        peers,
        0.25,
    )


# ---------------------------------------------------------------- JSON


def test_the_object_has_these_keys_and_no_texts_that_were_made():
    found = json.loads(as_json(report()))
    assert list(found) == [
        "schema",
        "partial",
        "provenance",
        "settings",
        "prompts",
        "peers",
        "share_after_end",
        "cells",
        "runs",
    ]
    assert (found["schema"], found["partial"], found["share_after_end"]) == (1, False, 0.25)
    assert found["settings"]["stop_tokens"] == "ignored"
    assert found["settings"]["strategies"][0] == {"name": "suffix", "drafter": "suffix", "num_draft_tokens": "auto"}
    assert set(found["cells"][0]) == {field.name for field in fields(Cell)}
    assert found["prompts"][0] == {"kind": "chat", "place": 0, "tokens": 2, "text": HOSTILE}
    assert found["runs"][0]["rounds"]["rows"] == {"1": 3}
    assert as_json(report()).isascii()


def test_a_speed_up_is_an_interval_or_null():
    found = {(cell["way"], cell["kind"]): cell for cell in as_record(report())["cells"] if cell["temperature"] == 0}
    suffix = found["suffix", "chat"]
    assert set(suffix["speedup"]) == set(suffix["predicted"]) == {"low", "mid", "high"}
    assert suffix["speedup"]["low"] <= suffix["speedup"]["mid"] <= suffix["speedup"]["high"]
    assert suffix["planned"] is None
    assert found[PLAIN, "chat"]["speedup"] is None
    assert found["transformers prompt lookup", "all"]["predicted"] is None


def test_other_figures_can_be_made_of_the_runs():
    found = as_record(report())
    for cell in found["cells"]:
        own = [r for r in found["runs"] if (r["way"], r["temperature"]) == (cell["way"], cell["temperature"])]
        own = [r for r in own if cell["kind"] in (r["kind"], "all")]
        assert len(own) == cell["runs"]
        speed = sum(r["decoded"] for r in own) / sum(r["decoding_seconds"] for r in own)
        assert cell["tokens_per_second"] == pytest.approx(speed)


def test_peers_are_told_apart_by_what_became_of_them():
    states = {peer["name"]: (peer["state"], peer["reason"]) for peer in as_record(report())["peers"]}
    assert states["transformers prompt lookup"] == ("measured", "")
    assert states["llama.cpp"] == ("missing", "llama-cpp-python is not installed.")
    assert states["openvino"] == ("failed", f"RuntimeError: {HOSTILE}")


def test_tokens_after_the_end_of_a_text_are_counted_in_plain_decoding():
    runs = [
        run_of(PLAIN, "chat", 0, 1.0, ids=(1, 2, 3, 4)),
        run_of(PLAIN, "chat", 1, 1.0, ids=(9, 2, 9, 4)),
        run_of("suffix", "chat", 0, 1.0, ids=(9, 9, 9, 9)),
    ]
    assert share_after_end(runs, frozenset({9})) == 3 / 8
    assert share_after_end(runs, frozenset()) == 0
    assert share_after_end([], frozenset({9})) == 0


def test_the_commit_is_that_of_the_sources_and_of_nothing_around_them(tmp_path):
    def git(*arguments):
        names = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *names, *arguments], cwd=tmp_path, check=True, capture_output=True)

    assert commit_of(tmp_path / "a.py") is None
    git("init")
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("x = 1\n")
    git("add", "a.py")
    git("commit", "-m", "first")
    assert re.fullmatch("[0-9a-f]{40}", commit_of(tmp_path / "a.py"))
    assert commit_of(tmp_path / "b.py") is None
    (tmp_path / "a.py").write_text("x = 2\n")
    assert commit_of(tmp_path / "a.py").endswith("+changes")


# ---------------------------------------------------------------- the page


class Page(HTMLParser):
    """Finds what a page must not have: tags that are not closed, scripts, and anything that would be loaded."""

    EMPTY = frozenset({"meta", "line", "circle", "rect", "br"})

    def __init__(self, text):
        super().__init__()
        self.open, self.faults, self.texts, self.tags = [], [], [], []
        self.feed(text)
        self.close()
        self.faults += [f"<{tag}> is not closed" for tag in self.open]

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "img", "link", "iframe", "object", "embed", "base", "form", "a"):
            self.faults.append(f"<{tag}>")
        for name, value in attrs:
            if name.startswith("on") or name in ("src", "href", "style", "xlink:href") or "//" in (value or ""):
                self.faults.append(f"{name}={value}")
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.EMPTY:
            self.open.pop()

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> closes nothing")

    def handle_data(self, data):
        self.texts.append(data)
        if self.open and self.open[-1] == "style" and re.search(r"url\(|@import|//", data):
            self.faults.append("the style sheet loads something")


def test_the_page_is_whole_and_loads_and_runs_nothing():
    page = Page(as_page(report()))
    assert page.faults == []
    assert ("html", {"lang": "en"}) in page.tags
    policies = [attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_texts_of_others_are_shown_as_they_are_and_never_as_markup():
    page = as_page(report())
    shown = HOSTILE.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
    texts = "".join(Page(page).texts)
    assert texts.count(shown) == 6 + 1 + 1  # prompts, a reason, the command
    assert HOSTILE not in page
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_a_text_that_is_not_escaped_would_be_found():
    page = as_page(report())
    assert Page(page.replace(safe(HOSTILE), HOSTILE)).faults != []
    assert Page(page.replace("</section>", "", 1)).faults != []


def test_a_page_of_a_partial_run_says_so():
    assert "<b>Partial:</b>" in as_page(report(partial=True))
    assert "Partial" not in as_page(report())


def test_texts_that_differ_and_drafts_that_broke_are_warned_of_once_per_setting():
    page = as_page(report(differs=3, broken=2))
    assert page.count('class="warning"') == 2  # one for each temperature
    assert "12 of 12 texts of suffix are not plain decoding" in page
    assert "the first from token 3 on" in page
    assert "24 drafts of suffix could not be used: why" in page
    assert 'class="warning"' not in as_page(report())


def test_every_setting_has_its_plots_and_figures():
    page = as_page(report())
    for temperature in ("0", "0.8"):
        assert f"<h2>Temperature {temperature}, one prompt at a time</h2>" in page
    assert page.count('class="dot') == 2 * 2 * 7  # temperatures, strategies, kinds and all of them
    assert page.count('class="foretold"') == 2 * 2 * 7
    assert page.count('class="bar') == 2 * 4
    assert "25.0% of plain decoding" in page


def test_a_page_without_a_single_speed_up_is_whole():
    nothing = report(kinds=("own",))
    runs = tuple(run for run in nothing.outcome.runs if run.way == PLAIN)
    partial = replace(nothing, outcome=Outcome(runs, True), cells=tuple(cells(runs)), peers=())
    page = as_page(partial)
    assert Page(page).faults == []
    assert 'class="dot' not in page


def test_drawn_places_lie_inside_the_plot_and_in_order():
    scale = Scale.of([0.3, 2.0, 9.0])
    places = [scale.place(value) for value in (0.0001, 0.3, 1.0, 2.0, 9.0, 1e9)]
    assert places == sorted(places)
    assert 0 < places[0] < places[-1] < 100
    assert scale.place(2.0) - scale.place(1.0) == pytest.approx(scale.place(4.0) - scale.place(2.0), abs=0.02)
    assert 1.0 in Scale.of([]).ticks
    drawn = [float(x) for x in re.findall(r'(?:cx|x1|x2|x|width)="([\d.-]+)%"', as_page(report()))]
    assert drawn
    assert all(0 <= x <= 100 for x in drawn)


# ---------------------------------------------------------------- tables


def shown(found, width=80):
    console = Console(width=width, color_system=None, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        for content in tables(found):
            console.print(content)
    return captured.get()


def test_tables_fit_into_80_columns_and_lose_no_figure():
    text = shown(report())
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for heading in ("tokens/s", "first", "per round", "accepted", "equal", "speed-up", "expected"):
        assert heading in text
    for kind in ("chat", "summarise", "edit", "question", "maths", "code", "all kinds"):
        assert kind in text
    suffix = next(cell for cell in report().cells if (cell.way, cell.kind) == ("suffix", "all"))
    assert speedup(suffix.speedup) in text
    assert LONG[:12] in text
    assert "llama.cpp is missing: llama-cpp-python is not installed." in text
    assert "PARTIAL" not in text


def test_tables_of_a_partial_run_say_so():
    assert "PARTIAL: stopped after 96 runs" in shown(report(partial=True))


def test_figures_are_read_in_words():
    assert speedup(Interval(1.234, 1.1, 1.4)) == "1.23x 1.10-1.40"
    assert speedup(Interval(1.234)) == "1.23x"
    assert (speedup(None), between(None), equal(None)) == ("-", "", "-")
    assert equal(Equality(3, 4, 7)) == "3/4"
    assert (seconds(0.0314), seconds(1.5)) == ("31 ms", "1.50 s")
    assert setting(0.8, 4) == "Temperature 0.8, 4 prompts at a time"


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("fault", ["missing folder", "folder", "NUL"])
def test_a_place_that_cannot_be_written_is_refused_before_the_run(fault, tmp_path):
    path = {"missing folder": tmp_path / "no" / "a.html", "folder": tmp_path, "NUL": Path("a\0b")}[fault]
    with pytest.raises(InvalidOption, match=r"html is .*a file that can be written"):
        check_place("html", path)


def test_a_check_leaves_no_file_behind_and_keeps_an_old_one(tmp_path):
    check_place("json", tmp_path / "new.json")
    assert list(tmp_path.iterdir()) == []
    old = tmp_path / "old.json"
    old.write_text("old")
    check_place("json", old)
    assert old.read_text() == "old"


def test_a_full_disk_is_named():
    if not os.path.exists("/dev/full"):  # noqa: PTH110
        pytest.skip("no /dev/full")
    with pytest.raises(InvalidOption, match=r"json is '/dev/full'.*No space left"):
        write("json", Path("/dev/full"), "{}")


# ---------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("target")
    save_folder(tiny_model("llama"), path)
    return str(save_tokenizer(byte_level_tokenizer(), path))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))


def bench(folder, *arguments):
    words = ["bench", "--target", folder, "--precision", "float32", "--max-new-tokens", "8", *map(str, arguments)]
    return CliRunner().invoke(app, words)


SMALL = ("--kind", "chat", "--kind", "question", "--prompts-per-kind", 2, "--drafter", "ngram")


def test_the_command_writes_tables_json_and_a_page(folder, tmp_path):
    files = "--json", tmp_path / "a.json", "--html", tmp_path / "a.html", "--plan", tmp_path / "plan.json"
    interval = planning.Interval(1.0, 1.5, 2.0)
    foretold = planning.Cell("ngram", 3, 0.8, 2, interval, interval)
    (tmp_path / "plan.json").write_text(
        planning.to_json(
            planning.Plan({"target": folder}, this_machine(), this_model(folder), "float32", 1, cells=(foretold,))
        )
    )
    found = bench(folder, *SMALL, "--batch", 1, "--batch", 2, "--num-draft-tokens", 3, "--repeats", 2, *files)
    assert found.exit_code == 0, found.output
    assert "Temperature 0.8, 2 prompts at a time" in found.stdout
    record = json.loads((tmp_path / "a.json").read_text())
    assert not record["partial"]
    assert record["settings"]["strategies"][0]["name"] == "ngram, k=3"
    # 2 kinds, 2 prompts, 2 repeats, 2 temperatures and 2 ways; and half as many in twos.
    assert len(record["runs"]) == 2 * 2 * 2 * 2 * 2 * 3 // 2
    assert all(run["tokens"] == 8 * len(run["places"]) for run in record["runs"])
    greedy = [cell for cell in record["cells"] if cell["temperature"] == 0 and cell["way"] != PLAIN]
    assert all(cell["equality"]["equal"] == cell["equality"]["compared"] > 0 for cell in greedy)
    assert all(cell["predicted"] is not None for cell in greedy)
    planned = [(c["temperature"], c["batch"], c["kind"], c["planned"]) for c in record["cells"] if c["planned"]]
    assert planned == [(0.8, 2, "all", {"low": 1.0, "mid": 1.5, "high": 2.0})]
    assert record["provenance"]["machine"]["threads"] >= 1
    assert Page((tmp_path / "a.html").read_text()).faults == []


def test_json_on_standard_output_is_alone_there(folder, tmp_path):
    own = tmp_path / "own.jsonl"
    own.write_text(json.dumps({"prompt": HOSTILE}))
    found = bench(folder, "--prompts", own, "--temperature", 0, "--drafter", "ngram", "--json", "-")
    assert found.exit_code == 0, found.output
    record = json.loads(found.stdout)
    assert [prompt["kind"] for prompt in record["prompts"]] == ["own"]
    assert "tokens/s" in found.stderr
    assert "\x1b" not in found.stderr


def test_peers_are_measured_in_the_same_run(folder, tmp_path):
    files = "--json", tmp_path / "a.json"
    few = "--kind", "chat", "--prompts-per-kind", 1, "--temperature", 0, "--drafter", "ngram"
    found = bench(folder, *few, "--peers", *files)
    assert found.exit_code == 0, found.output
    record = json.loads((tmp_path / "a.json").read_text())
    assert {"plain", "ngram", "transformers"} <= {run["way"] for run in record["runs"]}
    assert {peer["name"]: peer["state"] for peer in record["peers"]}["transformers assistant"] == "missing"
    assert "transformers assistant is missing" in found.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kind", "poem"], "--kind is 'poem'; allowed: chat, summarise, edit, question, maths, code"),
        (["--prompts-per-kind", "17"], "--prompts-per-kind is 17; allowed: 1 to 16. 16 prompts of each kind come with"),
        (["--batch", "17"], "--batch is 17; allowed: 1 to 16. 16 prompts of each kind come with"),
        (["--prompts-per-kind", "none"], "--prompts-per-kind is 'none'; allowed: a whole number, 1 or more"),
        (["--prompts", "missing.jsonl"], "--prompts is 'missing.jsonl'"),
        (["--prompts", "empty.jsonl"], "The file is empty."),
        (["--prompts", "empty.jsonl", "--kind", "chat"], "--kind is 'chat'; allowed: left out with --prompts"),
        (["--temperature", "hot"], "--temperature is 'hot'; allowed: a number"),
        (["--temperature", "-1"], "--temperature is -1.0"),
        (["--batch", "0"], "--batch is 0; allowed: a whole number, 1 or more"),
        (["--batch", "2", "--peers"], "--batch is [2]; allowed: 1 among them with --peers"),
        (["--max-new-tokens", "1"], "--max-new-tokens is 1; allowed: a whole number, 2 or more"),
        (["--repeats", "0"], "--repeats is 0; allowed: a whole number from 1 to 10000"),
        (["--repeats", "10001"], "--repeats is 10001"),
        (["--json", "a", "--html", "a"], "--html is 'a'; allowed: another file than --json"),
        (["--drafter", "none"], "Plain decoding is always measured."),
        (["--drafter", "guess"], "--drafter is 'guess'"),
        (["--json", "no/a.json"], "--json is 'no/a.json'; allowed: a file that can be written. No such file"),
        (["--html", "."], "--html is '.'; allowed: a file that can be written. Is a directory"),
        (["--plan", "empty.jsonl"], "--plan is 'empty.jsonl'; allowed: a plan as JSON"),
        (["--threads", "0"], "--threads is 0"),
        (["--seed", "-1"], "--seed is -1"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_a_model_is_loaded(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("outrider.models.opening.open_model", lambda *_: pytest.fail("a model was loaded"))
    Path("empty.jsonl").write_text("\n")
    found = CliRunner().invoke(app, ["bench", *arguments])
    assert found.exit_code == 2, found.output
    assert words in " ".join(found.stderr.split())
    assert [path.name for path in tmp_path.iterdir()] == ["empty.jsonl"]


def test_prompts_longer_than_the_context_are_named(folder):
    found = bench(folder, "--kind", "summarise", "--max-new-tokens", 400)
    assert found.exit_code == 2
    said = " ".join(found.stderr.split())
    assert re.search(r"--prompts is '\d+ tokens in prompt \d+ of kind summarise'; allowed: at most 112", said), said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"prompt": "one"}\n{"prompt": 2}\n', "1 of 2 lines are broken: line 2: "),
        ('{"prompt": "one"\n', "1 of 1 lines are broken: line 1: "),
        ('{"prompt": "' + 600 * "long " + '"}\n', "tokens in prompt 1 of kind own'; allowed: at most 504: a context"),
    ],
)
def test_own_prompts_that_cannot_be_used_are_refused_in_one_line(text, words, folder, tmp_path):
    (tmp_path / "own.jsonl").write_text(text)
    found = bench(folder, "--prompts", tmp_path / "own.jsonl", "--drafter", "ngram")
    assert found.exit_code == 2, found.output
    assert found.stdout == ""
    (line,) = found.stderr.splitlines()
    assert line.startswith("Error: --prompts is ")
    assert words in line


def test_a_plan_of_another_machine_is_refused_before_a_model_is_loaded(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("outrider.models.opening.open_model", lambda *_: pytest.fail("a model was loaded"))
    other = {**this_machine(), "processor": "Other 3000"}
    plan = planning.Plan({"target": folder}, other, this_model(folder), "float32", 1)
    (tmp_path / "plan.json").write_text(planning.to_json(plan))
    found = bench(folder, "--plan", tmp_path / "plan.json")
    assert found.exit_code == 2, found.output
    (line,) = found.stderr.splitlines()
    assert line.startswith("Error: --plan is 'of another machine (processor Other 3000, here ")


def test_a_batch_that_prompts_do_not_fill_is_refused(folder):
    found = bench(folder, *SMALL, "--batch", 3)
    assert found.exit_code == 2
    assert "--batch is 3; allowed: 1 to 2, the number of prompts of kind chat" in " ".join(found.stderr.split())


def test_a_batch_of_sixteen_decodes_sixteen_prompts_and_no_batch_ten(folder, tmp_path):
    few = (
        "--kind",
        "chat",
        "--temperature",
        0,
        "--drafter",
        "ngram",
        "--max-new-tokens",
        2,
        "--json",
        tmp_path / "a.json",
    )
    for batch, count in ((16, 16), (1, 10)):
        found = bench(folder, *few, "--batch", batch)
        assert found.exit_code == 0, found.output
        record = json.loads((tmp_path / "a.json").read_text())
        assert len(record["prompts"]) == count
        assert {len(run["places"]) for run in record["runs"]} == {batch}


def test_a_real_interrupt_keeps_what_was_measured_and_marks_it(folder, tmp_path):
    out = tmp_path / "a.json"
    words = ["bench", "--target", folder, "--precision", "float32", "--kind", "chat", "--drafter", "ngram"]
    words += ["--max-new-tokens", "100", "--repeats", "1000", "--json", str(out), "--html", str(tmp_path / "a.html")]
    process = subprocess.Popen(
        [sys.executable, "-m", "outrider", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    seen = ""
    while "measuring" not in seen:
        line = process.stderr.readline()
        assert line, seen
        seen += line
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=2)  # some runs
    process.send_signal(signal.SIGINT)
    shown_on_it, rest = process.communicate(timeout=120)
    assert process.returncode == 130, rest
    assert "Traceback" not in rest
    assert "PARTIAL: stopped after" in shown_on_it
    record = json.loads(out.read_text())
    assert record["partial"]
    assert 0 < len(record["runs"]) < 40_000
    assert "<b>Partial:</b>" in (tmp_path / "a.html").read_text()


def test_an_interrupt_before_the_first_run_writes_nothing(folder, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("outrider.benching.run._Bench.warm_up", interrupted)
    found = bench(folder, *SMALL, "--json", tmp_path / "a.json")
    assert found.exit_code == 130
    assert "Interrupted; nothing was measured yet." in found.stderr
    assert not (tmp_path / "a.json").exists()


def test_a_file_that_fails_in_the_end_loses_neither_table_nor_the_other_file(folder, tmp_path):
    if not os.path.exists("/dev/full"):  # noqa: PTH110
        pytest.skip("no /dev/full")
    few = "--kind", "chat", "--prompts-per-kind", 1, "--temperature", 0, "--drafter", "ngram"
    found = bench(folder, *few, "--json", "/dev/full", "--html", tmp_path / "a.html")
    assert found.exit_code == 2
    assert "No space left" in found.stderr
    assert "tokens/s" in found.stdout
    assert (tmp_path / "a.html").exists()
