"""Models with random weights, and batches of made-up data for them.

A model is named by the library that has it: own small networks need nothing but torch, others what
is installed. Nothing is downloaded: architectures are built from their configurations.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import inspect
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.lab.collection.manifest import Scale, Workload

__all__ = [
    "INPUTS",
    "Batch",
    "StoredSamples",
    "WholeBatches",
    "build_model",
    "loss_and_scores",
    "make_batch",
]

Batch = dict[str, Tensor]
"""Every tensor has the samples of the batch along its first axis."""
Making = Callable[[Scale, torch.Generator], Batch]
Calling = Callable[[nn.Module, Batch], Any]

_BOXES = 4
"""Boxes in each image."""
_TEXT = 8
"""Tokens of a condition."""
_EPOCH = 1_000_000
"""Samples: no epoch ends while a step runs."""
_QUANTUM = 32.0
"""Stored samples are bytes; values are multiples of a part of one."""
_LIBRARIES = ("own", "torchvision", "timm", "transformers", "diffusers")


# ------------------------------------------------------------------------- libraries


def build_model(workload: Workload, scale: Scale, seed: int) -> nn.Module:
    """Build the model on the host, with the same weights for the same seed.

    Raises:
        MissingDependencyError: Its library is not installed, or does not load.
        OptionError: The library has no such model.
    """
    library, _, name = workload.make.partition(":")
    if library not in _LIBRARIES:
        raise OptionError(f"{workload.make}: no library {library!r}: {', '.join(_LIBRARIES)}")
    torch.manual_seed(seed)
    model: nn.Module = _make_model(library, name, scale.config)
    model = model.train() if workload.trains else model.eval()
    return model.requires_grad_(workload.trains)


def _make_model(library: str, name: str, config: Any) -> Any:
    if library == "own":
        from torchtraceap.lab.workloads.suite.networks import NETWORKS

        known: dict[str, Callable[..., nn.Module]] = {
            key.lower(): make for nets in NETWORKS.values() for key, make in nets.items()
        }
        if name not in known:
            raise OptionError(f"no own network is called {name!r}: {', '.join(known)}")
        return known[name](**config)
    with _import_errors(library):
        module: Any = importlib.import_module(library)
    if library == "torchvision":
        make = module.models.get_model_builder(name)
        # A backbone has weights of its own, which would be downloaded.
        parts = [key for key in inspect.signature(make).parameters if key.startswith("weights")]
        return make(**dict.fromkeys(parts), **config)
    if library == "timm":
        return module.create_model(name, pretrained=False, **config)
    with _import_errors(library):  # they load their parts when these are asked for
        make = getattr(module, name, None)
    if make is None:
        raise OptionError(f"{library} {module.__version__} has no {name}")
    return make(make.config_class(**config)) if library == "transformers" else make(**config)


@contextlib.contextmanager
def _import_errors(library: str) -> Iterator[None]:
    """Turn errors of an import into one: a wheel of another torch raises many things."""
    try:
        yield
    except (ImportError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise MissingDependencyError(
            f"{library} does not load ({reason}): pip install 'torchtraceap[collect]'"
        ) from error


# ------------------------------------------------------------------------- batches


def _pixels(scale: Scale, generator: torch.Generator) -> Tensor:
    channels = scale.config.get("in_channels", 3)
    return torch.randn(scale.batch, channels, scale.side, scale.side, generator=generator)


def _integers(high: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randint(0, high, shape, generator=generator)


def _as_keywords(model: nn.Module, batch: Batch) -> Any:
    return model(**batch)


INPUTS: dict[str, tuple[Making, Calling]] = {}
"""Kinds of batches: functions that make one, and that give it to a model."""


def _inputs(*kinds: str, call: Calling = _as_keywords) -> Callable[[Making], Making]:
    def add(make: Making) -> Making:
        INPUTS.update(dict.fromkeys(kinds, (make, call)))
        return make

    return add


@_inputs("images", call=lambda model, batch: model(batch["pixel_values"]))
@_inputs("pixels")
def _images(scale: Scale, generator: torch.Generator) -> Batch:
    return {"pixel_values": _pixels(scale, generator)}


@_inputs("classes")
def _classes(scale: Scale, generator: torch.Generator) -> Batch:
    labels = _integers(2, (scale.batch,), generator)
    return {**_images(scale, generator), "labels": labels}


def _with_targets(model: nn.Module, batch: Batch) -> Any:
    """Call a model with targets as a dictionary for each image."""
    pairs = zip(batch["class_labels"], batch["boxes"], strict=True)
    labels = [{"class_labels": classes, "boxes": boxes} for classes, boxes in pairs]
    return model(pixel_values=batch["pixel_values"], labels=labels)


@_inputs("boxes", call=_with_targets)
def _boxes(scale: Scale, generator: torch.Generator) -> Batch:
    many = (scale.batch, _BOXES)
    boxes = 0.25 + 0.25 * torch.rand(*many, 4, generator=generator)
    classes = _integers(2, many, generator)
    return {**_images(scale, generator), "class_labels": classes, "boxes": boxes}


@_inputs("masks")
def _masks(scale: Scale, generator: torch.Generator) -> Batch:
    """Make a class for every pixel."""
    labels = _integers(2, (scale.batch, scale.side, scale.side), generator)
    return {**_images(scale, generator), "labels": labels}


def _with_segments(model: nn.Module, batch: Batch) -> Any:
    lists = {key: list(batch[key]) for key in ("mask_labels", "class_labels")}
    return model(pixel_values=batch["pixel_values"], **lists)


@_inputs("segments", call=_with_segments)
def _segments(scale: Scale, generator: torch.Generator) -> Batch:
    """Make some masks in each image, and the class of each."""
    many = (scale.batch, _BOXES)
    masks = _integers(2, (*many, scale.side, scale.side), generator).float()
    classes = _integers(2, many, generator)
    return {**_images(scale, generator), "mask_labels": masks, "class_labels": classes}


@_inputs("depths")
def _depths(scale: Scale, generator: torch.Generator) -> Batch:
    depths = 1 + 8 * torch.rand(scale.batch, scale.side, scale.side, generator=generator)
    return {**_images(scale, generator), "labels": depths}


@_inputs("noise")
def _noise(scale: Scale, generator: torch.Generator) -> Batch:
    times = _integers(1000, (scale.batch,), generator)
    return {"sample": _pixels(scale, generator), "timestep": times}


@_inputs("conditioned")
def _conditioned(scale: Scale, generator: torch.Generator) -> Batch:
    width = scale.config["cross_attention_dim"]
    text = torch.randn(scale.batch, _TEXT, width, generator=generator)
    return {**_noise(scale, generator), "encoder_hidden_states": text}


@_inputs("classed_noise")
def _classed_noise(scale: Scale, generator: torch.Generator) -> Batch:
    noise = _noise(scale, generator)
    classes = _integers(10, (scale.batch,), generator)
    return {
        "hidden_states": noise["sample"],
        "timestep": noise["timestep"],
        "class_labels": classes,
    }


@_inputs("sample")
def _sample(scale: Scale, generator: torch.Generator) -> Batch:
    return {"sample": _pixels(scale, generator)}


def make_batch(workload: Workload, scale: Scale, generator: torch.Generator) -> Batch:
    """Make one batch of made-up data on the host."""
    return INPUTS[workload.inputs][0](scale, generator)


def loss_and_scores(workload: Workload, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the loss that the model gives, else the mean square of its outputs; and its first
    output of the batch, detached."""
    outputs = INPUTS[workload.inputs][1](model, batch)
    tensors = _tensors(outputs)
    loss = getattr(outputs, "loss", None)
    if loss is None:
        loss = torch.stack([each.float().square().mean() for each in tensors]).sum()
    size = len(next(iter(batch.values())))
    of_samples = [each for each in tensors if each.ndim > 1 and each.shape[0] == size]
    return loss, (of_samples or tensors)[0].detach()


