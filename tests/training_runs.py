"""A target worth drafting for that is made in seconds: a Llama of four layers that has learnt a small language.

folder = toy_target(tmp_path)        # a Hugging Face folder with a chat template; None opens it again
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from checkpoints import SPECIAL_TOKENS, byte_level_tokenizer, save_folder, save_tokenizer, tiny_model

FOLLOWERS = {
    "the": ("river", "stone"),
    "river": ("carries", "follows"),
    "stone": ("follows", "under"),
    "carries": ("the", "seven"),
    "follows": ("seven", "the"),
    "under": ("seven", "the"),
    "seven": ("letters", "candles"),
    "letters": ("under", "and"),
    "candles": ("and", "under"),
    "and": ("the", "seven"),
}
"""The language: every word has a usual follower, and another."""

USUAL = 0.8
NUM_LAYERS, HIDDEN_SIZE = 4, 48
END = SPECIAL_TOKENS.index("<|im_end|>")


def sentence(rng: np.random.Generator, length: int) -> str:
    """So many words of the language."""
    word = str(rng.choice(list(FOLLOWERS)))
    words = [word]
    while len(words) < length:
        word = FOLLOWERS[word][int(rng.random() >= USUAL)]
        words.append(word)
    return " ".join(words)


def conversation(rng: np.random.Generator) -> str:
    """A question and an answer, in the chat template of `checkpoints`."""
    asked, answered = sentence(rng, int(rng.integers(2, 5))), sentence(rng, int(rng.integers(3, 10)))
    return f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n{answered}<|im_end|>\n"


@lru_cache
def learnt_model(steps: int = 120) -> Any:
    """A transformers model that has learnt the language."""
    torch.manual_seed(0)
    model, tokenizer, rng = new_model(), byte_level_tokenizer(), np.random.default_rng(0)
    texts = [tokenizer.encode(conversation(rng), add_special_tokens=False).ids for _ in range(400)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 8e-3 * min(1, (step + 1) / 10) * (1 - step / steps)
        chosen = [torch.tensor(texts[i]) for i in rng.integers(len(texts), size=8)]
        ids = torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True)
        labels = torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True, padding_value=-100)
        loss = model(input_ids=ids, labels=labels, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def new_model() -> Any:
    """The same before it has learnt anything."""
    model = tiny_model(
        "llama",
        hidden_size=HIDDEN_SIZE,
        intermediate_size=96,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        eos_token_id=END,
        attn_implementation="sdpa",
    )
    return model.train()


def toy_target(folder: Path) -> Path:
    """The model and its tokenizer in a folder."""
    save_folder(learnt_model(), folder)
    return save_tokenizer(byte_level_tokenizer(), folder)
