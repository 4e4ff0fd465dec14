"""`distinct` and `median` give the same as NumPy's own, without what NumPy loads for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from torchtraceap.core.sums import distinct, median


@pytest.mark.parametrize("dtype", [np.int64, np.uint32, np.uint8])
def test_distinct_is_what_numpy_finds(dtype: type) -> None:
    random = np.random.default_rng(4)
    for n in (0, 1, 2, 5, 1000):
        for most in (1, 3, 200):
            numbers = random.integers(0, most, n).astype(dtype)
            for given in (numbers, np.sort(numbers), np.unique(numbers)):
                found = distinct(given)
                assert found.dtype == dtype
                assert found.tolist() == np.unique(numbers).tolist()


def test_distinct_gives_an_array_of_its_own() -> None:
    numbers = np.array([1, 2, 3])
    distinct(numbers)[0] = 9
    assert numbers.tolist() == [1, 2, 3]


def test_the_median_is_numpys() -> None:
    random = np.random.default_rng(5)
    for n in (1, 2, 3, 8, 101):
        floats, numbers = random.normal(size=n), random.integers(-(2**60), 2**60, n)
        assert median(floats) == np.median(floats)
        assert median(numbers) == np.median(numbers)
    assert median([3, 1, 2]) == 2.0


def test_a_diagnosis_does_without_masked_arrays(bundled: Path) -> None:
    code = (
        "import sys; from torchtraceap.cli import main; "
        f"assert main(['diagnose', {str(bundled)!r}, '--json']) == 0; "
        "print('numpy.ma' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "False", done.stderr
