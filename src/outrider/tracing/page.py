"""A trace as one HTML page that needs nothing else: no network, one script that may run and no other.

Every text that is not this module's own is escaped here or, in the data, shown by the script as text and never as
markup; were one to get through as markup, the page's policy would neither load nor run it.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

from outrider.pages import page, resource, safe
from outrider.text import visible
from outrider.tracing.figures import Figures, figures, groups
from outrider.tracing.lines import PARTS
from outrider.tracing.reading import EARLY
from outrider.tracing.traced import Node, Trace, TracedRound, TracedText

NONE = -1
"""Stands in the data for a probability that there is not."""

MOST_POSITIONS = 16
LONGEST_LABEL = 60

BODY = """<div id="pick" hidden><label for="text">Text</label> <select id="text"></select></div>
<dl id="facts"></dl>
<noscript><p class="warning">This page draws itself with the script that is in it; scripts are off.</p></noscript>
<div id="read">
<section>
<details><summary>The prompt</summary><pre id="prompt"></pre></details>
<p id="legend"></p>
<div id="tokens" role="listbox" tabindex="0" aria-label="The text, token by token; arrow keys go on"></div>
</section>
<aside id="detail" aria-live="polite">
<p class="hint">Point at a token, tap it, or go there with the arrow keys.</p>
</aside>
</div>
<h2>Time</h2>
<p class="key" id="parts"></p>
<div id="timeline" role="slider" tabindex="0" aria-label="Time of the rounds"></div>
<p class="key" id="when"></p>
<h2>Acceptance by position</h2>
<p class="key">Of the drafts of which all before was accepted, the share of which this token was too; a tree reaches as
far as its longest path. The stroke is the share of all drafts that reach so far.</p>
<div id="positions"></div>"""

ROUNDS = """<h2>Rounds</h2>
<p class="key">Each draft as a tree, from the pending token on the left. Filled: accepted. Outlined: refused. Dashed:
the rule did not come to it. With a double edge: the target's own next token.</p>
<div id="rounds"></div>"""


def as_page(trace: Trace) -> str:
    """The page."""
    title = f"outrider trace: {trace.about.get('target') or trace.about['drafter']}"
    script, style = resource("trace.js"), resource("trace.css")
    main = [f'<p class="sub">{safe(_subtitle(trace))}</p>', *_warnings(trace), BODY, *_table(trace), ROUNDS]
    data = f'<script type="application/json" id="data">{_embedded(_data(trace))}</script>'
    policy = f"style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    return page(title, style, main, policy=policy, behind=[data, f"<script>{script}</script>"])


def _hash(source: str) -> str:
    return f"sha256-{b64encode(sha256(source.encode()).digest()).decode()}"


def _embedded(data: Any) -> str:
    """JSON that cannot end the element it stands in, in ASCII."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _subtitle(trace: Trace) -> str:
    about = trace.about
    seed = "" if about.get("seed") is None else f"; seed {about['seed']}"
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    named = f"Precision {about['precision']}; drafter {about['drafter']}; rule {about['rule']}"
    return f"{named}{seed}; {versions}"


def _warnings(trace: Trace) -> Iterable[str]:
    if trace.ending == EARLY:
        yield '<p class="warning"><b>Ends early:</b> the file stops before the run says how it went on.</p>'
    elif trace.ending != "finished":
        yield f'<p class="warning">The run was {safe(trace.ending)} before all was decoded.</p>'
    if any(not text.about["lossless"] for text in trace.texts):
        yield '<p class="warning"><b>Lossy:</b> a rule here changes the law of the text.</p>'


def _table(trace: Trace) -> Iterable[str]:
    """Acceptance of the whole trace by position, drafter and kind of prompt."""
    found = {name: figures(rounds) for name, rounds in groups(trace).items()}
    longest = min(max(len(each.positions) for each in found.values()), MOST_POSITIONS)
    if longest:
        heads = ("the whole trace", "rounds", "drafted", "accepted", *map(str, range(1, longest + 1)))
        rows = "".join(_row(name, each, longest) for name, each in found.items())
        row = "".join(f"<th>{head}</th>" for head in heads)
        yield f'<div class="wide"><table><thead><tr>{row}</tr></thead><tbody>{rows}</tbody></table></div>'


