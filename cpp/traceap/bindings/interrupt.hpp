#pragma once
// How Ctrl-C reaches work that runs in the core.

#include <pybind11/pybind11.h>

#include "traceap/base/interrupt.hpp"

namespace traceap::bindings {

namespace py = pybind11;

/// Throws what Python raises for a signal that has come (on its main thread), or KeyboardInterrupt
/// where this thread's work was cancelled. Called without Python's lock.
void check_python();

/// Lets go of Python's lock while the core computes, and lets Ctrl-C stop it there.
class Unlocked {
 public:
  Unlocked() : polls_(check_python) {}

 private:
  py::gil_scoped_release released_;
  InterruptScope polls_;
};

void bind_interrupt(py::module_& module);

}  // namespace traceap::bindings
