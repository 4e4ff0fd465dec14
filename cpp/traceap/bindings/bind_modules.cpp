#include "traceap/bindings/handles.hpp"

namespace traceap::bindings {

void bind_modules(py::module_&) {}

}  // namespace traceap::bindings
