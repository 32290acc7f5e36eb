"""What a user can get wrong, as exceptions: one tree under one base.

    OutriderError
    ├── InvalidOption       (ValueError)   a value outside what is allowed
    ├── VocabularyMismatch  (ValueError)   draft and target do not speak the same tokens
    ├── CheckpointError     (ValueError)   a file that is missing, damaged or does not fit its config
    ├── UnsupportedModel    (ValueError)   a model that cannot be decoded exactly here
    ├── CacheTooLarge       (MemoryError)  the cache does not fit in memory
    └── ProcessorError      (RuntimeError) a user's logits processor failed; ends its sequence only

Broken invariants of our own are `assert`s, never one of these.
"""

from __future__ import annotations


class OutriderError(Exception):
    """Base of every error that outrider raises for something the user can mend."""


class InvalidOption(OutriderError, ValueError):
    """An option has a value that is not allowed.

    Args:
        name: the option as the user knows it, such as ``temperature``.
        value: what was given.
        allowed: the allowed range or names, in words.
        fix: what to do instead, one sentence, or empty.
    """

    def __init__(self, name: str, value: object, allowed: str, fix: str = "") -> None:
        self.name, self.value, self.allowed, self.fix = name, value, allowed, fix
        shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:37]}...{repr(value)[-40:]}"
        super().__init__(f"{name} is {shown}; allowed: {allowed}." + (f" {fix}" if fix else ""))


class VocabularyMismatch(OutriderError, ValueError):
    """Draft and target tokenizers differ; the message names the first id that does."""


class CheckpointError(OutriderError, ValueError):
    """A checkpoint is missing, truncated, corrupt, not a model, or disagrees with its config."""


class UnsupportedModel(OutriderError, ValueError):
    """The model cannot be decoded exactly here; the message names the layer type or setting."""


class CacheTooLarge(OutriderError, MemoryError):
    """The key/value cache does not fit in memory; the message says how much was asked."""


class ProcessorError(OutriderError, RuntimeError):
    """A user's logits processor raised or returned a wrong shape; its sequence ends, the others go on."""


class DrafterWarning(UserWarning):
    """A drafter failed too often and was left out; the text is right, but slower."""
