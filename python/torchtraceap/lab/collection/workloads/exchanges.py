"""Steps of one rank of several, whose collectives are small, waited for, or not overlapped."""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import ClassVar

import torch
from torch import Tensor, nn

from torchtraceap.lab.collection.emulated import FORMS, NETWORKS, process_group
from torchtraceap.lab.collection.workloads.models import Batch, loss_and_scores
from torchtraceap.lab.collection.workloads.steps import STEPS, Step

__all__: list[str] = []

_RANKS = (2, 4, 8)
_SHARDED = frozenset({"shards_of_leaves", "one_shard"})


class _Exchanging(Step):
    """A step among emulated ranks; their number and network are drawn."""

    parts = ("forward", "backward")
    fault: ClassVar[str] = ""

    def prepare(self) -> None:
        super().prepare()
        rng = random.Random(f"{self.context.seed}/{self.context.workload.name}/{self.fault}")
        self.world_size = rng.choice(_RANKS)
        self.strategy = "fsdp2" if self.fault in _SHARDED else "ddp"
        network = rng.choice(list(NETWORKS))
        self.group = ExitStack()
        self.group.enter_context(process_group(self.world_size, network, seed=self.context.seed))
        try:
            self.parallel = FORMS[self.fault].make(self.model, self.bad)
        except BaseException:
            self.close()
            raise
        self.optimizer = self.build_optimizer()  # shards are other weights than those before

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-4)

    def forward(self, inputs: Batch) -> tuple[Tensor, Tensor]:
        return loss_and_scores(self.context.workload, self.parallel.module, inputs)

    def backward(self, loss: Tensor) -> None:
        super().backward(loss)
        self.parallel.reduce()

    def close(self) -> None:
        self.group.close()


for _name, _form in FORMS.items():
    _cost = "runs_of_exchanges" if _form.type == "small_nccl_kernels" else "exchanges"
    STEPS[_name] = type(f"_{_name}", (_Exchanging,), {"fault": _name, "cost": _cost})
