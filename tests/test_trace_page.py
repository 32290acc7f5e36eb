"""The page of a trace in a real browser, and the commands that write and show traces."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from browser import Page, browsing
from checkpoints import byte_level_tokenizer, save_folder, save_tokenizer, tiny_model
from engine_runs import RandomTrees, toy_engine
from outrider.cli.app import app
from outrider.generation import TextEngine
from outrider.options import Sampling
from outrider.tracing.page import as_page
from outrider.tracing.reading import read_trace
from outrider.tracing.recording import trace
from toy import ByteTokenizer, TableModel, random_laws

HOSTILE = "</script><script>document.title = 'run'</script><img src=x onerror=\"document.title = 'run'\"> & \x1b[31m"
MOST_BYTES = 5_000_000


def long_trace(path, tokens, *, texts=1, seed=1):
    """Trees with siblings drawn without replacement, and letters for tokens; the prompt would be markup."""
    law = random_laws(ByteTokenizer.vocab_size, seed=2, sharpness=12)
    model = TableModel(ByteTokenizer.vocab_size, order=1, law=law, context_length=tokens + 400)
    letters = np.zeros(ByteTokenizer.vocab_size)
    letters[[*b"aeiou <&>\n"]] = 0.1
    engine = TextEngine(toy_engine(model, RandomTrees(letters, "without"), "traversal", k=12), ByteTokenizer())
    bias = dict.fromkeys(b"aeiou <&>\n", 8.0)
    with trace(engine, path, target=HOSTILE):
        for number in range(texts):
            prompt = engine.tokenizer.encode_prompt(HOSTILE)
            options = {"temperature": 1.0, "logit_bias": bias, "seed": seed + number, "stop_ids": ()}
            engine.generate(prompt, max_new_tokens=tokens, **options)
    return read_trace(path)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with browsing(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def page_of(browser, tmp_path_factory):
    """A page in the browser, of a trace of two texts."""
    folder = tmp_path_factory.mktemp("page")
    found = long_trace(folder / "t", 300, texts=2)
    file = folder / "t.html"
    file.write_text(as_page(found), encoding="utf-8")

    def open_page(width=1200, height=900, *, dark=False, text=None):
        if text is not None:
            (folder / "other.html").write_text(text, encoding="utf-8")
        page = Page(browser, file if text is None else folder / "other.html", width, height, dark)
        page.settle()
        return page

    open_page.trace = found
    return open_page


DETAIL = "document.getElementById('detail').innerText"


def facts_of(page):
    """What the page says of the token that is looked at."""
    script = "[...document.querySelectorAll('#detail dt')].map((e) => [e.textContent, e.nextSibling.textContent])"
    return dict(page.run(script))


# ---------------------------------------------------------------- in a browser


def test_the_page_shows_the_text_and_nothing_goes_wrong(page_of):
    page = page_of()
    text = page.run("document.getElementById('tokens').textContent").replace("⏎\n", "\n")
    assert text == page_of.trace.texts[0].text
    assert page.run("document.querySelectorAll('#tokens span').length") == 300
    assert page.run("document.title") != "run"
    assert page.run("document.querySelectorAll('script').length") == 2
    assert page.run("document.querySelectorAll('img').length") == 0
    assert page.run("document.getElementById('prompt').textContent").startswith("</script><script>")
    assert page.faults == []


def test_pointing_at_a_token_shows_its_probabilities_and_coin(page_of):
    page, text = page_of(), page_of.trace.texts[0]
    emitted = [(r, token) for r in text.rounds for token in r.tokens]
    drafted = next(i for i, (r, t) in enumerate(emitted) if t.node is not None and r.nodes[t.node].coin)
    following = next(i for i, (_, t) in enumerate(emitted) if t.node is None)
    r, token = emitted[drafted]
    node = r.nodes[token.node]
    page.point_at("#tokens span", drafted)
    facts = facts_of(page)
    assert float(facts["q, target"]) == pytest.approx(node.q, rel=1e-3)
    assert float(facts["p, draft"]) == pytest.approx(node.p, rel=1e-3)
    assert float(facts["acceptance"]) == pytest.approx(node.acceptance, rel=1e-3)
    uniform, chance = map(float, re.findall(r"[\d.]+(?:e-\d+)?", facts["coin"])[:2])
    assert (uniform, chance) == pytest.approx((node.coin.uniform, node.coin.chance), rel=1e-3)
    assert "fell for it" in facts["coin"]
    assert facts["origin"] == "random-trees: accepted"
    page.point_at("#tokens span", following)
    assert facts_of(page)["origin"] == "the target's own next token"
    assert page.run("document.querySelectorAll('#detail .tree svg g').length") >= 1
    assert page.faults == []


def test_the_text_is_read_with_the_keyboard_alone(page_of):
    page, text = page_of(), page_of.trace.texts[0]
    page.run("document.getElementById('tokens').focus()")
    chosen = "document.getElementById('tokens').getAttribute('aria-activedescendant')"
    assert page.run(chosen) == "t0"
    page.press("ArrowRight", "ArrowRight", "ArrowLeft")
    assert page.run(chosen) == "t1"
    page.press("Home", "ArrowDown")
    assert page.run(chosen) == f"t{len(text.rounds[0].tokens)}"
    page.press("ArrowUp")
    assert page.run(chosen) == "t0"
    page.press("End", "ArrowRight")
    assert page.run(chosen) == "t299"
    page.run("document.querySelector('#rounds .tree').scrollIntoView()")
    for _ in range(3):
        page.settle()
    page.run("document.querySelector('#rounds .tree g').focus()")
    before = page.run(DETAIL)
    page.press("ArrowRight")
    assert page.run(DETAIL) != before
    page.run("document.getElementById('timeline').focus()")
    page.press("ArrowRight")
    assert page.run("document.getElementById('when').textContent").startswith("Round 0:")
    assert page.faults == []


def test_the_trees_of_all_rounds_are_drawn_as_they_come_into_sight(page_of):
    page, text = page_of(), page_of.trace.texts[0]
    assert page.run("document.querySelectorAll('#rounds .tree').length") < len(text.rounds)
    page.run("document.querySelectorAll('#rounds details').forEach((strip) => { strip.open = true; })")
    page.settle()
    drafted = [r for r in text.rounds if r.nodes]
    assert page.run("document.querySelectorAll('#rounds .tree').length") == len(drafted)
    page.run("document.querySelectorAll('#rounds .tree')[20].scrollIntoView()")
    for _ in range(3):
        page.settle()
    counts = dict(
        page.run(
            "[...document.querySelectorAll('#rounds .tree')].map((tree) => [Number(tree.dataset.round), "
            "['accepted', 'refused', 'unseen', 'next'].map((c) => tree.querySelectorAll('g.' + c).length)])"
        )
    )
    number = text.rounds.index(drafted[20])
    nodes, seen = drafted[20].nodes, [n for n in drafted[20].nodes if n.acceptance is not None or n.coin]
    accepted = sum(n.accepted for n in nodes)
    assert counts[number] == [accepted, len(seen) - accepted, len(nodes) - len(seen), 1]
    assert counts[text.rounds.index(drafted[-1])] == [0, 0, 0, 0]
    assert page.faults == []


def test_another_text_is_chosen(page_of):
    page = page_of()
    page.run("(() => { const s = document.getElementById('text'); s.value = 1; s.onchange({ target: s }); })()")
    text = page.run("document.getElementById('tokens').textContent").replace("⏎\n", "\n")
    assert text == page_of.trace.texts[1].text != page_of.trace.texts[0].text
    assert page.faults == []


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_needs_no_sideways_scrolling(dark, page_of):
    page = page_of(360, 740, dark=dark)
    page.point_at("#tokens span", 40)
    page.settle()
    assert page.run("document.documentElement.scrollWidth") == 360
    page.run("document.getElementById('rounds').scrollIntoView()")
    page.settle()
    assert page.run("document.documentElement.scrollWidth") == 360
    paper = page.run("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(20, 24, 28)" if dark else "rgb(255, 255, 255)")
    assert page.faults == []


def test_faults_of_a_page_would_be_found(page_of):
    whole = as_page(page_of.trace)
    broken = whole.replace('"texts":', '"texte":', 1)
    assert page_of(text=broken).faults != []
    with_markup = whole.replace("</main>", "<script>document.title = 'run'</script></main>", 1)
    page = page_of(text=with_markup)
    assert page.faults != []
    assert page.run("document.title") != "run"  # the policy lets no other script run
    assert page_of(text=whole.replace("</main>", "<img src='http://127.0.0.1:9/a.png'></main>", 1)).faults != []
    wide = whole.replace("<main>", "<main><p style='width:500px'>" + "x" * 80 + "</p>", 1)
    assert page_of(360, 740, text=wide).run("document.documentElement.scrollWidth") > 360


def test_a_trace_with_nothing_in_it_is_a_page(page_of, tmp_path):
    engine = toy_engine(TableModel(5, order=1))
    with trace(engine, tmp_path / "t"):
        pass
    page = page_of(text=as_page(read_trace(tmp_path / "t")))
    assert page.faults == []
    with trace(engine, tmp_path / "t"):
        engine.add([1, 2], sampling=Sampling(temperature=1.0), seed=1, max_new_tokens=5)
        engine.step()
    page = page_of(text=as_page(read_trace(tmp_path / "t")))
    assert page.run("document.querySelector('.warning').textContent").startswith("The run was stopped")
    assert "Nothing was drafted." in page.run("document.getElementById('positions').textContent")
    assert page.faults == []


@pytest.mark.slow
def test_a_trace_of_4096_tokens_is_a_page_of_less_than_5_mb(page_of, tmp_path, record_property):
    text = as_page(long_trace(tmp_path / "t", 4096))
    assert len(text.encode()) < MOST_BYTES
    page = page_of(text=text)
    assert page.run("document.querySelectorAll('#tokens span').length") == 4096
    assert page.faults == []
    milliseconds = page.run("performance.getEntriesByType('navigation')[0].loadEventEnd")
    record_property("milliseconds to the load event", milliseconds)
    record_property("milliseconds of the script", page.run("document.documentElement.dataset.milliseconds"))


# ---------------------------------------------------------------- the source of the page


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_the_page_is_alone_and_runs_its_own_script_only(page_of):
    text = as_page(page_of.trace)
    tags = Tags(text).found
    names = {name for _, attrs in tags for name in attrs}
    assert not {name for name in names if name.startswith("on") or name in ("src", "href", "style")}
    assert [tag for tag, _ in tags].count("script") == 2
    (policy,) = [a["content"] for tag, a in tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert re.fullmatch(r"default-src 'none'; style-src 'sha256-[\w+/=]+'; script-src 'sha256-[\w+/=]+'", policy)
    assert "\x1b" not in text
    data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1]
    assert not set("<>&") & set(data)
    assert len(json.loads(data)["texts"]) == 2


# ---------------------------------------------------------------- the commands


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("target")
    save_folder(tiny_model("llama"), path)
    return str(save_tokenizer(byte_level_tokenizer(), path))


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_generate_writes_a_trace_of_the_text_that_it_shows(folder, tmp_path):
    file = tmp_path / "t.jsonl"
    asked = ("generate", "row row row", "--target", folder, "--drafter", "ngram", "--max-new-tokens", 30, "--seed", 5)
    found = run(*asked, "--temperature", 0.5, "--json", "--trace", file, "--compare")
    assert found.exit_code == 0, found.output
    result, read = json.loads(found.stdout), read_trace(file)
    (text,) = read.texts
    assert text.text == result["text"]
    assert [t.token for r in text.rounds for t in r.tokens] == result["token_ids"]
    assert len(text.rounds) == result["speculative"]["num_rounds"]
    about = {name: read.about[name] for name in ("target", "drafter", "rule", "seed", "sampling")}
    assert about == {"target": folder, "drafter": "ngram", "rule": "auto", "seed": 5, "sampling": {"temperature": 0.5}}
    without = run(*asked, "--temperature", 0.5, "--json")
    assert json.loads(without.stdout)["token_ids"] == result["token_ids"]


def test_bench_writes_a_trace_of_what_it_measures(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    file, figures = tmp_path / "t.jsonl", tmp_path / "a.json"
    few = ("--kind", "chat", "--kind", "question", "--prompts-per-kind", 1, "--drafter", "ngram", "--temperature", 0)
    asked = ("--target", folder, "--precision", "float32", "--max-new-tokens", 8, "--json", figures, "--trace", file)
    found = run("bench", *few, *asked)
    assert found.exit_code == 0, found.output
    read, runs = read_trace(file), json.loads(figures.read_text())["runs"]
    assert len(read.texts) == len(runs) == 4  # two ways, two prompts, nothing of the warm-up
    assert sorted((t.about["name"], t.about["kind"]) for t in read.texts) == sorted((r["way"], r["kind"]) for r in runs)
    assert all(sum(len(r.tokens) for r in text.rounds) == 8 for text in read.texts)
    assert read.ending == "finished"
    assert all(text.text for text in read.texts)
    shown = run("trace", file)
    assert "kind: chat" in shown.stdout or not any(r.nodes for r in read.rounds)


@pytest.mark.parametrize("command", ["generate", "bench"])
def test_a_place_that_cannot_be_written_is_refused_before_a_model_is_loaded(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("outrider.models.opening.open_model", lambda *_: pytest.fail("a model was loaded"))
    monkeypatch.setattr("outrider.loading.load", lambda *_, **__: pytest.fail("a model was loaded"))
    words = ["hello"] if command == "generate" else []
    for place, reason in (("no/t", "No such file"), (".", "Is a directory")):
        found = run(command, *words, "--trace", place)
        assert found.exit_code == 2
        said = " ".join(found.stderr.split())
        assert f"--trace is '{place}'; allowed: a file that can be written. {reason}" in said
    assert list(tmp_path.iterdir()) == []


def test_files_of_a_benchmark_are_not_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = run("bench", "--html", "a", "--trace", "a")
    assert found.exit_code == 2
    assert "--trace is 'a'; allowed: another file than --html" in found.stderr


def test_a_trace_that_fails_in_the_end_loses_no_text(folder):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    found = run("generate", "row row", "--target", folder, "--max-new-tokens", 20, "--json", "--trace", "/dev/full")
    assert found.exit_code == 2
    assert len(json.loads(found.stdout)["token_ids"]) > 0
    assert "--trace is '/dev/full'" in found.stderr
    assert "No space left" in found.stderr


def test_trace_prints_a_summary_or_writes_a_page(page_of, tmp_path):
    long_trace(tmp_path / "t", 60)
    shown = run("trace", tmp_path / "t")
    assert shown.exit_code == 0, shown.output
    for words in ("60 tokens", "slowest", "new text", "draft", "verify", "kept", "finished"):
        assert words in shown.stdout
    tables = shown.stdout.splitlines()[2:-2]
    assert max(map(len, tables)) <= 80
    assert "…" not in shown.stdout.partition("slowest")[0]
    assert "\x1b" not in shown.stdout
    written = run("trace", tmp_path / "t", "--html", tmp_path / "t.html")
    assert (written.exit_code, written.stdout) == (0, "")
    assert page_of(text=(tmp_path / "t.html").read_text()).faults == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing"], "file is 'missing'; allowed: a trace, written with --trace. No such file"),
        (["."], "file is '.'; allowed: a trace, written with --trace. Is a directory"),
        (["text"], "file is 'text, line 1'; allowed: a trace, whose first line is JSON"),
        (["t", "--html", "no/a.html"], "--html is 'no/a.html'; allowed: a file that can be written. No such file"),
        (["t", "--html", "t"], "--html is 't'; allowed: another file than the trace"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_words(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    long_trace("t", 5)
    Path("text").write_text("hello")
    found = run("trace", *arguments)
    assert found.exit_code == 2
    assert words in " ".join(found.stderr.split())
    assert sorted(os.listdir()) == ["t", "text"]  # noqa: PTH208
    assert read_trace("t").ending == "finished"


def test_a_run_that_is_killed_leaves_a_trace_that_ends_early(folder, tmp_path):
    file = tmp_path / "t.jsonl"
    code = (
        "import os, sys, outrider\n"
        "engine = outrider.load(sys.argv[1], drafter='ngram', num_draft_tokens=2)\n"
        "with outrider.trace(engine, sys.argv[2]):\n"
        "    for i, _ in enumerate(engine.stream('row row row', max_new_tokens=90, raw=True, stop_ids=())):\n"
        "        if i == 70: os._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, folder, str(file)], check=False).returncode == 9
    found = run("trace", file)
    assert found.exit_code == 0, found.output
    assert "ends early" in found.stdout
    assert read_trace(file).rounds


def test_help_of_trace_loads_no_torch():
    probe = (
        "import sys; from outrider.cli import main; sys.argv = ['outrider', 'trace', '--help']\n"
        "try: main()\nfinally: sys.stderr.write(' '.join({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "--html" in shown.stdout
