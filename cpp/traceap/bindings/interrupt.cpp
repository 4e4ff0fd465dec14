// Note [Interrupts]: Python's own handler marks a signal and raises KeyboardInterrupt on the main
// thread when the interpreter runs again. Work in the core asks for that at its polls. Threads that
// work for the main thread are told through a Cancellation. What neither polls nor returns (one
// long call of NumPy or of the operating system, freeing gigabytes) would still keep the command
// line waiting, so that has a watcher: a thread of ours, which needs no lock of Python's, ends the
// process where Ctrl-C has not done so after a moment.

#include "traceap/bindings/interrupt.hpp"

#include <pybind11/stl/filesystem.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace traceap::bindings {
namespace {

/// Shared by a caller and the threads that work for it.
class Cancellation {
 public:
  void cancel() { cancelled_ = true; }
  bool cancelled() const { return cancelled_; }

 private:
  std::atomic<bool> cancelled_ = false;
};

/// Of the work that this thread does now; the outer ones below it.
thread_local std::vector<std::shared_ptr<Cancellation>> cancellations;

void bind_cancellation(py::module_& module) {
  using Shared = std::shared_ptr<Cancellation>;
  py::class_<Cancellation, Shared>(
      module, "Cancellation",
      "Stops work on other threads: calls into the core inside `with cancellation:` raise "
      "KeyboardInterrupt soon after `cancel`.")
      .def(py::init<>(), "Not cancelled.")
      .def("cancel", &Cancellation::cancel, "From any thread.")
      .def("__enter__", [](const Shared& self) { cancellations.push_back(self); })
      .def(
          "__exit__",
          [](const Shared&, const py::object&, const py::object&, const py::object&) {
            cancellations.pop_back();
          },
          py::arg("kind"), py::arg("error"), py::arg("traceback"));
}

// ---- the command line's watcher, see Note [Interrupts]

class Watcher {
 public:
  static Watcher& instance() {
    static auto* watcher = new Watcher;  // its thread lives as long as the process
    return *watcher;
  }

  void start(int descriptor, std::chrono::milliseconds grace, std::string message) {
    message_ = std::move(message);
    std::thread([this, descriptor, grace] { watch(descriptor, grace); }).detach();
  }
  void say() {
    if (said_.exchange(true)) return;
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, message_.data(), message_.size());
  }
  void keep_scratch(std::filesystem::path folder) {
    const std::lock_guard lock(mutex_);
    scratch_.push_back(std::move(folder));
  }
  void drop_scratch(const std::filesystem::path& folder) {
    const std::lock_guard lock(mutex_);
    std::erase(scratch_, folder);
  }

 private:
  void watch(int descriptor, std::chrono::milliseconds grace) {
    unsigned char number = 0;
    for (;;) {
      const auto got = ::read(descriptor, &number, 1);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return;
      if (number == SIGINT || number == SIGTERM) break;
    }
    std::this_thread::sleep_for(grace);
    say();
    const std::lock_guard lock(mutex_);
    for (const auto& folder : scratch_) {
      std::error_code ignored;
      std::filesystem::remove_all(folder, ignored);
    }
    ::_exit(128 + number);
  }

  std::string message_;
  std::atomic<bool> said_ = false;
  std::mutex mutex_;
  std::vector<std::filesystem::path> scratch_;
};

}  // namespace

void check_python() {
  for (const auto& cancellation : cancellations) {
    if (!cancellation->cancelled()) continue;
    const py::gil_scoped_acquire acquire;
    PyErr_SetNone(PyExc_KeyboardInterrupt);
    throw py::error_already_set();
  }
  const py::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

void bind_interrupt(py::module_& module) {
  bind_cancellation(module);
  module.def(
      "watch_interrupts",
      [](int descriptor, int grace_ms, const std::string& message) {
        Watcher::instance().start(descriptor, std::chrono::milliseconds(grace_ms), message);
      },
      py::arg("descriptor"), py::arg("grace_ms"), py::arg("message"),
      "Reads signal numbers from a descriptor (signal.set_wakeup_fd). Where the process still runs "
      "`grace_ms` after a SIGINT or SIGTERM it is ended, with 128 and the signal: folders of "
      "`keep_scratch` are "
      "removed, nothing else is cleaned up. Once in a process.");
  module.def(
      "say_interrupted", [] { Watcher::instance().say(); },
      "Writes the message of `watch_interrupts` to standard error, once.");
  module.def(
      "keep_scratch",
      [](const std::filesystem::path& folder) { Watcher::instance().keep_scratch(folder); },
      py::arg("folder"), "A folder that must not outlive an interrupted process.");
  module.def(
      "drop_scratch",
      [](const std::filesystem::path& folder) { Watcher::instance().drop_scratch(folder); },
      py::arg("folder"), "It is gone.");
}

}  // namespace traceap::bindings
