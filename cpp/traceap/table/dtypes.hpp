#pragma once
// Types of tensor elements by the names that traces give them: the only table of them in C++.

#include <cstdint>
#include <string_view>

namespace traceap {

struct ElementType {
  std::string_view spelling;  ///< in small letters, without a namespace
  std::string_view dtype;     ///< torch's name, such as "bfloat16"
  std::int64_t bytes;
};

/// The type that c10d writes as "dtype" ("Half", "BFloat16") or the profiler as "Input type"
/// ("c10::Half", "long int"); nullptr if it is not known. Lives as long as the program.
const ElementType* element_type(std::string_view name);

}  // namespace traceap
