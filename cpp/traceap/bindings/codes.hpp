#pragma once
// Enums of the core as IntEnums, so that Python compares a column with a member and never with a
// number or a name.

#include <pybind11/native_enum.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "traceap/bindings/columns.hpp"

namespace traceap::bindings {

/// Binds an enum with the values 0 to `count` - 1; members have the names in capitals.
template <typename Enum, typename NameOf>
void bind_codes(py::module_& module, const char* type, int count, NameOf name_of, const char* doc) {
  py::native_enum<Enum> codes(module, type, "enum.IntEnum", doc);
  for (int code = 0; code < count; ++code) {
    std::string name(name_of(static_cast<Enum>(code)));
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    codes.value(name.c_str(), static_cast<Enum>(code));
  }
  codes.finalize();
}

}  // namespace traceap::bindings
