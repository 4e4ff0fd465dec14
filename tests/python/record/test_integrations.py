"""Recordings from inside of training libraries, each by a real training on the CPU."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trainings import library, names, slow_optimizer_step, torch_on_one_thread, traces

import torchtraceap as ttap
from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.record import RecordingWarning, profile
from torchtraceap.record.integrations.stepper import Stepper
from torchtraceap.record.step_plan import AutoPlan, StepPlan


@pytest.fixture
def torch() -> Any:
    return torch_on_one_thread()


@pytest.fixture(autouse=True)
def quiet_libraries() -> Iterator[None]:
    """What libraries warn of in their own code is theirs."""
    with warnings.catch_warnings():
        for module in ("torch", "transformers", "accelerate", "lightning", "deepspeed"):
            warnings.filterwarnings("ignore", module=rf"{module}\.")
        warnings.filterwarnings("ignore", message=r".*(pin_memory|LeafSpec).*")
        yield


# ------------------------------------------------------------------------- the plan of steps


def test_a_plan_takes_as_many_steps_as_fit() -> None:
    auto = AutoPlan(1, 1)
    assert auto.choose([0.5] * 3, 1000) == StepPlan(0, 1, 4)
    assert auto.choose([10.0, 10.0], 1000) == StepPlan(0, 1, 3)
    assert auto.choose([0.001] * 9, 1000) == StepPlan(0, 5, 20)
    assert auto.choose([0.02] * 9, 60_000) == StepPlan(0, 3, 5)
    assert auto.choose([0.02] * 9, 0).active == 20


def test_steps_are_measured_until_they_have_settled() -> None:
    auto = AutoPlan(1, 1)
    assert not auto.is_enough([9.0])
    assert not auto.is_enough([9.0, 1.0])  # something still warms up
    assert auto.is_enough([9.0, 1.0, 1.1])
    assert not auto.is_enough([0.01] * 5)
    assert auto.is_enough([0.01] * 20)
    assert not AutoPlan(6, 1).is_enough([1.0] * 4)
    assert AutoPlan(6, 1).is_enough([1.0] * 5)


def test_profile_chooses_the_steps_of_a_loop(tmp_path: Path, torch: Any) -> None:
    step = slow_optimizer_step(torch)
    with profile(tmp_path, active="auto", diagnose=False) as p:
        for _ in range(120):
            step()
            p.step()
    assert p.is_complete and p.path is not None
    assert 3 <= p.recorded_steps <= 20
    assert len(names(p.path, "ProfilerStep#")) == p.recorded_steps


def test_a_loop_that_ends_before_a_plan_is_chosen_keeps_its_first_step(
    tmp_path: Path, torch: Any
) -> None:
    step = slow_optimizer_step(torch)
    with (
        pytest.warns(RecordingWarning, match="too soon to measure what a step takes"),
        profile(tmp_path, active="auto", diagnose=False) as p,
    ):
        step()
        p.step()
    assert p.recorded_steps == 0 and names(p.path or tmp_path, "Optimizer.step")


def test_a_number_of_steps_is_a_number_or_auto() -> None:
    with pytest.raises(OptionError, match='"auto"'):
        profile(active="many")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="wait"):
        profile(active="auto", wait=-1)


@pytest.mark.parametrize(
    ("pauses", "active", "recorded"),
    [
        ({1}, 3, 3),  # before the profiler warms up
        ({4}, 3, 3),  # two are too few: again
        ({5}, 4, 3),  # three of four are enough
        ({3, 6, 9, 12}, 3, 1),  # three attempts, and the longest is kept
    ],
)
def test_what_comes_between_steps_is_in_no_step(
    tmp_path: Path, torch: Any, pauses: set[int], active: int, recorded: int
) -> None:
    step = slow_optimizer_step(torch)
    with profile(tmp_path, active=active, diagnose=False) as p:
        for n in range(1, 22):
            step()
            p.step()
            if n in pauses:
                p.pause()
                with torch.profiler.record_function("evaluation"):
                    torch.ones(100).sum()
    assert p.path is not None and p.recorded_steps == recorded
    assert len(names(p.path, "ProfilerStep#")) == recorded
    assert names(p.path, "evaluation") == []
    assert traces(tmp_path) == [p.path]


def test_a_loop_that_pauses_all_the_time_is_recorded_with_its_pauses(
    tmp_path: Path, torch: Any
) -> None:
    step = slow_optimizer_step(torch)
    with profile(tmp_path, diagnose=False) as p:
        for _ in range(12):
            step()
            p.step()
            p.pause()
    assert p.path is not None and p.recorded_steps == 3


# ------------------------------------------------------------------------- the common core


def test_a_training_that_failed_leaves_the_profiler_to_the_next(tmp_path: Path, torch: Any) -> None:
    step = slow_optimizer_step(torch)
    lost, found = Stepper(tmp_path / "a"), Stepper(tmp_path / "b", active=2, diagnose=False)
    lost.start()
    step()
    with pytest.warns(RecordingWarning, match="too soon"):
        lost.step()
        found.start()
    for _ in range(6):
        step()
        found.step()
    found.end()
    assert found.diagnosis is not None and len(traces(tmp_path / "b")) == 1


def test_problems_are_told_and_stay_inside(
    tmp_path: Path, torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepper = Stepper(tmp_path, diagnose=False)
    stepper.start()
    monkeypatch.setattr(stepper.recording, "step", lambda: 1 / 0)
    with pytest.warns(RecordingWarning) as told:
        stepper.step()
    assert "the training goes on: ZeroDivisionError" in str(told[0].message)
    stepper.step()
    stepper.end()
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
        pytest.warns(RecordingWarning, match="another torch profiler"),
    ):
        Stepper(tmp_path).start()


def test_an_option_that_there_is_not_is_told_at_once() -> None:
    with pytest.raises(TypeError, match="wrong"):
        Stepper(wrong=1)
    with pytest.raises(OptionError, match="every"):
        Stepper(every="soon")


def test_no_library_is_imported_by_another(tmp_path: Path) -> None:
    program = (
        "import sys, torchtraceap.record.integrations.stepper, "
        "torchtraceap.record.integrations.accelerate, "
        "torchtraceap.record.integrations.deepspeed\n"
        "assert not {'torch', 'transformers', 'accelerate', 'lightning', 'mlflow', 'wandb', "
        "'deepspeed', 'tensorboard', 'pandas'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


# ------------------------------------------------------------------------- transformers


class Squares:
    """A data set of one feature; items as a Trainer takes them."""

    def __init__(self, torch: Any, size: int = 64) -> None:
        self.rows = torch.randn(size, 16)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self.rows[index], "labels": self.rows[index].pow(2).sum()}


def trainer(torch: Any, folder: Path, callback: Any, **options: Any) -> Any:
    transformers = library("transformers")

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 1))

        def forward(self, x: Any, labels: Any = None) -> dict[str, Any]:
            out = self.layers(x).squeeze(-1)
            return {"loss": (out - labels).pow(2).mean(), "logits": out}

    arguments = {
        "output_dir": str(folder / "out"),
        "use_cpu": True,
        "per_device_train_batch_size": 4,
        "max_steps": 12,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "logging_steps": 1000,
        **options,
    }
    return transformers.Trainer(
        model=Model(),
        args=transformers.TrainingArguments(**arguments),
        train_dataset=Squares(torch),
        eval_dataset=Squares(torch, 8),
        callbacks=[callback],
    )


@pytest.fixture
def of_transformers(torch: Any) -> Any:
    library("transformers")
    from torchtraceap.record.integrations import transformers

    return transformers.TraceCallback


@pytest.mark.slow  # trains networks or trees
def test_trainer_is_recorded_and_told(
    tmp_path: Path, torch: Any, of_transformers: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    callback = of_transformers(tmp_path / "runs", active=3)
    run = trainer(torch, tmp_path, callback, gradient_accumulation_steps=2, num_train_epochs=2)
    run.train()
    (path,) = traces(tmp_path / "runs")
    assert callback.path == path and len(callback.diagnosis.summary.steps) == 3
    assert names(path, "Optimizer.step#") and len(names(path, "ProfilerStep#")) == 3
    # A step is one of the optimizer, with its two batches.
    assert len(names(path, "Optimizer.step#AdamW.step")) == 3
    assert len(names(path, "enumerate(DataLoader)")) == 6
    assert "computes on the host" in capsys.readouterr().out
    (told,) = [log for log in run.state.log_history if "torchtraceap/findings" in log]
    assert told["step"] == 5


def test_trainer_records_no_evaluation_and_no_checkpoint(
    tmp_path: Path, torch: Any, of_transformers: Any
) -> None:
    callback = of_transformers(tmp_path / "runs", active=3, diagnose=False)
    options = {"eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps", "save_steps": 4}
    trainer(torch, tmp_path, callback, **options).train()
    (path,) = traces(tmp_path / "runs")
    steps, updates = names(path, "ProfilerStep#"), names(path, "Optimizer.step#AdamW.step")
    assert len(steps) == len(updates) == 3 or len(steps) == len(updates) == 2
    # Evaluation reads from the loader as well: two batches of eight rows.
    assert len(names(path, "enumerate(DataLoader)")) <= len(steps) + 1


def test_trainer_goes_on_after_a_checkpoint_and_a_short_training_warns(
    tmp_path: Path, torch: Any, of_transformers: Any
) -> None:
    saving = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    callback = of_transformers(tmp_path / "runs", active=3, diagnose=False)
    with pytest.warns(RecordingWarning, match="only the first iteration"):
        trainer(torch, tmp_path, callback, **saving).train()
    assert len(traces(tmp_path / "runs")) == 1
    longer = trainer(torch, tmp_path, callback, **{**saving, "save_strategy": "no", "max_steps": 9})
    longer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert len(traces(tmp_path / "runs")) == 2
    assert len(names(callback.path, "ProfilerStep#")) == 3
    (told,) = [log for log in longer.state.log_history if "torchtraceap/findings" in log]
    assert told["step"] == 7  # two of the checkpoint, five of the plan


def test_trainer_can_be_watched(tmp_path: Path, torch: Any, of_transformers: Any) -> None:
    library("tensorboard")
    callback = of_transformers(tmp_path / "runs", every=0.05, budget=1.0, steps=2)
    run = trainer(torch, tmp_path, callback, max_steps=20_000, report_to=["tensorboard"])
    watch = callback.stepper.recording

    class Enough(library("transformers").TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = bool(watch.rows)

    run.add_callback(Enough())
    run.train()
    assert watch.rows and callback.path == tmp_path / "runs" / "watch.jsonl"
    told = [log for log in run.state.log_history if "torchtraceap/findings" in log]
    assert [log["step"] for log in told] == [row["step"] for row in watch.rows]
    assert list((tmp_path / "out" / "runs" / "torchtraceap").glob("events*"))


# ------------------------------------------------------------------------- accelerate


def accelerated(torch: Any, folder: Path, accelerator: Any, steps: int = 12, **options: Any) -> Any:
    from torchtraceap.record.integrations.accelerate import profile as accelerate_profile

    model = torch.nn.Linear(16, 1)
    data = torch.utils.data.DataLoader(torch.randn(4 * steps, 16), batch_size=4)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data
    )
    with accelerate_profile(accelerator, folder, **options) as p:
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).pow(2).mean())
                optimizer.step()
                optimizer.zero_grad()
            p.step()
    return p


def test_accelerate_counts_steps_of_the_optimizer(tmp_path: Path, torch: Any) -> None:
    accelerate = library("accelerate")
    library("tensorboard")
    accelerator = accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=2, log_with="tensorboard", project_dir=tmp_path / "tb"
    )
    accelerator.init_trackers("run")
    p = accelerated(torch, tmp_path / "runs", accelerator, active=3, diagnose=False, steps=16)
    accelerator.end_training()
    (path,) = traces(tmp_path / "runs")
    assert len(names(path, "ProfilerStep#")) == 3
    assert len(names(path, "enumerate(DataLoader)")) >= 5
    assert len(names(path, "Optimizer.step#")) == 3
    assert p.diagnosis.summary.step.steps >= 2
    assert "torchtraceap/findings" in scalars(tmp_path / "tb")


def test_an_error_in_an_accelerated_loop_passes(tmp_path: Path, torch: Any) -> None:
    library("accelerate")
    from torchtraceap.record.integrations.accelerate import profile as accelerate_profile

    class Accelerator:
        sync_gradients = True
        trackers = ()

    step = slow_optimizer_step(torch)
    with (
        pytest.warns(RecordingWarning, match="ended with KeyError"),
        pytest.raises(KeyError, match="data"),
        accelerate_profile(Accelerator(), tmp_path) as p,
    ):
        step()
        p.step()
        raise KeyError("data")
    assert len(traces(tmp_path)) == 1


def test_accelerates_own_profile_takes_our_handler(tmp_path: Path, torch: Any) -> None:
    accelerate = library("accelerate")
    from torchtraceap.record.integrations.accelerate import profile_kwargs

    accelerator = accelerate.Accelerator(cpu=True, kwargs_handlers=[profile_kwargs(tmp_path)])
    step = slow_optimizer_step(torch)
    with accelerator.profile() as p:
        for _ in range(8):
            step()
            p.step()
    (path,) = traces(tmp_path)
    assert len(names(path, "ProfilerStep#")) == 3


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Steps and values by name, of all event files below."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: dict[str, list[tuple[int, float]]] = {}
    for file in sorted(folder.rglob("events.out*")):
        events = EventAccumulator(str(file))
        events.Reload()
        for tag in events.Tags()["scalars"]:
            found.setdefault(tag, []).extend((e.step, e.value) for e in events.Scalars(tag))
    return found


RANKS = """
import os, sys
import torch
from accelerate import Accelerator
from torchtraceap.record.integrations.accelerate import profile

