"""Launch commands of other servers: keys and flags of one version each, what is refused, what is said."""

from __future__ import annotations

import json
import shlex

import pytest

from outrider.errors import InvalidOption
from outrider.models.locate import SHIPPED_HEAD, embedded_path
from outrider.planning.emit import DIALECTS, EMBEDDED_ON_THE_HUB, VERSIONS, emit, header, parts_of
from outrider.planning.plan import AUTO, TREE, Cell, Interval, Plan, Recommendation

VLLM_KEYS = {
    "method",
    "model",
    "num_speculative_tokens",
    "prompt_lookup_min",
    "prompt_lookup_max",
    "draft_tensor_parallel_size",
    "max_model_len",
}
VLLM_METHODS = {"ngram", "suffix", "draft_model", "eagle", "eagle3", "medusa", "mlp_speculator"}
SGLANG_FLAGS = {
    "--model-path",
    "--speculative-algorithm",
    "--speculative-draft-model-path",
    "--speculative-num-steps",
    "--speculative-eagle-topk",
    "--speculative-num-draft-tokens",
}
LLAMA_FLAGS = {
    "--spec-type",
    "--spec-draft-model",
    "--spec-draft-n-max",
    "--spec-ngram-simple-size-n",
    "--spec-ngram-simple-size-m",
}
LLAMA_TYPES = {"draft-simple", "draft-eagle3", "ngram-simple"}
"""What the servers of `VERSIONS` know, of what is used here."""


def a_cell(drafter, k, speedup):
    return Cell(drafter, k, 0.0, 1, Interval(1, 2, 3), Interval(speedup, speedup, speedup))


def emitted(server, drafter, k=3, target="owner/model", cells=(), means=""):
    cell = a_cell(drafter, k, 1.5)
    plan = Plan({"target": target}, {}, {}, "q4", 1, cells=(cell, *cells), auto=means)
    return emit(plan, Recommendation(0.0, 1, cell, "it pays"), server)


def config(command):
    """The JSON of vLLM, as its shell would get it."""
    words = shlex.split(command.line)
    assert words[:2] == ["vllm", "serve"]
    return json.loads(words[words.index("--speculative-config") + 1])


def flags(command):
    words = shlex.split(command.line)
    return {word: after for word, after in zip(words, [*words[1:], ""], strict=True) if word.startswith("--")}


def test_vllm_is_given_its_own_keys():
    assert config(emitted("vllm", "ngram:max_ngram=5,min_ngram=2")) == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 5,
        "prompt_lookup_min": 2,
    }
    assert config(emitted("vllm", "suffix")) == {"method": "suffix", "num_speculative_tokens": 3}
    assert config(emitted("vllm", "model:owner/small")) == {
        "method": "draft_model",
        "model": "owner/small",
        "num_speculative_tokens": 3,
    }
    assert "arctic-inference" in emitted("vllm", "suffix").notes[0]


def test_sglang_is_given_all_three_numbers_of_a_chain():
    found = flags(emitted("sglang", "model:owner/small", 4))
    assert found["--speculative-algorithm"] == "STANDALONE"
    assert (found["--speculative-num-steps"], found["--speculative-num-draft-tokens"]) == ("4", "5")
    assert found["--speculative-eagle-topk"] == "1"
    ngram = emitted("sglang", "suffix", 6)
    assert flags(ngram)["--speculative-algorithm"] == "NGRAM"
    assert "CUDA only" in ngram.notes[0]


def test_llama_cpp_is_given_files_and_the_embedded_model_has_one():
    found = emitted("llama.cpp", "model:small.gguf", 4, target="smollm2")
    assert shlex.split(found.line)[:3] == ["llama-server", "-m", str(embedded_path())]
    assert flags(found)["--spec-type"] == "draft-simple"
    assert (flags(found)["--spec-draft-model"], flags(found)["--spec-draft-n-max"]) == ("small.gguf", "4")
    assert flags(emitted("llama.cpp", "ngram", 8, target="t.gguf"))["--spec-ngram-simple-size-m"] == "8"


