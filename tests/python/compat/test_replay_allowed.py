"""What a trace may have called: operators that calculate, on sizes that are bounded."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

import torchtraceap
from torchtraceap.compat.replay import find_replayable, replay, replay_script
from torchtraceap.compat.replay.call import NotReplayableError
from torchtraceap.errors import OptionError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch = pytest.importorskip("torch", reason="torch is not installed")

from torchtraceap.compat.replay.allowed import check_name, check_operator, check_text
from torchtraceap.compat.replay.call import MAX_TENSORS
from torchtraceap.compat.replay.schema import Operator, registered_overloads
from torchtraceap.compat.replay.script import time_call


def is_allowed(operator: Operator) -> bool:
    try:
        check_name(operator.qualified)
        check_operator(operator)
    except NotReplayableError:
        return False
    return True


@pytest.fixture(scope="module")
def allowed() -> list[Operator]:
    """Every overload of this version of torch that may be called."""
    names = sorted({schema.name for schema in torch._C._jit_get_all_schemas()})
    return [op for name in names for op in registered_overloads(name) if is_allowed(op)]


# -- the rule, on every operator that torch registers -------------------------------------------

HARMLESS_TYPES = {
    *("Tensor", "List[Tensor]", "List[Optional[Tensor]]"),
    *("int", "float", "bool", "complex", "number", "ScalarType", "Layout", "MemoryFormat"),
    *("List[int]", "List[float]", "List[bool]", "List[number]"),
    *("Device", "str"),
}
PATHS = ("victim.txt", "../victim", "/etc/passwd", "C:\\x", "a\nb", "ij->k;", "i" * 2000)


def bare(type_name: str) -> str:
    return type_name.removeprefix("Optional[").removesuffix("]" * type_name.startswith("Optional["))


def test_allowed_operators_calculate_tensors_from_tensors(allowed: list[Operator]) -> None:
    assert len(allowed) > 1000
    for operator in allowed:
        assert operator.namespace in ("aten", "prims"), operator.schema
        assert torch._C._dispatch_has_kernel(operator.full_name)
        read = [a for a in operator.arguments if "Tensor" in a.type_name and not a.is_output]
        assert read, operator.schema
        for argument in operator.arguments:
            kind = bare(argument.type_name)
            optional_generator = argument.type_name == "Optional[Generator]"
            assert optional_generator or kind in HARMLESS_TYPES, operator.schema


def test_texts_of_allowed_operators_are_choices(allowed: list[Operator]) -> None:
    texts = [a for operator in allowed for a in operator.arguments if "str" in a.type_name]
    assert len(texts) > 50
    for argument in texts:
        for path in PATHS:
            with pytest.raises(NotReplayableError):
                check_text(argument, path)


def test_every_choice_is_that_of_an_allowed_operator(allowed: list[Operator]) -> None:
    from torchtraceap.compat.replay import allowed as module

    used = {a.name for operator in allowed for a in operator.arguments if a.kind == "str"}
    assert used == set(module._CHOICES) | set(module._GRAMMARS)
    assert {operator.base_name for operator in allowed} >= module._PRIVATE


REFUSED = {
    "aten": """from_file _print record_stream requires_grad_ retain_grad set_ set_data resize_
        resize_as_ _resize_output_ sparse_resize_ _assert_async _functional_assert_async
        _linalg_check_errors
        _backward _fw_primal _make_dual _sparse_coo_tensor_unsafe fbgemm_linear_int8_weight
        fbgemm_pack_gemm_matrix_fp16 _test_string_default _sobol_engine_draw _cufft_clear_plan_cache
        _cudnn_init_dropout_state empty zeros arange randn _nested_view_from_buffer _lazy_clone
        _wrapped_linear_prepack _propagate_xla_data save manual_seed warn backward""",
    "prims": "_make_token _sink_tokens resize empty uniform normal",
}


@pytest.mark.parametrize("namespace", REFUSED)
def test_what_changes_state_is_not_allowed(namespace: str, allowed: list[Operator]) -> None:
    names = {operator.qualified for operator in allowed}
    for name in REFUSED[namespace].split():
        assert f"{namespace}::{name}" not in names


def test_other_namespaces_are_refused_by_name() -> None:
    namespaces = {s.name.partition("::")[0] for s in torch._C._jit_get_all_schemas()}
    others = namespaces - {"aten", "prims"}
    assert {"c10d", "prim", "profiler", "debugprims", "_c10d_functional", "symm_mem"} <= others
    for namespace in (*others, "vllm", "fbgemm", "__import__"):
        with pytest.raises(NotReplayableError, match="only operators of aten, prims"):
            check_name(f"{namespace}::add")


# -- traces --------------------------------------------------------------------------------------


def shaped(name: str, dims: Any, types: Any, values: Any = None, strides: Any = None) -> Any:
    args = {"Input Dims": dims, "Input type": types}
    args |= {"Concrete Inputs": values} if values is not None else {}
    args |= {"Input Strides": strides} if strides is not None else {}
    event = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 10, "dur": 5}
    return {**event, "args": args}


HOSTILE = [
    shaped(
        "aten::from_file",
        [[]] * 7,
        ["", "Bool", "Int", *[""] * 4],
        ["made", "True", "64", *[""] * 4],
    ),
    shaped(
        "aten::from_file",
        [[]] * 7,
        ["", "Bool", "Int", "Int", "", "", ""],
        ["victim.txt", "True", "1000", "0", "", "", ""],
    ),
    shaped("aten::save", [[2, 2], []], ["float", ""], ["", "saved"]),
    shaped(
        "debugprims::load_tensor",
        [[]] * 5,
        ["", "ScalarList", "ScalarList", "Int", ""],
        ["x", "[2]", "[1]", "6", ""],
    ),
    shaped("aten::_print", [[]], [""], ["\x1b[31mhello"]),
    shaped("aten::manual_seed", [[]], ["Int"], ["5"]),
    shaped("profiler::_record_function_enter", [[], []], ["", ""], ["x", "y"]),
    shaped(
        "aten::einsum",
        [[], [[2, 2], [2, 2]], []],
        ["", "TensorList", ""],
        ["ij,jk->ik');open('made','w')#", "", ""],
    ),
    shaped("aten::gelu", [[2], []], ["float", ""], ["", "made"]),
    shaped("aten::set_", [[2], []], ["float", ""], ["", "made"]),
]

EVERY_WAY = """
import sys
import time
from torchtraceap.cli import main