torch.set_num_threads(1)
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(64, 64)
data = torch.utils.data.DataLoader(torch.randn(800, 64), batch_size=4)
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.SGD(model.parameters(), lr=0.1), data
)
with profile(accelerator, sys.argv[1], diagnose=False) as p:
    for batch in loader:
        accelerator.backward(model(batch).pow(2).mean())
        optimizer.step()
        optimizer.zero_grad()
        p.step()
if accelerator.is_main_process:
    print("RANKS", [file.rank for file in p.diagnosis.summary.files], flush=True)
accelerator.wait_for_everyone()
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)  # gloo's threads may outlive the interpreter, which then aborts now and then
"""


@pytest.mark.slow  # starts processes that import torch
def test_ranks_under_torchrun_choose_the_same_steps(tmp_path: Path, torch: Any) -> None:
    library("accelerate")
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    program = tmp_path / "train.py"
    program.write_text(RANKS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(program), str(tmp_path / "runs")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "RANKS [0, 1]" in done.stdout and "RecordingWarning" not in done.stderr
    first, second = (names(path, "ProfilerStep#") for path in traces(tmp_path / "runs"))
    assert first == second and 3 <= len(first) <= 20


# ------------------------------------------------------------------------- lightning


def lightning_parts(torch: Any) -> tuple[Any, Any]:
    lightning = library("lightning.pytorch")

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(16, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.layer(batch).pow(2).mean()

        def validation_step(self, batch: Any, index: int) -> None:
            with torch.profiler.record_function("validated"):
                self.layer(batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(torch.randn(64, 16), batch_size=4)

        val_dataloader = train_dataloader

    return lightning, Module()


def test_lightning_is_recorded_without_its_validations(tmp_path: Path, torch: Any) -> None:
    lightning, module = lightning_parts(torch)
    library("tensorboard")
    from lightning.pytorch.loggers import TensorBoardLogger

    from torchtraceap.record.integrations.lightning import TraceCallback

    # The validation after the eighth step cuts the recording short; the next epoch has room.
    callback = TraceCallback(tmp_path / "runs", wait=5, active=3, diagnose=False)
    lightning.Trainer(
        accelerator="cpu",
        max_epochs=2,
        accumulate_grad_batches=2,
        logger=TensorBoardLogger(tmp_path / "tb"),
        callbacks=[callback],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    ).fit(module)
    (path,) = traces(tmp_path / "runs")
    steps = names(path, "ProfilerStep#")
    assert len(steps) == 3 and len(names(path, "Optimizer.step#")) == 3
    assert names(path, "validated") == []
    assert callback.diagnosis is not None
    ((step, _),) = scalars(tmp_path / "tb")["torchtraceap/findings"]
    assert step == 13


def test_lightning_ends_a_recording_with_an_error(tmp_path: Path, torch: Any) -> None:
    lightning, module = lightning_parts(torch)
    from torchtraceap.record.integrations.lightning import TraceCallback

    module.training_step = lambda *_: 1 / 0
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=5,
        logger=False,
        callbacks=[TraceCallback(tmp_path)],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    with warnings.catch_warnings(record=True) as told, pytest.raises(ZeroDivisionError):
        warnings.simplefilter("always", RecordingWarning)
        trainer.fit(module)
    assert any("ended with ZeroDivisionError" in str(each.message) for each in told)
    with profile(tmp_path / "next", diagnose=False):  # the profiler is free
        pass


# ------------------------------------------------------------------------- deepspeed


class Engine:
    """What a hook asks of a DeepSpeed engine."""

    def __init__(self, step: Any) -> None:
        self._train = step
        self.micro_steps = 0
        self.global_steps = 0
        self.events: list[Any] = []
        self.monitor = self
        self.enabled = True

    @property
    def global_samples(self) -> int:
        return 4 * self.micro_steps

    def is_gradient_accumulation_boundary(self) -> bool:
        return (self.micro_steps + 1) % 2 == 0

    def write_events(self, events: list[Any]) -> None:
        self.events += events

    def step(self) -> str:
        self._train()
        self.global_steps += self.is_gradient_accumulation_boundary()
        self.micro_steps += 1
        return "stepped"


def test_a_hook_counts_steps_at_the_boundary_of_accumulation(tmp_path: Path, torch: Any) -> None:
    from torchtraceap.record.integrations.deepspeed import hook

    engine = Engine(slow_optimizer_step(torch))
    with hook(engine, tmp_path, active=3, diagnose=False) as h:
        for _ in range(16):
            assert engine.step() == "stepped"
    assert "step" not in vars(engine)
    (path,) = traces(tmp_path)
    assert len(names(path, "ProfilerStep#")) == 3
    assert len(names(path, "Optimizer.step#")) == 6
    assert h.diagnosis is not None
    assert "torchtraceap/findings" in [name for name, _, _ in engine.events]


DEEPSPEED = """
import sys, os, torch, deepspeed
import torchtraceap as ttap
from torchtraceap.record.integrations.deepspeed import hook
torch.set_num_threads(1)
model = torch.nn.Linear(16, 1)
engine, *_ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "Adam", "params": {"torch_adam": True, "lr": 0.01}},
        "zero_optimization": {"stage": 1},
    },
)
with hook(engine, sys.argv[1], active=3, diagnose=False) as h:
    for _ in range(16):
        engine.backward(engine(torch.randn(4, 16)).pow(2).mean())
        engine.step()
