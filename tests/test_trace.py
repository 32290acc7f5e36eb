"""What a trace says is what happened: checked against the engine's own laws, coins and texts, with planted faults.

`faults_of` checks a trace against nothing but itself and what the rules' docstrings say; `law_faults` computes q anew.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine_runs import (
    DRAFTERS_AND_RULES,
    DrawsFromOneLaw,
    RandomTrees,
    all_drafters,
    finish,
    new_tokens,
    toy_engine,
)
from outrider.core import Verdict
from outrider.drafters import NgramDrafter
from outrider.errors import DrafterWarning, InvalidOption
from outrider.generation import TextEngine
from outrider.options import Sampling
from outrider.rules import RULES, KeyedCoins, RandomCoins
from outrider.stats import collect
from outrider.tracing.attributing import WALKS, attributed, examined
from outrider.tracing.figures import figures, groups
from outrider.tracing.lines import header
from outrider.tracing.noting import NotedCoins, TracedRule
from outrider.tracing.reading import read_trace
from outrider.tracing.recording import Tracer, trace
from toy import BrokenDrafter, ByteTokenizer, ScriptedDrafter, TableModel, random_laws, rule_law

VOCAB = 6
PROMPTS = [[0, 1, 2, 3, 0, 1], [2, 2, 5], [4, 1, 0, 4, 1]]
SAMPLING = Sampling(temperature=0.9, presence_penalty=0.1)


def target():
    return TableModel(VOCAB, order=2, law=random_laws(VOCAB, seed=5, sharpness=3))


def traced_run(path, drafter="model", rule="auto", *, sampling=SAMPLING, planted=None, slots=2, tokens=15):
    """A trace of three texts, their rounds and the target; `planted` wraps the rule, no path writes no trace."""
    model = target()
    made = all_drafters(model, slots, model.greedy(PROMPTS[0], 60))[drafter]()
    chosen = RULES[rule] if planted is None else planted(RULES[rule])
    engine = toy_engine(model, made, chosen, k=5, slots=slots)
    with trace(engine, path, target="a table", seed=1) if path else nullcontext():
        for seed, prompt in enumerate(PROMPTS):
            engine.add(prompt, sampling=sampling, seed=seed, max_new_tokens=tokens)
        rounds = finish(engine)
    return read_trace(path) if path else None, rounds, model


def by_text(found, rounds):
    """Each traced text with its sequence: they began in the order in which they were added."""
    return list(zip(found.texts, sorted(rounds, key=lambda s: s.id), strict=True))


# ---------------------------------------------------------------- the checks


def faults_of(found):
    """What in a trace contradicts itself: decisions that do not follow from coins, or acceptance from p and q."""
    return [
        f"line {r.line}: {fault}"
        for text in found.texts
        for r in text.rounds
        for fault in [*coin_faults(r), *decision_faults(r), *acceptance_faults(r)]
    ]


def coin_faults(r):
    for node in r.nodes:
        coin = node.coin
        if coin is not None and coin.uniform is not None and coin.fell != (coin.uniform < coin.chance):
            yield f"a coin {coin} that did not fall as it was thrown"
        if coin is not None and r.rule in WALKS and coin.chance != node.acceptance:
            yield f"a coin {coin} for an acceptance of {node.acceptance}"
        if coin is not None and r.rule in ("coupled", "typical"):
            yield f"a coin {coin} of a rule that throws none"


def decision_faults(r):
    """Walking rules keep a node if its coin fell, block and traversal end with the node whose coin did."""
    kept = [i for i, node in enumerate(r.nodes) if node.accepted]
    fell = [i for i, node in enumerate(r.nodes) if node.coin and node.coin.fell]
    outcomes = [i for i, node in enumerate(r.nodes) if node.acceptance == 1]
    expected = {"block": kept[-1:], "traversal": kept[-1:], "coupled": [], "typical": []}.get(r.rule, kept)
    if fell != expected or (r.rule in ("coupled", "typical") and outcomes != kept):
        yield f"nodes {kept} are kept, coins fell at {fell}, acceptance is 1 at {outcomes}"
    tip = kept[-1] if kept else -1
    children = [node.token for node in r.nodes if node.parent == tip]
    if r.rule in ("coupled", "point-mass") and r.next_token and r.next_token.token in children:
        yield f"the next token is a child of node {tip} that was refused"


def acceptance_faults(r):
    """Where no sibling came before, acceptance is a function of p, q and the parent's weight alone."""
    weights = {-1: 1.0}
    for i, node in enumerate(r.nodes):
        if node.parent in {older.parent for older in r.nodes[:i]} or node.parent not in weights:
            continue
        drawn_with = 1.0 if node.p is None or r.rule == "point-mass" else node.p
        weight = weights[node.parent] if r.rule in ("block", "traversal") else 1.0
        weights[i] = min(1.0, weight * node.q / drawn_with)
        known = r.rule in (*WALKS, "block", "traversal") and node.acceptance is not None
        if known and abs(node.acceptance - weights[i]) > 1e-5:
            yield f"node {i} has acceptance {node.acceptance}, not {weights[i]}"


