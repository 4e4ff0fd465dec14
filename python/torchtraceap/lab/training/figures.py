"""Figures of a validation split, calibration, and the logs of epochs.

An event file of TensorBoard, written here without TensorBoard, is a sequence of records: length (8
bytes), masked CRC-32C of these, data, masked CRC-32C of the data; all little-endian (TensorFlow's
`record_writer.cc`). The data is a message `Event` of `event.proto` in the wire format of protocol
buffers: wall_time = 1 (double), step = 2 (int64), file_version = 3 (string), summary = 5; a
`Summary` has values = 1, a value has tag = 1 (string) and simple_value = 2 (float).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np

from torchtraceap.core import Array, replacing_stream, write_text

__all__ = [
    "auc",
    "clear_windows",
    "masked_crc",
    "platt",
    "window_figures",
    "write_logs",
]

_NEWTON_STEPS = 50
_LOG, _EVENTS = "log.jsonl", "events.out.tfevents.0"
_DOUBLE, _VARINT, _BYTES, _FLOAT = 1, 0, 2, 5  # wire types of protocol buffers


class LabeledWindows(Protocol):
    """The labels of a trace's W windows, as a `Sample` has them."""

    @property
    def positive(self) -> Array:
        """bool `[W]`: it is lost."""

    @property
    def ignore(self) -> Array:
        """bool `[W]`: it is neither positive nor negative."""


def auc(positive: Array, scores: Array) -> float:
    """Area under the ROC curve; ties count half. NaN without both classes.

    Args:
        positive: bool `[n]`.
        scores: float `[n]`.
    """
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[inverse]
    found, others = int(positive.sum()), int((~positive).sum())
    if not found or not others:
        return float("nan")
    return float((ranks[positive].sum() - found * (found + 1) / 2) / (found * others))


def clear_windows(
    scores: Sequence[Array], samples: Sequence[LabeledWindows]
) -> tuple[Array, Array]:
    """Return the scores of the windows that have a clear label, `[n]` or `[n, ...]`, and bool `[n]`
    whether they are positive.

    Args:
        scores: `[W]` or `[W, ...]` for each trace.
        samples: The traces.
    """
    kept = [~sample.ignore for sample in samples]
    positive = [sample.positive[keep] for sample, keep in zip(samples, kept, strict=True)]
    chosen = [score[keep] for score, keep in zip(scores, kept, strict=True)]
    return np.concatenate(chosen), np.concatenate(positive)


def window_figures(scores: Sequence[Array], samples: Sequence[LabeledWindows]) -> dict[str, float]:
    """AUC of windows: `bad_only` (those of traces with a lost window), `pooled` (all) and
    `per_trace` (the mean over traces that have both kinds). Ignored windows are left out. A figure
    without a value, such as without a positive window, is 0.5.

    Args:
        scores: float `[W]` for each trace.
        samples: The traces.
    """
    kept = [
        (each[~sample.ignore], sample.positive[~sample.ignore])
        for each, sample in zip(scores, samples, strict=True)
    ]
    bad = [(each, label) for each, label in kept if label.any()]
    own = [auc(label, each) for each, label in bad if not label.all()]
    figures: dict[str, float] = {}
    for name, traces in (("bad_only", bad), ("pooled", kept)):
        figures[name] = float("nan")
        if traces:
            joined, labels = (np.concatenate(parts) for parts in zip(*traces, strict=True))
            figures[name] = auc(labels, joined)
    figures["per_trace"] = float(np.mean(own)) if own else float("nan")
    return {name: 0.5 if np.isnan(value) else value for name, value in figures.items()}


def platt(logits: Array, positive: Array) -> tuple[float, float]:
    """Scale and shift that make logits probabilities: logistic regression by Newton's method.

    The labels are drawn in by one count of each kind, as Platt does, so that logits that separate
    them have finite answers too.

    Args:
        logits: float `[n]`.
        positive: bool `[n]`.
    """
    found, others = positive.sum(), (~positive).sum()
    if not found or not others:
        return 1.0, 0.0
    target = np.where(positive, (found + 1) / (found + 2), 1 / (others + 2))
    x = np.stack([logits.astype(np.float64), np.ones(len(logits))], axis=1)
    weights = np.array([1.0, 0.0])
    for _ in range(_NEWTON_STEPS):
        p = 1 / (1 + np.exp(-np.clip(x @ weights, -40, 40)))
        slope = x.T @ (p - target)
        curve = (x * (p * (1 - p))[:, None]).T @ x + 1e-6 * np.eye(2)
        weights = weights - np.clip(np.linalg.solve(curve, slope), -1, 1)
    return (float(weights[0]), float(weights[1])) if weights[0] > 0 else (1.0, 0.0)


# ------------------------------------------------------------------------------ logs


def write_logs(folder: Path, records: Sequence[Mapping[str, float]]) -> None:
    """Write the figures of epochs as lines of JSON and as an event file of TensorBoard.

    Args:
        folder: The folder of the training.
        records: The figures of each epoch by name, with `epoch` and `wall_time_s` (since 1970).

    Raises:
        OutputError: A file can't be written.
    """
    write_text(folder / _LOG, "".join(json.dumps(each) + "\n" for each in records))
    parts = [_record(_field(1, _DOUBLE, struct.pack("<d", 0.0)) + _text(3, "brain.Event:2"))]
    for each in records:
        values = b"".join(
            _nested(1, _text(1, tag) + _field(2, _FLOAT, struct.pack("<f", value)))
            for tag, value in each.items()
            if tag not in ("epoch", "wall_time_s")
        )
        when = _field(1, _DOUBLE, struct.pack("<d", each["wall_time_s"]))
        step = _field(2, _VARINT, _varint(int(each["epoch"])))
        parts.append(_record(when + step + _nested(5, values)))
    with replacing_stream(folder / _EVENTS) as stream:
        stream.write(b"".join(parts))


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return b"".join((length, masked_crc(length), data, masked_crc(data)))


def _field(number: int, wire: int, data: bytes) -> bytes:
    return _varint(number << 3 | wire) + data


def _nested(number: int, data: bytes) -> bytes:
    return _field(number, _BYTES, _varint(len(data)) + data)


def _text(number: int, text: str) -> bytes:
    return _nested(number, text.encode("utf-8"))


def _varint(value: int) -> bytes:
    """Return seven bits in a byte, the lowest first."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def masked_crc(data: bytes) -> bytes:
    """CRC-32C, turned and shifted as these files want it."""
    crc, table = 0xFFFFFFFF, _crc_table()
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@cache
def _crc_table() -> tuple[int, ...]:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)  # Castagnoli's polynomial, reversed
        table.append(crc)
    return tuple(table)
