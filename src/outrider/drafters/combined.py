"""Several drafters as one: in every round each sequence takes the one that promises most tokens per cost.

What the target emitted tells how *every* draft would have fared, also those that were not verified (full information:
HedgeSpec, "Not-a-Bandit", ICLR 2026), so a look-up that starts to fit is seen before it is used. A look-up's chances
are kept by how far it proposes, which stands for how much it matched (the gate of SAM-Decoding, 2411.10666), and
apart for the first token and those after it, which differ much: a look-up that fits at all mostly fits for long.
Nothing here knows how a source drafts.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from math import isfinite
from typing import Any
from weakref import WeakKeyDictionary

from outrider.core import Draft, Drafter, Proposal, Sequence
from outrider.errors import InvalidOption
from outrider.rounds import Verified
from outrider.tree import check, depths, is_chain

DECAY = 0.85
"""Weight of all earlier rounds when a round tells something new."""

FADE = 0.97
"""Weight of what is known when a round tells nothing: old news turns slowly into the prior."""

PROBE_EVERY = 16
"""Rounds after which a source that costs is tried again, unless not even a perfect draft would be worth it."""

CHANGE = 3
"""Misses in a row of the source in use after which the text counts as changed: the others are tried at once."""

LOOK_AHEAD = 16
"""Nodes that a look-up is asked for at least: what does not fit in the budget is not verified but tells its depth."""

FREE_PRIOR = (0.35, 0.85)
"""Chances of a look-up's first token, and of each one after a fitting one (public profiles of n-gram drafts)."""

COSTLY_PRIOR = (0.7, 0.7)
"""The same for a model (public profiles of EAGLE drafts)."""

NUM_CLASSES = 6
"""Classes of depth: 0 not known beforehand, then 1, 2 to 3, 4 to 7, 8 to 15, and 16 or more tokens."""


@dataclass
class _Chance:
    """A probability, as seen lately; the prior weighs as much as one try.

    News of the n-th round in a row that all went one way lets what speaks for the other way fade by DECAY to the n:
    a source that begins to fit, or ceases to, is seen after a few rounds, and a steady mixture is hardly distorted.
    """

    hits: float = 0.0
    misses: float = 0.0
    run: int = 0  # rounds in a row that hit, or minus those that missed

    def learn(self, hits: int, tries: int) -> None:
        if tries == 0:
            self.hits, self.misses = FADE * self.hits, FADE * self.misses
        if hits > 0:
            self.run = max(self.run, 0) + 1
            self.hits, self.misses = DECAY * self.hits + hits, DECAY**self.run * self.misses
        if hits < tries:
            self.run = min(self.run, 0) - 1
            self.hits, self.misses = DECAY**-self.run * self.hits, DECAY * self.misses + tries - hits

    def estimate(self, prior: float) -> float:
        return (prior + self.hits) / (1 + self.hits + self.misses)


@dataclass
class _Habit:
    """How often the first token of a draft fits, and how often each one after a fitting one."""

    first: _Chance = field(default_factory=_Chance)
    further: _Chance = field(default_factory=_Chance)

    def learn(self, matched: int, tried: int) -> None:
        """`matched` of the `tried` tokens that could be judged fitted, from the first on."""
        self.first.learn(min(matched, 1), min(tried, 1))
        self.further.learn(max(matched - 1, 0), max(min(matched + 1, tried) - 1, 0))

    def estimate(self, prior: tuple[float, float]) -> tuple[float, float]:
        return self.first.estimate(prior[0]), self.further.estimate(prior[1])


@dataclass
class _Outcome:
    """What a round told of a source; by default nothing."""

    depth_class: int = 0
    matched: int = 0
    tried: int = 0


