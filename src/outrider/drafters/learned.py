"""What drafters that learn from the target's logits share: one state per request, forgotten with it.

Nothing here knows what is learned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from outrider.core import Sequence

State = TypeVar("State")


@dataclass
class _Held(Generic[State]):
    request: tuple[int, int]  # id and prompt length
    tokens: list[int]  # as they were when the state was last asked for
    state: State


class StatePerRequest(Generic[State]):
    """One state per slot, for the request that owns the slot now.

    What was learned cannot be read off the tokens again, so a state must never pass to another request: ids start again
    with every engine, and the next turn of a chat begins with the tokens of the last one. Id, prompt length and tokens
    together tell them apart, since a state that learned anything has seen more tokens than the prompt.

    Args:
        new_state: makes the state of a request of which only the prompt may be looked at.
    """

    def __init__(self, new_state: Callable[[Sequence], State]) -> None:
        self._new_state = new_state
        self._held: dict[int, _Held[State]] = {}

    def of(self, sequence: Sequence) -> State:
        """The state that belongs to this sequence; a new one if the slot's was another request's."""
        held, request = self._held.get(sequence.slot), (sequence.id, sequence.prompt_length)
        if held is None or held.request != request or sequence.tokens[: len(held.tokens)] != held.tokens:
            held = self._held[sequence.slot] = _Held(request, [], self._new_state(sequence))
        held.tokens += sequence.tokens[len(held.tokens) :]
        return held.state
