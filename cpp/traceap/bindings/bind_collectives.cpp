#include "traceap/bindings/handles.hpp"

namespace traceap::bindings {

void bind_collectives(py::module_&) {}

}  // namespace traceap::bindings