class _Record:
    """What one source was worth for one sequence, given its chances beforehand."""

    def __init__(self, prior: tuple[float, float]) -> None:
        self.uses = self.rounds_idle = 0
        self.nodes_per_depth = 1.0  # of its last draft; more in a tree
        self._prior = prior
        self._overall = _Habit()
        self._by_class = [_Habit() for _ in range(NUM_CLASSES)]

    def learn(self, outcome: _Outcome) -> None:
        self._overall.learn(outcome.matched, outcome.tried)
        for depth_class, habit in enumerate(self._by_class):
            tells = depth_class == outcome.depth_class
            habit.learn(outcome.matched if tells else 0, outcome.tried if tells else 0)

    @property
    def misses_in_a_row(self) -> int:
        return -self._overall.first.run

    def best(self, sizes: Iterable[tuple[int, float]], cost: float, depth_class: int = 0) -> tuple[float, int]:
        """The most expected tokens per cost among drafts of these sizes, and its nodes; (0, 0) if there is none.

        Args:
            sizes: nodes and depth.
            cost: per node.
            depth_class: of the whole draft, if known.
        """
        first, further = self._by_class[depth_class].estimate(self._overall.estimate(self._prior))
        best = 0.0, 0
        for nodes, depth in sizes:
            value = (1 + first * (1 - further**depth) / (1 - further)) / (1 + cost * nodes)
            if value > best[0]:
                best = value, nodes
        return best

    def sizes(self, budget: int) -> Iterable[tuple[int, float]]:
        """Nodes and likely depth of all that may be asked for, shaped like its last draft."""
        return ((nodes, nodes / self.nodes_per_depth) for nodes in range(1, budget + 1))

    def perfect(self, budget: int, cost: float) -> float:
        """Most tokens per cost if all it drafts were right."""
        return max((1 + depth) / (1 + cost * nodes) for nodes, depth in self.sizes(budget))


@dataclass
class _Plan:
    """One round of one sequence in the making."""

    length: int  # of the text before the round
    budget: int  # most nodes of the draft
    drafts: dict[int, Draft] = field(default_factory=dict)  # by source
    failed: dict[int, Exception] = field(default_factory=dict)  # by source, why it proposed nothing
    source: int | None = None  # whose draft is verified, None for plain decoding
    nodes: int = 0  # how many of it


_Question = tuple[Sequence, _Plan, int]
"""For a draft of at most so many nodes."""


@dataclass
class _State:
    records: list[_Record]
    plan: _Plan | None = None


