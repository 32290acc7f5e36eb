from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.constants import GGMLQuantizationType as Kind

from checkpoints import byte_level_tokenizer, gguf_vocabulary, tiny_model, write_gguf
from outrider.errors import CheckpointError, UnsupportedModel
from outrider.models.checkpoint import open_checkpoint
from outrider.models.gguf_file import read_gguf
from outrider.models.gguf_vocabulary import read_vocabulary

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "head_dim": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 320,
    "num_key_value_heads": 1,
}


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "valid.gguf"
    write_gguf(
        path, tiny_model("llama", **SMALL), Kind.Q4_1, metadata=gguf_vocabulary(byte_level_tokenizer(), "smollm")
    )
    return path.read_bytes()


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def header(num_tensors: int, num_values: int, *, magic: bytes = b"GGUF", version: int = 3) -> bytes:
    return magic + struct.pack("<IQQ", version, num_tensors, num_values)


def tensor(name: str, *dims: int, kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def padded(content: bytes, data: bytes = b"", alignment: int = 32) -> bytes:
    return content + b"\0" * (-len(content) % alignment) + data


def open_bytes(folder: Path, content: bytes) -> None:
    path = folder / "file.gguf"
    path.write_bytes(content)
    read_gguf(path)


def read_everything(path: Path) -> None:
    """All that a load would do with a file."""
    checkpoint = open_checkpoint(path)
    for name in checkpoint.names:
        checkpoint.tensor(name)
        checkpoint.groups4(name)
    read_vocabulary(read_gguf(path).metadata, path)


def test_metadata_and_tensors_are_those_that_gguf_reads_itself(valid: bytes, tmp_path: Path) -> None:
    path = tmp_path / "valid.gguf"
    path.write_bytes(valid)
    ours, theirs = read_gguf(path), GGUFReader(path)
    fields = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    plain = {key: v.tolist() if isinstance(v, np.ndarray) else v for key, v in ours.metadata.items()}
    assert plain == fields
    assert {t.name for t in theirs.tensors} == set(ours.tensors)
    for t in theirs.tensors:
        mine = ours.tensors[t.name]
        assert (mine.offset, mine.num_bytes, mine.kind) == (t.data_offset, t.n_bytes, t.tensor_type)
        assert mine.shape == tuple(t.shape.tolist()[::-1])
        assert ours.rows(t.name).tobytes() == t.data.tobytes()


def test_every_type_of_metadata_value_is_read(tmp_path: Path) -> None:
    stored = [
        (0, "<B", 200),
        (1, "<b", -100),
        (2, "<H", 60_000),
        (3, "<h", -30_000),
        (4, "<I", 4_000_000_000),
        (5, "<i", -2_000_000_000),
        (6, "<f", 0.5),
        (7, "<?", True),
        (10, "<Q", 2**63),
        (11, "<q", -(2**62)),
        (12, "<d", 0.1),
    ]
    content = header(0, len(stored) * 2)
    for kind, code, value in stored:
        content += text(f"one{kind}") + struct.pack("<I", kind) + struct.pack(code, value)
        content += text(f"two{kind}") + struct.pack("<IIQ", 9, kind, 2) + struct.pack("<" + 2 * code[1], value, value)
    path = tmp_path / "values.gguf"
    path.write_bytes(content)
    metadata = read_gguf(path).metadata
    for kind, _, value in stored:
        assert metadata[f"one{kind}"] == value
        assert metadata[f"two{kind}"].tolist() == [value, value]


def test_version_2_is_read_like_version_3(valid: bytes, tmp_path: Path) -> None:
    path = tmp_path / "two.gguf"
    path.write_bytes(valid[:4] + struct.pack("<I", 2) + valid[8:])
    read_everything(path)
    assert read_gguf(path).version == 2


VALUE = text("key") + struct.pack("<I", 4) + struct.pack("<I", 1)
DAMAGED = {
    "empty": (b"", "is empty"),
    "a text file": (b"Hello, I am a text file.\n", "not a GGUF file"),
    "only a magic": (b"GGUF", "claimed at byte 4"),
    "version 1": (header(0, 0, version=1), "version 1"),
    "a version to come": (header(0, 0, version=4), "version 4"),
    "big endian": (header(0, 0, version=3 << 24), "big endian"),
    "more tensors than bytes": (header(2**40, 0), f"claims {2**40} tensors"),
    "more tensors than fit in 64 bits of bytes": (header(2**64 - 1, 0), f"claims {2**64 - 1} tensors"),
    "more values than bytes": (header(0, 2**62), f"claims {2**62} metadata values"),
    "a key longer than the file": (header(0, 1) + struct.pack("<Q", 2**50) + b"abcdefgh", f"claims {2**50} bytes"),
    "a text longer than the file": (
        header(0, 1) + text("key") + struct.pack("<IQ", 8, 2**63) + b"abc",
        f"claims {2**63} bytes of text",
    ),
    "an array longer than the file": (
        header(0, 1) + text("key") + struct.pack("<IIQ", 9, 12, 2**61) + b"abc",
        f"claims {2**61} numbers",
    ),
    "more strings than bytes": (
        header(0, 1) + text("key") + struct.pack("<IIQ", 9, 8, 2**50) + b"abc",
        f"claims {2**50} strings",
    ),
    "a long string in an array": (
        header(0, 1) + text("key") + struct.pack("<IIQQ", 9, 8, 1, 2**40) + b"abc",
        "is too long",
    ),
    "strings that end too early": (
        header(0, 1) + text("key") + struct.pack("<IIQ", 9, 8, 2) + text("a" * 9) + b"b",
        "truncated or damaged near",
    ),
    "an array of arrays": (header(0, 1) + text("key") + struct.pack("<IIQ", 9, 9, 1), "unsupported type 9"),
    "a value of unknown type": (header(0, 1) + text("key") + struct.pack("<IQ", 99, 0), "unknown type 99"),
    "text that is not UTF-8": (
        header(0, 1) + struct.pack("<Q", 3) + b"\xff\xfe\xfd" + struct.pack("<IQ", 4, 1),
        "UTF-8",
    ),
    "a key twice": (header(0, 2) + VALUE + VALUE, "'key' twice"),
    "a tensor twice": (padded(header(2, 0) + 2 * tensor("a", 4), b"\0" * 64), "'a' twice"),
    "a tensor of 5 dimensions": (padded(header(1, 0) + tensor("a", 1, 1, 1, 1, 1), b"\0" * 64), "5 dimensions"),
    "a tensor of no dimension": (padded(header(1, 0) + tensor("a"), b"\0" * 64), "0 dimensions"),
    "a tensor of no rows": (padded(header(1, 0) + tensor("a", 4, 0), b"\0" * 64), "shape [0, 4]"),
    "a tensor larger than the file": (padded(header(1, 0) + tensor("a", 2**40, 2**40), b"\0" * 64), "the file holds"),
    "a tensor after the file": (padded(header(1, 0) + tensor("a", 4, offset=2**60), b"\0" * 64), "the file holds"),
    "a tensor that is not aligned": (padded(header(1, 0) + tensor("a", 4, offset=4), b"\0" * 64), "not aligned"),
    "tensors on each other": (
        padded(header(2, 0) + tensor("a", 16) + tensor("b", 4, offset=32), b"\0" * 64),
        "overlaps",
    ),
    "an unknown number format": (padded(header(1, 0) + tensor("a", 4, kind=77), b"\0" * 64), "number format 77"),
    "half a block": (padded(header(1, 0) + tensor("a", 33, kind=8), b"\0" * 64), "multiple of 32"),
}
DAMAGED |= {
    f"alignment {value}": (header(0, 1) + text("general.alignment") + struct.pack("<II", 4, value), "power of two")
    for value in (0, 4, 48)
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused_with_what_is_wrong(name: str, tmp_path: Path) -> None:
    content, message = DAMAGED[name]
    with pytest.raises(CheckpointError) as caught:
        open_bytes(tmp_path, content)
    assert message in str(caught.value)
    assert "file.gguf" in str(caught.value)


def test_the_pieces_of_the_damaged_files_are_sound_by_themselves(tmp_path: Path) -> None:
    two = tensor("a", 16) + tensor("b", 4, offset=64)
    open_bytes(tmp_path, padded(header(2, 1) + VALUE + two, b"\0" * 80))


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nothing\.gguf does not exist"):
        read_gguf(tmp_path / "nothing.gguf")


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_gguf(tmp_path)


def test_a_file_cut_anywhere_is_refused(valid: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    for end in (*range(0, len(valid), 211), len(valid) - 64):
        path.write_bytes(valid[:end])
        with pytest.raises(CheckpointError):
            read_everything(path)
    path.write_bytes(valid)
    read_everything(path)


EXTREMES = (0, 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)


def mutated(content: bytes, header_size: int, rng: np.random.Generator) -> bytes:
    """One to three bytes or 64-bit words changed, mostly in the header."""
    changed = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        place = int(rng.integers(0, header_size if rng.random() < 0.9 else len(content) - 8))
        if rng.random() < 0.5:
            changed[place] ^= 1 << int(rng.integers(0, 8))
        else:
            changed[place : place + 8] = struct.pack("<Q", EXTREMES[rng.integers(0, len(EXTREMES))])
    return bytes(changed)


def test_random_damage_gives_only_our_errors_or_a_model(valid: bytes, tmp_path: Path) -> None:
    path, rng, outcomes = tmp_path / "damaged.gguf", np.random.default_rng(7), {"loaded": 0, "refused": 0}
    path.write_bytes(valid)
    start = read_gguf(path).data_start
    for _ in range(800):
        path.write_bytes(mutated(valid, start, rng))
        try:
            read_everything(path)
            outcomes["loaded"] += 1
        except (CheckpointError, UnsupportedModel):
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 50  # the damage neither always nor never shows


ODD_VALUES: tuple[Any, ...] = (True, -1, 0, 2**31, 0.5, float("nan"), "text", "", [1, 2], [0.5], ["a", "b"], [], None)


def odd_metadata(key: str, value: Any) -> bytes:
    """One metadata value as stored: of the type that Python's value suggests."""
    kinds = {bool: (7, "<?"), int: (11, "<q"), float: (6, "<f")}
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if not isinstance(value, list):
        kind, code = kinds[type(value)]
        return text(key) + struct.pack("<I", kind) + struct.pack(code, value)
    kind, code = (8, "") if value and isinstance(value[0], str) else kinds[type(value[0])] if value else (4, "<I")
    items = (text(item) if kind == 8 else struct.pack(code, item) for item in value)
    return text(key) + struct.pack("<IIQ", 9, kind, len(value)) + b"".join(items)


def test_metadata_of_any_other_type_gives_only_our_errors_or_a_model(valid: bytes, tmp_path: Path) -> None:
    path, odd = tmp_path / "valid.gguf", tmp_path / "odd.gguf"
    path.write_bytes(valid)
    file, outcomes = read_gguf(path), {"loaded": 0, "refused": 0}
    optional = (
        "expert_count",
        "rope.scaling.type",
        "rope.scaling.factor",
        "attention.sliding_window",
        "rope.scale_linear",
    )
    keys = [*file.metadata, *(f"llama.{name}" for name in optional), "tokenizer.ggml.eot_token_id"]
    stored = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in file.metadata.items()}
    tensors = b"".join(
        tensor(t.name, *t.shape[::-1], kind=t.kind, offset=t.offset - file.data_start) for t in file.tensors.values()
    )
    for key in keys:
        for value in ODD_VALUES:
            changed = {k: v for k, v in (stored | {key: value}).items() if v is not None}
            values = b"".join(odd_metadata(k, v) for k, v in changed.items())
            odd.write_bytes(
                padded(header(len(file.tensors), len(changed)) + values + tensors, valid[file.data_start :])
            )
            try:
                read_everything(odd)
                outcomes["loaded"] += 1
            except (CheckpointError, UnsupportedModel):
                outcomes["refused"] += 1
    assert min(outcomes.values()) > 30
