"""Hashes of plain values."""

from __future__ import annotations

import hashlib
import json
from typing import Any

__all__ = ["content_hash"]

_DIGITS = 16


def content_hash(value: Any) -> str:
    """Return 16 hexadecimal digits of the sha256 of a plain value, independent of the order of
    keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
