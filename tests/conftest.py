"""Parts that are slow to make, made once for the whole run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from outrider.models.checkpoint import Checkpoint, open_checkpoint
from outrider.models.decoder import Decoder
from outrider.models.load import load_decoder
from outrider.models.locate import locate
from outrider.models.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing that tests build or measure is kept in the user's own cache, and nothing is found there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTRIDER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def smollm2_checkpoint() -> Checkpoint:
    return open_checkpoint(locate("smollm2"))


@pytest.fixture(scope="session")
def smollm2_tokenizer() -> Tokenizer:
    return load_tokenizer(locate("smollm2"))


@pytest.fixture(scope="session")
def smollm2(smollm2_checkpoint: Checkpoint) -> Callable[[str], Decoder]:
    """The embedded model in a precision, loaded once for all tests."""
    loaded: dict[str, Decoder] = {}

    def get(precision: str) -> Decoder:
        if precision not in loaded:
            loaded[precision] = load_decoder(smollm2_checkpoint, precision)
        return loaded[precision]

    return get
