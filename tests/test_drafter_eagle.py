"""EAGLE heads at work, in whole runs: every draft is what a full recompute of the text gives."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine_runs import decode, finish, new_tokens, toy_engine
from head_references import Recorder, any_wrong, are_same, count_wrong, fresh_draft, run
from heads import eagle_head, head_drafter, tiny_target
from outrider.drafters.eagle import CHUNK, EagleFeeder
from outrider.engine import PREFILL_CHUNK
from outrider.errors import CacheTooLarge, InvalidOption
from outrider.options import Sampling

TARGET = tiny_target()
DRAWN, GREEDY = Sampling(temperature=0.8), Sampling()
SHARED = [3, 7, 1, 1, 9]
LONG = torch.randint(0, TARGET.vocab_size, (CHUNK + 90,), generator=torch.Generator().manual_seed(2)).tolist()

HEADS = {
    "eagle-1": eagle_head(TARGET, 1, biased=True),
    "eagle-3": eagle_head(TARGET, qk_norm=True, norm_before_residual=True, fc_norm=True),
    "eagle-3.1": eagle_head(TARGET, norm_before_fc=True, norm_output=True, own_output=False, draft_ids=(0, 1, 3, 7, 9)),
}
RUNS = [
    *(("eagle-3", tree, sampling) for tree in ("chain", "auto", "2.1") for sampling in (GREEDY, DRAWN)),
    ("eagle-1", "chain", DRAWN),
    ("eagle-1", "auto", GREEDY),
    ("eagle-3.1", "2.1.1", DRAWN),
    ("eagle-3.1", "auto", GREEDY),
]


def requests(sampling):
    """Prompts of one token and of several, some of them alike, joining and leaving at different times."""
    prompts = [SHARED, [5], SHARED, [2, 2], SHARED, [5], [*range(12), *range(12)], SHARED]
    lengths = [26, 8, 5, 9, 7, 4, 8, 5]
    return [
        {"prompt": prompt, "seed": seed, "max_new_tokens": length, "sampling": sampling}
        for seed, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]


def budget(tree, sampling):
    """With fewer nodes, a tree that draws is nearly always a chain."""
    return 5 if tree != "auto" else 6 if sampling is GREEDY else 14


def run_of(kind, tree, sampling, feeder=None, requests_of=requests, **options):
    drafter = head_drafter(TARGET, HEADS[kind], 3, feeder=feeder, tree=tree, row_cost=0)
    return run(TARGET, drafter, requests_of(sampling), 3, k=budget(tree, sampling), **options)


# ---------------------------------------------------------------- what is proposed


@pytest.mark.parametrize(("kind", "tree", "sampling"), RUNS)
def test_every_draft_is_what_a_full_recompute_gives(kind, tree, sampling):
    recorder = run_of(kind, tree, sampling)
    assert count_wrong(TARGET, HEADS[kind], recorder) == 0
    assert recorder.drafter.num_not_ready == 2  # the prompts of one token, in their first round
    assert recorder.num_shared_late >= 2
    assert 1 < recorder.num_accepted < sum(len(asked.draft) for asked in recorder.asked)
    if tree != "chain":
        assert sum(asked.draft.parents.count(-1) > 1 for asked in recorder.asked) > 5
        assert sum(max(asked.draft.parents, default=-1) >= 0 for asked in recorder.asked) > 10


@pytest.mark.parametrize(("tree", "sampling"), [("chain", DRAWN), ("auto", GREEDY)])
def test_long_prompts_are_read_in_parts_and_shared_before_and_after_rounds(tree, sampling):
    assert len(LONG) > CHUNK > PREFILL_CHUNK
    prompts = [LONG, LONG, LONG[:300], LONG]

    def long_requests(sampling):
        lengths = zip(prompts, (9, 3, 3, 3), strict=True)
        return [{"prompt": p, "seed": i, "max_new_tokens": n, "sampling": sampling} for i, (p, n) in enumerate(lengths)]

    drafter = head_drafter(TARGET, HEADS["eagle-3"], 2, 1024, tree=tree)
    recorder = run(TARGET, drafter, long_requests(sampling), 2)
    assert count_wrong(TARGET, HEADS["eagle-3"], recorder) == 0
    assert recorder.num_shared == 2 > recorder.num_shared_late == 1


@pytest.mark.parametrize(("tree", "sampling"), [("chain", DRAWN), ("2.1", DRAWN), ("auto", GREEDY)])
def test_a_fresh_drafter_that_is_told_the_same_proposes_the_same(tree, sampling):
    recorder = run_of("eagle-3", tree, sampling)
    for asked in recorder.asked:
        fresh = head_drafter(TARGET, HEADS["eagle-3"], 1, tree=tree, row_cost=0)
        assert are_same(fresh_draft(fresh, asked, recorder.told.get(asked.sequence.id, [])), asked.draft)


def test_nothing_of_another_engines_sequences_is_trusted():
    """Ids start again with every engine, and the next turn of a chat begins with the text of the last one."""
    drafter = head_drafter(TARGET, HEADS["eagle-3"], 3)
    first = run(TARGET, drafter, requests(DRAWN), 3)
    again = [
        {**request, "prompt": [*s.tokens, *s.tokens]}
        for request, s in zip(requests(DRAWN), first.sequences, strict=True)
    ]
    second = run(TARGET, drafter, again, 3)
    assert count_wrong(TARGET, HEADS["eagle-3"], second) == 0


def test_asking_again_in_the_same_round_changes_nothing_but_the_draws():
    stored = HEADS["eagle-3"]

    class AsksTwice(Recorder):
        def propose(self, sequences, budgets):
            self.drafter.propose(sequences, budgets)
            return super().propose(sequences, budgets)

    recorder = AsksTwice(head_drafter(TARGET, stored, 1, tree="2.1"))
    engine = toy_engine(TARGET.showing(recorder), recorder)
    engine.add(SHARED, seed=1, max_new_tokens=12, sampling=DRAWN)
    assert all(r.broken is None for rounds in finish(engine).values() for r in rounds)
    assert count_wrong(TARGET, stored, recorder) == 0


# ---------------------------------------------------------------- planted bugs


class KeepsTheWrongRows(EagleFeeder):
    """After a round, the first rows of the block, as if every draft were a chain."""

    def learn(self, verified):
        path = tuple(range(len(verified.verdict.path)))
        super().learn(replace(verified, verdict=replace(verified.verdict, path=path)))


class KeepsARejectedRow(EagleFeeder):
    """The state of the last drafted token stands for that of the last kept one."""

    def learn(self, verified):
        hidden = verified.hidden.clone()
        hidden[verified.verdict.path[-1] + 1 if verified.verdict.path else 0] = hidden[-1]
        super().learn(replace(verified, hidden=hidden))


class TrustsOldDrafts(EagleFeeder):
    """What was drafted in the last round is still there in the next."""

    def _catch_up(self, texts):
        old = {text.slot: self._known[text.slot].drafted for text in texts}
        super()._catch_up(texts)
        for text in texts:
            drafted = self._known[text.slot].drafted
            self._known[text.slot].drafted = {**old[text.slot], (): drafted[()]}


class LooksAtOldRows(EagleFeeder):
    """A drafted row sees the row before its own, whoever wrote it."""

    def _level(self, text, paths):
        jobs = super()._level(text, paths)
        for job, _ in jobs:
            job.mask[:, : job.start] = True
        return jobs


class OnePlaceOn(EagleFeeder):
    """Drafted rows stand one place too far on."""

    def _level(self, text, paths):
        jobs = super()._level(text, paths)
        return [(replace(job, positions=[place + 1 for place in job.positions]), new) for job, new in jobs]


class TokensOneRowLate(EagleFeeder):
    """A state goes in with its own token, not with the next one."""

    def _next_rows(self, text):
        job = super()._next_rows(text)
        return replace(job, tokens=text.tokens[job.start : job.start + len(job.tokens)])


class SharesTheLatestState(EagleFeeder):
    """A shared prompt ends with the state that its source has come to by then."""

    def share(self, source, sequence):
        held = self._known[source.slot]
        if held.unread:
            held.prompt_last = held.unread[-1][-1]
        super().share(source, sequence)


class SharesNoRows(EagleFeeder):
    """A shared prompt's rows are not copied."""

    def share(self, source, sequence):
        super().share(source, sequence)
        self._cache.rows[0][sequence.slot].zero_()