def unattributed(found):
    """Rounds of which no probability, or not every coin, was found to belong to a node."""
    return [
        f"line {r.line}"
        for r in found.rounds
        if any(node.acceptance is None for node in r.nodes[:1])
        or (r.rule in WALKS and any((node.coin is None) != (node.acceptance is None) for node in r.nodes))
        or (r.rule in ("block", "traversal") and r.nodes and not any(node.coin for node in r.nodes))
    ]


def law_faults(found, rounds, model, sampling=SAMPLING):
    """Where the recorded q is not the law's of the target, computed anew from the table for that very history."""
    faults = []
    for text, sequence in by_text(found, rounds):
        for r in text.rounds:
            before = sequence.tokens[: sequence.prompt_length + r.place]
            paths = [[]]
            for node in r.nodes:
                paths.append([*paths[node.parent + 1], node.token])
                faults += _law_fault(r, node, [*before, *paths[node.parent + 1]], sequence, model, sampling)
            tip = max((i for i, node in enumerate(r.nodes) if node.accepted), default=-1)
            faults += _law_fault(r, r.next_token, [*before, *paths[tip + 1]], sequence, model, sampling)
    return faults


def _law_fault(r, node, tokens, sequence, model, sampling):
    logits = model.logits(tokens).double().numpy().copy()
    logits[sorted(set(tokens[sequence.prompt_length :]))] -= sampling.presence_penalty
    weights = np.exp((logits - logits.max()) / sampling.temperature)
    q = weights[node.token] / weights.sum()
    return [] if abs(q - node.q) < 1e-5 else [f"line {r.line}: q of {node.token} is {node.q}, not {q}"]


# ---------------------------------------------------------------- every rule and drafter


ALL = sorted({*DRAFTERS_AND_RULES, *((name, "auto") for name in ("model", "one-law", "suffix", "none"))})


@pytest.mark.parametrize(("drafter", "rule"), ALL)
def test_a_trace_is_what_happened_and_what_would_have_happened_without(drafter, rule, tmp_path):
    found, rounds, model = traced_run(tmp_path / "t", drafter, rule)
    assert found.ending == "finished"
    for text, sequence in by_text(found, rounds):
        assert [t.token for r in text.rounds for t in r.tokens] == new_tokens(sequence)
        assert [r.rule for r in text.rounds] == [r.rule for r in rounds[sequence]]
        assert [len(r.nodes) for r in text.rounds] == [r.num_drafted for r in rounds[sequence]]
        assert [r.num_accepted for r in text.rounds] == [r.num_accepted for r in rounds[sequence]]
        assert [r.seconds for r in text.rounds] == [r.seconds for r in rounds[sequence]]
        assert text.rounds[-1].finish == "length"
    assert faults_of(found) == []
    assert law_faults(found, rounds, model) == []
    assert unattributed(found) == []
    _, without, _ = traced_run(None, drafter, rule)
    assert [new_tokens(s) for s in without] == [new_tokens(s) for s in rounds]


def test_the_typical_rule_has_outcomes_and_no_coins(tmp_path):
    model = target()
    engine = toy_engine(model, DrawsFromOneLaw(np.full(VOCAB, 1 / VOCAB)), RULES["typical"], k=4)
    with trace(engine, tmp_path / "t"):
        engine.add(PROMPTS[0], sampling=SAMPLING, seed=1, max_new_tokens=30)
        finish(engine)
    found = read_trace(tmp_path / "t")
    assert faults_of(found) == []
    assert {node.acceptance for r in found.rounds for node in r.nodes} == {0.0, 1.0, None}
    assert not found.texts[0].about["lossless"]


# ---------------------------------------------------------------- planted faults


class WrongNode:
    """Decides as the rule does, but says that it kept a sibling, or another node, of the last one."""

    def __init__(self, rule):
        self.rule = rule
        self.name, self.lossless, self.proposals, self.trees = rule.name, rule.lossless, rule.proposals, rule.trees

    def verify(self, draft, target_probs, coins, position):
        verdict = self.rule.verify(draft, target_probs, coins, position)
        return self.spoilt(draft, verdict)

    def spoilt(self, draft, verdict):
        wrong = [i for i, parent in enumerate(draft.parents) if parent == -1 and i not in verdict.path]
        return replace(verdict, path=(wrong[0],)) if wrong else verdict