assert h.diagnosis is not None
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.slow
def test_deepspeed_is_recorded(tmp_path: Path, torch: Any) -> None:
    library("deepspeed")
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    environment |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29591"}
    # A build that was killed leaves a lock in the common folder, for which the next one waits.
    environment["TORCH_EXTENSIONS_DIR"] = str(tmp_path / "built")
    done = subprocess.run(
        [sys.executable, "-c", DEEPSPEED, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (path,) = traces(tmp_path)
    assert len(names(path, "ProfilerStep#")) == 3
    assert len(names(path, "enumerate(DataLoader)")) == 0


def test_integrations_are_found_on_the_package() -> None:
    from torchtraceap.record import integrations

    assert integrations.accelerate.profile is not None
    assert {"accelerate", "lightning"} <= set(dir(integrations))
    with pytest.raises(AttributeError, match="keras"):
        _ = integrations.keras
    assert ttap.errors is not None


def test_an_error_inside_of_lightning_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not "needs lightning" alone, where it is installed and its own import fails."""
    package = tmp_path / "lightning"
    package.mkdir()
    (package / "__init__.py").write_text("", "utf-8")
    (package / "pytorch.py").write_text("import no_such_module_of_lightning\n", "utf-8")
    name = "torchtraceap.record.integrations.lightning"
    for module in [name, *(m for m in sys.modules if m.split(".")[0].endswith("lightning"))]:
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(MissingDependencyError, match="no_such_module_of_lightning"):
        importlib.import_module(name)
