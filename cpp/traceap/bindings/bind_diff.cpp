#include "traceap/bindings/handles.hpp"

namespace traceap::bindings {

void bind_diff(py::module_&) {}

}  // namespace traceap::bindings