for row in range(int(sys.argv[2])):
    for way in ([], ["--run"], ["--script", sys.argv[3]]):
        assert main(["replay", sys.argv[1], "--row", str(row), *way]) == 2
assert main(["replay", sys.argv[1], "--json"]) == 0
"""


def test_no_way_of_replay_touches_a_file(tmp_path: Path) -> None:
    trace, folder = tmp_path / "trace.json", tmp_path / "empty"
    rows = [event | {"ts": 10 * at} for at, event in enumerate(HOSTILE, 1)]
    trace.write_text(json.dumps({"traceEvents": rows}), encoding="utf-8")
    folder.mkdir()
    (folder / "victim.txt").write_text("mine", encoding="utf-8")
    arguments = [str(trace), str(len(HOSTILE)), str(tmp_path / "script.py")]
    done = subprocess.run(
        [sys.executable, "-c", EVERY_WAY, *arguments], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in folder.iterdir()] == ["victim.txt"]
    assert (folder / "victim.txt").read_text(encoding="utf-8") == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "trace.json"]
    assert "\x1b" not in done.stdout + done.stderr and "Traceback" not in done.stderr
    table = json.loads(done.stdout)
    listed = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    assert len(listed) == len(HOSTILE)
    assert not any(row["replayable"] for row in listed)
    assert all(row["why"] for row in listed)


LONG = "x" * 100_000
STRANGE = [
    shaped(f"aten::{LONG}", [[2]], ["float"]),
    shaped(f"{LONG}::add", [[2]], ["float"]),
    shaped("aten::\u0438\u043c\u044f", [[2]], ["float"]),
    shaped("aten::relu", [[2], [2]], ["float", f"\x1b[31m\u202e{LONG}"]),
    shaped("aten::relu", [[2]], [f"\x1b[31m\u202e{LONG}"]),
    shaped("aten::gelu", [[2], []], ["float", ""], ["", f"\x1b[31m\u202e{LONG}"]),
    shaped("aten::dropout", [[2], [], []], ["float", "Double", "Bool"], ["", LONG, "\x1b[31m"]),
]


@pytest.mark.parametrize("recorded", STRANGE, ids=range(len(STRANGE)))
def test_reasons_are_short_and_plain(recorded: Any, write_trace: Any) -> None:
    trace = torchtraceap.load(write_trace([recorded]))
    with pytest.raises(OptionError) as refused:
        replay_script(trace, 0)
    reason = str(find_replayable(trace)["why"][0])
    for text in (str(refused.value), reason):
        assert len(text) < 500 and text.isascii() and text.isprintable()


def test_recorded_texts_that_are_choices_are_taken(write_trace: Any) -> None:
    rows = [
        shaped("aten::gelu", [[4], []], ["float", ""], ["", "tanh"]),
        shaped(
            "aten::einsum",
            [[], [[2, 3], [3, 4]], []],
            ["", "TensorList", ""],
            ["ij, jk -> ik", "", ""],
        ),
    ]
    trace = torchtraceap.load(write_trace([row | {"ts": at} for at, row in enumerate(rows, 1)]))
    assert "approximate='tanh'" in replay_script(trace, 0)
    assert "einsum.default('ij, jk -> ik', tensors" in replay_script(trace, 1)
    assert replay(trace, 1, min_run_time=0.01).time_ns > 0


# -- sizes ---------------------------------------------------------------------------------------

HUGE = 1 << 45
TOO_LARGE = {
    "input": (shaped("aten::relu", [[1 << 38]], ["float"]), "512 GiB"),
    "repeated input": (
        shaped("aten::sum", [[1 << 44], []], ["float", ""], ["", ""], [[0], []]),
        "512 GiB",
    ),
    "strides": (
        shaped("aten::relu", [[2, 2]], ["float"], [""], [[1 << 47, 1 << 47]]),
        "512 GiB",
    ),
    "negative strides": (shaped("aten::relu", [[2]], ["float"], [""], [[-8]]), "no shape"),
    "many axes": (shaped("aten::relu", [[1] * 65], ["float"], [""]), "no shape"),
    "sum of inputs": (
        shaped("aten::cat", [[[1 << 36]] * 3, []], ["TensorList", "Scalar"], ["", "0"]),
        "512 GiB",
    ),
    "many tensors": (
        shaped("aten::cat", [[[1]] * (MAX_TENSORS + 1), []], ["TensorList", "Scalar"], ["", "0"]),
        f"more than the {MAX_TENSORS}",
    ),
    "many numbers": (
        shaped("aten::repeat", [[2], []], ["float", "ScalarList"], ["", str([1] * 70000)]),
        "70000 numbers",
    ),
    "product": (
        shaped("aten::mm", [[1 << 22, 1], [1, 1 << 22]], ["float", "float"], ["", ""]),
        "makes .* GiB",
    ),
    "repeat": (
        shaped("aten::repeat", [[2], []], ["float", "ScalarList"], ["", f"[{HUGE}]"]),
        "makes .* GiB",
    ),
    "expand and copy": (
        shaped("aten::tile", [[1], []], ["float", "ScalarList"], ["", f"[{1 << 20}, {1 << 20}]"]),
        "makes .* GiB",
    ),
    "one_hot": (
        shaped("aten::one_hot", [[4], []], ["long int", "Scalar"], ["", str(HUGE)]),
        "GiB",
    ),
    "bincount": (
        shaped("aten::bincount", [[4], [], []], ["long int", "", "Scalar"], ["", "", str(HUGE)]),
        "GiB",
    ),
    "pad": (
        shaped(
            "aten::constant_pad_nd",
            [[4], [], []],
            ["float", "ScalarList", "Scalar"],
            ["", f"[0, {HUGE}]", "0"],
        ),
        "makes .* GiB",
    ),
    "fft": (
        shaped(
            "aten::fft_fft",
            [[4], [], [], []],
            ["float", "Scalar", "Scalar", ""],
            ["", str(HUGE), "-1", ""],
        ),
        "GiB",
    ),
    "output that grows": (
        shaped(
            "aten::repeat",
            [[2], [], [2]],
            ["float", "ScalarList", "float"],
            ["", f"[{HUGE}]", ""],
        ),
        "makes .* GiB",
    ),
    "pieces": (
        shaped("aten::unbind", [[1 << 30], []], ["signed char", "Scalar"], ["", "0"]),
        "tensors",
    ),
    "pieces of one": (
        shaped("aten::split", [[1 << 30], [], []], ["bool", "Scalar", "Scalar"], ["", "1", "0"]),
        "tensors",
    ),
    "steps": (
        shaped(
            "aten::rnn_tanh",
            [[1 << 15, 1, 1], [1, 1, 1], [[1, 1], [1, 1]], *[[]] * 6],
            ["float", "float", "TensorList", "Bool", "Scalar", "Double", *["Bool"] * 3],
            ["", "", "", "False", "1", "0.", "False", "False", "False"],
        ),
        "operators below",
    ),
    "rounds": (
        shaped(
            "aten::special_chebyshev_polynomial_t",
            [[4], []],
            ["float", "Scalar"],
            ["", str(1 << 40)],
        ),
        "rounds",
    ),
    "digits": (
        shaped("aten::round", [[4], []], ["float", "Scalar"], ["", str(1 << 40)]),
        "rounds",
    ),
    "combinations": (
        shaped(
            "aten::combinations",
            [[0], [], []],
            ["float", "Scalar", "Bool"],
            ["", str(1 << 20), "False"],
        ),
        "rounds",
    ),
    "overflow": (
        shaped("aten::repeat", [[2], []], ["float", "ScalarList"], ["", f"[{1 << 70}]"]),
        "not of kind int",
    ),
}


@pytest.mark.parametrize("case", TOO_LARGE)
def test_what_is_too_large_is_refused_before_it_is_made(case: str, write_trace: Any) -> None:
    recorded, reason = TOO_LARGE[case]
    trace = torchtraceap.load(write_trace([recorded]))
    with pytest.raises(OptionError, match=reason):
        replay_script(trace, 0)
    table = find_replayable(trace)
    assert not table["replayable"].any() and table["why"][0]


def test_a_script_says_what_it_needs_and_stops_where_it_is_not_there(
    write_trace: Any, tmp_path: Path
) -> None:
    values = ["", f"[{1 << 36}]"]
    recorded = shaped("aten::repeat", [[1], []], ["float", "ScalarList"], values)
    script = replay_script(torchtraceap.load(write_trace([recorded])), 0)
    assert f"NEEDED = {3 * 4 + 4 * (1 << 36)} " in script
    path = tmp_path / "script.py"
    path.write_text(script, encoding="utf-8")
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    assert done.returncode == 1 and "GB of memory are free" in done.stderr
    assert "Traceback" not in done.stderr


# -- what must fit -------------------------------------------------------------------------------

UNFIT = {
    "two shapes": (
        shaped(
            "aten::_softmax_backward_data",
            [[2, 0], [1, 5], [], []],
            ["float", "float", "Scalar", "Scalar"],
            ["", "", "0", "6"],
        ),
        "differ in shape",
    ),
    "absent tensor": (
        shaped("aten::copy", [[], [4], []], ["", "float", "Bool"], ["", "", "False"]),
        "'self' is absent",
    ),
    "noise": (
        shaped(
            "aten::rrelu_with_noise",
            [[4, 4], [2], *[[]] * 4],
            ["float", "float", "Scalar", "Scalar", "Bool", ""],
            ["", "", "0.1", "0.3", "True", ""],
        ),
        "'self' and 'noise' differ",
    ),
    "channels of pools": (
        shaped(
            "aten::adaptive_max_pool2d_backward",
            [[1, 8, 2, 2], [1, 2, 4, 4], [1, 8, 2, 2]],
            ["float", "float", "long int"],
            ["", "", ""],
        ),
        "batch and channels",
    ),
    "short padding": (
        shaped(
            "aten::reflection_pad2d_backward",
            [[3, 3, 3], [3, 3, 3], []],
            ["float", "float", "ScalarList"],
            ["", "", "[1]"],
        ),
        "1 numbers, not 4",
    ),
    "lists": (
        shaped(
            "aten::_foreach_add_",
            [[[4], [4]], [[4]], []],
            ["TensorList", "TensorList", "Scalar"],
            ["", "", "1"],
        ),
        "differ in length",
    ),
    "shapes in lists": (
        shaped(
            "aten::_fused_sgd_",
            [[[4]], [[4]], [[9]], *[[]] * 8],
            ["TensorList"] * 3 + ["Double"] * 4 + ["Bool"] * 3 + ["", ""][:1],
            ["", "", "", "0.", "0.", "0.1", "0.", "False", "False", "False", ""],
        ),
        "differ in shape",
    ),
    "axes": (
        shaped(
            "aten::_fft_r2c",
            [[4, 4], [], [], []],
            ["float", "ScalarList", "Scalar", "Bool"],
            ["", "[0, 5]", "0", "True"],
        ),
        "no axes",
    ),
    "whole gradient": (
        shaped(
            "aten::smooth_l1_loss_backward",
            [[4], [4], [4], [], []],
            ["long int", "long int", "long int", "Scalar", "Scalar"],
            ["", "", "", "1", "0."],
        ),
        "gradient of type int64",
    ),
    "statistics": (
        shaped(
            "aten::native_batch_norm",
            [[2, 3, 4], [], [], [], [], [], [], []],
            ["float", "", "", "", "", "Bool", "Double", "Double"],
            ["", "", "", "", "", "False", "0.1", "1e-05"],
        ),
        "'running_mean' is absent",
    ),
    "channels": (
        shaped(
            "aten::native_batch_norm",
            [[2, 3, 4], [3], [9], [3], [3], [], [], []],
            ["float"] * 5 + ["Bool", "Double", "Double"],
            ["", "", "", "", "", "True", "0.1", "1e-05"],
        ),
        "no vector of 3 channels",
    ),
    "bags": (
        shaped(
            "aten::_embedding_bag",
            [[2, 0], [2], [2], *[[]] * 6],
            ["float", "long int", "long int", "Bool", "Scalar", "Bool", "", "Bool", "Scalar"],
            ["", "", "", "False", "0", "False", "", "False", "-1"],
        ),
        "table of rows",
    ),
    "rows": (
        shaped(
            "aten::embedding_dense_backward",
            [[2, 3, 4], [50], [], [], []],
            ["float", "long int", "Scalar", "Scalar", "Bool"],
            ["", "", "9", "-1", "False"],
        ),
        "6 rows for 50 indices",
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_arguments_that_do_not_fit_are_refused(case: str, write_trace: Any) -> None:
    recorded, reason = UNFIT[case]
    with pytest.raises(OptionError, match=reason):
        replay_script(torchtraceap.load(write_trace([recorded])), 0)


# -- the script ----------------------------------------------------------------------------------


def test_a_script_says_what_it_runs(write_trace: Any) -> None:
    recorded = shaped("aten::mm", [[4, 5], [5, 6]], ["float", "double"], ["", ""])
    trace = torchtraceap.load(write_trace([recorded]))
    head = replay_script(trace, 0).split("\n\n")[0]
    assert "aten::mm" in head and "row 0" in head and repr(trace.ranks[0].path) in head
    assert "self: float32 [4, 5]" in head and "mat2: float64 [5, 6]" in head


def test_the_path_of_a_trace_stays_in_its_comment(tmp_path: Path) -> None:
    recorded = shaped("aten::relu", [[2]], ["float"], [""])
    path = tmp_path / "a'\nraise SystemExit(\u2028'\x1b[31m.json"
    path.write_text(json.dumps({"traceEvents": [recorded]}), encoding="utf-8")
    script = replay_script(torchtraceap.load(path), 0)
    assert script.isascii() and "\x1b" not in script
    head = script.split("\n\n")[0].splitlines()
    assert all(line.startswith("#") for line in head)
    statements = ast.parse(script).body
    assert not any(isinstance(statement, ast.Raise) for statement in statements)


def test_a_call_that_ends_its_process_does_not_end_this_one() -> None:
    operator = registered_overloads("aten::relu")[0]
    script = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
    with pytest.raises(OptionError, match="ended its process with SIGSEGV"):
        time_call(operator, script, "cpu", min_run_time=0.01)
    script = "raise RuntimeError('shapes\\nException raised from x.cpp')\n"
    with pytest.raises(OptionError, match=r"RuntimeError: shapes$"):
        time_call(operator, script, "cpu", min_run_time=0.01)


# Who runs the tests in the background has interrupts ignored, in what they start too.
INTERRUPTED = """
import signal
import sys
from torchtraceap.compat.replay.script import time_call
from torchtraceap.compat.replay.schema import registered_overloads

signal.signal(signal.SIGINT, signal.default_int_handler)
script = f"import os, time; open({sys.argv[1]!r}, 'w').write(str(os.getpid())); time.sleep(600)"
time_call(registered_overloads("aten::relu")[0], script, "cpu", min_run_time=0.01)
"""


def test_an_interrupt_ends_the_call(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    outer = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(mark)], stderr=subprocess.PIPE, text=True
    )
    while not (mark.exists() and mark.read_text("utf-8")):
        assert outer.poll() is None
        time.sleep(0.05)
    outer.send_signal(signal.SIGINT)
    _, errors = outer.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text("utf-8")), 0)
