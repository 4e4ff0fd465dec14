#include "traceap/bindings/handles.hpp"

namespace traceap::bindings {

void bind_launches(py::module_&) {}

}  // namespace traceap::bindings
