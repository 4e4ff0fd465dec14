"""Training loops for the machine of `made_machine.py`, with every fault that an edit stands for.

A `Job` says what a loop does and how it is written: the same job with one field changed is the
program with and without a fault. Nothing here knows how a simulator predicts; what a fix is worth
follows from how the machine runs both. Sizes are those of a network of linear layers with pointwise
operators behind each; times in microseconds, rates in bytes per microsecond (1 GB/s is 1000).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from made_machine import NCCL_STREAM, Machine, Process, Rank, Signal, Thread, Work

__all__ = ["CHIPS", "Chip", "Comm", "Job", "Layer", "Loader", "Upload", "record"]

MAIN, BACKWARD, IDLE = 1, 2, 90
WARM_UP = 3
"""Steps before the recording."""
ADAM = ("mul_", "lerp_", "mul_", "addcmul_", "sqrt", "div_", "add_", "addcdiv_")
SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
SEVERAL = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}, float>(int)"
MULTI_TENSOR = "void at::native::multi_tensor_apply_kernel<at::native::{}>(int)"


@dataclass(frozen=True)
class Chip:
    """A GPU, by its maker's data sheet: dense TFLOPS, GB/s."""

    name: str
    major: int
    fp32: float
    half: float
    bandwidth: float
    pcie: float


CHIPS = {
    "V100": Chip("Tesla V100-SXM2-32GB", 7, 15.7, 125.0, 900.0, 15.75),
    "A100": Chip("NVIDIA A100-SXM4-40GB", 8, 19.5, 312.0, 1555.0, 31.5),
    "H100": Chip("NVIDIA H100 80GB HBM3", 9, 66.9, 989.0, 3350.0, 63.0),
}


@dataclass(frozen=True)
class Layer:
    """A product of `[rows, k]` and `[k, n]`, and pointwise operators on `[rows, n]`."""

    n: int
    k: int
    pointwise: int
    fp32: float = 0.75
    """Share of the peak that the product reaches in fp32."""
    half: float = 0.6
    """... in bf16."""
    memory: float = 0.8
    """Share of the bandwidth that pointwise operators reach."""


@dataclass(frozen=True)
class Loader:
    """Who makes the batches."""

    fetch_us: float = 0.0
    """What one batch takes in one process that has the machine to itself; 0: no loader."""
    cv: float = 0.1
    workers: int = 0
    worker_slow: float = 1.0
    """How many times as long a batch takes beside other workers."""
    host_slow: float = 1.0
    """How many times as long the training process takes beside workers."""
    take_us: float = 400.0
    """Taking a finished batch off the queue."""


@dataclass(frozen=True)
class Upload:
    """How a batch gets onto the GPU."""

    size: int = 0
    pinned: bool = True
    pageable_rate: float = 4_000.0
    pinned_rate: float = 12_000.0
    by_hand_rate: float = 5_000.0
    """At which the training process itself moves a batch into page-locked memory."""


@dataclass(frozen=True)
class Comm:
    """How gradients are exchanged. `mode`: "ddp", each bucket as soon as it is full; "blocking",
    the same, but computation waits for each; "behind", one after the other behind the backward
    pass; "per_parameter", a collective for each parameter."""

    mode: str = "ddp"
    bucket_mb: float = 25.0
    latency_us: float = 20.0
    rate: float = 100_000.0
    contended: float = 1.0
    """How many times as long data moves while computation runs."""
    small: int = 0
    """Collectives of a few bytes behind the backward pass that computation waits for."""
    broadcasts: int = 0
    """Broadcasts of buffers before the forward pass."""
    search_us: float = 0.0
    """Search for unused parameters behind the forward pass."""


