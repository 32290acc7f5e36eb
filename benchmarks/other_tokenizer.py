"""Makes a draft model with a tokenizer of its own out of the embedded model, to try drafts across vocabularies.

The byte-level vocabulary is cut to its first merges and its ids are dealt anew; the rows of the embedding follow. The
model keeps all its layers, so it shows acceptance, not speed.

    python benchmarks/other_tokenizer.py FOLDER [--merges 16000]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from reference import llama_config
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from outrider.models.checkpoint import open_checkpoint
from outrider.models.locate import locate
from outrider.models.tokenizer import load_tokenizer

EMBEDDING = "model.embed_tokens.weight"


def write_model(folder: Path, merges: int = 16_000) -> None:
    """Write config, weights in float16 and tokenizer."""
    path = locate("smollm2")
    checkpoint, inner = open_checkpoint(path), load_tokenizer(path)._inner
    spelled = json.loads(inner.backend_tokenizer.to_str())
    kept = kept_tokens(spelled["model"], merges)
    new_ids = {token: i for i, token in enumerate(kept)}
    rows = torch.tensor([spelled["model"]["vocab"][token] for token in kept])
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: checkpoint.tensor(name) for name in checkpoint.names}
    weights[EMBEDDING] = weights[EMBEDDING][rows]
    save_file({name: weight.half().contiguous() for name, weight in weights.items()}, folder / "model.safetensors")
    ends = {"bos_token_id": None, "eos_token_id": new_ids[inner.eos_token]}
    kind = {"architectures": ["LlamaForCausalLM"], "dtype": "float16"}
    llama_config(checkpoint, vocab_size=len(kept), **ends, **kind).save_pretrained(folder)
    spelled["model"] |= {"vocab": new_ids, "merges": spelled["model"]["merges"][:merges]}
    for added in spelled["added_tokens"]:
        added["id"] = new_ids[added["content"]]
    tokenizer = Tokenizer.from_str(json.dumps(spelled))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=inner.eos_token, chat_template=inner.chat_template
    ).save_pretrained(folder)


def kept_tokens(model: dict[str, Any], merges: int) -> list[str]:
    """The special tokens, the single bytes and what the first merges make, in the order of their spelling."""
    made = ["".join(pair) for pair in model["merges"]]
    dropped = set(made) - set(made[:merges])
    return sorted(token for token in model["vocab"] if token not in dropped)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--merges", type=int, default=16_000)
    options = parser.parse_args()
    write_model(options.folder, options.merges)
