#include "traceap/table/dtypes.hpp"

#include <string>

#include "traceap/base/text.hpp"

namespace traceap {
namespace {

// python/torchtraceap/dtypes.py holds the same for Python, and a test compares the two.
constexpr ElementType kElementTypes[] = {
    {"float", "float32", 4},
    {"bfloat16", "bfloat16", 2},
    {"half", "float16", 2},
    {"double", "float64", 8},
    {"long", "int64", 8},
    {"long int", "int64", 8},
    {"int", "int32", 4},
    {"short", "int16", 2},
    {"short int", "int16", 2},
    {"byte", "uint8", 1},
    {"unsigned char", "uint8", 1},
    {"char", "int8", 1},
    {"signed char", "int8", 1},
    {"bool", "bool", 1},
    {"uint16", "uint16", 2},
    {"uint32", "uint32", 4},
    {"uint64", "uint64", 8},
    {"unsigned short", "uint16", 2},
    {"unsigned int", "uint32", 4},
    {"unsigned long", "uint64", 8},
    {"complexfloat", "complex64", 8},
    {"complex<float>", "complex64", 8},
    {"complexdouble", "complex128", 16},
    {"complex<double>", "complex128", 16},
    {"float8_e4m3fn", "float8_e4m3fn", 1},
    {"float8_e4m3fnuz", "float8_e4m3fnuz", 1},
    {"float8_e5m2", "float8_e5m2", 1},
    {"float8_e5m2fnuz", "float8_e5m2fnuz", 1},
    {"float8_e8m0fnu", "float8_e8m0fnu", 1},
};
// Kinds that may come: their size is in the name.
constexpr ElementType kOtherFloat8{"float8", "float8", 1};

std::string_view without_namespace(std::string_view name) {
  for (const std::string_view space : {"c10::", "at::"}) {
    if (name.starts_with(space)) return name.substr(space.size());
  }
  return name;
}

}  // namespace

const ElementType* element_type(std::string_view name) {
  const std::string plain = to_lower(without_namespace(name));
  for (const ElementType& type : kElementTypes) {
    if (type.spelling == plain) return &type;
  }
  return plain.starts_with("float8") ? &kOtherFloat8 : nullptr;
}

}  // namespace traceap
