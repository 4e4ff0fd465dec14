"""Models with random weights, and batches of made-up data for them.

A model is called by the library that has it: own small networks need nothing but torch, others
what is installed. Nothing is downloaded: architectures are built from their configurations.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.lab.collection.manifest import Scale, Workload

__all__ = ["INPUTS", "Batch", "build_model", "loss_and_scores", "make_batch"]

Batch = dict[str, Tensor]
"""Every tensor has the samples of the batch along its first axis."""
Making = Callable[[Scale, torch.Generator], Batch]
Calling = Callable[[nn.Module, Batch], Any]

_BOXES = 4
"""In each image."""
_TEXT = 8
"""Tokens of a condition."""


# ------------------------------------------------------------------------- libraries


def build_model(workload: Workload, scale: Scale, seed: int) -> nn.Module:
    """The model on the host, with the same weights for the same seed.

    Raises:
        MissingDependencyError: Its library is not installed, or does not load.
        OptionError: The library has no such model.
    """
    library, _, name = workload.make.partition(":")
    if library not in _LIBRARIES:
        raise OptionError(f"{workload.make}: no library {library!r}: {', '.join(_LIBRARIES)}")
    torch.manual_seed(seed)
    model: nn.Module = _LIBRARIES[library](name, scale)
    model = model.train() if workload.trains else model.eval()
    return model.requires_grad_(workload.trains)


def _library(name: str) -> Any:
    with _loading(name):
        return importlib.import_module(name)


@contextlib.contextmanager
def _loading(library: str) -> Iterator[None]:
    """A wheel of another torch than the one that is there raises many things."""
    try:
        yield
    except (ImportError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise MissingDependencyError(
            f"{library} does not load ({reason}): pip install 'torchtraceap[collect]'"
        ) from error


def _named(module: Any, name: str) -> Any:
    with _loading(module.__name__):  # they load their parts when these are asked for
        found = getattr(module, name, None)
    if found is None:
        raise OptionError(f"{module.__name__} {module.__version__} has no {name}")
    return found


def _own(name: str, scale: Scale) -> nn.Module:
    from torchtraceap.lab.generation.workloads import NETS

    known = {net.__name__.lstrip("_").lower(): net for nets in NETS.values() for net in nets}
    if name not in known:
        raise OptionError(f"no own network is called {name!r}: {', '.join(known)}")
    make: Callable[..., nn.Module] = known[name]
    return make(**scale.config)


def _torchvision(name: str, scale: Scale) -> nn.Module:
    models = _library("torchvision").models
    make = models.get_model_builder(name)
    # A backbone has weights of its own, which would be downloaded.
    parts = [key for key in inspect.signature(make).parameters if key.startswith("weights")]
    model: nn.Module = make(**dict.fromkeys(parts), **scale.config)
    return model


def _timm(name: str, scale: Scale) -> nn.Module:
    model: nn.Module = _library("timm").create_model(name, pretrained=False, **scale.config)
    return model


def _transformers(name: str, scale: Scale) -> nn.Module:
    made = _named(_library("transformers"), name)
    model: nn.Module = made(made.config_class(**scale.config))
    return model


def _diffusers(name: str, scale: Scale) -> nn.Module:
    model: nn.Module = _named(_library("diffusers"), name)(**scale.config)
    return model


_LIBRARIES: dict[str, Callable[[str, Scale], nn.Module]] = {
    "own": _own,
    "torchvision": _torchvision,
    "timm": _timm,
    "transformers": _transformers,
    "diffusers": _diffusers,
}


# ------------------------------------------------------------------------- batches


def _pixels(scale: Scale, generator: torch.Generator) -> Tensor:
    channels = scale.config.get("in_channels", 3)
    return torch.randn(scale.batch, channels, scale.side, scale.side, generator=generator)


def _integers(high: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randint(0, high, shape, generator=generator)


def _images(scale: Scale, generator: torch.Generator) -> Batch:
    return {"pixel_values": _pixels(scale, generator)}


def _classes(scale: Scale, generator: torch.Generator) -> Batch:
    labels = _integers(2, (scale.batch,), generator)
    return {**_images(scale, generator), "labels": labels}


def _boxes(scale: Scale, generator: torch.Generator) -> Batch:
    many = (scale.batch, _BOXES)
    boxes = 0.25 + 0.25 * torch.rand(*many, 4, generator=generator)
    classes = _integers(2, many, generator)
    return {**_images(scale, generator), "class_labels": classes, "boxes": boxes}


def _masks(scale: Scale, generator: torch.Generator) -> Batch:
    """A class for every pixel."""
    labels = _integers(2, (scale.batch, scale.side, scale.side), generator)
    return {**_images(scale, generator), "labels": labels}


def _segments(scale: Scale, generator: torch.Generator) -> Batch:
    """Some masks in each image, and the class of each."""
    many = (scale.batch, _BOXES)
    masks = _integers(2, (*many, scale.side, scale.side), generator).float()
    classes = _integers(2, many, generator)
    return {**_images(scale, generator), "mask_labels": masks, "class_labels": classes}


def _depths(scale: Scale, generator: torch.Generator) -> Batch:
    depths = 1 + 8 * torch.rand(scale.batch, scale.side, scale.side, generator=generator)
    return {**_images(scale, generator), "labels": depths}


def _noise(scale: Scale, generator: torch.Generator) -> Batch:
    times = _integers(1000, (scale.batch,), generator)
    return {"sample": _pixels(scale, generator), "timestep": times}


def _conditioned(scale: Scale, generator: torch.Generator) -> Batch:
    width = scale.config["cross_attention_dim"]
    text = torch.randn(scale.batch, _TEXT, width, generator=generator)
    return {**_noise(scale, generator), "encoder_hidden_states": text}


def _classed_noise(scale: Scale, generator: torch.Generator) -> Batch:
    noise = _noise(scale, generator)
    classes = _integers(10, (scale.batch,), generator)
    return {
        "hidden_states": noise["sample"],
        "timestep": noise["timestep"],
        "class_labels": classes,
    }


def _sample(scale: Scale, generator: torch.Generator) -> Batch:
    return {"sample": _pixels(scale, generator)}


def _as_words(model: nn.Module, batch: Batch) -> Any:
    return model(**batch)


def _positional(model: nn.Module, batch: Batch) -> Any:
    return model(batch["pixel_values"])


def _with_targets(model: nn.Module, batch: Batch) -> Any:
    """Targets as a dictionary for each image."""
    pairs = zip(batch["class_labels"], batch["boxes"], strict=True)
    labels = [{"class_labels": classes, "boxes": boxes} for classes, boxes in pairs]
    return model(pixel_values=batch["pixel_values"], labels=labels)


def _with_segments(model: nn.Module, batch: Batch) -> Any:
    lists = {key: list(batch[key]) for key in ("mask_labels", "class_labels")}
    return model(pixel_values=batch["pixel_values"], **lists)


INPUTS: dict[str, tuple[Making, Calling]] = {
    "images": (_images, _positional),
    "pixels": (_images, _as_words),
    "classes": (_classes, _as_words),
    "boxes": (_boxes, _with_targets),
    "masks": (_masks, _as_words),
    "segments": (_segments, _with_segments),
    "depths": (_depths, _as_words),
    "noise": (_noise, _as_words),
    "conditioned": (_conditioned, _as_words),
    "classed_noise": (_classed_noise, _as_words),
    "sample": (_sample, _as_words),
}
"""Kinds of batches: how one is made, and how a model takes it."""


def make_batch(workload: Workload, scale: Scale, generator: torch.Generator) -> Batch:
    """One batch of made-up data on the host."""
    return INPUTS[workload.inputs][0](scale, generator)


def loss_and_scores(workload: Workload, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """The loss that the model gives, else the mean square of what it gives; and its first output
    of the batch, detached."""
    outputs = INPUTS[workload.inputs][1](model, batch)
    tensors = _tensors(outputs)
    loss = getattr(outputs, "loss", None)
    if loss is None:
        loss = torch.stack([each.float().square().mean() for each in tensors]).sum()
    size = len(next(iter(batch.values())))
    of_samples = [each for each in tensors if each.ndim > 1 and each.shape[0] == size]
    return loss, (of_samples or tensors)[0].detach()


def _tensors(outputs: Any) -> list[Tensor]:
    """Floating ones, in their order."""
    if isinstance(outputs, Tensor):
        return [outputs] if outputs.is_floating_point() else []
    if isinstance(outputs, dict):
        outputs = list(outputs.values())
    if isinstance(outputs, (tuple, list)):
        return [tensor for each in outputs for tensor in _tensors(each)]
    return []
