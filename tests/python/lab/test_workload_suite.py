"""Workloads by name, steps of them, the suite, and models of TorchBench."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torchtraceap._core", reason="torchtraceap._core is not built")

from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.lab.workloads import registry
from torchtraceap.lab.workloads.declaration import DOMAINS, workload, workload_declaration

ENTRIES = registry.workloads()
ALONE = [entry.name for entry in ENTRIES if entry.source == "suite" and not entry.needs]
SUITE = Path(registry.__file__).parent / "suite"


@pytest.fixture
def torch() -> Any:
    module = pytest.importorskip("torch")
    module.set_num_threads(1)
    return module


# ------------------------------------------------------------------------- listing


def test_listing_imports_neither_torch_nor_a_library() -> None:
    code = (
        "import sys; from torchtraceap.lab.workloads import registry; rows = registry.table();"
        "print(len(rows), sorted({'torch', 'numpy', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{len(ENTRIES)} []"


def test_suite_spans_six_domains_and_the_fields_of_vision() -> None:
    own = [entry for entry in ENTRIES if entry.source == "suite"]
    assert len(own) >= 100 and len(ALONE) >= 80
    assert {entry.domain for entry in own} == set(DOMAINS)
    vision = {entry.task for entry in own if entry.domain == "vision"}
    asked = "classification detection segmentation generation pose depth video"
    assert vision >= set(asked.split())
    assert len({entry.name for entry in own}) == len(own)


def test_each_says_what_it_exercises_in_less_than_thirty_lines() -> None:
    for entry in ENTRIES:
        if entry.source == "suite":
            assert entry.exercises.endswith(".") and len(entry.exercises) > 20, entry.name
            assert _lines(entry) < 30, entry.name


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def _lines(entry: registry.Entry) -> int:
    """Of its function, without what it says of itself."""
    module, _, name = entry.place.partition(":")
    for node in _tree(SUITE / f"{module.rpartition('.')[2]}.py").body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            assert node.end_lineno is not None
            return node.end_lineno - node.lineno + 1
    raise AssertionError(f"{entry.place} is not there")


def test_what_is_read_from_the_source_is_what_the_functions_say(torch: Any) -> None:
    for entry in ENTRIES:
        if entry.source != "suite":
            continue
        module, _, name = entry.place.partition(":")
        said = workload_declaration(getattr(importlib.import_module(module), name))
        assert said == {
            "task": entry.task, "domain": entry.domain,
            "exercises": entry.exercises, "needs": entry.needs,
        }  # fmt: skip


def test_the_page_lists_every_workload_and_counts_them() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/benchmarking.md").read_text("utf-8")
    own = [entry for entry in ENTRIES if entry.source == "suite"]
    for entry in own:
        rows = [row for row in page.splitlines() if f"`{entry.name}`" in row]
        assert any(entry.task in row for row in rows), entry.name
    assert f"The suite has {len(own)} of them" in page
    assert f"{len(ALONE)} need" in page and f"{len(own) - len(ALONE)} are models of" in page


def test_a_domain_that_there_is_not_is_refused() -> None:
    with pytest.raises(OptionError, match="no domain 'sound'"):
        workload(task="t", domain="sound", exercises="Nothing.")


# ------------------------------------------------------------------------- finding


def test_an_unknown_name_gets_those_that_are_like_it() -> None:
    with pytest.raises(OptionError, match="no workload 'resnt', did you mean resnet"):
        registry.find("resnt")
    with pytest.raises(OptionError, match="bench list"):
        registry.find("qqqqqqqq")


@pytest.fixture
def without_transformers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_is_installed", lambda module: module != "transformers")
    registry._suite.cache_clear()
    yield
    registry._suite.cache_clear()


@pytest.mark.usefixtures("without_transformers")
def test_a_missing_library_is_listed_and_named_with_its_extra() -> None:
    rows = {row["name"]: row for row in registry.table()}
    assert rows["hf_bert"]["missing"] == ["transformers"] and not rows["hf_bert"]["available"]
    assert rows["resnet"]["available"]
    with pytest.raises(MissingDependencyError, match=r"transformers: pip install 'torchtraceap\["):
        registry.find("hf_bert")


def test_a_package_adds_its_own_which_listing_does_not_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: Any
) -> None:
    (tmp_path / "added_workloads.py").write_text(
        "import torch\n"
        "def mine(batch: int = 3):\n"
        "    net = torch.nn.Linear(2, 2)\n"
        "    return {'model': net, 'inputs': (torch.ones(batch, 2),)}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    points = [
        importlib.metadata.EntryPoint(name, "added_workloads:mine", registry.GROUP)
        for name in ("mine", "resnet")
    ]
    asked = []

    def entry_points(group: str) -> list[importlib.metadata.EntryPoint]:
        asked.append(group)
        return points

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    listed = {entry.name: entry for entry in registry.workloads()}
    assert asked == ["torchtraceap.lab.workloads"] and "added_workloads" not in sys.modules
    assert listed["mine"].source == "added_workloads"
    assert listed["resnet"].source == "suite", "a package doesn't take the suite's names"
    found = registry.find("mine")
    assert found.batch() == 3 and found.make(batch=5).inputs[0].shape == (5, 2)


@pytest.fixture
def own_file(tmp_path: Path, torch: Any) -> Path:
    path = tmp_path / "own.py"
    path.write_text(
        "import torch\n"
        "def fixed():\n"
        "    return {'model': torch.nn.Linear(4, 2), 'inputs': (torch.randn(6, 4),)}\n"
        "def lossy(batch=2):\n"
        "    wanted = torch.zeros(batch, 2)\n"
        "    made = {'model': torch.nn.Linear(4, 2), 'inputs': (torch.randn(batch, 4),)}\n"
        "    return {**made, 'loss': lambda out: (out - wanted).square().mean()}\n"
        "def needy():\n"
        "    import a_library_that_is_not_there\n"
    )
    return path


def test_a_function_of_a_file_is_one_too(own_file: Path) -> None:
    found = registry.find(f"{own_file}:lossy")
    assert found.entry is None and found.make(batch=3).inputs[0].shape == (3, 4)
    fixed = registry.find(f"{own_file}:fixed")
    assert fixed.batch() is None
    for options, why in (
        ({"batch": 2}, "takes no batch"),
        ({"size": "full"}, "has one size"),
        ({"size": "huge"}, "a size is tiny or full"),
        ({"batch": 0}, "makes no sense"),
    ):
        with pytest.raises(OptionError, match=why):
            fixed.make(**options)
    with pytest.raises(MissingDependencyError, match="pip install a_library_that_is_not_there"):
        registry.find(f"{own_file}:needy").make()


def test_a_workload_is_the_same_each_time_and_draws_nothing_from_others(torch: Any) -> None:
    source = registry.find("ncf")
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    one, other = source.make(), source.make()
    assert torch.equal(torch.rand(3), expected)
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(one.inputs[0], other.inputs[0])


# ------------------------------------------------------------------------- steps


@pytest.mark.parametrize("name", ALONE)
def test_each_learns_something_and_runs_without_gradients(name: str, torch: Any) -> None:
    """All that need nothing but torch, in a small batch."""
    from torchtraceap.lab.workloads.steps import make_step

    batch = min(registry.find(name).batch() or 2, 4)
    with make_step(name, mode="train", batch=batch) as step:
        before = [each.detach().clone() for each in step.model.parameters()]
        with_gradient = _parameters_with_gradient(step.model)
        assert bool(torch.isfinite(step.step()))
        trained = [each for each in step.model.parameters() if each.requires_grad]
        assert len(with_gradient) >= 0.9 * len(trained)
        pairs = zip(before, step.model.parameters(), strict=True)
        assert any(not torch.equal(old, new) for old, new in pairs)
        assert all(each.grad is None for each in trained)
    with make_step(name, mode="eval", batch=batch) as step:
        assert step.step() is not None and not step.model.training


def _parameters_with_gradient(model: Any) -> set[int]:
    """Filled by the step that follows."""
    seen: set[int] = set()
    for place, each in enumerate(model.parameters()):
        if each.requires_grad:
            each.register_hook(lambda grad, place=place: seen.add(place))
    return seen


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("vit", 86_567_656),  # as torchvision's and timm's have them
        ("mixer", 59_880_472),
        ("gpt", 124_439_808),  # GPT-2 small
        ("unet", 31_044_821),
        ("resnet", 25_557_032),
    ],
)
def test_full_sizes_are_those_of_the_papers(name: str, weights: int, torch: Any) -> None:
    with torch.device("meta"):
        made = registry.find(name).make(batch=2, size="full")
    own = sum(each.numel() for each in made.model.parameters())
    assert abs(own - weights) <= 0.005 * weights


@pytest.mark.parametrize("name", ["hf_gpt2", "hf_vit"])
def test_models_of_a_library_are_trained_without_a_network(name: str, torch: Any) -> None:
    pytest.importorskip("transformers")
    from torchtraceap.lab.workloads.steps import make_step

    with make_step(name, batch=2) as step:
        assert float(step.step()) > float(min(step.step() for _ in range(3)))


def test_a_step_of_evaluation_keeps_nothing_and_bf16_is_by_autocast(torch: Any) -> None:
    from torchtraceap.lab.workloads.steps import make_step

    made = {"model": torch.nn.Linear(4, 2), "inputs": {"input": torch.ones(3, 4)}}
    with make_step(made, mode="eval", precision="bf16") as step:
        output = step.step()
        assert output.dtype == torch.bfloat16 and output.is_inference()
        assert step.model.weight.dtype == torch.float32 and step.batch == 3
    with pytest.raises(OptionError, match="is closed"):
        step.step()


def test_a_step_of_training_goes_down_the_slope_that_sgd_would(own_file: Path, torch: Any) -> None:
    from torchtraceap.lab.workloads.steps import make_step

    net = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(net.weight)
    made = {
        "model": net, "inputs": (torch.full((2, 1), 3.0),), "loss": lambda output: output.sum(),
        "optimizer": lambda weights: torch.optim.SGD(weights, lr=0.5),
    }  # fmt: skip
    with make_step(made) as step:
        assert float(step.step()) == 6.0
        assert net.weight.item() == 1 - 0.5 * 6
        assert net.weight.grad is None
    with make_step(f"{own_file}:lossy", batch=5) as step:  # no optimizer
        step.step()
        assert step.batch == 5 and step.model.weight.grad is None


def test_what_cannot_be_run_so_says_why(own_file: Path, torch: Any) -> None:
    from torchtraceap.lab.workloads.steps import make_step

    for options, why in (
        ({"mode": "test"}, "train or eval"),
        ({"precision": "fp8"}, "fp32, tf32, bf16"),
        ({"precision": "tf32"}, "tensor cores: on a CPU take fp32 or bf16"),
        ({"device": "tpu9"}, "cpu or cuda"),
        ({"device": "meta"}, "cpu or cuda"),
        ({"mode": "train"}, "no loss"),
        ({"batch": 3, "mode": "eval"}, "takes no batch"),
    ):
        with pytest.raises(OptionError, match=why):
            make_step(f"{own_file}:fixed", **options)
    if not torch.cuda.is_available():
        with pytest.raises(OptionError, match="no GPU"):
            make_step("ncf", device="cuda")
    made = {"model": torch.nn.Linear(4, 2), "inputs": (torch.ones(1, 4),)}
    with pytest.raises(OptionError, match="by name"):
        make_step(made, mode="eval", batch=2)


def test_tf32_is_set_and_put_back(torch: Any) -> None:
    from torchtraceap.lab.workloads.steps import _tf32

    places = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [place.allow_tf32 for place in places]
    for allowed in (True, False):
        with _tf32(allowed):
            assert [place.allow_tf32 for place in places] == [allowed, allowed]
        assert [place.allow_tf32 for place in places] == before


def test_a_compiled_step_calls_what_torch_compiled(
    torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchtraceap.lab.workloads.steps import make_step

    calls = []

    def compiled(model: Any) -> Any:
        return lambda *inputs: calls.append(model) or model(*inputs)

    monkeypatch.setattr(torch, "compile", compiled)
    with make_step("ncf", compiled=True) as step:
        step.step()
        assert calls == [step.model]


def test_data_is_moved_with_its_shape_kept(torch: Any) -> None:
    from torchtraceap.lab.workloads.steps import on_device

    moved = on_device({"a": [torch.ones(1), (torch.ones(2), 3)], "b": "text"}, "meta")
    assert moved["a"][0].is_meta and moved["a"][1][0].is_meta
    assert isinstance(moved["a"][1], tuple) and moved["a"][1][1] == 3 and moved["b"] == "text"


# ------------------------------------------------------------------------- TorchBench


@pytest.fixture
def torchbenchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: Any) -> Iterator[Any]:
    """A package with the contract of theirs."""
    models = tmp_path / "torchbenchmark" / "models"
    sources = {
        "small": """
            import torch
            class Model:
                made = []
                def __init__(self, test, device, batch_size=None, extra_args=[]):
                    if test == "train" and batch_size == 13:
                        raise NotImplementedError("Model doesn't support customizing batch size.")
                    self.test, self.device, self.extra_args = test, device, extra_args
                    self.batch_size = batch_size or 4
                    self.net, self.calls = torch.nn.Linear(2, 2), []
                    Model.made.append(self)
                def get_module(self):
                    return self.net, (torch.ones(self.batch_size, 2),)
                def train(self):
                    self.calls.append("train")
                def eval(self):
                    self.calls.append("eval")
                    return (self.net(torch.ones(self.batch_size, 2)),)
                def invoke(self):
                    return getattr(self, self.test)()
            """,
        "bare": """
            class Model:
                def __init__(self, test, device, batch_size=None, extra_args=[]):
                    if "--torchdynamo" in extra_args:
                        raise SystemExit(2)
                def get_module(self):
                    raise NotImplementedError()
                def eval(self):
                    return "evaluated"
            """,
        "needy": "import another_library_that_is_not_there",
        "broken": "raise RuntimeError('no data set\\nmore')",
        "empty": "",
    }
    for name, text in sources.items():
        (models / name).mkdir(parents=True)
        lines = text.strip("\n").split("\n")
        indent = len(lines[0]) - len(lines[0].lstrip())
        (models / name / "__init__.py").write_text("\n".join(line[indent:] for line in lines))
    for package in (models, models.parent):
        (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield SimpleNamespace(
        made=lambda: importlib.import_module("torchbenchmark.models.small").Model.made
    )
    for name in [each for each in sys.modules if each.partition(".")[0] == "torchbenchmark"]:
        del sys.modules[name]


def test_a_model_of_torchbench_makes_its_own_steps(torchbenchmark: Any, torch: Any) -> None:
    from torchtraceap.lab.workloads.steps import make_step

    with make_step("torchbench:small", mode="train", batch=6) as step:
        assert step.step() is None and step.batch == 6
        assert isinstance(step.model, torch.nn.Linear)
    with make_step("torchbench:small", mode="eval", precision="bf16", compiled=True) as step:
        assert step.step()[0].shape == (4, 2) and step.batch == 4
    trained, evaluated = torchbenchmark.made()
    assert trained.calls == ["train"] and trained.device == "cpu" and trained.test == "train"
    assert trained.extra_args == ["--precision", "fp32"]
    assert evaluated.calls == ["eval"]
    expected = ["--precision", "amp_bf16", "--torchdynamo", "inductor"]
    assert evaluated.extra_args == expected


def test_one_without_invoke_and_module_runs_by_its_mode(torchbenchmark: Any) -> None:
    from torchtraceap.lab.workloads.steps import make_step

    with make_step("torchbench:bare", mode="eval") as step:
        assert step.step() == "evaluated" and step.model is None and step.batch is None
    with pytest.raises(OptionError, match="doesn't take --precision fp32 --torchdynamo"):
        make_step("torchbench:bare", mode="eval", compiled=True)


def test_what_torchbench_has_not_is_said_in_a_sentence(torchbenchmark: Any) -> None:
    from torchtraceap.lab.workloads.steps import make_step

    for name, kind, why in (
        ("torchbench:none", OptionError, "TorchBench has no model 'none'"),
        ("torchbench:a/b", OptionError, "is torchbench:MODEL"),
        ("torchbench:empty", OptionError, "has no class Model"),
        ("torchbench:broken", OptionError, "can't be imported: no data set$"),
        ("torchbench:needy", MissingDependencyError, "needs another_library_that_is_not_there"),
    ):
        with pytest.raises(kind, match=why):
            registry.find(name)
    with pytest.raises(OptionError, match="doesn't do that: Model doesn't support customizing"):
        make_step("torchbench:small", batch=13)
    with pytest.raises(OptionError, match="one size"):
        make_step("torchbench:small", size="full")
    with pytest.raises(OptionError, match="makes its own steps"):
        registry.find("torchbench:small").make()


def test_without_torchbench_it_says_where_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchbenchmark", None)
    with pytest.raises(MissingDependencyError, match=r"github\.com/pytorch/benchmark"):
        registry.find("torchbench:resnet50")
