"""Tiny checkpoints for tests: folders saved by real `transformers` models, and GGUF files in every number format.

model = tiny_model("qwen3")             # a transformers model with random float32 weights
save_folder(model, tmp_path / "model")  # config.json and model.safetensors
write_gguf(tmp_path / "model.gguf", model, Kind.Q4_1)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
FLOAT_KINDS = (Kind.F32, Kind.F16, Kind.BF16)
ALL_KINDS = (*FLOAT_KINDS, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K)
K_KINDS = {Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2), Kind.Q6_K: (208,)}
"""Formats that gguf can read and not write, with the byte offsets of the half-precision scales in a block."""

VOCAB_SIZE = 320
TRAINING_TEXT = [
    "The quick brown fox jumps over the lazy dog. It's 10 past 7, isn't it? We'll see in 2024.",
    "def area(radius):\n    return 3.14159 * radius ** 2  # circle\n\n\nprint(area(12))\n",
    "naïve café, Übergröße, señor; 東京は日本の首都です。 Привет, мир! 🎉🎉 👩‍👩‍👧",
]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def tiny_config(family: str, **changes: Any) -> Any:
    """A transformers config of this family: two layers, 4 query and 2 key/value heads of 64; `changes` win."""
    from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

    classes = {"llama": LlamaConfig, "mistral": MistralConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
    settings: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        "sliding_window": None,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "attn_implementation": "eager",
    }
    if family == "llama":
        del settings["sliding_window"]
    return classes[family](**(settings | changes))


def tiny_model(family: str, *, seed: int = 0, **changes: Any) -> Any:
    """A transformers model with random float32 weights, norms and biases too, so that none can be left out unseen."""
    from transformers import AutoModelForCausalLM

    config = tiny_config(family, **changes)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data.copy_(1 + 0.2 * noise if "norm" in name else 0.05 * noise)
    return model


def save_folder(model: Any, folder: Path, **options: Any) -> Path:
    """Save as `transformers` does: config.json, generation_config.json and safetensors."""
    model.save_pretrained(folder, **options)
    return folder


# --- GGUF -----------------------------------------------------------------------------------------------------------

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """GGUF's name of a Hugging Face tensor."""
    stem, suffix = name.rsplit(".", 1)
    if not name.startswith("model.layers."):
        return f"{_NAMES[stem]}.{suffix}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{_NAMES[rest]}.{suffix}"


def to_gguf_rows(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of q or k as convert_hf_to_gguf.py orders them for "llama": the two halves of a head interleaved."""
    heads = weight.reshape(num_heads, 2, len(weight) // num_heads // 2, *weight.shape[1:])
    return np.ascontiguousarray(heads.swapaxes(1, 2).reshape(weight.shape))


def stored_bytes(weight: np.ndarray, kind: Kind, seed: int = 0) -> np.ndarray:
    """A matrix in a number format, [rows, bytes]; K formats get random blocks instead, for gguf cannot write them."""
    if kind not in K_KINDS:
        return np.ascontiguousarray(quantize(weight, kind)).view(np.uint8).reshape(len(weight), -1)
    per_block, block_bytes = GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (len(weight), weight.shape[1] // per_block, block_bytes), dtype=np.uint8)
    for offset in K_KINDS[kind]:
        scales = rng.uniform(0.0001, 0.001, blocks.shape[:2]).astype(np.float16)
        blocks[:, :, offset : offset + 2] = scales[:, :, None].view(np.uint8)
    return blocks.reshape(len(weight), -1)


def gguf_metadata(config: Any) -> dict[str, Any]:
    """The metadata that convert_hf_to_gguf.py would write for a transformers config, without the tokenizer."""
    architecture = "llama" if config.model_type == "mistral" else config.model_type
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    values = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.freq_base": config.rope_parameters["rope_theta"],
        "rope.dimension_count": head_dim,
        "vocab_size": config.vocab_size,
    }
    return {"general.architecture": architecture} | {f"{architecture}.{name}": v for name, v in values.items()}


def gguf_tensors(model: Any, kind: Kind) -> dict[str, tuple[np.ndarray, Kind]]:
    """GGUF name -> (stored bytes, format): matrices [rows, bytes] in `kind`, vectors in F32, as llama.cpp has them."""
    config = model.config
    permuted = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    tensors = {}
    for name, parameter in model.state_dict().items():
        weight = parameter.float().numpy()
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        projection = name.split(".")[-2]
        if config.model_type in ("llama", "mistral") and projection in permuted:
            weight = to_gguf_rows(weight, permuted[projection])
        own = Kind.F32 if weight.ndim == 1 else kind
        rows = weight.reshape(len(weight), -1)
        tensors[gguf_name(name)] = (stored_bytes(rows, own, seed=len(tensors)), own)
        if weight.ndim == 1:
            tensors[gguf_name(name)] = (weight, own)
    return tensors


def write_gguf(
    path: Path,
    model: Any,
    kind: Kind = Kind.F32,
    *,
    metadata: dict[str, Any] | None = None,
    extra: dict[str, tuple[np.ndarray, Kind]] | None = None,
) -> dict[str, tuple[np.ndarray, Kind]]:
    """Write a model as a GGUF file.

    Args:
        path: the file.
        model: from `tiny_model`.
        kind: number format of the matrices.
        metadata: keys that are added or replaced; a key whose value is None is left out.
        extra: tensors that are added or replaced, as from `gguf_tensors`.

    Returns:
        What was stored, for comparison.
    """
    tensors = gguf_tensors(model, kind) | (extra or {})
    write_gguf_file(path, gguf_metadata(model.config) | (metadata or {}), tensors)
    return tensors


def write_gguf_file(path: Path, metadata: dict[str, Any], tensors: dict[str, tuple[np.ndarray, Kind]]) -> None:
    """Write any metadata and tensors with gguf's own writer."""
    writer = GGUFWriter(path, metadata["general.architecture"])
    writer.add_custom_alignment(32)
    for key, value in metadata.items():
        if key != "general.architecture" and value is not None:
            _add_value(writer, key, value)
    for name, (stored, kind) in tensors.items():
        vector = stored.ndim == 1
        writer.add_tensor(name, stored if vector or kind is not Kind.F32 else stored.view(np.float32), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_value(writer: GGUFWriter, key: str, value: Any) -> None:
    adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    adders.get(type(value), writer.add_array)(key, value)


def dequantized(stored: np.ndarray, kind: Kind) -> np.ndarray:
    """What gguf's own code makes of stored bytes."""
    return stored if stored.ndim == 1 else dequantize(stored, kind)


# --- tokenizers -----------------------------------------------------------------------------------------------------


def byte_level_tokenizer(splitting: Any = None, vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """A byte-level BPE tokenizer with ChatML's special tokens first, trained on `TRAINING_TEXT`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = splitting or pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_TEXT, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, **options: Any) -> Path:
    """Save as a Hugging Face tokenizer with a chat template; `options` go to PreTrainedTokenizerFast."""
    settings = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE} | options
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **settings).save_pretrained(folder)
    return folder


def gguf_vocabulary(tokenizer: Tokenizer, pre: str) -> dict[str, Any]:
    """The metadata of a byte-level tokenizer in a GGUF file."""
    import json

    tokens = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in SPECIAL_TOKENS else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
