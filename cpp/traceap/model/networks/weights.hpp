#pragma once
// What a network is made from: named arrays, as a file of weights has them.

#include <cstdint>
#include <string>
#include <vector>

namespace traceap {

/// Row-major; the memory is the caller's and is copied.
struct WeightArray {
  std::string name;
  std::vector<std::int64_t> shape;
  const float* data;
};

/// In what the window encoder computes; everything else is float32.
enum class Precision : std::uint8_t { kFloat32 = 0, kBfloat16 };

}  // namespace traceap