@pytest.mark.parametrize(
    ("bug", "tree"),
    [
        (KeepsTheWrongRows, "2.1"),
        (KeepsARejectedRow, "chain"),
        (TrustsOldDrafts, "chain"),
        (LooksAtOldRows, "2.1.1"),
        (OnePlaceOn, "chain"),
        (TokensOneRowLate, "chain"),
        (SharesTheLatestState, "chain"),
        (SharesNoRows, "chain"),
    ],
)
def test_the_comparison_catches_a_planted_bug(bug, tree):
    recorder = run_of("eagle-3", tree, DRAWN, bug)
    assert any_wrong(TARGET, HEADS["eagle-3"], recorder)


# ---------------------------------------------------------------- limits


def near_the_end(feeder=None, row_cost=0.0):
    """The broken rounds of a text that ends with the cache, drafted in trees as large as there is room for."""
    drafter = head_drafter(TARGET, HEADS["eagle-3"], 1, 256, feeder=feeder, tree="auto", row_cost=row_cost)
    recorder = Recorder(drafter)
    engine = toy_engine(TARGET.showing(drafter), recorder, k=12, context_length=256)
    engine.add(LONG[:240], sampling=GREEDY)
    rounds = [r for each in finish(engine).values() for r in each]
    return recorder, sum(r.broken is not None for r in rounds)


