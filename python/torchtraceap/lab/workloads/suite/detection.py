"""Object detection models."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchtraceap.lab.workloads.declaration import workload
from torchtraceap.lab.workloads.suite.layers import (
    Made,
    Residual,
    classes,
    conv,
    momentum,
    perceptron,
    pick,
    supervised,
)  # fmt: skip

_CLASSES = 20


class Pyramid(nn.Module):
    """A feature pyramid: maps at 1/4, 1/8 and 1/16 of the side, each with information from coarser
    ones."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stem = conv(3, width, 3, 2)
        self.stages = nn.ModuleList(
            nn.Sequential(conv(width, width, 3, 2), *_residuals(width, depth)) for _ in range(3)
        )
        self.sides = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(3))

    def forward(self, x: Tensor) -> list[Tensor]:
        x, found = self.stem(x), []
        for stage, side in zip(self.stages, self.sides, strict=True):
            x = stage(x)
            found.append(side(x))
        for place in (1, 0):
            found[place] = found[place] + functional.interpolate(found[place + 1], scale_factor=2)
        return found


def _residuals(width: int, depth: int) -> list[nn.Module]:
    return [Residual(conv(width, width), conv(width, width)) for _ in range(depth)]


class _Dense(nn.Module):
    """A head that predicts classes and boxes at every position of every map, `[batch, places,
    ...]`."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.pyramid = Pyramid(width, depth)
        tower = [each for _ in range(2) for each in (nn.Conv2d(width, width, 3, 1, 1), nn.ReLU())]
        self.tower = nn.Sequential(*tower)
        self.out = nn.Conv2d(width, _CLASSES + 4, 3, 1, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = [self.out(self.tower(each)).flatten(2).mT for each in self.pyramid(x)]
        logits, boxes = torch.cat(maps, 1).split([_CLASSES, 4], -1)
        return logits, boxes.exp()


def _detection_loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    """Return the focal loss of the classes and the smooth L1 loss of the boxes with an object."""
    logits, boxes = (each.float() for each in output)
    given, label = target[..., :4], target[..., 4].long()
    wanted = functional.one_hot(label, _CLASSES + 1)[..., :-1].float()  # the last is "nothing"
    entropy = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    sure = torch.where(wanted > 0, logits.sigmoid(), 1 - logits.sigmoid())
    found = label < _CLASSES
    near = functional.smooth_l1_loss(boxes[found], given[found])
    return ((1 - sure).square() * entropy).sum() / found.sum().clamp(min=1) + near


@workload(
    task="detection",
    domain="vision",
    exercises="A feature pyramid, focal loss, and boolean masks that wait for the GPU.",
)
def retinanet(batch: int = 4, size: str = "tiny") -> Made:
    """A one-stage detector after RetinaNet (arXiv 1708.02002), with one box per position."""
    width, depth, side = pick(size, (16, 1, 64), (256, 3, 512))
    places = sum((side // by) ** 2 for by in (4, 8, 16))
    label = classes(batch, _CLASSES + 1, places, 1).float()
    target = torch.cat([torch.rand(batch, places, 4), label], -1)
    return supervised(
        _Dense(width, depth), torch.randn(batch, 3, side, side), target, _detection_loss, momentum
    )


class _Queries(nn.Module):
    """Learned queries that attend to a coarse map; each predicts a class and a box."""

    def __init__(self, width: int, queries: int, depth: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(*(conv(3 if not i else width, width, 3, 2) for i in range(4)))
        self.transformer = nn.Transformer(
            width, 4, depth, depth, 4 * width, 0.1, "relu", batch_first=True
        )
        self.queries = nn.Embedding(queries, width)
        self.logits, self.boxes = nn.Linear(width, _CLASSES + 1), perceptron(width, width, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.backbone(x).flatten(2).mT
        asked = self.queries.weight.expand(len(x), -1, -1)
        found = self.transformer(tokens, asked)
        return self.logits(found), self.boxes(found).sigmoid()


def _matching_loss(output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
    """Return the loss after greedy matching: each object takes the best query that is still
    free."""
    (logits, boxes), (labels, given) = (output[0].float(), output[1].float()), target
    likely = logits.softmax(-1)
    with torch.no_grad():
        chance = likely.gather(2, labels[:, None].expand(-1, logits.shape[1], -1))
        cost = torch.cdist(boxes, given, p=1) - chance
        chosen = []
        for place in range(labels.shape[1]):
            best = cost[..., place].argmin(1)
            cost = cost.scatter(1, best[:, None, None].expand(-1, 1, cost.shape[2]), 1e6)
            chosen.append(best)
        of_objects = torch.stack(chosen, 1)
    wanted = torch.full(logits.shape[:2], _CLASSES, device=logits.device)
    wanted.scatter_(1, of_objects, labels)
    near = boxes.gather(1, of_objects[..., None].expand(-1, -1, 4))
    return functional.cross_entropy(logits.mT, wanted) + functional.l1_loss(near, given)


@workload(
    task="detection",
    domain="vision",
    exercises="nn.Transformer with cross-attention, and set matching by cdist, argmin, scatter.",
)
def detr(batch: int = 4, size: str = "tiny") -> Made:
    """A detector after DETR (arXiv 2005.12872); objects are matched one after the other."""
    width, queries, depth, side = pick(size, (32, 16, 1, 96), (256, 100, 6, 512))
    target = (classes(batch, _CLASSES, 5), torch.rand(batch, 5, 4))
    net = _Queries(width, queries, depth)
    return supervised(net, torch.randn(batch, 3, side, side), target, _matching_loss)


class _TwoStages(nn.Module):
    """A region proposal network, whose best proposals are cropped and classified."""

    def __init__(self, width: int, most: int) -> None:
        super().__init__()
        self.pyramid, self.most = Pyramid(width, 1), most
        self.proposals = nn.Conv2d(width, 5, 1)
        self.head = nn.Sequential(nn.Flatten(), perceptron(49 * width, 128, _CLASSES + 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.pyramid(x)[0]
        score, boxes = self.proposals(seen).flatten(2).mT.split([1, 4], -1)
        best = score.squeeze(-1).topk(self.most, 1).indices
        chosen = boxes.gather(1, best[..., None].expand(-1, -1, 4)).float().tanh()
        middle, half = chosen[..., :2], 0.1 + 0.1 * chosen[..., 2:].abs()
        line = torch.linspace(-1, 1, 7, device=x.device)
        grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)
        where = middle[:, :, None, None] + half[:, :, None, None] * grid
        cut = functional.grid_sample(seen.float(), where.flatten(1, 2), align_corners=False)
        cut = cut.unflatten(2, (self.most, 7)).transpose(1, 2).flatten(0, 1)
        return self.head(cut), score


def _both_stages_loss(output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
    logits, score = output
    return functional.cross_entropy(
        logits, target[0].flatten()
    ) + functional.binary_cross_entropy_with_logits(score, target[1])


@workload(
    task="detection",
    domain="vision",
    exercises="Proposals by topk, regions cut out with grid_sample, two heads.",
)
def faster_rcnn(batch: int = 2, size: str = "tiny") -> Made:
    """A detector after Faster R-CNN (arXiv 1506.01497), with regions aligned by sampling."""
    width, most, side = pick(size, (16, 16, 64), (256, 256, 512))
    target = (classes(batch, _CLASSES + 1, most), torch.rand(batch, (side // 4) ** 2, 1).round())
    net = _TwoStages(width, most)
    return supervised(net, torch.randn(batch, 3, side, side), target, _both_stages_loss, momentum)


class _Heat(nn.Module):
    """A heat map of object centers, with sizes."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.pyramid = Pyramid(width, depth)
        self.heat, self.size = nn.Conv2d(width, _CLASSES, 1), nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seen = self.pyramid(x)[0]
        heat = self.heat(seen).sigmoid()
        peaks = torch.where(functional.max_pool2d(heat, 3, 1, 1) == heat, heat, 0)
        best = peaks.flatten(1).topk(8).indices % (heat.shape[2] * heat.shape[3])
        sizes = self.size(seen).flatten(2).gather(2, best[:, None].expand(-1, 2, -1))
        return heat, sizes, best


def _penalty_reduced_loss(output: tuple[Tensor, Tensor, Tensor], target: Tensor) -> Tensor:
    heat, sizes, _ = output
    heat = heat.float().clamp(1e-4, 1 - 1e-4)
    hit = target.ge(0.99)
    gain = torch.where(
        hit, (1 - heat) ** 2 * heat.log(), (1 - target) ** 4 * heat**2 * (1 - heat).log()
    )
    return -gain.mean() + 0.1 * (sizes.float() - 1).abs().mean()


@workload(
    task="detection",
    domain="vision",
    exercises="Peaks by max pooling and comparison, topk of a flat map, powers and logarithms.",
)
def centernet(batch: int = 4, size: str = "tiny") -> Made:
    """A detector after CenterNet (arXiv 1904.07850)."""
    width, depth, side = pick(size, (16, 1, 64), (128, 3, 512))
    target = torch.rand(batch, _CLASSES, side // 4, side // 4) ** 0.1
    net = _Heat(width, depth)
    return supervised(net, torch.randn(batch, 3, side, side), target, _penalty_reduced_loss)
