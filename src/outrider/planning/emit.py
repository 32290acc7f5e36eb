"""Launch commands of other servers for what a plan recommends, in the dialect of one version each. Nothing is loaded.

Flags and keys are those of `VERSIONS`; servers rename them, and refuse or ignore what they do not know. What a server
cannot run is refused with the reason, and what it runs otherwise than here is said.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider.errors import CheckpointError, InvalidOption
from outrider.models.locate import EMBEDDED_NAME, SHIPPED_HEAD, embedded_path
from outrider.planning.plan import Cell, Plan, Recommendation, best_of, in_words

VERSIONS = {
    "vllm": "vLLM 0.32",
    "sglang": "SGLang 0.5.19",
    "llama.cpp": "llama.cpp, server at commit 00dc805 (late 2026)",
}

EMBEDDED_ON_THE_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"

USUAL_LENGTH = 4
"""Drafted tokens where a plan has no fixed length of a drafter."""


@dataclass(frozen=True)
class Command:
    """What to type.

    Args:
        version: of the server, whose flags these are.
        words: of the command line.
        notes: what to know about it, sentences.
    """

    version: str
    words: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """For a shell."""
        return shlex.join(self.words)


@dataclass(frozen=True)
class Part:
    """A drafter as it is typed, or a part of a combination: NAME:ARGUMENT,OPTION=VALUE,..."""

    typed: str
    name: str
    argument: str = ""
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Draft:
    """What one server needs to draft: words of the command line, or keys of its configuration, and notes."""

    words: tuple[str, ...] = ()
    keys: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def emit(plan: Plan, found: Recommendation, server: str) -> Command:
    """The command that starts a server as recommended; plainly, if the advice is not to speculate.

    Args:
        plan: of which it is.
        found: at some temperature and batch size.
        server: a key of `VERSIONS`.

    Raises:
        InvalidOption: an unknown server, or one that cannot run the target or the drafter; with the reason.
    """
    if server not in VERSIONS:
        raise InvalidOption("emit", server, ", ".join(VERSIONS))
    target = str(plan.asked["target"])
    if found.cell is None:
        return Command(VERSIONS[server], _started(server, target), (f"Without drafts. {found.reason}",))
    cell = found.cell
    typed = plan.auto if cell.drafter == "auto" else cell.drafter
    parts, reasons, drafts = parts_of(typed), list[str](), list[tuple[Part, Draft]]()
    for part in parts:
        draft = DIALECTS[server](part, _length(plan, cell, part))
        if isinstance(draft, str):
            reasons.append(f"{part.typed}: {draft}")
        else:
            drafts.append((part, draft))
    if not drafts:
        raise InvalidOption("emit", server, f"a server that runs {typed}", "; ".join(reasons) + ".")
    chosen = drafts if server == "llama.cpp" else [max(drafts, key=lambda each: _worth(plan, cell, each[0]))]
    notes = [note for _, draft in chosen for note in draft.notes]
    if len(chosen) < len(parts):
        notes.append(_left_out(plan, cell, typed, chosen, reasons))
    return Command(VERSIONS[server], _with_drafts(server, target, [draft for _, draft in chosen]), tuple(notes))


def parts_of(typed: str) -> list[Part]:
    """The parts of a drafter as users type it; nothing is checked."""
    found = []
    for part in typed.split("+"):
        name, _, rest = part.partition(":")
        items = [item for item in rest.split(",") if item]
        options = dict(item.split("=", 1) for item in items if "=" in item)
        found.append(Part(part, name, "".join(item for item in items if "=" not in item), options))
    return found


def _worth(plan: Plan, cell: Cell, part: Part) -> float:
    """The best predicted speed-up of a part by itself, where the plan has one."""
    best = best_of(plan.at(cell.temperature, cell.batch), part.typed) or _chain_of(plan, cell, part)
    return 0.0 if best is None else best.speedup.mid


def _chain_of(plan: Plan, cell: Cell, part: Part) -> Cell | None:
    """The best cell of the same drafter without options: of a tree, its chains."""
    plainly = part.name + (f":{part.argument}" if part.argument else "")
    return best_of(plan.at(cell.temperature, cell.batch), plainly)


def _length(plan: Plan, cell: Cell, part: Part) -> int:
    """Drafted tokens: as recommended, or the best fixed length of this drafter in the plan."""
    if isinstance(cell.k, int):
        return cell.k
    plainly = part.name + (f":{part.argument}" if part.argument else "")
    fixed = [c for c in plan.at(cell.temperature, cell.batch) if isinstance(c.k, int)]
    best = best_of(fixed, part.typed) or best_of(fixed, plainly)
    return USUAL_LENGTH if best is None or not isinstance(best.k, int) else best.k


def _left_out(plan: Plan, cell: Cell, typed: str, chosen: list[tuple[Part, Draft]], reasons: list[str]) -> str:
    alone = " and ".join(part.typed for part, _ in chosen)
    worth = max(_worth(plan, cell, part) for part, _ in chosen)
    foretold = f", for which {worth:.2f} is predicted here" if worth else ""
    why = f" ({'; '.join(reasons)})" if reasons else ""
    return f"It cannot take turns between the parts of {typed}{why}. This is {alone}{foretold}."


# ---------------------------------------------------------------- the servers


def _started(server: str, target: str) -> tuple[str, ...]:
    if server == "vllm":
        return "vllm", "serve", _on_the_hub(target, server)
    if server == "sglang":
        return "python", "-m", "sglang.launch_server", "--model-path", _on_the_hub(target, server)
    return "llama-server", "-m", _gguf(target)


def _with_drafts(server: str, target: str, drafts: list[Draft]) -> tuple[str, ...]:
    start = _started(server, target)
    if server == "vllm":
        (draft,) = drafts
        return *start, "--speculative-config", json.dumps(draft.keys)
    if server == "sglang":
        (draft,) = drafts
        return *start, *draft.words
    kinds = ",".join(draft.keys["type"] for draft in drafts)
    return *start, "--spec-type", kinds, *(word for draft in drafts for word in draft.words)


def _on_the_hub(target: str, server: str) -> str:
    if target.endswith(".gguf"):
        fix = "Its support of GGUF files is limited: name the folder or the id that the file was made from."
        raise InvalidOption("emit", server, "another server for a .gguf file", fix)
    return EMBEDDED_ON_THE_HUB if target == EMBEDDED_NAME else target


def _gguf(target: str) -> str:
    if target == EMBEDDED_NAME:
        try:
            return str(embedded_path())
        except CheckpointError:
            return target
    if not target.endswith(".gguf"):
        fix = "Its convert_hf_to_gguf.py makes one."
        raise InvalidOption("emit", "llama.cpp", "another server for a target that is no .gguf file", fix)
    return target


NEVER = {
    "lookahead": "no server has lookahead drafts",
    "recycling": "no server has token recycling",
    "early-exit": "no server drafts with the target's first layers",
    "quantised": "give it a narrower copy of the target as a draft model yourself",
}
"""Why a drafter runs in none of them."""


def _vllm(part: Part, k: int) -> Draft | str:
    """Keys of --speculative-config, or why there are none."""
    keys: dict[str, Any] = {"num_speculative_tokens": k}
    if part.name == "ngram":
        return Draft(
            keys={
                "method": "ngram",
                **keys,
                "prompt_lookup_max": int(part.options.get("max_ngram", "3")),
                "prompt_lookup_min": int(part.options.get("min_ngram", "1")),
            }
        )
    if part.name == "suffix":
        needs = "Method suffix needs the package arctic-inference. It grows trees of its own and looks across requests."
        return Draft(keys={"method": "suffix", **keys}, notes=(needs,))
    if part.name == "model":
        return Draft(keys={"method": "draft_model", "model": _model(part), **keys})
    if part.name in ("eagle", "medusa", "mlp"):
        method = {"eagle": "eagle3" if _is_eagle3(part) else "eagle", "medusa": "medusa", "mlp": "mlp_speculator"}
        return Draft(keys={"method": method[part.name], "model": _head(part), **keys}, notes=_about_head(part))
    return NEVER.get(part.name, "it is not known there")


def _sglang(part: Part, k: int) -> Draft | str:
    """Flags, or why there are none."""
    if part.name in ("ngram", "suffix"):
        words = ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", str(k))
        note = "NGRAM runs on CUDA only; it looks up in a trie of its own, across requests."
        return Draft(words, notes=(note,))
    if part.name == "model":
        return Draft(_sglang_words("STANDALONE", _model(part), k))
    if part.name == "eagle":
        return Draft(_sglang_words("EAGLE3" if _is_eagle3(part) else "EAGLE", _head(part), k), notes=_about_head(part))
    if part.name in ("medusa", "mlp"):
        return "it has no such heads"
    return NEVER.get(part.name, "it is not known there")


def _sglang_words(algorithm: str, path: str, k: int) -> tuple[str, ...]:
    """A chain: one branch, and as many draft tokens as steps, plus the pending one."""
    numbers = {"--speculative-num-steps": k, "--speculative-eagle-topk": 1, "--speculative-num-draft-tokens": k + 1}
    flags = [word for flag, number in numbers.items() for word in (flag, str(number))]
    return "--speculative-algorithm", algorithm, "--speculative-draft-model-path", path, *flags


def _llama_cpp(part: Part, k: int) -> Draft | str:
    """A type of --spec-type and its flags, or why there are none."""
    if part.name in ("ngram", "suffix"):
        size = part.options.get("max_ngram", "3") if part.name == "ngram" else part.options.get("min_match", "2")
        words = ("--spec-ngram-simple-size-n", size, "--spec-ngram-simple-size-m", str(k))
        note = "ngram-simple copies after one n-gram of a fixed size, whereas suffix takes the longest that fits."
        return Draft(words, {"type": "ngram-simple"}, (note,) if part.name == "suffix" else ())
    draft = ("--spec-draft-n-max", str(k))
    if part.name == "model":
        if not part.argument.endswith(".gguf") and part.argument != EMBEDDED_NAME:
            return "the draft model must be a .gguf file"
        path = _gguf(part.argument)
        return Draft(("--spec-draft-model", path, *draft), {"type": "draft-simple"})
    if part.name == "eagle":
        if not _is_eagle3(part):
            return "it has EAGLE-3 heads, but not EAGLE-1"
        note = "The head must be made a .gguf file first, by its convert_hf_to_gguf.py; name that file."
        return Draft(("--spec-draft-model", _head(part), *draft), {"type": "draft-eagle3"}, (note,))
    if part.name in ("medusa", "mlp"):
        return "it has no such heads"
    return NEVER.get(part.name, "it is not known there")


DIALECTS = {"vllm": _vllm, "sglang": _sglang, "llama.cpp": _llama_cpp}


# ---------------------------------------------------------------- models and heads


def _model(part: Part) -> str:
    return EMBEDDED_ON_THE_HUB if part.argument == EMBEDDED_NAME else part.argument


def _head(part: Part) -> str:
    return str(SHIPPED_HEAD) if part.argument == EMBEDDED_NAME else part.argument


def _is_eagle3(part: Part) -> bool:
    """By the head's config; of a head that is not here it is taken for granted."""
    try:
        settings = json.loads((Path(_head(part)).expanduser() / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True
    return "draft_vocab_size" in settings or "eagle3" in json.dumps(settings).lower()


def _about_head(part: Part) -> tuple[str, ...]:
    name = shlex.quote(part.argument)
    return (f"`outrider convert {name} OUT --to FORMAT` says whether it runs this head as it is.",)


def header(found: Recommendation, command: Command) -> str:
    """What a command is for, in a line."""
    what = "plain decoding" if found.cell is None else in_words(found.cell)
    return f"{command.version}; {what}, temperature {found.temperature:g}, batch {found.batch}"