class CombinedDrafter:
    """Takes turns between drafters, per sequence, by what each one's drafts have been worth there.

    A source that is free (cost 0, point masses) is asked in every round and judged by the tokens that were emitted,
    whether its draft was verified or not; its draft is seen before the choice, which is no anticipation since it
    is a function of the text. Any other source is asked only when it is chosen, so the choice knows nothing of what
    it draws; a draft of k tokens tells how each shorter one would have fared. Its record fades to the prior while
    it is not chosen, and it is tried again after `PROBE_EVERY` rounds, or when what is used ceases to fit.

    The draft is the part of the source's that is worth most: max over n of (1 + expected accepted tokens) /
    (1 + n (source's cost + row_cost)), or nothing if plain decoding (1) is better. Trees of free sources are verified
    as they are, or up to the budget: their first nodes, which a tree grown best first has on merit.

    A source that fails is a source without a draft, as long as another one answers.

    Args:
        sources: at least one; each also learns from every round, if it wants to (`rounds.Learner`).
        costs: of drafting one token with each, >= 0, in units of a forward of the target with one row; 0 for look-ups.
        row_cost: of verifying one more row, >= 0, in the same units.

    Raises:
        InvalidOption: no sources, another number of costs, a cost that is negative or not finite.

    Attributes:
        num_uses: by source, in how many rounds its draft was proposed, over all sequences.
        num_failures: by source, how often it failed.
    """

    def __init__(self, sources: Ordered[Drafter], costs: Ordered[float], row_cost: float = 0.0) -> None:
        if not sources or len(costs) != len(sources):
            raise InvalidOption("costs", costs, f"a number for each of {len(sources)} sources, at least one")
        for cost in (*costs, row_cost):
            if not (isfinite(cost) and cost >= 0):
                raise InvalidOption("costs", cost, "finite numbers >= 0")
        self.sources, self.row_cost = tuple(sources), row_cost
        self.name = "+".join(source.name for source in sources)
        kinds: set[Proposal] = {source.proposal for source in sources}
        self.proposal: Proposal = kinds.pop() if len(kinds) == 1 else "hybrid"
        self.num_uses, self.num_failures = [0] * len(sources), [0] * len(sources)
        self._costs = [cost + row_cost for cost in costs]  # per node
        self._free = [i for i, s in enumerate(sources) if costs[i] == 0 and s.proposal == "point_mass"]
        self._costly = [i for i in range(len(sources)) if i not in self._free]
        self._states: WeakKeyDictionary[Sequence, _State] = WeakKeyDictionary()

    @property
    def note(self) -> str:
        """How often each source's draft was proposed since this drafter was made, for statistics."""
        return ", ".join(f"{s.name} in {n} rounds" for s, n in zip(self.sources, self.num_uses, strict=True))

    def uses(self, sequence: Sequence) -> dict[str, int]:
        """In how many rounds of a sequence each source's draft was proposed, by the source's name."""
        counts = dict.fromkeys((source.name for source in self.sources), 0)
        for source, record in zip(self.sources, self._state(sequence).records, strict=True):
            counts[source.name] += record.uses
        return counts

    def propose(self, sequences: list[Sequence], budgets: list[int]) -> list[Draft]:
        """See `core.Drafter`.

        Raises:
            Exception: whatever a source raised, if for one of the sequences none of those that were asked answered.
        """
        plans = [_Plan(len(s.tokens), max(budget, 0)) for s, budget in zip(sequences, budgets, strict=True)]
        both = list(zip(sequences, plans, strict=True))
        for source in self._free:
            self._ask(source, [(sequence, plan, max(plan.budget, LOOK_AHEAD)) for sequence, plan in both])
        for sequence, plan in both:
            self._choose(self._state(sequence), plan)
        for source in self._costly:
            self._ask(source, [(sequence, plan, plan.nodes) for sequence, plan in both if plan.source == source])
        for sequence, plan in both:
            if plan.source in plan.failed:
                self._choose(self._state(sequence), plan, self._free)
        for _, plan in both:
            if plan.failed and not plan.drafts:
                raise next(iter(plan.failed.values()))
        return [self._settle(self._state(sequence), plan) for sequence, plan in both]

    def observe(self, verified: list[Verified]) -> None:
        """See `rounds.Learner`."""
        for v in verified:
            self._learn(v)
        for index, source in enumerate(self.sources):
            learn = getattr(source, "observe", None)
            try:
                if learn is not None:
                    learn(list(verified))
            except Exception:  # the others learn on
                self.num_failures[index] += 1

    def _ask(self, source: int, questions: list[_Question]) -> None:
        """Put a source's drafts in the plans; a batch that fails is asked again one by one."""
        if not questions:
            return
        try:
            answers = self.sources[source].propose([s for s, _, _ in questions], [most for _, _, most in questions])
            assert len(answers) == len(questions), f"{len(answers)} drafts for {len(questions)} sequences"
        except Exception as error:  # its failure is not the other sources'
            if len(questions) == 1:
                self._fail(source, questions[0][1], error)
            else:
                for question in questions:
                    self._ask(source, [question])
            return
        for (_, plan, most), answer in zip(questions, answers, strict=True):
            try:
                plan.drafts[source] = _checked(answer, most, self.sources[source].proposal)
            except Exception as error:
                self._fail(source, plan, error)

    def _fail(self, source: int, plan: _Plan, error: Exception) -> None:
        self.num_failures[source] += 1
        plan.failed[source] = error

    def _choose(self, state: _State, plan: _Plan, among: list[int] | None = None) -> None:
        """The source of most value and how much of it, from what is known before any source draws."""
        plan.source, plan.nodes, most = None, 0, 1.0
        for source in range(len(self.sources)) if among is None else among:
            value, nodes = self._offer(state.records[source], plan, source)
            if value > most:
                plan.source, plan.nodes, most = source, nodes, value
        waiting = [] if among is not None or plan.budget == 0 else self._overdue(state, plan.budget, most)
        if waiting:
            plan.source = max(waiting, key=lambda source: state.records[source].rounds_idle)
            plan.nodes = self._offer(state.records[plan.source], plan, plan.source)[1]

    def _offer(self, record: _Record, plan: _Plan, source: int) -> tuple[float, int]:
        """Expected tokens per cost of a source's best draft, and its number of nodes; (0, 0) if there is none."""
        if source not in self._free:
            return record.best(record.sizes(plan.budget), self._costs[source])
        draft = plan.drafts.get(source, Draft())
        return record.best(_sizes_within(draft, plan.budget), self._costs[source], _depth_class(draft))

    def _overdue(self, state: _State, budget: int, most: float) -> list[int]:
        """Sources that cost, were idle for long, and could be worth more than `most`."""
        return [
            source
            for source in self._costly
            if state.records[source].rounds_idle >= PROBE_EVERY - 1
            and state.records[source].perfect(budget, self._costs[source]) > most
        ]

    def _settle(self, state: _State, plan: _Plan) -> Draft:
        """The draft of a plan, which is remembered until the round is observed."""
        state.plan = plan
        if plan.source is None or len(plan.drafts[plan.source]) == 0:
            return Draft()
        state.records[plan.source].uses += 1
        self.num_uses[plan.source] += 1
        return _first_nodes(plan.drafts[plan.source], plan.nodes)

    def _learn(self, v: Verified) -> None:
        state = self._state(v.sequence)
        plan, state.plan = state.plan, None
        if plan is None or plan.length + len(v.verdict.path) + 1 != len(v.sequence.tokens):
            return  # proposed by someone else, or for another text
        emitted = v.sequence.tokens[plan.length :]
        for source, record in enumerate(state.records):
            if source in self._free:
                record.learn(self._judged(plan, source, emitted))
                continue
            used = source == plan.source or source in plan.failed
            record.rounds_idle = 0 if used else record.rounds_idle + 1
            record.learn(self._verified(v, record, source in plan.failed) if used else _Outcome())
        if plan.source is not None and state.records[plan.source].misses_in_a_row == CHANGE:
            for source, record in enumerate(state.records):
                record.rounds_idle += PROBE_EVERY * (source != plan.source)

    def _judged(self, plan: _Plan, source: int, emitted: list[int]) -> _Outcome:
        """How a free source's draft fared beside what was emitted; what goes on behind that is not judged."""
        if source in plan.failed:
            return _Outcome(tried=1)
        draft = plan.drafts[source]
        return _Outcome(_depth_class(draft), _matched(draft, emitted), min(_depth(draft), len(emitted)))

    def _verified(self, v: Verified, record: _Record, failed: bool) -> _Outcome:
        """How the draft of a source that costs fared; that there was none, for any reason, is a miss."""
        if failed or len(v.draft) == 0:
            return _Outcome(tried=1)
        depth = _depth(v.draft)
        record.nodes_per_depth = len(v.draft) / depth
        return _Outcome(matched=len(v.verdict.path), tried=depth)

    def _state(self, sequence: Sequence) -> _State:
        if sequence not in self._states:
            priors = (FREE_PRIOR if i in self._free else COSTLY_PRIOR for i in range(len(self.sources)))
            self._states[sequence] = _State([_Record(prior) for prior in priors])
        return self._states[sequence]


