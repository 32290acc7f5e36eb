"""Several drafters as one: in every round each sequence takes the one that promises most tokens per cost.

What the target emitted tells how *every* draft would have fared, also those that were not verified (full information:
HedgeSpec, "Not-a-Bandit", ICLR 2026), so a look-up that starts to fit is seen before it is used. A look-up's chances
are kept by how far it proposes, which stands for how much it matched (the gate of SAM-Decoding, 2411.10666), and
apart for the first token and those after it, which differ much: a look-up that fits at all mostly fits for long.
Nothing here knows how a source drafts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from functools import cache
from math import isfinite
from typing import Any
from weakref import WeakKeyDictionary

import torch

from outrider.core import Draft, Drafter, Proposal, Sequence
from outrider.drafters.records import LOOK_UP, MODEL, NUM_CLASSES, PROBE_EVERY, Outcome, Record
from outrider.drafters.sharing import (
    GAIN,
    Costs,
    Level,
    Offer,
    Verify,
    arrears_of,
    companies,
    due,
    free,
    promise,
    repays,
    shared,
    straight,
)
from outrider.errors import InvalidOption
from outrider.rounds import Verified
from outrider.tree import check, depths, is_chain

CHANGE = 2
"""Misses in a row of the source in use after which the text counts as changed: others that cost are tried at once."""

LOOK_AHEAD = 16
"""Nodes that a look-up is asked for at least: what does not fit in the budget is not verified but tells its depth."""


@dataclass
class _Plan:
    """One round of one sequence in the making."""

    length: int  # of the text before the round
    budget: int  # most nodes of the draft
    costs: tuple[Costs, ...] = ()  # by source, of the sequences that it is decided with
    arrears: Ordered[int] = ()  # by source, tokens that it has to take in before it can draft
    unlimited: tuple[int, ...] = ()  # sources whose drafts end where more is not worth it
    drafts: dict[int, Draft] = field(default_factory=dict)  # by source
    failed: dict[int, Exception] = field(default_factory=dict)  # by source, why it proposed nothing
    source: int | None = None  # whose draft is verified, None for plain decoding
    nodes: int = 0  # how many of it


_Question = tuple[Sequence, _Plan, int]
"""For a draft of at most so many nodes."""


@dataclass
class _State:
    records: list[Record]
    plan: _Plan | None = None


class CombinedDrafter:
    """Takes turns between drafters, per sequence, by what each one's drafts have been worth there.

    A source that is free (cost 0, point masses) is asked in every round and judged by the tokens that were emitted,
    whether its draft was verified or not; its draft is seen before the choice, which is no anticipation since it
    is a function of the text. Any other source is asked only when it is chosen, so the choice knows nothing of what
    it draws; a draft of k tokens tells how each shorter one would have fared. Its record fades to the prior while
    it is not chosen, and it is tried again now and then, or when what is used ceases to fit.

    Each sequence takes the source that promises most tokens per cost; how much of its draft is verified is decided for
    all sequences together (`sharing.shared`). Trees of free sources are verified as they are, or up to the budget:
    their first nodes, which a tree grown best first has on merit.

    A source that fails is a source without a draft, as long as another one answers.

    Args:
        sources: at least one; each also learns from every round, if it wants to (`rounds.Learner`).
        costs: of drafting one token further with each, >= 0, in units of a round without drafts; 0 for look-ups; or
            functions of the number of sequences.
        row_cost: of verifying one more row, >= 0, in the same units; or of whole forwards, see `sharing.Verify`.
        priors: chances of each one's tokens before anything is known, see `records.Habit`; None for what is usual.

    Raises:
        InvalidOption: no sources, another number of costs, a cost that is negative or not finite.

    Attributes:
        together: sequences are decided upon as if so many were decoded together; None for all that are.
        num_uses: by source, in how many rounds its draft was proposed, over all sequences.
        num_failures: by source, how often it failed.
    """

    def __init__(
        self,
        sources: Ordered[Drafter],
        costs: Ordered[float | Level],
        row_cost: float | Verify = 0.0,
        priors: Ordered[tuple[float, ...]] | None = None,
    ) -> None:
        if not sources or len(costs) != len(sources):
            raise InvalidOption("costs", costs, f"a number for each of {len(sources)} sources, at least one")
        for cost in (*costs, row_cost):
            if not callable(cost) and not (isfinite(cost) and cost >= 0):
                raise InvalidOption("costs", cost, "finite numbers >= 0")
        self.sources = tuple(sources)
        self.together: int | None = None
        self._levels = [_level(cost) for cost in costs]
        verify = row_cost if callable(row_cost) else straight(row_cost)
        self._costs = cache(lambda sequences: tuple(Costs(verify, level, sequences) for level in self._levels))
        self.name = "+".join(source.name for source in sources)
        kinds: set[Proposal] = {source.proposal for source in sources}
        self.proposal: Proposal = kinds.pop() if len(kinds) == 1 else "hybrid"
        self.num_uses, self.num_failures = [0] * len(sources), [0] * len(sources)
        self._free = [i for i, s in enumerate(sources) if costs[i] == 0 and s.proposal == "point_mass"]
        self._costly = [i for i in range(len(sources)) if i not in self._free]
        self._priors = priors or [LOOK_UP if i in self._free else MODEL for i in range(len(sources))]
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
        plans = [
            _Plan(len(s.tokens), max(budget, 0), arrears=self._arrears(s), unlimited=self._unlimited(s))
            for s, budget in zip(sequences, budgets, strict=True)
        ]
        both = list(zip(sequences, plans, strict=True))
        for source in self._free:
            self._ask(source, [(sequence, plan, max(plan.budget, LOOK_AHEAD)) for sequence, plan in both])
        for places in companies(sequences, self.together):
            self._decide([(self._state(sequences[i]), plans[i]) for i in places])
        for source in self._costly:
            self._ask(source, [(s, plan, plan.nodes) for s, plan in both if plan.source == source and plan.nodes])
        for sequence, plan in both:
            if plan.source in plan.failed:
                self._fall_back(self._state(sequence), plan)
        for _, plan in both:
            if plan.failed and not plan.drafts:
                raise next(iter(plan.failed.values()))
        return [self._settle(self._state(sequence), plan) for sequence, plan in both]

    def observe(self, verified: list[Verified]) -> None:
        """See `rounds.Learner`."""
        for v in verified:
            self._learn(v)
        self._tell("observe", list(verified))

    def read(self, sequence: Sequence, hidden: torch.Tensor) -> None:
        """See `rounds.Reader`."""
        self._tell("read", sequence, hidden)

    def share(self, source: Sequence, sequence: Sequence) -> None:
        """See `rounds.Reader`."""
        self._tell("share", source, sequence)

    def _tell(self, method: str, *arguments: Any) -> None:
        for index, source in enumerate(self.sources):
            tell = getattr(source, method, None)
            try:
                if tell is not None:
                    tell(*arguments)
            except Exception:  # the others learn on
                self.num_failures[index] += 1

    def _arrears(self, sequence: Sequence) -> list[int]:
        return [arrears_of(source, sequence) for source in self.sources]

    def _unlimited(self, sequence: Sequence) -> tuple[int, ...]:
        ends = [getattr(source, "ends_itself", None) for source in self.sources]
        return tuple(i for i, ends_itself in enumerate(ends) if ends_itself is not None and ends_itself(sequence))

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

    def _decide(self, members: list[tuple[_State, _Plan]]) -> None:
        """What sequences draft that are decoded together, from what is known before any source draws."""
        costs = self._costs(len(members))
        for state, plan in members:
            plan.costs = costs
            plan.source, _ = self._best(state, plan, range(len(self.sources)))
        tries = self._tries(members)
        offers = [
            self._offer(state, plan, plan.source if tried is None else tried, tries=tried is not None)
            for (state, plan), tried in zip(members, tries, strict=True)
        ]
        for (_, plan), tried, nodes in zip(members, tries, shared(offers, costs), strict=True):
            plan.source = plan.source if tried is None else tried
            plan.nodes = plan.budget if nodes and plan.source in plan.unlimited else nodes
            if nodes == 0:
                plan.source = None

    def _best(self, state: _State, plan: _Plan, among: Iterable[int]) -> tuple[int | None, float]:
        """The source that promises most tokens per cost, and how many; (None, 0) if there is no draft."""
        promises = {source: promise(self._offer(state, plan, source), plan.costs[source]) for source in among}
        best = max(promises, key=promises.__getitem__, default=None)
        return (best, promises[best]) if best is not None and promises[best] > 0 else (None, 0.0)

    def _offer(self, state: _State, plan: _Plan, source: int | None, *, tries: bool = False) -> Offer:
        """What a source has, or is likely to have, for a sequence."""
        if source is None or plan.budget == 0:
            return Offer()
        record, whole = state.records[source], source in plan.unlimited
        if source not in self._free:
            offer = record.offer(plan.budget, source=source, whole=whole, tried=tries)
            return offer if tries or repays(offer, plan.costs[source], plan.arrears[source]) else Offer()
        draft = plan.drafts.get(source, Draft())
        nodes = min(len(draft), plan.budget)
        if nodes == 0:
            return Offer()
        depth = max(depths(draft.parents[:nodes]))
        if not is_chain(draft.parents):
            return Offer(record.whole(nodes, depth, _depth_class(draft)), depth, source, whole=True)
        gains = record.gains(nodes, depth, _depth_class(draft))
        return Offer(gains, len(gains), source)

    def _tries(self, members: list[tuple[_State, _Plan]]) -> list[int | None]:
        """For each sequence a source that costs, was idle for long and could be worth more than what is at hand."""
        waiting = [self._longest_idle(state, plan) for state, plan in members]
        tried = due([idle for _, idle, _ in waiting], [wait for _, _, wait in waiting])
        return [source if is_due else None for (source, _, _), is_due in zip(waiting, tried, strict=True)]

    def _longest_idle(self, state: _State, plan: _Plan) -> tuple[int | None, float, float]:
        """The source that should be tried next, rounds for which it was idle, and those that it is to wait."""
        if plan.budget == 0 or not self._costly:
            return None, 0.0, math.inf
        at_hand = plan.source
        most = 0.0 if at_hand is None else promise(self._offer(state, plan, at_hand), plan.costs[at_hand])
        waits = {
            source: state.records[source].wait(
                plan.budget, plan.costs[source], source in plan.unlimited, plan.arrears[source], max(1.0, most)
            )
            for source in self._costly
        }
        next_one = max(waits, key=lambda source: state.records[source].rounds_idle / waits[source])
        return next_one, state.records[next_one].rounds_idle, waits[next_one]

    def _fall_back(self, state: _State, plan: _Plan) -> None:
        """What is looked up, for a sequence whose source failed."""
        source, value = self._best(state, plan, self._free)
        plan.source, plan.nodes = None, 0
        if source is not None and value > GAIN:
            (nodes,) = shared([self._offer(state, plan, source)], self._costs(1))
            plan.source, plan.nodes = (source, nodes) if nodes else (None, 0)

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
            record.learn(self._verified(v, record, source in plan.failed) if used else Outcome())
        if plan.source is not None and state.records[plan.source].misses_in_a_row == CHANGE:
            for source in self._costly:
                if source != plan.source:
                    state.records[source].doubt()
                    state.records[source].rounds_idle += PROBE_EVERY

    def _judged(self, plan: _Plan, source: int, emitted: list[int]) -> Outcome:
        """How a free source's draft fared beside what was emitted; what goes on behind that is not judged."""
        if source in plan.failed:
            return Outcome(tried=1)
        draft = plan.drafts[source]
        return Outcome(_depth_class(draft), _matched(draft, emitted), min(_depth(draft), len(emitted)))

    def _verified(self, v: Verified, record: Record, failed: bool) -> Outcome:
        """How the draft of a source that costs fared; that there was none, for any reason, is a miss."""
        if failed or len(v.draft) == 0:
            return Outcome(tried=1)
        depth = _depth(v.draft)
        record.saw(len(v.draft), depth)
        return Outcome(matched=len(v.verdict.path), tried=depth)

    def _state(self, sequence: Sequence) -> _State:
        if sequence not in self._states:
            self._states[sequence] = _State([Record(prior) for prior in self._priors])
        return self._states[sequence]


def _checked(draft: Any, most: int, proposal: Proposal) -> Draft:
    """The draft, if it can be judged; whether its tokens can be verified is not looked at here."""
    assert isinstance(draft, Draft), f"not a draft: {str(draft)[:80]}"
    assert len(draft) <= most, f"a draft of {len(draft)} tokens instead of at most {most}"
    assert len(draft) == 0 or proposal in ("hybrid", draft.proposal), f"a {draft.proposal} draft, not {proposal}"
    check(draft)
    return draft


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


def _level(cost: float | Level) -> Level:
    if callable(cost):
        return cost
    return free if cost == 0 else lambda sequences: cost
