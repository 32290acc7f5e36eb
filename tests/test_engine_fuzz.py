"""Random requests, drafters and cancels: nothing escapes but outrider's own errors, and the next request is right."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_runs import all_drafters, finish, new_tokens, plain, toy_engine
from outrider.core import Draft
from outrider.errors import OutriderError
from outrider.generation import TextEngine
from outrider.options import Sampling
from outrider.rules import KeyedCoins
from test_generation import EOS, TOKENIZER, writing
from toy import BrokenDrafter, TableModel, random_laws

V, CONTEXT, SLOTS = 5, 14, 2
TARGET = TableModel(V, order=3, law=random_laws(V, seed=13, sharpness=2), context_length=CONTEXT)
pytestmark = pytest.mark.filterwarnings("ignore::outrider.errors.DrafterWarning")
calm = settings(deadline=None, derandomize=True, database=None)

# ---------------------------------------------------------------- what a user may come up with

numbers = st.one_of(st.integers(-3, 40), st.integers(), st.floats(), st.booleans())
anything = st.one_of(st.none(), numbers, st.text(max_size=3), st.lists(numbers, max_size=3), st.just({}))
ids = st.lists(st.integers(0, V - 1), max_size=4)


def fails(token_ids, logits):
    if len(token_ids) > 6:
        raise ZeroDivisionError
    return logits


PROCESSORS = [None, fails, lambda i, x: x[:-1], lambda i, x: None, lambda i, x: x * torch.nan, lambda i, x: x - i[-1]]
SENSIBLE = {
    "temperature": st.sampled_from([0, 0.7, 1.0, 3.0]),
    "top_k": st.integers(1, V),
    "top_p": st.floats(0.1, 1),
    "min_p": st.floats(0, 1),
    "repetition_penalty": st.floats(0.5, 2),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "logit_bias": st.dictionaries(st.integers(0, V - 1), st.floats(-5, 5), max_size=2),
    "banned_ids": st.frozensets(st.integers(0, V - 1), max_size=2),
    "min_new_tokens": st.integers(0, 5),
    "processor": st.sampled_from(PROCESSORS),
    "logprobs": st.integers(0, V),
}


def options(wildness):
    """Mostly sensible settings; `wildness` of ten are anything at all."""

    def perhaps(sensible):
        return st.integers(0, 9).flatmap(lambda roll: anything if roll < wildness else sensible)

    sampling = st.fixed_dictionaries({}, optional={name: perhaps(values) for name, values in SENSIBLE.items()})
    return st.fixed_dictionaries(
        {"prompt": perhaps(st.lists(st.integers(0, V - 1), min_size=1, max_size=CONTEXT)), "sampling": sampling},
        optional={
            "stop_ids": perhaps(ids),
            "max_new_tokens": perhaps(st.one_of(st.none(), st.integers(1, 9))),
            "seed": perhaps(st.integers(0, 2**63 - 1)),
        },
    )


@st.composite
def odd_drafts(draw):
    """A draft, or something like one."""
    tokens = draw(st.one_of(st.lists(st.integers(-1, V), max_size=4), anything))
    parents = draw(st.one_of(st.just(tuple(range(-1, 3))), st.lists(st.integers(-2, 3), max_size=4), anything))
    rows = draw(st.integers(0, 4))
    law = draw(st.sampled_from([1 / V, 0.5, 0.0, -1.0, np.nan, np.inf]))
    probs = draw(st.sampled_from([None, np.full((rows, V), law, dtype=np.float32), np.ones((rows, V + 1)), "p"]))
    made = Draft(tokens, parents, draw(st.sampled_from(["sampled", "point_mass", "hybrid", "x"])), probs)
    return draw(st.sampled_from([made, made, made, None, 5]))


class Odd:
    """Proposes what it was given, over and over."""

    name = "odd"

    def __init__(self, drafts, proposal):
        self.drafts, self.proposal = drafts, proposal

    def propose(self, sequences, budgets):
        self.drafts = self.drafts[1:] + self.drafts[:1]
        return [self.drafts[i % len(self.drafts)] for i in range(len(sequences))]


@st.composite
def engines(draw):
    sampled = draw(st.booleans())
    proposal = "sampled" if sampled else "point_mass"
    rule = draw(st.sampled_from(["point-mass", "coupled"] + ["token", "block"] * sampled))
    sound = all_drafters(TARGET, SLOTS, [0, *TARGET.greedy([0], 12)])
    faults = BrokenDrafter.faults_of_sampled if sampled else BrokenDrafter.faults
    names = ["model", "one-law"] if sampled else ["none", "ngram", "suffix", "scripted", "repeats"]
    drafters = st.one_of(
        st.sampled_from(names).map(lambda name: sound[name]()),
        st.sampled_from(faults).map(lambda fault: BrokenDrafter(fault, V, proposal)),
        st.lists(odd_drafts(), min_size=1, max_size=4).map(lambda drafts: Odd(drafts, proposal)),
    )
    drafter = draw(drafters)
    return toy_engine(TARGET, drafter, rule, draw(st.sampled_from([0, 1, 3, 20, None])), slots=SLOTS)


actions = st.lists(
    st.one_of(
        options(wildness=1).map(lambda request: ("add", request)),
        st.integers(0, 5).map(lambda which: ("cancel", which)),
        st.integers(1, 3).map(lambda times: ("step", times)),
    ),
    min_size=1,
    max_size=10,
)


def add(engine, request):
    """The sequence, or None if the request was refused; a refusal leaves nothing behind."""
    before = engine.num_unfinished
    try:
        sampling = request["sampling"]
        return engine.add(**request | {"sampling": Sampling(**sampling)})
    except OutriderError:
        assert engine.num_unfinished == before
        return None


def check_text(engine, sequence, seed):
    """Greedy and coupled texts are those of plain decoding, as far as they go."""
    greedy = sequence.sampling.temperature == 0
    if greedy or (engine.rule.name == "coupled" and seed is not None):
        prompt = sequence.tokens[: sequence.prompt_length]
        settings_of_it = {"sampling": sequence.sampling, "stop_ids": sequence.stop_ids}
        coins = None if greedy else KeyedCoins(seed)
        expected = plain(TARGET, prompt, sequence.num_new_tokens, **settings_of_it, coins=coins)
        assert new_tokens(sequence) == expected


@settings(calm, max_examples=150)
@given(engines(), actions)
def test_nothing_escapes_and_the_next_request_decodes_right(engine, actions):
    added = []
    for action, argument in actions:
        if action == "add":
            sequence = add(engine, argument)
            if sequence is not None:
                added.append((sequence, argument.get("seed")))
        elif action == "cancel" and added:
            engine.cancel(added[argument % len(added)][0])
        elif action == "step":
            for _ in range(argument):
                engine.step()
    rounds = finish(engine)
    for sequence, seed in added:
        check_text(engine, sequence, seed)
        assert len(sequence.tokens) <= CONTEXT
    assert all(each[-1].finish_reason in ("stop", "length", "error") for each in rounds.values())
    for seed in (1, 2):
        last = engine.add([1, 2], sampling=Sampling(temperature=0.9 * (engine.rule.name == "coupled")), seed=seed)
        finish(engine)
        check_text(engine, last, seed)
        assert len(last.tokens) == CONTEXT


@settings(calm, max_examples=200)
@given(options(wildness=5))
def test_wild_requests_are_decoded_or_refused(request):
    engine = toy_engine(TARGET, all_drafters(TARGET, 1, [])["ngram"]())
    if add(engine, request) is not None:
        finish(engine)
    assert engine.num_unfinished == 0


@settings(calm, max_examples=200)
@given(
    st.dictionaries(
        st.sampled_from(["stop", "stop_ids", "seed", "max_new_tokens", "temperature", "logprobs", "temprature"]),
        anything,
        max_size=3,
    ),
    st.one_of(st.text(max_size=3), anything),
)
def test_wild_text_requests_are_decoded_or_refused(options, prompt):
    engine = TextEngine(toy_engine(TableModel(TOKENIZER.vocab_size, context_length=30)), TOKENIZER)
    try:
        result = engine.generate(prompt, **options)
    except OutriderError:
        pass
    else:
        assert result.text == TOKENIZER.decode([t for t in result.token_ids if t != EOS])[: len(result.text)]
    assert engine.engine.num_unfinished == 0
    assert not engine._inboxes


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"), min_size=1, max_size=12)


def cut_by_hand(reply, stops):
    """(text, number of tokens) up to the first token that completes a stop string; searched anew at every token."""
    encoded = reply.encode()
    for count in range(1, len(encoded) + 1):
        text = encoded[:count].decode(errors="ignore")
        found = [(text.index(stop), len(stop)) for stop in stops if stop in text]
        if found:
            return text[: min(found)[0]], count
    return reply, len(encoded) + 1


@settings(calm, max_examples=200)
@given(st.data(), texts, st.integers(0, 9), st.sampled_from([None, 0, 1, 2]))
def test_stop_strings_cut_any_text_as_a_search_by_hand_does(data, reply, k, right):
    places = st.tuples(st.integers(0, len(reply) - 1), st.integers(1, 4)).map(lambda p: reply[p[0] : p[0] + p[1]])
    stops = data.draw(st.lists(st.one_of(places, texts), max_size=3))
    engine = writing([*reply.encode(), EOS], k=k, right=right)
    pieces = list(engine.stream("say: ", raw=True, stop=stops))
    text, count = cut_by_hand(reply, stops)
    assert "".join(piece.text for piece in pieces) == text
    assert [piece.token_id for piece in pieces] == [*reply.encode(), EOS][:count]
    assert pieces[-1].finish_reason == "stop"
