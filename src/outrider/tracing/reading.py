"""Reads a trace: JSON lines and nothing else. What is no trace is refused with the line and what was expected there."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from outrider.errors import InvalidOption
from outrider.rounds import Seconds
from outrider.tracing.lines import FORMAT, PARTS, VERSION
from outrider.tracing.traced import Coin, Emitted, NextToken, Node, Trace, TracedRound, TracedText

MAX_LINE = 4 << 20
"""Bytes of a line."""

MAX_LINES = 1_000_000
MAX_BYTES = 1 << 30
"""Of a file; it is held in memory."""

EARLY = "ends early"
ENDINGS = ("finished", "stopped", "failed")


class _Fault(Exception):
    """What a line should have been."""


def read_trace(path: str | Path, name: str = "trace") -> Trace:
    """Read a whole trace, or one that ends early, such as that of a process that was killed.

    Args:
        path: of the file.
        name: of the option that it was given with.

    Raises:
        InvalidOption: naming the line, and what was expected there.
    """
    reader = _Reader()
    number = 0
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(iter(partial(file.readline, MAX_LINE + 1), b""), start=1):
                reader.take(number, line)
        reader.check()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise InvalidOption(name, str(path), "a trace, written with --trace", f"{reason}.") from error
    except _Fault as fault:
        fix = "Traces are written with --trace, and not to be edited."
        raise InvalidOption(name, f"{path}, line {max(number, 1)}", str(fault), fix) from fault
    return reader.trace()


class _Reader:
    """Takes line after line."""

    def __init__(self) -> None:
        self._about: dict[str, Any] | None = None
        self._texts: list[tuple[dict[str, Any], list[TracedRound]]] = []
        self._ending: str | None = None
        self._cut = False  # a last line that was not written to its end
        self._step = self._num_bytes = 0

    def take(self, number: int, line: bytes) -> None:
        """The next line, with its end if it has one."""
        self._num_bytes += len(line)
        _expect(len(line) <= MAX_LINE, f"lines of at most {MAX_LINE:,} bytes")
        _expect(number <= MAX_LINES, f"at most {MAX_LINES:,} lines")
        _expect(self._num_bytes <= MAX_BYTES, f"at most {MAX_BYTES:,} bytes in all")
        if self._cut:
            raise _Fault("whole lines")
        if self._ending is not None:
            raise _Fault("nothing after the line that says how the trace ended")
        if self._about is None:
            self._about = _header(line)
            return
        if not line.endswith(b"\n"):  # every line is written with its end
            self._cut = True
            return
        record = _parsed(line)
        if "round" in record:
            self._take_round(number, record)
        elif "text" in record:
            _expect(_whole(record, "text") == len(self._texts), f"text {len(self._texts)}")
            self._texts.append((_about_text(record), []))
        elif "end" in record:
            self._end(record)
        else:
            raise _Fault('a line with "text", "round" or "end"')

    def check(self) -> None:
        """After the last line."""
        if self._about is None:
            raise _Fault(f'a trace, whose first line has "format": "{FORMAT}"; the file is empty')

    def trace(self) -> Trace:
        """What was read."""
        assert self._about is not None
        texts = tuple(TracedText(about, tuple(rounds)) for about, rounds in self._texts)
        return Trace(self._about, texts, self._ending or EARLY)

    def _take_round(self, number: int, record: dict[str, Any]) -> None:
        text = _whole(record, "text")
        _expect(text < len(self._texts), "a text that began on an earlier line")
        rounds = self._texts[text][1]
        found = _round(number, record)
        _expect(_whole(record, "round") == len(rounds), f"round {len(rounds)} of text {text}")
        _expect(found.step >= self._step, f"step {self._step} or a later one")
        if rounds:
            place = rounds[-1].place + len(rounds[-1].tokens)
            _expect(found.place == place, f"place {place}, for so many tokens came before")
            _expect(rounds[-1].finish is None, f"no further round of text {text}, which had ended")
        self._step = found.step
        rounds.append(found)

    def _end(self, record: dict[str, Any]) -> None:
        rounds = [r for _, own in self._texts for r in own]
        counts = {"texts": len(self._texts), "rounds": len(rounds), "tokens": sum(len(r.tokens) for r in rounds)}
        for name, count in counts.items():
            _expect(_whole(record, name) == count, f'"{name}": {count}, which is what the lines before have')
        self._ending = _one_of(record, "end", ENDINGS)


# ---------------------------------------------------------------- lines


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:  # ValueError: also bytes that are no text
        raise _Fault("JSON, an object on each line") from error
    if not isinstance(record, dict):
        raise _Fault("JSON, an object on each line")
    return record


def _no_number(name: str) -> float:
    raise ValueError(name)


def _header(line: bytes) -> dict[str, Any]:
    a_trace = f'a trace, whose first line is JSON with "format": "{FORMAT}"'
    try:
        record = _parsed(line)
    except _Fault as fault:
        raise _Fault(a_trace) from fault
    _expect(record.get("format") == FORMAT, a_trace)
    _expect(record.get("version") == VERSION, f"version {VERSION} of the format, the one that is read here")
    for name in ("precision", "drafter", "rule"):
        _text(record, name)
    for name in ("sampling", "versions"):
        _typed(record, name, dict)
    for name, kind in (("target", str), ("seed", int)):
        if record.get(name) is not None:
            _typed(record, name, kind)
    return record


def _about_text(record: dict[str, Any]) -> dict[str, Any]:
    for name in ("name", "kind", "drafter", "rule", "prompt"):
        _text(record, name)
    _typed(record, "sampling", dict)
    _typed(record, "lossless", bool)
    _whole(record, "prompt_tokens")
    _seconds(record, "prefill_seconds")
    return record


def _round(number: int, record: dict[str, Any]) -> TracedRound:
    seconds = _typed(record, "seconds", dict)
    nodes = tuple(_node(place, each) for place, each in enumerate(_objects(record, "nodes")))
    _check_path(nodes)
    following = None if record.get("next") is None else _next(_typed(record, "next", dict))
    return TracedRound(
        line=number,
        step=_whole(record, "step"),
        place=_whole(record, "place"),
        seconds=Seconds(**{part: _seconds(seconds, part) for part in PARTS}),
        rule=_text(record, "rule"),
        nodes=nodes,
        next_token=following,
        tokens=_emitted(record, nodes, following),
        finish=_text(record, "finish") if record.get("finish") is not None else None,
        broken=_text(record, "broken") if record.get("broken") is not None else None,
        error=_text(record, "error") if record.get("error") is not None else None,
    )


def _node(place: int, record: dict[str, Any]) -> Node:
    coin = None if record.get("coin") is None else _coin(_typed(record, "coin", dict))
    return Node(
        token=_whole(record, "token"),
        text=_text(record, "text"),
        origin=_text(record, "origin"),
        parent=_whole(record, "parent", -1, place - 1),
        p=_share(record, "p"),
        q=_share(record, "q"),
        acceptance=_share(record, "acceptance"),
        coin=coin,
        accepted=_typed(record, "accepted", bool),
    )


def _coin(record: dict[str, Any]) -> Coin:
    return Coin(_share(record, "chance"), _share(record, "uniform"), _typed(record, "fell", bool))


def _next(record: dict[str, Any]) -> NextToken:
    return NextToken(_whole(record, "token"), _text(record, "text"), _share(record, "q"))


def _check_path(nodes: tuple[Node, ...]) -> None:
    tip = -1
    for place, node in enumerate(nodes):
        if node.accepted:
            _expect(node.parent == tip, "accepted nodes that are one path from the root")
            tip = place


def _emitted(record: dict[str, Any], nodes: tuple[Node, ...], following: NextToken | None) -> tuple[Emitted, ...]:
    """The accepted nodes and then the next token, or the first of them."""
    chosen: list[tuple[int | None, int]] = [(place, node.token) for place, node in enumerate(nodes) if node.accepted]
    chosen += [] if following is None else [(None, following.token)]
    found = []
    for place, each in enumerate(_objects(record, "tokens")):
        node = None if each.get("node") is None else _whole(each, "node")
        token = _whole(each, "token")
        _expect((node, token) in chosen[place : place + 1], "the accepted nodes and then the next token, in order")
        found.append(Emitted(token, _text(each, "text"), _text(each, "origin"), node))
    return tuple(found)


# ---------------------------------------------------------------- values


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise _Fault(what)


def _typed(record: dict[str, Any], name: str, kind: type) -> Any:
    value = record.get(name)
    words = {dict: "an object", bool: "true or false", str: "a text", int: "a whole number", list: "a list"}
    _expect(type(value) is kind, f'"{name}": {words[kind]}')
    return value


def _text(record: dict[str, Any], name: str) -> str:
    return str(_typed(record, name, str))


def _one_of(record: dict[str, Any], name: str, allowed: tuple[str, ...]) -> str:
    value = _text(record, name)
    _expect(value in allowed, f'"{name}": one of {", ".join(allowed)}')
    return value


def _objects(record: dict[str, Any], name: str) -> list[dict[str, Any]]:
    values = _typed(record, name, list)
    _expect(all(isinstance(value, dict) for value in values), f'"{name}": a list of objects')
    return list(values)


def _whole(record: dict[str, Any], name: str, low: int = 0, high: int = 2**63 - 1) -> int:
    value = record.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise _Fault(f'"{name}": a whole number from {low} to {high}')
    return value


def _real(record: dict[str, Any], name: str, high: float, words: str) -> float:
    value = record.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= high:
        raise _Fault(f'"{name}": {words}')
    return float(value)


def _share(record: dict[str, Any], name: str) -> float | None:
    return None if record.get(name) is None else _real(record, name, 1.001, "a number from 0 to 1, or null")


def _seconds(record: dict[str, Any], name: str) -> float:
    return _real(record, name, 1e9, "seconds, 0 or more")