def _checked(draft: Any, most: int, proposal: Proposal) -> Draft:
    """The draft, if it can be judged; whether its tokens can be verified is not looked at here."""
    assert isinstance(draft, Draft), f"not a draft: {str(draft)[:80]}"
    assert len(draft) <= most, f"a draft of {len(draft)} tokens instead of at most {most}"
    assert len(draft) == 0 or proposal in ("hybrid", draft.proposal), f"a {draft.proposal} draft, not {proposal}"
    check(draft)
    return draft


def _sizes_within(draft: Draft, budget: int) -> Iterable[tuple[int, float]]:
    """Nodes and depth of what may be verified of a draft: any part of a chain, of a tree all that fits."""
    most = min(len(draft), budget)
    if is_chain(draft.parents):
        return ((nodes, nodes) for nodes in range(1, most + 1))
    return [(most, max(depths(draft.parents[:most])))] if most > 0 else []


def _first_nodes(draft: Draft, count: int) -> Draft:
    if len(draft) <= count:
        return draft
    assert draft.draft_probs is None, "what was drawn is never cut"
    return Draft(draft.tokens[:count], draft.parents[:count])


def _depth(draft: Draft) -> int:
    return max(depths(draft.parents))


def _depth_class(draft: Draft) -> int:
    return min(_depth(draft).bit_length(), NUM_CLASSES - 1)


def _matched(draft: Draft, emitted: list[int]) -> int:
    """How many of the emitted tokens the tree holds, from the first on."""
    reached = {-1: 0}  # node whose path was emitted -> its depth
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        depth = reached.get(parent, len(emitted))
        if depth < len(emitted) and token == emitted[depth]:
            reached[node] = depth + 1
    return max(reached.values())