@dataclass(frozen=True)
class Job:
    """A training loop."""

    chip: Chip = CHIPS["A100"]
    ranks: int = 1
    steps: int = 6
    rows: int = 2048
    layers: tuple[Layer, ...] = (Layer(1024, 1024, 3),) * 8
    op_us: float = 12.0
    """Host time of an operator beside its launch."""
    python_us: float = 15.0
    """Between two operators of the forward pass."""
    tail_us: float = 100.0
    """Python at the end of a step."""
    half: bool = False
    loader: Loader = field(default_factory=Loader)
    upload: Upload = field(default_factory=Upload)
    comm: Comm = field(default_factory=Comm)
    reads: int = 0
    """Values read in the forward pass."""
    reads_loss: bool = False
    synchronizes: bool = False
    """The program waits for the device at the end of each step."""
    optimizer: str = "foreach"
    """"loop", "foreach" or "fused"."""
    fused: bool = False
    """Pointwise operators of a layer are one kernel."""
    fused_share: float = 0.1
    """What each further operator adds to that kernel, of its own time."""
    graph: str = ""
    """What one captured graph holds: "", "model" or "all" (with the optimizer)."""
    graph_call_us: float = 10.0
    graph_node_us: float = 0.2
    graph_gap_us: float = 1.0
    conversions: int = 0
    """Layers whose input is turned from NCHW to NHWC and back."""
    allocations: int = 0
    """cudaMalloc and cudaFree of each step, in steady state."""
    malloc_us: float = 300.0
    zero_grad: str = "none"
    """"none", or "zero": filled, and then added to."""
    compiled: bool = False
    """The forward pass runs as compiled regions."""
    breaks: int = 0
    """Graph breaks in them."""
    break_us: float = 500.0
    break_op: bool = False
    """An operator runs in each break."""
    break_op_stays: bool = False
    """... and behind the fix, too."""
    compiles_in: tuple[int, ...] = ()
    """Steps, counted from the recording, in which a function is compiled again."""
    compile_us: float = 500_000.0
    slow_rank: int = -1
    slow_gpu: float = 1.0
    slow_host_us: float = 0.0
    efficiency: tuple[float, ...] = ()
    """By layer: what another GPU reaches, as a factor on the shares of the peaks."""
    shapes: bool = True
    stack: bool = False
    idle_threads: int = 0


def record(job: Job, **machine: Any) -> Machine:
    """Runs a job; the recording holds its last `job.steps` steps."""
    device = {"name": job.chip.name, "computeMajor": job.chip.major, "computeMinor": 0}
    made = Machine(ranks=job.ranks, device=device, **machine)
    made.run(lambda rank: _Program(job, rank).train(), WARM_UP)
    return made


