"""`torchtraceap estimate`: questions, documents and mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torchtraceap.cli import main
from torchtraceap.ops import durations

H100 = ["--device", "H100 SXM"]
QUESTIONS: list[tuple[list[str], Any]] = [
    (["all_reduce", "--bytes", "256MB", "--ranks", "8"],
     lambda d: durations.collective_ns("all_reduce", 256e6, 8, d)),
    (["allgather", "--bytes", "64MiB", "--ranks", "4", "--nodes", "1"],
     lambda d: durations.collective_ns("all_gather", 64 << 20, 4, d)),
    (["ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", "--bytes", "1048576", "--ranks", "8"],
     lambda d: durations.collective_ns("reduce_scatter", 1 << 20, 8, d, dtype="bf16")),
    (["gemm", "--m", "4096", "--n", "1e3", "--k", "4_096", "--dtype", "torch.bfloat16"],
     lambda d: durations.gemm_ns(4096, 1000, 4096, "bf16", d)),
    (["gemm", "--m", "64", "--n", "64", "--k", "64", "--dtype", "fp16", "--batch", "32"],
     lambda d: durations.gemm_ns(64, 64, 64, "fp16", d, 32)),
    (["attention", "--batch", "8", "--heads", "16", "--queries", "4096", "--head-size", "128",
      "--dtype", "bf16", "--causal"],
     lambda d: durations.attention_ns(8, 16, 4096, 4096, 128, "bf16", d, causal=True)),
    (["attention", "--batch", "8", "--heads", "16", "--queries", "1", "--keys", "4096",
      "--head-size", "128", "--dtype", "bf16"],
     lambda d: durations.attention_ns(8, 16, 1, 4096, 128, "bf16", d)),
    (["elementwise", "--op", "add", "--elements", "1e8", "--dtype", "fp32"],
     lambda d: durations.elementwise_ns("add", 1e8, "fp32", d)),
    (["softmax", "--rows", "4096", "--columns", "1024", "--dtype", "fp32"],
     lambda d: durations.softmax_ns(4096, 1024, "fp32", d)),
    (["layer_norm", "--rows", "4096", "--columns", "1024", "--dtype", "bf16"],
     lambda d: durations.layer_norm_ns(4096, 1024, "bf16", d)),
    (["copy", "--bytes", "1GiB", "--direction", "HtoD", "--pinned"],
     lambda d: durations.copy_ns(1 << 30, "HtoD", True, d)),
    (["copy", "--bytes", "1GB", "--direction", "DtoD"],
     lambda d: durations.copy_ns(1e9, "DtoD", None, d)),
    (["embedding_bag", "--table", "1e6x128x20", "--table", "1000x16x1.5", "--batch", "4096"],
     lambda d: durations.embedding_bag_ns(
         [durations.EmbeddingTable(10**6, 128, 20), durations.EmbeddingTable(1000, 16, 1.5)],
         4096, d)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "ask"), QUESTIONS, ids=[" ".join(arguments) for arguments, _ in QUESTIONS]
)
def test_the_answer_is_that_of_the_function(
    arguments: list[str], ask: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = ask("H100 SXM")
    assert main(["estimate", *arguments, *H100, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "torchtraceap.estimate/1"
    assert document["device"] == "H100 SXM5 80 GB"
    told = [document[key] for key in ("ns", "low_ns", "high_ns", "source")]
    assert told == list(expected)
    assert document["asked"]["device"] == "H100 SXM"


def test_a_person_reads_time_interval_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "all_reduce", "--bytes", "256MB", "--ranks", "8", *H100]) == 0
    said = capsys.readouterr().out
    assert "1.04 ms" in said and "8 of 10 between" in said and "Source: nccl-tests" in said


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["all_reduce", *H100], "estimate all_reduce needs --bytes, --ranks"),
        (["gemm", "--m", "1", "--n", "1", "--k", "1", "--dtype", "bf16"], "needs --device"),
        (["all_reduse", *H100], "did you mean 'all_reduce'"),
        (["softmax", "--rows", "1", "--columns", "1", "--dtype", "fp32", "--heads", "2", *H100],
         "estimate softmax takes no --heads"),
        (["all_reduce", "--bytes", "3q", "--ranks", "8", *H100], "a size such as 256MB"),
        (["all_reduce", "--bytes", "0", "--ranks", "8", *H100], "size must be a number above 0"),
        (["all_reduce", "--bytes", "1MB", "--ranks", "2.5", *H100], "ranks must be a whole"),
        (["gemm", "--m", "nan", "--n", "1", "--k", "1", "--dtype", "bf16", *H100], "m must be"),
        (["gemm", "--m", "0", "--n", "1", "--k", "1", "--dtype", "bf16", *H100], "m must be"),
        (["gemm", "--m", "1", "--n", "1", "--k", "1", "--dtype", "bf16", "--batch", "0", *H100],
         "batch must be"),
        (["gemm", "--m", "x", "--n", "1", "--k", "1", "--dtype", "bf16", *H100],
         "a number is needed"),
        (["gemm", "--m", "1", "--n", "1", "--k", "1", "--dtype", "bf17", *H100],
         "no estimate: no type is called 'bf17'"),
        (["gemm", "--m", "1", "--n", "1", "--k", "1", "--dtype", "bf16", "--device", "A100"],
         "several devices are called so; give one of: a100_sxm_40gb"),
        (["gemm", "--m", "1", "--n", "1", "--k", "1", "--dtype", "bf16", "--device", "Voodoo 2"],
         "no device of that name"),
        (["copy", "--bytes", "1MB", "--direction", "sideways", *H100], "'sideways'"),
        (["elementwise", "--op", "erfinv", "--elements", "9", "--dtype", "fp32", *H100],
         "'erfinv'"),
        (["embedding_bag", "--table", "10x20", "--batch", "4", *H100], "ROWSxCOLUMNSxLOOKUPS"),
        (["embedding_bag", "--table", "10x0x20", "--batch", "4", *H100], "columns must be"),
    ],
)  # fmt: skip
def test_mistakes_end_with_one_sentence(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["estimate", *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == "" and reason in told.err
    assert told.err.startswith("torchtraceap: ") and told.err.count("\n") == 1


def test_a_trace_of_ones_own_corrects_the_models(
    bundled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["estimate", "elementwise", "--op", "add", "--elements", "1e6", "--dtype", "fp32",
             "--device", "V100-SXM2-32GB", "--json"]  # fmt: skip
    assert main(asked) == 0
    plain = json.loads(capsys.readouterr().out)
    assert main([*asked, "--calibrate", str(bundled)]) == 0
    own = json.loads(capsys.readouterr().out)
    assert own["ns"] != plain["ns"] and "of this trace's elementwise" in own["source"]


def test_a_trace_without_such_kernels_corrects_nothing_and_that_is_said(
    bundled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["estimate", "all_reduce", "--bytes", "1MB", "--ranks", "8", *H100, "--json"]
    assert main(asked) == 0
    plain = json.loads(capsys.readouterr().out)
    assert main([*asked, "--calibrate", str(bundled)]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["ns"] == plain["ns"]
    assert "has no such kernels" in told.err and "elementwise" in told.err
    assert main([*asked, "--calibrate", "no-such-file.json"]) == 2