class DoubledAcceptance(WrongNode):
    def spoilt(self, draft, verdict):
        return replace(verdict, acceptance=tuple(a / 2 for a in verdict.acceptance))


class WrongNext(WrongNode):
    def spoilt(self, draft, verdict):
        return replace(verdict, next_token=(verdict.next_token + 1) % VOCAB)


@pytest.mark.parametrize("rule", ["recursive", "point-mass", "traversal", "coupled"])
def test_a_wrong_node_in_a_verdict_is_found(rule, tmp_path):
    found, _, _ = traced_run(tmp_path / "t", "hybrid-trees", rule, planted=WrongNode)
    assert faults_of(found) != []


@pytest.mark.parametrize("rule", ["token", "block", "recursive", "point-mass", "traversal"])
def test_wrong_probabilities_in_a_verdict_are_found(rule, tmp_path):
    drafter = "one-law" if rule in ("token", "block") else "hybrid-trees"
    found, _, _ = traced_run(tmp_path / "t", drafter, rule, planted=DoubledAcceptance)
    assert faults_of(found) != []


@pytest.mark.parametrize("change", ["wrong node", "other parent's law", "coins in another order"])
def test_a_trace_that_records_something_else_is_found(change, tmp_path, monkeypatch):
    import outrider.tracing.lines as lines

    def nodes_of(decided, source, text_of, own=lines.nodes_of):
        nodes = own(decided, source, text_of)
        if len(nodes) > 1 and change == "wrong node":
            nodes[0]["coin"], nodes[1]["coin"] = nodes[1]["coin"], nodes[0]["coin"]
        elif len(nodes) > 1 and change == "other parent's law":
            nodes[1]["q"] = nodes[0]["q"]
        return nodes

    def reversed_coins(rule, draft, verdict, thrown, own=lines.attributed):
        return own(rule, draft, verdict, thrown[::-1])

    if change == "coins in another order":
        monkeypatch.setattr(lines, "attributed", reversed_coins)
    else:
        monkeypatch.setattr(lines, "nodes_of", nodes_of)
    found, rounds, model = traced_run(tmp_path / "t", "one-law", "block")
    assert faults_of(found) + law_faults(found, rounds, model) != []


def test_a_law_of_another_temperature_is_found(tmp_path):
    found, rounds, model = traced_run(tmp_path / "t", "model", "block")
    assert law_faults(found, rounds, model, replace(SAMPLING, temperature=1.0)) != []
    assert law_faults(found, rounds, model, replace(SAMPLING, presence_penalty=0.0)) != []


# ---------------------------------------------------------------- coins and wrappers


def test_noted_coins_are_the_same_coins():
    def streams():
        return RandomCoins(np.random.default_rng(1), np.random.default_rng(2))

    plain, inner = streams(), streams()
    noted = NotedCoins(inner)
    law = np.array([0.1, 0.5, 0.4])
    chances = [0.2, 0.7, 0.0, 1.0, 0.5]
    assert [noted.bernoulli(c) for c in chances] == [plain.bernoulli(c) for c in chances]
    assert [noted.categorical(law, i) for i in range(5)] == [plain.categorical(law, i) for i in range(5)]
    assert [coin.chance for coin in noted.thrown] == chances
    assert all(coin.fell == (coin.uniform < coin.chance) for coin in noted.thrown)
    assert plain.accept.random() == inner.accept.random()  # none was drawn beside


def test_coins_that_do_not_tell_are_noted_without_a_number():
    class AlwaysHeads:
        def bernoulli(self, probability):
            return True

    noted = NotedCoins(AlwaysHeads())
    assert noted.bernoulli(0.5)
    assert (noted.thrown[0].uniform, noted.thrown[0].fell) == (None, True)
    with pytest.raises(InvalidOption):
        NotedCoins(KeyedCoins(1)).bernoulli(0.5)


def test_a_rule_that_nobody_knows_gets_no_figures():
    draft = ScriptedDrafter([list(range(6))], VOCAB)._propose([0, 1], 3)
    verdict = Verdict((0,), 3, (0.5, 0.25, 0.125, 0.1))
    assert attributed("one of my own", draft, verdict, []) == ({}, {})
    assert attributed("token", draft, verdict, []) == ({}, {})
    assert list(examined(draft, (0,))) == [0, 1]


