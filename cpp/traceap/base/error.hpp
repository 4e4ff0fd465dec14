#pragma once
// Errors for input that is unusable as a whole. A single bad event is never an exception: it is
// counted in Diagnostics.

#include <cassert>
#include <cstdint>
#include <stdexcept>
#include <string>

#define TRACEAP_ASSERT(condition) assert(condition)

namespace traceap {

/// Base of everything that this library throws on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The bytes are not a trace: message says what was expected, what came, and where.
class ParseError : public Error {
 public:
  ParseError(const std::string& path, std::uint64_t byte_offset, const std::string& message)
      : Error(path + ": byte " + std::to_string(byte_offset) + ": " + message) {}
  using Error::Error;
};

/// A table, tree or option does not have the shape that a function needs.
class SchemaError : public Error {
 public:
  using Error::Error;
};

/// An option value outside its range.
class OptionError : public Error {
 public:
  using Error::Error;
};

}  // namespace traceap
