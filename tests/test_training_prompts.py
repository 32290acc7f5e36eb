"""The prompts that the shipped head learnt from: the same every time, varied, and none of those it is judged on."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HELD_OUT = runpy.run_path(str(ROOT / "benchmarks" / "held_out.py"))["HELD_OUT"]


def written(path, count):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["training_prompts.py", str(path), "--count", str(count)])
        runpy.run_path(str(ROOT / "tools" / "training_prompts.py"), run_name="__main__")
    return [json.loads(line)["prompt"] for line in path.read_text().splitlines()]


def words(prompt):
    return frozenset(prompt.lower().split())


def too_close(prompts):
    """Held-out prompts of which one of these has nearly all words, and hardly another."""
    asked = [prompt for kind in HELD_OUT.values() for prompt in kind]
    known = [words(prompt) for prompt in prompts]
    return [prompt for prompt in asked if any(len(words(prompt) & k) > 0.75 * len(words(prompt) | k) for k in known)]


def test_prompts_are_varied_and_the_same_every_time(tmp_path):
    first = written(tmp_path / "one.jsonl", 500)
    assert first == written(tmp_path / "two.jsonl", 600)[:500]
    assert len(set(first)) == 500
    assert len({prompt.split()[0] for prompt in first}) > 20
    assert not any("{" in prompt or "  " in prompt for prompt in first)


def test_no_prompt_is_one_that_heads_are_judged_on(tmp_path):
    prompts = written(tmp_path / "all.jsonl", 6000)
    assert too_close(prompts) == []
    assert too_close([*prompts, "Why do cats really purr?"]) == ["Why do cats purr?"]