def test_trees_that_fill_the_cache_fit_whatever_they_displaced():
    recorder, broken = near_the_end()
    assert broken == 0
    recorder.asked = [a for a in recorder.asked if len(a.sequence.tokens) + len(a.draft) == 255]
    assert len(recorder.asked) > 5
    assert count_wrong(TARGET, HEADS["eagle-3"], recorder) == 0


class KeepsAllRows(EagleFeeder):
    """Displaced nodes keep their rows although there is no room."""

    def _make_room(self, text, paths):
        pass


@pytest.mark.filterwarnings("ignore::outrider.errors.DrafterWarning")
def test_without_room_made_such_trees_would_not_fit():
    assert near_the_end(KeepsAllRows)[1] > 0


def test_beyond_its_capacity_drafts_are_empty_and_counted():
    drafter = head_drafter(TARGET, HEADS["eagle-1"], 1, 20)
    engine = toy_engine(TARGET.showing(drafter), drafter)
    sequence = engine.add(SHARED, max_new_tokens=40)
    rounds = finish(engine)[sequence]
    length, most = len(SHARED), 0
    for r in rounds:
        assert r.broken is None
        assert r.num_drafted <= max(0, 20 - length)
        length += len(r.token_ids)
        most = max(most, r.num_drafted)
    assert most == 4
    assert drafter.num_past_context > 10
    assert drafter.num_not_ready == 0
    assert new_tokens(sequence) == decode(toy_engine(TARGET.model), SHARED, max_new_tokens=40)


def test_sequences_beyond_its_slots_are_decoded_without_it_and_counted():
    drafter = head_drafter(TARGET, HEADS["eagle-3"], 1)
    engine = toy_engine(TARGET.showing(drafter), drafter, slots=3)
    sequences = [engine.add(SHARED, seed=i, max_new_tokens=8) for i in range(3)]
    rounds = finish(engine)
    assert all(r.broken is None for each in rounds.values() for r in each)
    for sequence in sequences:
        drafts = [r.num_drafted for r in rounds[sequence]]
        assert any(drafts) == (sequence is sequences[0])
    assert drafter.num_not_ready >= 14
    assert len({tuple(new_tokens(sequence)) for sequence in sequences}) == 1


def test_a_failing_head_costs_drafts_and_no_state():
    """Features that were not run yet are still there when the head fails in between."""
    stored, recorder = HEADS["eagle-3"], Recorder(head_drafter(TARGET, HEADS["eagle-3"], 2))
    feeder, calls = recorder.drafter._feeds, []

    def fails_at_first(jobs, run_now=feeder._run):
        calls.append(len(jobs))
        if len(calls) < 3:
            raise RuntimeError("out of memory")
        return run_now(jobs)

    feeder._run = fails_at_first
    engine = toy_engine(TARGET.showing(recorder), recorder, slots=2)
    engine.add(SHARED, seed=1, max_new_tokens=12, sampling=DRAWN)
    rounds = [r for each in finish(engine).values() for r in each]
    assert [r.broken is not None for r in rounds][:3] == [True, True, False]
    assert sum(len(asked.draft) for asked in recorder.asked) > 5
    assert count_wrong(TARGET, stored, recorder) == 0


def test_a_target_that_shows_nothing_is_decoded_without_drafts():
    drafter = head_drafter(TARGET, HEADS["eagle-3"])
    assert decode(toy_engine(TARGET.model, drafter), SHARED, max_new_tokens=8) == decode(
        toy_engine(TARGET.model), SHARED, max_new_tokens=8
    )
    assert drafter.num_not_ready >= 7


def test_a_cache_that_does_not_fit_is_refused():
    with pytest.raises(CacheTooLarge):
        head_drafter(TARGET, HEADS["eagle-3"], 1024, 1 << 40)


@pytest.mark.parametrize(
    "options", [{"tree": "4.x"}, {"tree": "auto", "depth": 0}, {"tree": "auto", "row_cost": -1}, {"depth": 33}]
)
def test_options_outside_their_range_are_refused(options):
    with pytest.raises(InvalidOption):
        head_drafter(TARGET, HEADS["eagle-3"], **options)
