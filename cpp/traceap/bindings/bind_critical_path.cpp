#include "traceap/bindings/handles.hpp"

namespace traceap::bindings {

void bind_critical_path(py::module_&) {}

}  // namespace traceap::bindings
