"""The profiler of a whole program from its import of torch on; Python imports this file at startup.

Note [A guest]: this runs in somebody's program, maybe of another environment where this package is
not installed. So it imports nothing of the package, a failure of its own never shows, and the
program's own `sitecustomize` still runs. Processes that the program starts are not profiled: they
inherit neither the variable nor the path. What is written is raw; who asked for it cleans it.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import os
import sys
from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_VARIABLE = "TORCHTRACEAP_WHOLE"
_NAME = "_torchtraceap_injected"  # record/torch_access.py uses this name


class _Recorder:
    """The profiler, which runs from the import of torch to the end of the process unless it gives
    up."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.process = os.getpid()
        self.profiler: Any = None
        self.restore: list[Any] = []

    def start(self, torch: Any) -> None:
        import torch.profiler as profiling

        supported = profiling.supported_activities()
        wanted = [profiling.ProfilerActivity.CPU]
        if profiling.ProfilerActivity.CUDA in supported and torch.cuda.is_available():
            wanted.append(profiling.ProfilerActivity.CUDA)
        profiler = profiling.profile(activities=wanted, record_shapes=True, profile_memory=True)
        profiler.start()
        self.profiler = profiler
        self._watch_others(torch.autograd.profiler.profile)
        self._watch_exit()
        atexit.register(self.finish)

    def _watch_others(self, kind: Any) -> None:
        """Watch for other profilers: all of torch's are made of this class, and the program's own
        goes first."""
        original = kind.__init__

        def init(this: Any, *args: Any, **kwargs: Any) -> None:
            self.give_up()
            original(this, *args, **kwargs)

        kind.__init__ = init
        self.restore.append(lambda: setattr(kind, "__init__", original))

    def _watch_exit(self) -> None:
        original = os._exit

        def leave(status: int) -> Any:
            self.finish()
            original(status)

        os._exit = leave
        self.restore.append(lambda: setattr(os, "_exit", original))

    def _stop(self) -> Any:
        profiler, self.profiler = self.profiler, None
        while self.restore:
            self.restore.pop()()
        if profiler is not None and os.getpid() == self.process:
            profiler.stop()
            return profiler
        return None

    def give_up(self) -> None:
        with contextlib.suppress(Exception):
            self._stop()

    def finish(self) -> None:
        with contextlib.suppress(Exception):
            profiler = self._stop()
            if profiler is not None:
                growing = self.target + ".growing.json"
                profiler.export_chrome_trace(growing)
                os.replace(growing, self.target)


class _Finder:
    """An import hook that notices the import of torch."""

    def __init__(self, recorder: _Recorder) -> None:
        self.recorder = recorder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                with contextlib.suppress(Exception):
                    self.recorder.start(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _hide_from_children() -> None:
    """Hide this recorder from processes that the program starts."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    others = [each for each in inherited if os.path.abspath(each or ".") != _FOLDER or not each]
    if any(others):
        os.environ["PYTHONPATH"] = os.pathsep.join(others)
    else:
        os.environ.pop("PYTHONPATH", None)
    sys.path[:] = [each for each in sys.path if os.path.abspath(each or ".") != _FOLDER or not each]


def _run_hidden_module() -> None:
    """Run the `sitecustomize` module that ours hides."""
    ours = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        if ours is not None:
            sys.modules["sitecustomize"] = ours


def _begin() -> None:
    target = os.environ.pop(_VARIABLE, None)
    _hide_from_children()
    if target:
        recorder = _Recorder(target)
        sys.modules[_NAME] = recorder  # type: ignore[assignment]
        sys.meta_path.insert(0, _Finder(recorder))
    _run_hidden_module()


if _VARIABLE in os.environ:  # else the module is imported from the package
    _begin()