def test_an_engine_that_is_not_traced_has_its_own_rule_and_pace(tmp_path):
    engine = toy_engine(target(), NgramDrafter())
    rule, pace = engine.rule, engine.pace
    with trace(engine, tmp_path / "t"):
        assert (engine.rule is rule, engine.pace is pace) == (False, False)
        assert (engine.rule.name, engine.rule.lossless, engine.rule.trees) == (rule.name, rule.lossless, rule.trees)
    assert (engine.rule is rule, engine.pace is pace) == (True, True)
    assert isinstance(TracedRule(rule, print).rule, type(rule))


def test_a_trace_counts_what_the_statistics_count(tmp_path):
    for drafter in ("suffix+model", "scripted-trees", "model"):
        found, rounds, _ = traced_run(tmp_path / "t", drafter)
        for text, sequence in by_text(found, rounds):
            own = figures(text.rounds)
            names = {"drafter": "", "rule": "", "lossless": True, "precision": "", "prefill_seconds": 0.0}
            stats = collect(rounds[sequence], **names)
            assert own.acceptance_rate == stats.acceptance_rate
            assert own.tokens_per_round == stats.mean_acceptance_length
            assert own.positions == stats.acceptance
        whole = figures(found.rounds)
        assert whole.tokens == sum(len(new_tokens(s)) for s in rounds)
        steps = {r.step: r.seconds.total for r in found.rounds}
        assert whole.seconds.total == pytest.approx(sum(steps.values()))


def test_the_part_of_a_combination_that_drafted_is_named(tmp_path):
    model = target()
    engine = toy_engine(model, all_drafters(model, 3, [])["suffix+model"](), "auto", k=5, slots=3)
    with trace(engine, tmp_path / "t"):
        for seed, prompt in enumerate(PROMPTS):
            engine.add(prompt, sampling=SAMPLING, seed=seed, max_new_tokens=40)
        rounds = finish(engine)
    found = read_trace(tmp_path / "t")
    for text, sequence in by_text(found, rounds):
        uses = engine.drafter.uses(sequence)
        for name in ("suffix", "model"):
            assert sum(r.source == name for r in text.rounds) == uses[name]
    origins = {node.origin for r in found.rounds for node in r.nodes}
    assert origins == {"suffix", "model"}
    for r in found.rounds:
        assert (r.source == "model") == any(node.p is not None for node in r.nodes)
        assert {t.origin for t in r.tokens} <= {r.source, "target"}
    assert set(groups(found)) == {"all", "origin: suffix", "origin: model"}


# ---------------------------------------------------------------- texts and endings


def text_engine(reply="naïve €uro 🚣 row the boat, row the boat", *, drafter=None, k=4, context_length=400):
    script = [*reply.encode(), ByteTokenizer.eos_id]

    def next_token(context):
        return script[min(len(context) - 4, len(script) - 1)]

    law = rule_law(ByteTokenizer.vocab_size, next_token)
    model = TableModel(ByteTokenizer.vocab_size, order=None, law=law, context_length=context_length)
    drafter = ScriptedDrafter([[0, 0, 0, 0, *script]], ByteTokenizer.vocab_size) if drafter is None else drafter
    return TextEngine(toy_engine(model, drafter, k=k, slots=2), ByteTokenizer())


def test_the_text_of_a_trace_is_the_text(tmp_path):
    engine = text_engine()
    with trace(engine, tmp_path / "t"):
        results = engine.generate_many([[0, 0, 0, 0], [1, 1, 1, 1]], stop="boat, r")
        streamed = "".join(piece.text for piece in engine.stream([0, 0, 0, 0], max_new_tokens=9))
    found = read_trace(tmp_path / "t")
    assert [text.text for text in found.texts] == [*(result.text for result in results), streamed]
    assert results[0].text == "naïve €uro 🚣 row the "
    assert [text.rounds[-1].finish for text in found.texts] == ["stop", "stop", "length"]


def test_an_engine_without_texts_gets_them_from_a_tokenizer(tmp_path):
    engine = text_engine()
    inner = engine.engine
    first = header(inner)
    with (
        Tracer(tmp_path / "t", first) as tracer,
        tracer.following(inner, engine.tokenizer.decode, kind_of=lambda s: "a kind"),
    ):
        inner.add([0, 0, 0, 0], max_new_tokens=30)
        finish(inner)
    (text,) = read_trace(tmp_path / "t").texts
    assert text.text == engine.tokenizer.decode([t.token for r in text.rounds for t in r.tokens])
    assert "🚣" in text.text
    assert text.about["kind"] == "a kind"


