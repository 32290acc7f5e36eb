"""How far each precision of the embedded model is from float32: mean KL per token on the built-in text.

Writes src/outrider/data/precisions.json, which `precision="auto"` looks into before it measures anything itself.

    python benchmarks/precision.py [MODEL ...]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from outrider.models.checkpoint import open_checkpoint
from outrider.models.load import available_precisions, load_decoder
from outrider.models.locate import locate
from outrider.models.precision import SAMPLE_TEXT, mean_kl
from outrider.models.tokenizer import load_tokenizer

TABLE = Path(__file__).parent.parent / "src/outrider/data/precisions.json"


def main() -> None:
    table = json.loads(TABLE.read_text())
    for name in sys.argv[1:] or ["smollm2"]:
        path = locate(name)
        checkpoint = open_checkpoint(path)
        tokens = load_tokenizer(path).encode(SAMPLE_TEXT)
        reference = load_decoder(checkpoint, "float32")
        found = {}
        for precision in available_precisions(checkpoint, torch.device("cpu")):
            if precision != "float32":
                found[precision] = mean_kl(reference, load_decoder(checkpoint, precision), tokens)
                print(f"{name} {precision}: {found[precision]:.3g} nats per token over {len(tokens)} tokens")
        table[checkpoint.fingerprint] = found
    TABLE.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