def test_heads_are_named_by_their_kind(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    assert config(emitted("vllm", "eagle:smollm2"))["method"] == "eagle3"
    assert config(emitted("vllm", "eagle:smollm2"))["model"] == str(SHIPPED_HEAD)
    assert config(emitted("vllm", f"eagle:{tmp_path}"))["method"] == "eagle"
    assert flags(emitted("sglang", f"eagle:{tmp_path}"))["--speculative-algorithm"] == "EAGLE"
    assert config(emitted("vllm", "eagle:owner/head"))["method"] == "eagle3"  # not here: taken for granted
    assert config(emitted("vllm", "medusa:h"))["method"] == "medusa"
    assert config(emitted("vllm", "mlp:h"))["method"] == "mlp_speculator"


def test_the_embedded_target_has_its_name_on_the_hub():
    assert shlex.split(emitted("vllm", "ngram", target="smollm2").line)[2] == EMBEDDED_ON_THE_HUB


def test_names_with_spaces_survive_the_shell():
    found = emitted("vllm", "model:a b", target="my model")
    assert shlex.split(found.line)[2] == "my model"
    assert config(found)["model"] == "a b"


@pytest.mark.parametrize(
    ("server", "drafter", "target", "reason"),
    [
        ("vllm", "lookahead", "t", "no server has lookahead drafts"),
        ("vllm", "recycling", "t", "no server has token recycling"),
        ("sglang", "early-exit:4", "t", "first layers"),
        ("llama.cpp", "quantised", "t.gguf", "narrower copy"),
        ("sglang", "medusa:h", "t", "it has no such heads"),
        ("llama.cpp", "mlp:h", "t.gguf", "it has no such heads"),
        ("llama.cpp", "model:owner/small", "t.gguf", "must be a .gguf file"),
        ("llama.cpp", "ngram", "folder", "a target that is no .gguf file"),
        ("vllm", "ngram", "t.gguf", "another server for a .gguf file"),
        ("tgi", "ngram", "t", "vllm, sglang, llama.cpp"),
    ],
)
def test_what_a_server_cannot_run_is_refused_with_the_reason(server, drafter, target, reason):
    with pytest.raises(InvalidOption, match=reason) as error:
        emitted(server, drafter, target=target)
    assert error.value.name == "emit"


def test_an_eagle_1_head_is_refused_where_only_eagle_3_runs(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidOption, match="EAGLE-3 heads, but not EAGLE-1"):
        emitted("llama.cpp", f"eagle:{tmp_path}", target="t.gguf")


COMBINED = "suffix+eagle:smollm2,tree=auto"
PARTS = (a_cell("suffix", 4, 1.1), a_cell("suffix", 8, 1.2), a_cell("eagle:smollm2", 2, 1.3))


@pytest.mark.parametrize("server", ["vllm", "sglang"])
def test_of_a_combination_the_part_that_is_worth_most_is_run_and_that_is_said(server):
    found = emitted(server, "auto", AUTO, cells=PARTS, means=COMBINED)
    assert "eagle3" in found.line.lower()
    assert "suffix" not in found.line
    assert found.notes[-1] == (
        f"It cannot take turns between the parts of {COMBINED}. This is eagle:smollm2,tree=auto, for which 1.30 is "
        "predicted here."
    )
    better = emitted(server, "auto", AUTO, cells=(*PARTS, a_cell("suffix", AUTO, 1.9)), means=COMBINED)
    assert "eagle" not in better.line.lower()


def test_llama_cpp_takes_several_kinds_of_drafts():
    found = emitted("llama.cpp", COMBINED, AUTO, "smollm2", PARTS)
    assert flags(found)["--spec-type"] == "ngram-simple,draft-eagle3"
    assert (flags(found)["--spec-ngram-simple-size-m"], flags(found)["--spec-draft-n-max"]) == ("8", "2")
    some = emitted("llama.cpp", "suffix+recycling", AUTO, "smollm2", PARTS)
    assert flags(some)["--spec-type"] == "ngram-simple"
    assert "recycling: no server has token recycling" in some.notes[-1]


def test_lengths_come_from_the_plan_where_the_drafter_has_its_own():
    assert config(emitted("vllm", "suffix", AUTO, cells=PARTS))["num_speculative_tokens"] == 8
    assert config(emitted("vllm", "eagle:smollm2,tree=auto", TREE, cells=PARTS))["num_speculative_tokens"] == 2
    assert config(emitted("vllm", "ngram", AUTO, cells=PARTS))["num_speculative_tokens"] == 4


@pytest.mark.parametrize("server", VERSIONS)
def test_without_a_recommendation_the_server_starts_plainly(server):
    advice = Recommendation(0.0, 16, None, "do not speculate: x")
    found = emit(Plan({"target": "smollm2"}, {}, {}, "q4", 1), advice, server)
    assert "spec" not in found.line.replace("SmolLM2", "")
    assert found.notes == ("Without drafts. do not speculate: x",)


def test_the_version_is_named():
    cell = a_cell("suffix", 4, 1.1)
    found = header(Recommendation(0.0, 1, cell, ""), emitted("vllm", "suffix"))
    assert found == "vLLM 0.32; suffix, k = 4, temperature 0, batch 1"
    assert set(VERSIONS) == set(DIALECTS)


DRAFTERS = ("ngram", "suffix", "suffix:branches=3", "model:m.gguf", "eagle:smollm2", "medusa:h", "mlp:h", COMBINED)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_nothing_is_emitted_that_the_servers_do_not_know(drafter):
    found = config(emitted("vllm", drafter))
    assert found.keys() <= VLLM_KEYS
    assert found["method"] in VLLM_METHODS
    if drafter not in ("medusa:h", "mlp:h"):
        assert flags(emitted("sglang", drafter)).keys() <= SGLANG_FLAGS
        llama = flags(emitted("llama.cpp", drafter, target="smollm2"))
        assert llama.keys() <= LLAMA_FLAGS
        assert set(llama["--spec-type"].split(",")) <= LLAMA_TYPES


def test_parts_are_read_as_they_are_typed():
    (first, second) = parts_of("suffix:branches=3,min_match=2+eagle:a/b,tree=auto")
    assert (first.name, first.argument, first.options) == ("suffix", "", {"branches": "3", "min_match": "2"})
    assert (second.name, second.argument, second.options) == ("eagle", "a/b", {"tree": "auto"})