def test_a_text_that_does_not_end_is_a_trace_that_was_stopped(tmp_path):
    engine = text_engine()
    with trace(engine, tmp_path / "t"):
        pieces = engine.stream([0, 0, 0, 0])
        next(pieces)
        pieces.close()
    assert read_trace(tmp_path / "t").ending == "stopped"
    with pytest.raises(ZeroDivisionError), trace(engine, tmp_path / "t"):
        raise ZeroDivisionError
    assert read_trace(tmp_path / "t").ending == "failed"
    with pytest.raises(KeyboardInterrupt), trace(engine, tmp_path / "t"):
        raise KeyboardInterrupt
    assert read_trace(tmp_path / "t").ending == "stopped"


def test_a_trace_that_begins_in_the_middle_of_a_text_says_where(tmp_path):
    engine = text_engine()
    sequence = engine.add([0, 0, 0, 0], max_new_tokens=20)
    engine.step()
    made = sequence.num_new_tokens
    with trace(engine, tmp_path / "t"):
        while engine.engine.num_unfinished:
            engine.step()
    (text,) = read_trace(tmp_path / "t").texts
    assert text.rounds[0].place == made > 0
    assert [t.token for r in text.rounds for t in r.tokens] == sequence.tokens[4 + made :]


def test_failures_are_named_without_what_may_name_files(tmp_path):
    def processor(tokens, logits):
        if len(tokens) > 12:
            raise ValueError("/home/me/secret")
        return logits

    engine = text_engine(drafter=BrokenDrafter("raises", ByteTokenizer.vocab_size))
    with trace(engine, tmp_path / "t"), pytest.warns(DrafterWarning):
        engine.generate_many([[0, 0, 0, 0]], processor=processor)
    (text,) = read_trace(tmp_path / "t").texts
    assert text.rounds[-1].error == "ProcessorError"
    assert text.rounds[-1].finish == "error"
    assert text.rounds[0].broken is not None
    assert "secret" not in (tmp_path / "t").read_text()
    assert text.about["sampling"]["processor"] is True


def test_a_place_that_cannot_be_written_is_refused_at_once(tmp_path):
    engine = text_engine()
    for path in (tmp_path / "no" / "t", tmp_path, "a\0b"):
        with pytest.raises(InvalidOption, match="a file that can be written"), trace(engine, path):
            pytest.fail("it began")


def test_a_full_disk_ends_the_trace_and_not_the_text():
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    engine, results = text_engine(), []

    def run():
        with trace(engine, "/dev/full"):
            results.extend(engine.generate([0, 0, 0, 0]) for _ in range(20))  # more than a buffer

    with pytest.raises(InvalidOption, match=r"trace is '/dev/full'.*No space left"):
        run()
    assert len(results) == 20
    assert {result.finish_reason for result in results} == {"stop"}


def test_the_lines_are_what_the_page_says(tmp_path):
    traced_run(tmp_path / "t", "suffix+model", tokens=6)
    lines = [json.loads(line) for line in (tmp_path / "t").read_text().splitlines()]
    assert list(lines[0]) == [
        "format",
        "version",
        "target",
        "precision",
        "drafter",
        "rule",
        "sampling",
        "seed",
        "versions",
    ]
    assert (lines[0]["target"], lines[0]["seed"]) == ("a table", 1)
    kinds = [next(key for key in ("round", "text", "end", "format") if key in line) for line in lines]
    assert (kinds[0], kinds[-1], kinds.count("text")) == ("format", "end", 3)
    shown = next(line for line in lines if line.get("nodes"))
    assert list(shown) == (
        ["round", "text", "step", "place", "seconds", "rule", "nodes", "next", "tokens", "finish", "broken", "error"]
    )
    assert list(shown["nodes"][0]) == ["token", "text", "origin", "parent", "p", "q", "acceptance", "coin", "accepted"]
    assert (tmp_path / "t").read_text().isascii()


def test_all_rules_are_traced_here():
    traced = {rule for _, rule in ALL} | {"typical"}
    assert traced == set(RULES)


def test_random_trees_of_every_kind_reach_nodes_that_no_rule_came_to(tmp_path):
    model = target()
    engine = toy_engine(model, RandomTrees(np.full(VOCAB, 1 / VOCAB), "without"), "recursive", k=8)
    with trace(engine, tmp_path / "t"):
        engine.add(PROMPTS[0], sampling=SAMPLING, seed=1, max_new_tokens=60)
        finish(engine)
    nodes = [node for r in read_trace(tmp_path / "t").rounds for node in r.nodes]
    assert {node.acceptance is None for node in nodes} == {True, False}
    assert all(node.p is not None and node.q is not None for node in nodes)
