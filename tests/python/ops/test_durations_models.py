"""What the duration models answer, and where they decline to."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtraceap.ops import durations
from torchtraceap.ops.devices import Device, device_named, load_devices
from torchtraceap.ops.durations import UnknownDurationError
from torchtraceap.ops.durations.collectives import (
    CollectiveTable,
    Curve,
    collective_kind,
    estimate_collective,
    estimate_collectives,
    has_switch,
    load_measurements,
)
from torchtraceap.ops.durations.copies import estimate_copies, estimate_copy
from torchtraceap.ops.durations.estimate import resolve_device
from torchtraceap.ops.durations.gemm import (
    estimate_gemm,
    estimate_gemms,
    gemm_features,
    load_products,
)
from torchtraceap.ops.durations.kernels import (
    estimate_attention,
    estimate_elementwise,
    estimate_row_kernel,
    load_kernels,
)
from torchtraceap.ops.durations.trees import BoostedTrees
from torchtraceap.ops.models.arguments import OpCall
from tree_text import Node, encode_trees

DATA = Path(durations.__file__).parent / "data"


def table(ranks: int, ns: float, **more: object) -> CollectiveTable:
    values: dict[str, object] = {
        "device": "h100_sxm", "kind": "all_reduce", "ranks": ranks, "nodes": 1, "dtype": "half",
        "library": "2.27.3", "rank": 0, "source": f"{ranks} ranks",
        "curve": Curve(np.array([1024.0, 2.0**30]), np.array([ns, ns + 1e6])),
    }  # fmt: skip
    return CollectiveTable(**(values | more))  # type: ignore[arg-type]


# Trees ------------------------------------------------------------------------------------------


def small_tree() -> Node:
    return Node(
        feature=1,
        cut=0.5,
        left=Node(feature=0, cut=10.0, left=Node(value=1.0), right=Node(value=2.0)),
        right=Node(value=-0.5),
    )


def test_trees_are_read_back_as_written() -> None:
    text = json.loads(json.dumps(encode_trees([small_tree(), Node(value=0.25)], 5.0, 2)))
    model = BoostedTrees.from_json(text)
    rows = np.array([[10.0, 0.5], [10.1, 0.5], [0.0, 0.6]])
    assert model.predict(rows) == pytest.approx([6.25, 7.25, 4.75], abs=1e-3)
    assert model.predict(np.empty((0, 2))).shape == (0,)
    assert model.depth == 2


@st.composite
def random_trees(draw: st.DrawFn, depth: int = 4) -> Node:
    if depth == 0 or draw(st.booleans()):
        return Node(value=draw(st.floats(-1, 1)))
    return Node(
        feature=draw(st.integers(0, 2)),
        cut=draw(st.integers(-3, 3)) + 0.5,
        left=draw(random_trees(depth - 1)),
        right=draw(random_trees(depth - 1)),
    )


def walk(node: Node, row: np.ndarray) -> float:
    while node.left is not None and node.right is not None:
        node = node.left if row[node.feature] <= node.cut else node.right
    return node.value


@given(st.lists(random_trees(), min_size=1, max_size=4), st.integers(0, 1000))
@settings(deadline=None)
def test_any_trees_give_what_a_walk_gives(trees: list[Node], seed: int) -> None:
    rows = np.random.default_rng(seed).integers(-4, 5, (20, 3)).astype(float)
    model = BoostedTrees.from_json(encode_trees(trees, 0.0, 3))
    walked = [sum(walk(tree, row) for tree in trees) for row in rows]
    assert model.predict(rows) == pytest.approx(walked, abs=1e-3)


# Collectives ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("allreduce", "all_reduce"),
        ("AllReduce", "all_reduce"),
        ("nccl:all_reduce", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("send", "send_recv"),
        ("broadcast", "broadcast"),
        ("nccl:_broadcast_oop", "broadcast"),
        ("_reduce_oop", "reduce"),
        ("barrier", None),
        ("", None),
    ],
)
def test_kinds_by_their_many_names(name: str, kind: str | None) -> None:
    assert collective_kind(name) == kind


def test_ranks_between_two_measured_numbers_are_interpolated() -> None:
    tables = [table(2, 10_000.0), table(8, 40_000.0)]
    middle = estimate_collective("allreduce", 1024, 4, "H100 SXM", tables=tables)
    assert middle.ns == pytest.approx(20_000)
    assert "between 2 and 8 ranks" in middle.source
    with pytest.raises(UnknownDurationError, match="give the number of nodes"):
        estimate_collective("allreduce", 1024, 16, "H100 SXM", tables=tables)
    with pytest.raises(UnknownDurationError, match="transfers nothing"):
        estimate_collective("allreduce", 1024, 1, "H100 SXM", tables=tables)


@pytest.mark.parametrize(
    ("device", "switch"),
    [
        ("A100-SXM4-80GB", True), ("H100 SXM", True), ("H200", True), ("B200", True),
        ("A100 PCIe 80 GB", False), ("H100 PCIe", False), ("h100_nvl", False), ("L40S", False),
        ("A40", False), ("L4", False), ("rtx_4090", False), ("V100-SXM2-32GB", False),
        ("mi300x", False),
    ],
)  # fmt: skip
def test_a_switch_is_known_by_the_machine(device: str, switch: bool) -> None:
    chip = resolve_device(device)
    assert has_switch(chip) == switch
    tables = [table(ranks, 1e4 * ranks, device=chip.id) for ranks in (4, 8)]
    found = estimate_collective("allreduce", 1024, 6, chip, tables=tables)
    assert ("between 4 and 8 ranks" in found.source) == switch
    assert estimate_collective("allreduce", 1024, 8, chip, tables=tables).ns == 8e4


def test_the_own_device_comes_first_then_one_on_such_a_board() -> None:
    tables = [table(8, 1e4, device="h200_sxm"), table(8, 2e4)]
    own = estimate_collective("allreduce", 1024, 8, "H100 SXM", tables=tables)
    assert own.ns == 2e4
    alike = estimate_collective("allreduce", 1024, 8, "H100 SXM", tables=tables[:1])
    assert alike.ns == 1e4
    for other in ("H100 PCIe", "h200_nvl"):
        found = estimate_collective("allreduce", 1024, 8, other, tables=tables)
        assert found.source.startswith("rate of pcie")


def test_sizes_that_no_table_covers_take_the_links() -> None:
    tables = [table(8, 1e4, curve=Curve(np.array([2.0**20, 2.0**30]), np.array([1e5, 1e7])))]
    found = estimate_collectives("allreduce", [1024, 2**24], 8, "H100 SXM", tables=tables)
    assert found[0].source.startswith("rate of nvlink") and found[1].source == "8 ranks"
    assert found.ns[0] < 1e5 < found.ns[1]


def test_who_wants_tables_alone_gets_no_rate_of_links() -> None:
    with pytest.raises(UnknownDurationError, match="no table covers"):
        estimate_collective("allreduce", 1e6, 8, "L40S", links=False)
    assert estimate_collective("allreduce", 1e6, 8, "H100 SXM", links=False).ns > 0


@pytest.mark.parametrize(
    ("kind", "ring"), [("broadcast", "all_gather"), ("reduce", "reduce_scatter")]
)
def test_kinds_that_nobody_measured_go_by_the_bytes_over_each_link(kind: str, ring: str) -> None:
    sizes = np.geomspace(1e3, 1e9, 20)
    found = estimate_collectives(kind, sizes, 4, "H100 SXM")
    same = estimate_collectives(ring, sizes * 4 / 3, 4, "H100 SXM")
    assert found.ns == pytest.approx(same.ns)
    assert (found.low_ns < same.low_ns).all() and (found.high_ns > same.high_ns).all()
    assert f"as for {ring} with as many bytes over each link" in found[0].source
    own = [table(4, 1e4, kind=kind), table(4, 2e4, kind=ring)]
    measured = estimate_collective(kind, 1024, 4, "H100 SXM", tables=own)
    assert measured.ns == 1e4 and measured.source == "4 ranks"


@pytest.mark.parametrize(
    "kind",
    ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"],
)
def test_every_machine_is_answered_and_those_without_a_switch_less_surely(kind: str) -> None:
    for device in load_devices().values():
        if device.links:
            found = estimate_collectives(kind, np.geomspace(1e3, 1e9, 20), 8, device)
            assert (np.diff(found.ns) >= 0).all(), device.name
            assert (found.low_ns < found.ns).all() and (found.ns < found.high_ns).all()
    switched = estimate_collective(kind, 1e8, 8, "H100 SXM")
    cards = estimate_collective(kind, 1e8, 8, "L40S")
    assert cards.high_ns / cards.low_ns > 3 * switched.high_ns / switched.low_ns
    assert "without a switch" in cards.source and cards.ns > 10 * switched.ns


def test_the_newest_library_of_the_best_source_is_taken() -> None:
    tables = [
        table(8, 1e4, library="2.9.9"),
        table(8, 2e4, library="2.27.3"),
        table(8, 3e4, library="", rank=1),
        table(8, 4e4, library="2.27.3", dtype="int8"),
    ]
    assert estimate_collective("allreduce", 1024, 8, "H100 SXM", tables=tables).ns == 2e4
    narrow = estimate_collective("allreduce", 1024, 8, "H100 SXM", dtype="int8", tables=tables)
    assert narrow.ns == 4e4
    old = estimate_collective("allreduce", 1024, 8, "H100 SXM", library="2.9.9", tables=tables)
    assert old.ns == 1e4


def test_shipped_tables_ascend_and_are_of_known_devices() -> None:
    assert load_measurements().tables
    for one in load_measurements().tables:
        assert one.device in load_devices()
        assert (np.diff(one.curve.sizes) > 0).all() and (np.diff(one.curve.ns) >= 0).all()


@given(st.integers(1, 1 << 33), st.sampled_from([2, 4, 8]))
def test_more_bytes_never_take_less(size: int, ranks: int) -> None:
    less = durations.collective_ns("all_reduce", size, ranks, "NVIDIA H100 80GB HBM3")
    more = durations.collective_ns("all_reduce", 1.5 * size, ranks, "NVIDIA H100 80GB HBM3")
    assert less is None or more is None or less.ns <= more.ns


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("barrier", 1024, 8, "H100 SXM"), "collectives called 'barrier'"),
        (("broadcast", 1024, 16, "H100 SXM", 2), "broadcast of 16 ranks over 2 nodes"),
        (("all_reduce", 1024, 512, "H100 SXM", 64), "over 64 nodes .* measured were: all_reduce"),
        (("all_reduce", 1024, 16, "H100 SXM"), "give the number of nodes"),
        (("all_reduce", 1024, 8, "Imaginary 9000"), "no device of that name"),
    ],
)
def test_no_table_no_answer_but_a_reason(arguments: tuple[object, ...], reason: str) -> None:
    assert durations.collective_ns(*arguments) is None  # type: ignore[arg-type]
    with pytest.raises(UnknownDurationError, match=reason):
        durations.collective_ns(*arguments, strict=True)  # type: ignore[arg-type]


# Products of matrices ---------------------------------------------------------------------------


def test_a_large_product_runs_near_the_peak_and_a_small_one_near_its_start() -> None:
    for model in load_products().models:
        if model.dtype == "bf16":
            large = durations.gemm_ns(8192, 8192, 8192, "bf16", model.device)
            small = durations.gemm_ns(1, 64, 64, "bf16", model.device)
            assert large is not None and small is not None
            floor = 2e9 * 8192**3 / model.device.matrix["bf16"]
            assert floor < large.ns < 2.5 * floor
            assert 1_000 < small.ns < 10_000


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((64, 64, 64, "int7", "H200"), "no type is called 'int7'"),
        ((64, 64, 64, "bf16", "nothing"), "no device of that name"),
    ],
)
def test_no_product_no_guess(arguments: tuple[object, ...], reason: str) -> None:
    assert durations.gemm_ns(*arguments) is None  # type: ignore[call-overload]
    with pytest.raises(UnknownDurationError, match=reason):
        durations.gemm_ns(*arguments, strict=True)  # type: ignore[call-overload]


def test_a_product_has_sizes_of_one_at_least() -> None:
    with pytest.raises(UnknownDurationError, match="sizes of 1 at least"):
        estimate_gemm(0, 64, 64, "bf16", "H200")


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "fp16", "bf16", "fp8", "fp64"])
def test_products_of_every_type_are_answered_on_every_gpu(dtype: str) -> None:
    shapes = [[1, 4096, 4096, 4096], [64, 1024, 1024, 64], [1, 1, 4096, 4096], [1, 777, 1001, 333]]
    for device in load_devices().values():
        found = estimate_gemms(shapes, dtype, device)
        assert (found.low_ns < found.ns).all() and (found.ns < found.high_ns).all(), device.name
        least = [2.0 * b * m * n * k / 1e16 * 1e9 for b, m, n, k in shapes]
        assert (found.ns > least).all() and (found.ns < 1e9).all()
        single = estimate_gemm(4096, 4096, 4096, dtype, device)
        assert single.ns == pytest.approx(found[0].ns)


def test_a_gpu_without_products_of_its_own_says_whose_it_reads_and_is_less_sure() -> None:
    own = estimate_gemm(4096, 4096, 4096, "bf16", "H100 SXM")
    other = estimate_gemm(4096, 4096, 4096, "bf16", "L40S")
    assert "read with the peaks of L40S" in other.source and "read with" not in own.source
    assert other.high_ns / other.low_ns > 1.5 * own.high_ns / own.low_ns
    assert estimate_gemm(4096, 4096, 4096, "fp16", "H100 SXM").ns == own.ns
    outside = estimate_gemm(10**7, 64, 64, "bf16", "H100 SXM")
    assert outside.high_ns / outside.low_ns > own.high_ns / own.low_ns


def test_odd_sizes_and_narrow_batches_take_longer() -> None:
    even = estimate_gemm(4096, 4096, 4096, "bf16", "H200")
    unaligned = estimate_gemm(4092, 4092, 4092, "bf16", "H200")
    assert unaligned.ns > 1.1 * even.ns and "not aligned" in unaligned.source
    odd = estimate_gemm(4095, 4095, 4095, "bf16", "H200")
    assert odd.ns > 1.5 * unaligned.ns and "odd places" in odd.source
    single = estimate_gemm(4095, 4095, 4095, "tf32", "A100 SXM 40GB")  # 4 bytes are one copy
    assert "odd places" not in single.source
    tokens = estimate_gemm(4095, 4096, 4096, "bf16", "H200")  # rows still begin at 16 bytes
    assert "not aligned" not in tokens.source
    assert "narrow" in estimate_gemm(4096, 16, 4096, "bf16", "H200", batch=8).source
    assert "narrow" not in estimate_gemm(4096, 256, 4096, "bf16", "H200", batch=8).source


def test_products_without_matrix_units() -> None:
    large = estimate_gemm(8192, 8192, 8192, "fp32", "V100-PCIE-32GB")
    least = 2e9 * 8192**3 / device_named("v100_pcie_32gb").vector["fp32"]
    assert 0.8 * least < large.ns < 1.6 * least
    double = estimate_gemm(8192, 8192, 8192, "fp64", "V100-PCIE-32GB")
    assert double.ns > 1.7 * large.ns
    short = estimate_gemm(2048, 2048, 64, "fp32", "V100-PCIE-32GB", batch=32)
    long = estimate_gemm(2048, 2048, 2048, "fp32", "V100-PCIE-32GB")
    assert short.ns > 1.2 * long.ns  # as many flops, but shorter sums


def test_features_need_peaks_and_multiprocessors() -> None:
    shape = [[1, 64, 64, 64]]
    with pytest.raises(UnknownDurationError, match="peak rate"):
        gemm_features(shape, "bf16", Device(name="x", bandwidth=1e12))
    with pytest.raises(UnknownDurationError, match="multiprocessors"):
        gemm_features(shape, "bf16", Device(name="x", bandwidth=1e12, matrix={"bf16": 1e14}))
    features = gemm_features([[1, 64, 64, 64], [2, 1, 7, 3]], "bf16", device_named("h100_sxm"))
    assert features.shape[0] == 2 and features.shape[1] <= 127 and np.isfinite(features).all()


# Kernels, copies --------------------------------------------------------------------------------


def test_elementwise_kernels_take_their_bytes_and_a_little_more() -> None:
    a100 = device_named("a100_pcie_40gb")
    one = durations.elementwise_ns("add", 1 << 26, "fp32", a100, strict=True)
    assert one is not None
    ideal = 12 * (1 << 26) / a100.bandwidth * 1e9
    assert ideal < one.ns < 1.4 * ideal
    unseen = durations.elementwise_ns("add", 1 << 26, "fp32", "H100 SXM", strict=True)
    assert unseen is not None and "was not measured" in unseen.source


def test_rows_of_softmax_and_layer_norm() -> None:
    for function in (durations.softmax_ns, durations.layer_norm_ns):
        small = function(4096, 1024, "fp32", "V100-PCIE-32GB")
        large = function(4096, 4096, "fp32", "V100-PCIE-32GB")
        assert small is not None and large is not None and small.ns < large.ns
        half = function(4096, 1024, "bf16", "V100-PCIE-32GB")
        assert half is not None and "work over the peaks" in half.source
        assert function(4096, 1024, "int7", "V100-PCIE-32GB") is None
    with pytest.raises(UnknownDurationError, match="'erfinv'"):
        durations.elementwise_ns("erfinv", 10, "fp32", "H100 SXM", strict=True)


def test_shipped_kernels_move_no_faster_than_the_memory() -> None:
    lengths = np.geomspace(8, 1e6, 40)
    for model in load_kernels().values():
        for device in load_devices().values():
            assert np.min(model.factors(lengths, device)) > 0.9, (model.op, device.name)


def test_rows_of_layer_norm_cost_more_where_they_outgrow_the_cache() -> None:
    lengths = np.array([256.0, 1024.0, 4096.0, 65536.0])
    by_cache = {}
    for name in ("v100_sxm2_32gb", "a100_sxm_40gb", "l40s"):
        found = estimate_row_kernel("layer_norm", 2**28 / lengths, lengths, "fp32", name)
        assert (np.diff(found.ns) > 0).all(), name  # as many bytes, but read again
        assert found.ns[-1] < 2.0 * found.ns[0]
        by_cache[name] = found.ns[1] / found.ns[0] - 1
    # Caches of 6 MB, of two halves of 20 MB, and of 96 MB.
    assert by_cache["v100_sxm2_32gb"] > by_cache["a100_sxm_40gb"] > by_cache["l40s"]


def test_softmax_beyond_the_measured_lengths_keeps_its_factor() -> None:
    lengths = np.array([6144.0, 16384.0, 131072.0])
    found = estimate_row_kernel("softmax", 2**28 / lengths, lengths, "fp32", "T4")
    assert found.ns == pytest.approx(found.ns[0])
    assert (found.low_ns < found.ns).all() and (found.ns < found.high_ns).all()


def test_kernels_in_arrays_are_what_single_ones_are() -> None:
    elements = [1e3, 1e6, 1e9]
    many = estimate_elementwise("gelu", elements, "fp32", "A100 PCIe 40 GB")
    assert [many[at] for at in range(3)] == [
        estimate_elementwise("gelu", [one], "fp32", "A100 PCIe 40 GB")[0] for one in elements
    ]
    rows = estimate_row_kernel("softmax", [4096, 64], [512, 8192], "fp32", "H200")
    assert rows[1] == estimate_row_kernel("softmax", [64], [8192], "fp32", "H200")[0]
    shapes = [[8, 16, 1024, 1024, 64], [1, 1, 64, 64, 32]]
    attention = estimate_attention(shapes, "bf16", "H200")
    assert attention[1] == estimate_attention(shapes[1:], "bf16", "H200")[0]
    copies = estimate_copies([1e3, 1e9], "HtoD", True, "H200")
    assert copies[1] == estimate_copy(1e9, "HtoD", True, "H200")
    small, large = (durations.elementwise_ns("add", n, "fp32", "H200") for n in (1e3, 1e9))
    assert small is not None and large is not None
    assert small.high_ns / small.low_ns > large.high_ns / large.low_ns


def test_copies() -> None:
    pinned = durations.copy_ns(1 << 30, "HtoD", True, "A100-SXM4-80GB", strict=True)
    assert pinned is not None and (1 << 30) / pinned.ns == pytest.approx(25, rel=0.02)
    inside = durations.copy_ns(1 << 30, "DtoD", False, "A100-SXM4-80GB")
    assert inside is not None and inside.ns < pinned.ns / 10
    pageable = durations.copy_ns(1 << 30, "HtoD", False, "A100-SXM4-80GB")
    assert pageable is not None and "the host decides" in pageable.source
    assert (1 << 30) / pageable.high_ns < 2.6 < 11.2 < (1 << 30) / pageable.low_ns + 0.3
    unlinked = Device(name="x", bandwidth=1e12)
    assert durations.copy_ns(1 << 30, "HtoD", False, unlinked) is not None
    with pytest.raises(UnknownDurationError, match="host's link of x"):
        durations.copy_ns(1 << 30, "HtoD", True, unlinked, strict=True)
    for way in ("HtoD", "DtoD"):
        tiny = durations.copy_ns(8, way, True, "A100-SXM4-80GB")
        assert tiny is not None and tiny.low_ns < 1_000 and tiny.high_ns > 5_000
    with pytest.raises(UnknownDurationError, match="'sideways'"):
        durations.copy_ns(1, "sideways", True, "H200", strict=True)


def test_attention_leaves_out_half_where_it_is_causal() -> None:
    full = durations.attention_ns(8, 16, 4096, 4096, 128, "bf16", "H100 SXM", strict=True)
    causal = durations.attention_ns(8, 16, 4096, 4096, 128, "bf16", "H100 SXM", causal=True)
    assert full is not None and causal is not None
    assert causal.ns < full.ns
    assert full.ns > 1e9 * 4 * 8 * 16 * 4096**2 * 128 / device_named("H100 SXM").matrix["bf16"]
    assert durations.attention_ns(8, 16, 4096, 4096, 128, "int3", "H100 SXM") is None


# Another device ---------------------------------------------------------------------------------


def test_attention_computes_whole_tiles() -> None:
    few = estimate_attention([[64, 8, 7, 4096, 16]], "bf16", "A100-SXM4-40GB")[0]
    tile = estimate_attention([[64, 8, 64, 4096, 16]], "bf16", "A100-SXM4-40GB")[0]
    two = estimate_attention([[64, 8, 65, 4096, 16]], "bf16", "A100-SXM4-40GB")[0]
    assert few.ns <= tile.ns < 1.05 * few.ns and two.ns > 1.3 * tile.ns
    call = OpCall(
        "aten::_flash_attention_forward",
        [[64, 7, 8, 16], [64, 4096, 8, 16], [64, 4096, 8, 16]],
        ["c10::BFloat16"] * 3,
        None,
        ["", "", "", "", "", "7", "4096", "0.", "False", "False"],
    )
    found = durations.op_ns(call, "A100-SXM4-40GB")
    assert found is not None and found.ns == pytest.approx(few.ns)


def product_call(m: int, n: int, k: int, dtype: str = "c10::BFloat16") -> OpCall:
    return OpCall("aten::mm", [[m, k], [k, n]], [dtype, dtype])


def test_a_ratio_of_measured_models_where_both_devices_have_one() -> None:
    found = durations.estimate_ratio(product_call(4096, 4096, 4096), "H100 SXM", "H200")
    assert 0.7 < found.low < found.value < found.high < 1.3
    assert found.source.startswith("ratio of models: fitted to") and "H200" in found.source


def test_a_ratio_of_work_elsewhere() -> None:
    add = OpCall("aten::add", [[1 << 26], [1 << 26]], ["float", "float"])
    found = durations.estimate_ratio(add, "A100-SXM4-80GB", "H100 SXM")
    assert found.source.count("work over the peaks") == 1  # both alike, so said once
    assert found.value == pytest.approx(2039 / 3350, rel=0.05)
    assert found.low < 0.8 * found.value and found.high > 1.2 * found.value
    slower = durations.ratio(product_call(8192, 8192, 8192), "H100 SXM", "A100-SXM4-80GB")
    assert slower is not None and slower > 2.5


def test_a_ratio_is_as_sure_as_both_estimates_and_what_is_common_cancels() -> None:
    call = product_call(64, 640, 6400, "float")
    there, here = durations.op_ns(call, "L4"), durations.op_ns(call, "T4")
    found = durations.estimate_ratio(call, "T4", "L4")
    assert there is not None and here is not None
    assert found.value == there.ns / here.ns
    parts = np.log([there.high_ns / there.ns, here.ns / here.low_ns])
    assert np.log(found.high / found.value) == pytest.approx(np.sqrt((parts**2).sum() / 2))
    back = durations.estimate_ratio(call, "L4", "T4")
    assert back[:3] == pytest.approx((1 / found.value, 1 / found.high, 1 / found.low))
    assert durations.estimate_ratio(call, "H200", "H200") == (1.0, 1.0, 1.0, "the same device")


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (OpCall("my::op", [[2]], ["float"]), "no model for my::op"),
        (OpCall("aten::mm"), "aten::mm"),
    ],
)
def test_no_work_no_ratio(call: OpCall, reason: str) -> None:
    assert durations.ratio(call, "H100 SXM", "H200") is None
    with pytest.raises(UnknownDurationError, match=reason):
        durations.estimate_ratio(call, "H100 SXM", "H200")
    assert durations.ratio(product_call(64, 64, 64), "H100 SXM", "nothing") is None


# What is shipped --------------------------------------------------------------------------------


def test_the_files_are_small_and_say_where_they_come_from() -> None:
    documents = {
        file.stem: json.loads(file.read_text(encoding="utf-8")) for file in DATA.glob("*.json")
    }
    assert sorted(documents) == ["collectives", "families", "gemm", "kernels"]
    assert sum(file.stat().st_size for file in DATA.glob("*")) < 1_500_000
    sources = [
        *documents["collectives"]["sources"].values(),
        *(model["source"] for model in documents["gemm"]["models"]),
        documents["kernels"]["source"],
    ]
    for source in sources:
        assert source["repository"] and source["commit"] and source["licence"]
        assert source["rows"] > 1000
    traces = documents["families"]["source"]
    assert len(traces["traces"]) >= 10 and len(traces["devices"]) >= 5 and traces["rows"] > 1000