class _Program:
    """A job on one rank."""

    def __init__(self, job: Job, rank: Rank) -> None:
        self.job, self.rank = job, rank
        self.main, self.backward = rank.thread(MAIN), rank.thread(BACKWARD)
        self.slow = rank.number == job.slow_rank
        self.loads = _Loads(job.loader, rank)
        self.pending: list[Work] = []
        self.behind: list[float] = []

    def train(self) -> Process:
        job, main = self.job, self.main
        for number in self.rank.steps(main, WARM_UP + job.steps):
            with self._frame("train.py(40): train_step"):
                yield from self.loads.fetch(main, number, job.upload)
                yield from self._upload()
                if self.slow and job.slow_host_us:
                    yield from main.work(job.slow_host_us, "slow")
                yield from self._model(number)
                yield from self._optimize()
                yield from self._end()
        for thread in range(job.idle_threads):
            self._idle(IDLE + thread)

    @contextmanager
    def _frame(self, name: str) -> Iterator[None]:
        """A Python frame, where frames are recorded."""
        with ExitStack() as stack:
            if self.job.stack:
                stack.enter_context(self.main.range(name, "python_function"))
            yield

    def _idle(self, tid: int) -> None:
        """A thread that waits in Python for as long as the recording lasts."""
        row = self.rank.open("python_function", "threading.py(331): wait", tid, {})
        row["ts"] = self.rank.step_begins[WARM_UP]
        self.rank.close(row)

    # ------------------------------------------------------------------------- data

    def _upload(self) -> Process:
        upload, main = self.job.upload, self.main
        if not upload.size:
            return
        memory = "Pinned" if upload.pinned else "Pageable"
        rate = upload.pinned_rate if upload.pinned else upload.pageable_rate
        with main.range("aten::to"), main.range("aten::_to_copy"), main.range("aten::copy_"):
            yield from main.work(8)
            yield from main.copy("HtoD", memory, upload.size, upload.size / rate + 1.5)
            if not upload.pinned:
                yield from main.synchronize()

    # ------------------------------------------------------------------------- model

    def _model(self, number: int) -> Process:
        job, main = self.job, self.main
        if number - WARM_UP in job.compiles_in:
            with main.range("_compile.compile_inner (dynamo_timed)"):
                yield from main.work(job.compile_us, "compile")
        if job.graph:
            yield from self._replay_graph()
            return
        yield from self._zero_grad()
        with ExitStack() as stack:
            if job.ranks > 1:
                stack.enter_context(main.range("DistributedDataParallel.forward"))
            yield from self._broadcast()
            yield from self._forward()
            yield from self._search()
        yield from self._go_back()

    def _forward(self) -> Process:
        if self.job.compiled:
            yield from self._compiled_forward()
            return
        reading = self._reading_layers()
        for place, layer in enumerate(self.job.layers):
            with self._frame(f"nn.Module: Linear_{place}"):
                yield from self._layer(layer, place, self.main)
            for _ in range(reading.count(place)):
                yield from self._read(self.main)

    def _reading_layers(self) -> list[int]:
        layers = len(self.job.layers)
        return [(i + 1) * layers // (self.job.reads + 1) - 1 for i in range(self.job.reads)]

    def _layer(self, layer: Layer, place: int, thread: Thread) -> Process:
        job = self.job
        if place < job.conversions:
            yield from self._convert(layer, thread, "void cudnn::ops::nchwToNhwcKernel<float>")
        yield from self._cast(layer, thread)
        dims = [[layer.n], [job.rows, layer.k], [layer.k, layer.n]]
        with self._op("aten::linear", thread, dims), self._op("aten::addmm", thread, dims):
            yield from self._product(layer, place, thread)
        if place < job.conversions:
            yield from self._convert(layer, thread, "void cudnn::ops::nhwcToNchwKernel<float>")
        yield from self._pointwise(layer, place, thread)

    @contextmanager
    def _op(self, name: str, thread: Thread, dims: list[list[int]]) -> Iterator[None]:
        args: dict[str, Any] = {}
        if self.job.shapes:
            args = {"Input Dims": dims, "Input type": [self._type] * len(dims)}
        with thread.range(name, **args):
            yield

    @property
    def _type(self) -> str:
        return "c10::BFloat16" if self.job.half else "float"

    def _product(self, layer: Layer, place: int, thread: Thread) -> Process:
        name = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
        if not self.job.half:
            name = "ampere_sgemm_128x64_tn"
        yield from thread.work(self.job.op_us, f"mm{place}")
        yield from self._launch(thread, name, self.product_us(layer, place), layer.n)
        yield from thread.work(0.2 * self.job.op_us, f"mm{place}")

    def _pointwise(self, layer: Layer, place: int, thread: Thread) -> Process:
        each_us = self.pointwise_us(layer, place)
        names = [("aten::add", "CUDAFunctor_add"), ("aten::mul", "MulFunctor")]
        if self.job.fused and layer.pointwise > 1:
            us = each_us * (1 + self.job.fused_share * (layer.pointwise - 1))
            yield from thread.work(self.job.op_us, f"fused{place}")
            yield from self._launch(thread, f"triton_poi_fused_add_mul_{place}", us, layer.n)
            return
        for number in range(layer.pointwise):
            name, functor = names[number % 2]
            yield from thread.work(self.job.python_us, f"python{place}")
            with self._op(name, thread, [[self.job.rows, layer.n]] * 2):
                yield from thread.work(self.job.op_us, f"point{place}")
                yield from self._launch(thread, POINTWISE.format(functor), each_us, layer.n)

    def _launch(self, thread: Thread, name: str, us: float, n: int) -> Process:
        slow = self.job.slow_gpu if self.slow else 1.0
        grid = [max(1, self.job.rows * n // 4096), 1, 1]
        yield from thread.launch(7, name, us * slow, grid=grid, block=[128, 1, 1])

    def _cast(self, layer: Layer, thread: Thread) -> Process:
        """Autocast turns the weights of a layer into bf16."""
        if not self.job.half:
            return
        us = 6 * layer.n * layer.k / (1e3 * self.job.chip.bandwidth * layer.memory) + 1.5
        with thread.range("aten::to"), thread.range("aten::_to_copy"), thread.range("aten::copy_"):
            yield from thread.work(self.job.op_us, "cast")
            yield from self._launch(thread, POINTWISE.format("bfloat16_copy"), us, layer.n)

    def _convert(self, layer: Layer, thread: Thread, name: str) -> Process:
        us = 8 * self.job.rows * layer.k / (1e3 * self.job.chip.bandwidth * layer.memory) + 1.5
        yield from self._launch(thread, name, us, layer.k)

    def product_us(self, layer: Layer, place: int) -> float:
        """By the work and what share of the device's peaks it reaches, and a start of 2 us."""
        job, chip = self.job, self.job.chip
        reached = job.efficiency[place] if job.efficiency else 1.0
        size = 2 if job.half else 4
        peak = chip.half * layer.half if job.half else chip.fp32 * layer.fp32
        flops = 2.0 * job.rows * layer.n * layer.k
        moved = size * (job.rows * layer.k + layer.k * layer.n + job.rows * layer.n)
        by_memory = moved / (1e3 * chip.bandwidth * layer.memory)
        return max(flops / (1e6 * peak), by_memory) / reached + 2.0

    def pointwise_us(self, layer: Layer, place: int) -> float:
        job = self.job
        reached = job.efficiency[place] if job.efficiency else 1.0
        moved = (2 if job.half else 4) * 3 * job.rows * layer.n
        return moved / (1e3 * job.chip.bandwidth * layer.memory * reached) + 1.5

    def _read(self, thread: Thread) -> Process:
        """`tensor.item()`"""
        with thread.range("aten::item"), thread.range("aten::_local_scalar_dense"):
            yield from thread.work(4)
            yield from thread.copy("DtoH", "Pageable", 4, 1.5)
            yield from thread.synchronize()

    # ------------------------------------------------------------------------- compiled

    def _compiled_forward(self) -> Process:
        """Regions of a frame that falls apart: each lies inside the first."""
        parts = self.job.breaks + 1
        layers = len(self.job.layers)
        bounds = [layers * part // parts for part in range(parts + 1)]
        yield from self._region(0, bounds)

    def _region(self, part: int, bounds: list[int]) -> Process:
        job, main = self.job, self.main
        with main.range(f"Torch-Compiled Region: {part}/0", "user_annotation"):
            yield from main.work(25, "guards")
            with main.range("CompiledFunction"):
                for place in range(bounds[part], bounds[part + 1]):
                    layer = job.layers[place]
                    with main.range("aten::addmm"):
                        yield from self._product(layer, place, main)
                    us = self.pointwise_us(layer, place)
                    yield from main.work(6, "triton")
                    name = f"triton_poi_fused_add_mul_{place}"
                    yield from self._launch(main, name, us, layer.n)
                if not part and not job.breaks and job.break_op_stays:
                    yield from self._break_op()
            if part + 2 < len(bounds):
                yield from main.work(job.break_us, "break")
                if job.break_op:
                    yield from self._break_op()
                yield from self._region(part + 1, bounds)

    def _break_op(self) -> Process:
        with self.main.range("aten::mean"):
            yield from self.main.work(self.job.op_us, "break op")
            yield from self._launch(self.main, "void at::native::reduce_kernel<512, 1>", 8, 64)

    # ------------------------------------------------------------------------- backward

    def _go_back(self) -> Process:
        """The main thread hands over to autograd's and waits for it."""
        yield from self.main.work(15, "hand over")
        yield self.rank.engine.start(self._backward())
        yield from self.main.work(10, "taken back")
        if self.job.comm.small:
            yield from self._small_collectives()

    def _backward(self) -> Process:
        thread = self.backward
        self.pending = []
        bucket = 0.0
        for place in reversed(range(len(self.job.layers))):
            layer = self.job.layers[place]
            yield from self._layer_back(layer, place, thread)
            if self.job.ranks > 1:
                bucket = yield from self._exchange(bucket, layer, last=place == 0)
        yield from self._await_exchange(thread)

    def _layer_back(self, layer: Layer, place: int, thread: Thread) -> Process:
        job = self.job
        each_us = self.pointwise_us(layer, place)
        kernels = 1 if job.fused or job.compiled else layer.pointwise
        with thread.range("autograd::engine::evaluate_function: MulBackward0"):
            for _ in range(kernels):
                with self._op("aten::mul", thread, [[job.rows, layer.n]] * 2):
                    yield from thread.work(job.op_us, f"back{place}")
                    yield from self._launch(
                        thread, POINTWISE.format("MulFunctor"), each_us, layer.n
                    )
        with thread.range("autograd::engine::evaluate_function: AddmmBackward0"):
            dims = ([[job.rows, layer.n], [layer.n, layer.k]], [[layer.n, job.rows],
                    [job.rows, layer.k]])  # fmt: skip
            for pair in dims:
                with self._op("aten::mm", thread, pair):
                    yield from self._product(layer, place, thread)
        with thread.range("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"):
            yield from self._accumulate(layer, thread)

    def _accumulate(self, layer: Layer, thread: Thread) -> Process:
        """A gradient is kept as it is, or added to what zero_grad left."""
        if self.job.zero_grad == "none":
            yield from thread.work(4, "steal")
            return
        us = 12 * layer.n * layer.k / (1e3 * self.job.chip.bandwidth * layer.memory) + 1.5
        with thread.range("aten::add_"):
            yield from thread.work(self.job.op_us, "accumulate")
            yield from self._launch(thread, POINTWISE.format("CUDAFunctor_add"), us, layer.n)

    # ------------------------------------------------------------------------- communication

    def _exchange(self, bucket: float, layer: Layer, *, last: bool) -> Any:
        """Bytes that wait for their bucket to fill, behind this layer."""
        comm = self.job.comm
        size = 4.0 * (layer.n * layer.k + layer.n)
        if comm.mode == "behind":
            self.behind.append(size)
            return 0.0
        if comm.mode == "per_parameter":
            for part in (4.0 * layer.n * layer.k, 4.0 * layer.n):
                yield from self._all_reduce(self.backward, part)
            return 0.0
        bucket += size
        if bucket >= comm.bucket_mb * (1 << 20) or last:
            work = yield from self._all_reduce(self.backward, bucket)
            if comm.mode == "blocking":
                yield from self.backward.wait_for(7, work)
            return 0.0
        return bucket

    def _all_reduce(self, thread: Thread, size: float, kind: str = "allreduce") -> Any:
        comm, ranks = self.job.comm, self.job.ranks
        factor = 2 * (ranks - 1) / ranks if kind == "allreduce" else 1.0
        us = comm.latency_us + factor * size / comm.rate
        meeting = self.rank.meeting(us, comm.contended)
        args = _described(kind, int(size // 4), ranks)
        name = "AllReduce_Sum_f32_RING_LL" if kind == "allreduce" else "Broadcast_RING_LL"
        with thread.range(f"c10d::{kind}_"), thread.range("record_param_comms", **args):
            yield from thread.work(self.job.op_us, "c10d")
            yield from thread.wait_stream(NCCL_STREAM, 7)
            kernel = f"ncclDevKernel_{name}(ncclDevComm*)"
            work = yield from thread.launch(NCCL_STREAM, kernel, us, meeting=meeting, **args)
            yield from thread.call("cudaEventRecord", 1.2)
        self.pending.append(work)
        return work

    def _await_exchange(self, thread: Thread) -> Process:
        for size in self._buckets_behind():
            work = yield from self._all_reduce(thread, size)
            yield from thread.wait_for(7, work)
        for work in self.pending:
            yield from thread.wait_for(7, work)
        self.pending = []

    def _buckets_behind(self) -> list[float]:
        """What mode "behind" has kept back, in buckets."""
        most, buckets = self.job.comm.bucket_mb * (1 << 20), [0.0]
        for size in self.behind:
            buckets[-1] += size
            if buckets[-1] >= most:
                buckets.append(0.0)
        self.behind = []
        return [size for size in buckets if size]

    def _small_collectives(self) -> Process:
        for _ in range(self.job.comm.small):
            with self.main.range("aten::detach"):
                yield from self.main.work(3, "detach")
            work = yield from self._all_reduce(self.main, 64.0)
            yield from self.main.wait_for(7, work)
        self.pending = []

    def _broadcast(self) -> Process:
        for _ in range(self.job.comm.broadcasts):
            work = yield from self._all_reduce(self.main, 4096.0, "broadcast")
            yield from self.main.wait_for(7, work)
        self.pending = []

    def _search(self) -> Process:
        if self.job.comm.search_us:
            with self.main.range("torch.distributed.ddp.reducer::search_unused_parameters"):
                yield from self.main.work(self.job.comm.search_us, "search")

    # ------------------------------------------------------------------------- optimizer

    @property
    def _parameters(self) -> list[tuple[int, Layer]]:
        return [(size, la) for la in self.job.layers for size in (la.n * la.k, la.n)]

    def _zero_grad(self) -> Process:
        main = self.main
        with main.range("Optimizer.zero_grad#Adam.zero_grad", "user_annotation"):
            yield from main.work(0.5 * len(self._parameters), "zero_grad")
            for size, layer in self._parameters if self.job.zero_grad == "zero" else ():
                us = 4 * size / (1e3 * self.job.chip.bandwidth * layer.memory) + 1.2
                with main.range("aten::zero_"), main.range("aten::fill_"):
                    yield from main.work(self.job.op_us, "zero")
                    yield from self._launch(main, POINTWISE.format("FillFunctor"), us, layer.n)

    def _optimize(self) -> Process:
        if self.job.graph == "all":
            return
        main = self.main
        with main.range("Optimizer.step#Adam.step", "user_annotation"):
            yield from main.work(30, "optimizer")
            for name, us in self._update_kernels():
                with main.range(name[0]):
                    yield from main.work(self.job.op_us, name[0])
                    yield from main.launch(7, name[1], us, grid=[64, 1, 1])

    def _update_kernels(self) -> Iterator[tuple[tuple[str, str], float]]:
        """((operator, kernel), us) of one update."""
        bandwidth = 1e3 * self.job.chip.bandwidth * 0.8
        total = 4.0 * sum(size for size, _ in self._parameters)
        if self.job.optimizer == "fused":
            kernel = MULTI_TENSOR.format("FusedAdamMathFunctor<float>")
            yield ("aten::_fused_adam_", kernel), 7 * total / bandwidth + 3
            return
        if self.job.optimizer == "foreach":
            for op in ADAM:
                kernel = MULTI_TENSOR.format(f"PointwiseOp_{op}")
                yield (f"aten::_foreach_{op}", kernel), 2.5 * total / bandwidth + 3
            return
        for size, _ in self._parameters:
            for op in ADAM:
                kernel = POINTWISE.format(f"functor_{op}")
                yield (f"aten::{op}", kernel), 2.5 * 4 * size / bandwidth + 1.5

    # ------------------------------------------------------------------------- rest of a step

    def _end(self) -> Process:
        job, main = self.job, self.main
        for number in range(job.allocations):
            with main.range("aten::empty"):
                yield from main.call("cudaMalloc", job.malloc_us)
            if number % 2:
                yield from main.synchronize("cudaFree", None)
        if job.reads_loss:
            yield from self._read(main)
        if job.synchronizes:
            yield from main.synchronize("cudaDeviceSynchronize", None)
        yield from main.work(job.tail_us, "tail")

    # ------------------------------------------------------------------------- graphs

    def _replay_graph(self) -> Process:
        """Forward, backward and maybe the optimizer in one launch."""
        kernels = [*self._kernels()]
        if self.job.graph == "all":
            kernels += [(name[1], us) for name, us in self._update_kernels()]
        yield from self.main.work(self.job.op_us, "graph")
        call_us = self.job.graph_call_us + self.job.graph_node_us * len(kernels)
        yield from self.main.launch_graph(kernels, call_us, self.job.graph_gap_us)

    def _kernels(self) -> Iterator[tuple[str, float]]:
        """What forward and backward launch, in order."""
        slow = self.job.slow_gpu if self.slow else 1.0
        product = "ampere_sgemm_128x64_tn"
        pairs = list(enumerate(self.job.layers))
        for place, layer in pairs:
            yield product, slow * self.product_us(layer, place)
            for _ in range(layer.pointwise):
                point = POINTWISE.format("CUDAFunctor_add")
                yield point, slow * self.pointwise_us(layer, place)
        for place, layer in reversed(pairs):
            for _ in range(layer.pointwise):
                point = POINTWISE.format("MulFunctor")
                yield point, slow * self.pointwise_us(layer, place)
            yield from [(product, slow * self.product_us(layer, place))] * 2


class _Loads:
    """Batches, made in the training process or by workers."""

    def __init__(self, loader: Loader, rank: Rank) -> None:
        self.loader, self.rank = loader, rank
        self.taken: list[Signal] = []
        self.ready: list[Signal] = []
        if loader.workers:
            rank.host_slow = loader.host_slow
            self.taken = [Signal() for _ in range(1000)]
            self.ready = [Signal() for _ in range(1000)]

    def fetch(self, main: Thread, number: int, upload: Upload) -> Process:
        if not self.loader.fetch_us:
            return
        if self.loader.workers:
            yield from self._take(main, number)
        else:
            yield from self._make(main, number, upload)

    def _batch_us(self, number: int) -> float:
        return self.loader.fetch_us * self.rank.factor_of(f"batch{number}", self.loader.cv)

    def _make(self, main: Thread, number: int, upload: Upload) -> Process:
        with main.range(SINGLE, "user_annotation"):
            us = self._batch_us(number)
            yield 0.8 * us + self.rank.fetch_stall_us(number)
            with main.range("aten::stack"):
                yield 0.2 * us
            if upload.pinned and upload.size:
                with main.range("aten::pin_memory"):
                    yield from main.work(upload.size / upload.by_hand_rate, "pin")

    def _take(self, main: Thread, number: int) -> Process:
        if not number:  # the workers start with the first fetch
            for worker in range(self.loader.workers):
                self.rank.engine.start(self._work(worker))
        with main.range(SEVERAL, "user_annotation"):
            yield self.ready[number]
            yield from main.work(self.loader.take_us, "take")
        self.rank.engine.fire(self.taken[number])

    def _work(self, worker: int) -> Process:
        """One worker: every N-th batch, two ahead of those taken."""
        step = self.loader.workers
        for number in range(worker, 1000, step):
            if number >= 2 * step:
                yield self.taken[number - 2 * step]
            yield self._batch_us(number) * self.loader.worker_slow
            yield self.rank.fetch_stall_us(number)
            self.rank.engine.fire(self.ready[number])


def _described(kind: str, elements: int, ranks: int) -> dict[str, Any]:
    """The `args` that Kineto writes for a collective."""
    return {
        "Collective name": kind, "In msg nelems": elements, "Out msg nelems": elements,
        "dtype": "Float", "Group size": ranks, "Process Group Name": "0",
        "Process Group Description": "default_pg", "Process Group Ranks": str(list(range(ranks))),
    }  # fmt: skip
