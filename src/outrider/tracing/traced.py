"""A trace that was read: the nouns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outrider.rounds import Seconds


@dataclass(frozen=True)
class Coin:
    """A coin that a rule threw for a node.

    Args:
        chance: the probability that it was thrown with, or None if that was no number.
        uniform: what was drawn from [0, 1), or None if the coins did not tell.
        fell: whether it fell for the node: uniform < chance.
    """

    chance: float | None
    uniform: float | None
    fell: bool


@dataclass(frozen=True)
class Node:
    """A drafted token.

    Args:
        token: its id.
        text: of the token alone; "" of special ones.
        origin: the drafter that proposed it.
        parent: the node that it continues, -1 for the pending token.
        p: probability in the law that it was drawn from; None if it was not drawn.
        q: its probability in the target's law.
        acceptance: what the rule says of it (docs/traces.md); None if the rule did not come to it or says nothing.
        coin: that was thrown for it, or None.
        accepted: whether the rule kept it.
    """

    token: int
    text: str
    origin: str
    parent: int
    p: float | None
    q: float | None
    acceptance: float | None
    coin: Coin | None
    accepted: bool


@dataclass(frozen=True)
class Emitted:
    """A token of the text.

    Args:
        token: its id.
        text: what became final with it.
        origin: of its node, or "target".
        node: that it was drafted as, None for the next token.
    """

    token: int
    text: str
    origin: str
    node: int | None


@dataclass(frozen=True)
class NextToken:
    """The token that the target adds after the accepted ones; a stop or a limit may cut it away.

    Args:
        token: its id.
        text: of the token alone.
        q: its probability in the target's law.
    """

    token: int
    text: str
    q: float | None


@dataclass(frozen=True)
class TracedRound:
    """What a round did for one text.

    Args:
        line: of the file.
        step: forward of the target; texts that are decoded together share it and its seconds.
        place: how many tokens the text had before.
        seconds: by part.
        rule: that decided; "" if none did.
        nodes: the draft.
        next_token: None if no rule decided.
        tokens: emitted.
        finish: why the text ended with this round, or None.
        broken: why a draft was thrown away, in short, or None.
        error: what ended the text, in short, or None.
    """

    line: int
    step: int
    place: int
    seconds: Seconds
    rule: str
    nodes: tuple[Node, ...]
    next_token: NextToken | None
    tokens: tuple[Emitted, ...]
    finish: str | None
    broken: str | None
    error: str | None

    @property
    def num_accepted(self) -> int:
        """Drafted tokens that were emitted."""
        return sum(token.node is not None for token in self.tokens)

    @property
    def source(self) -> str:
        """Who drafted; "" if nothing was drafted."""
        return self.nodes[0].origin if self.nodes else ""


@dataclass(frozen=True)
class TracedText:
    """One sequence.

    Args:
        about: its line: name, kind, drafter, rule, lossless, sampling, prompt, prompt_tokens, prefill_seconds.
        rounds: in order.
    """

    about: dict[str, Any]
    rounds: tuple[TracedRound, ...]

    @property
    def text(self) -> str:
        """All that was emitted."""
        return "".join(token.text for r in self.rounds for token in r.tokens)


@dataclass(frozen=True)
class Trace:
    """A whole trace, or what there is of one.

    Args:
        about: the first line.
        texts: in the order in which they began.
        ending: "finished", "stopped" or "failed"; "ends early" if the file does not say.
    """

    about: dict[str, Any]
    texts: tuple[TracedText, ...]
    ending: str

    @property
    def rounds(self) -> list[TracedRound]:
        """Of all texts."""
        return [r for text in self.texts for r in text.rounds]
