"""Puts a trained EAGLE-3 head where the embedded model's head ships: half precision, without the target's own rows.

outrider train eagle3 --out FOLDER ...
python tools/ship_head.py FOLDER

The card of a head that was gone on with (--init smollm2) holds the card of the one that it began with.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from outrider.drafters.heads.files import read_head
from outrider.models.locate import EMBEDDED_NAME, SHIPPED_HEAD
from outrider.models.opening import full_matrices, open_model

LIMIT = 12_000_000
"""Bytes of the weights that a package may carry."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="what outrider train wrote")
    parser.add_argument("--note", help="what its card should say besides")
    options = parser.parse_args()
    folder, card = options.folder, json.loads((options.folder / "card.json").read_text())
    weights = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in shared(folder).items()}
    SHIPPED_HEAD.mkdir(parents=True, exist_ok=True)
    if card["options"]["init"] == EMBEDDED_NAME:
        card["begun_from"] = json.loads((SHIPPED_HEAD / "card.json").read_text())
    save_file(weights, SHIPPED_HEAD / "model.safetensors")
    shutil.copyfile(folder / "config.json", SHIPPED_HEAD / "config.json")
    noted = card if options.note is None else {"note": options.note, **card}
    (SHIPPED_HEAD / "card.json").write_text(json.dumps(noted, indent=1) + "\n")
    (SHIPPED_HEAD / "model.safetensors").chmod(0o644)
    size = (SHIPPED_HEAD / "model.safetensors").stat().st_size
    assert size <= LIMIT, f"{size} bytes are more than {LIMIT}"
    read_head(SHIPPED_HEAD)
    print(f"{SHIPPED_HEAD}: {size / 1e6:.1f} MB")


def shared(folder: Path) -> dict[str, torch.Tensor]:
    """The head's tensors but for output rows that are the target's, which is checked."""
    (file,) = folder.glob("*.safetensors")
    weights, head = load_file(file), read_head(folder)
    output = full_matrices(open_model(EMBEDDED_NAME, "float32", torch.device("cpu"), None)).output
    rows = output if head.draft_ids is None else output[head.draft_ids]
    assert torch.allclose(weights.pop("lm_head.weight").float(), rows, atol=1e-2), "it trained its own output"
    return weights


if __name__ == "__main__":
    main()