def _row(name: str, each: Figures, longest: int) -> str:
    places = [_percent(place.conditional) for place in each.positions[:longest]]
    places += ["-"] * (longest - len(places))
    cells = (safe(name), each.rounds, each.drafted, _percent(each.acceptance_rate), *places)
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


# ---------------------------------------------------------------- data for the script


def _data(trace: Trace) -> dict[str, Any]:
    """What the script draws: names and the texts of tokens once, and rounds as short lists, see `_round`."""
    rounds = trace.rounds
    origins = list(dict.fromkeys(r.source for r in rounds if r.source))
    rules = list(dict.fromkeys(r.rule for r in rounds))
    words = {node.token: node.text for r in rounds for node in r.nodes}
    words |= {r.next_token.token: r.next_token.text for r in rounds if r.next_token is not None}
    return {
        "origins": [visible(origin) for origin in origins],
        "rules": [visible(rule) for rule in rules],
        "words": {token: visible(word) for token, word in words.items()},
        "texts": [_text(number, text, origins, rules) for number, text in enumerate(trace.texts)],
    }


def _text(number: int, text: TracedText, origins: list[str], rules: list[str]) -> dict[str, Any]:
    about, own = text.about, figures(text.rounds)
    last = text.rounds[-1].finish if text.rounds else None
    begin = " ".join(text.text.split())[:LONGEST_LABEL]
    temperature = about["sampling"].get("temperature")
    names = [about["name"], about["kind"], "" if temperature is None else f"temperature {temperature}", begin]
    return {
        "label": visible(f"{number}: " + ", ".join(name for name in names if name)),
        "prompt": visible(about["prompt"]),
        "facts": {
            "tokens": own.tokens,
            "rounds": own.rounds,
            "tokens per round": None if own.tokens_per_round is None else round(own.tokens_per_round, 2),
            "drafted": own.drafted,
            "accepted": _percent(own.acceptance_rate),
            "seconds": round(own.seconds.total, 3),
            "prompt": f"{about['prompt_tokens']} tokens, {about['prefill_seconds']:.3f} s",
            "sampler": visible(_sampler(about["sampling"])),
            "ended by": visible(last or "not ended"),
        },
        "positions": [[_short(p.conditional), _short(p.cumulative)] for p in own.positions],
        "rounds": [_round(r, origins, rules) for r in text.rounds],
    }


def _sampler(settings: dict[str, Any]) -> str:
    """What is not as it is by default; logprobs are no part of the law."""
    plain = {"temperature": 0, "top_p": 1, "repetition_penalty": 1}
    changed = {k: v for k, v in settings.items() if k != "logprobs" and v and v != plain.get(k)}
    return (
        ", ".join(f"{k} {json.dumps(v)}" if k != "processor" else "a processor" for k, v in changed.items()) or "greedy"
    )


def _round(r: TracedRound, origins: list[str], rules: list[str]) -> list[Any]:
    """[rule, origin, microseconds by part, nodes, emitted pieces, next token and its q or nothing, what went wrong]."""
    following = [] if r.next_token is None else [r.next_token.token, _short(r.next_token.q)]
    return [
        rules.index(r.rule),
        origins.index(r.source) if r.source else NONE,
        [round(1e6 * getattr(r.seconds, part)) for part in PARTS],
        [value for node in r.nodes for value in _node(node)],
        [visible(token.text) for token in r.tokens],
        following,
        visible(" ".join(each for each in (r.error, r.broken) if each)),
    ]


def _node(node: Node) -> tuple[float, ...]:
    """Parent, token, p, q, acceptance, the coin's chance and uniform, and 1 accepted + 2 coin thrown + 4 it fell."""
    coin = node.coin
    flags = node.accepted + (0 if coin is None else 2 + 4 * coin.fell)
    thrown = (NONE, NONE) if coin is None else (_short(coin.chance), _short(coin.uniform))
    return (node.parent, node.token, _short(node.p), _short(node.q), _short(node.acceptance), *thrown, flags)


def _short(value: float | None) -> float:
    """Four digits; whole numbers without a point."""
    if value is None:
        return NONE
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded.is_integer() else rounded