def _tensors(outputs: Any) -> list[Tensor]:
    """Return the floating-point tensors in their order."""
    if isinstance(outputs, Tensor):
        return [outputs] if outputs.is_floating_point() else []
    if isinstance(outputs, dict):
        outputs = list(outputs.values())
    if isinstance(outputs, (tuple, list)):
        return [tensor for each in outputs for tensor in _tensors(each)]
    return []


# ------------------------------------------------------------------------- samples


class StoredSamples(Dataset[Any]):
    """Compressed samples, as image files are; reading one costs the host real work."""

    def __init__(self, batches: list[Batch], passes: int, *, decode_here: bool = True) -> None:
        self.passes, self.decode_here = passes, decode_here
        self.lock: Any = None
        """Held while a sample is decoded, where there is one."""
        self._layout = [(key, value.dtype, value.shape[1:]) for key, value in batches[0].items()]
        self._blobs = [
            [_compress(value[row]) for value in batch.values()]
            for batch in batches
            for row in range(len(next(iter(batch.values()))))
        ]

    def __len__(self) -> int:
        return _EPOCH

    def __getitem__(self, index: int) -> Any:
        blobs = self._blobs[index % len(self._blobs)]
        if not self.decode_here:
            return blobs
        with self.lock or contextlib.nullcontext():
            return self.decode(blobs)

    def decode(self, blobs: list[bytes]) -> Batch:
        """Return one sample."""
        sample: Batch = {}
        for blob, (key, dtype, shape) in zip(blobs, self._layout, strict=True):
            for _ in range(self.passes):
                data = bytearray(zlib.decompress(blob))
            if dtype.is_floating_point:
                value = torch.frombuffer(data, dtype=torch.int8).to(dtype).div_(_QUANTUM)
            else:
                value = torch.frombuffer(data, dtype=dtype)
            sample[key] = value.reshape(shape)
        return sample

    def collate(self, samples: list[Any]) -> Batch:
        """Return a batch of decoded samples, or of others, which are decoded here."""
        decoded = samples if self.decode_here else [self.decode(blobs) for blobs in samples]
        return {key: torch.stack([s[key] for s in decoded]) for key, _, _ in self._layout}


def _compress(value: Tensor) -> bytes:
    if value.is_floating_point():
        value = (value * _QUANTUM).round().clamp(-127, 127).to(torch.int8)
    value = value.contiguous()
    data = ctypes.string_at(value.data_ptr(), value.numel() * value.element_size())
    return zlib.compress(data, 1)


class WholeBatches(Dataset[Batch]):
    """Ready batches in ordinary memory; fetching one costs next to nothing."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return _EPOCH

    def __getitem__(self, index: int) -> Batch:
        return self.batches[index % len(self.batches)]
