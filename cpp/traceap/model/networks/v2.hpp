#pragma once
// `v2`: windows of a trace from their features and events. The same network for training, with the
// same names of weights, is python/torchtraceap/training/v2_net.py, which says why it is so.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "traceap/model/networks/weights.hpp"

namespace traceap {

struct V2Shape {
  std::int64_t features = 0;              ///< columns of the windows
  std::int64_t types = 0;                 ///< columns of V2Scores::types
  std::vector<std::int64_t> token_codes;  ///< values of each code; empty: no tokens
  std::int64_t token_numbers = 0, name_width = 0;
  std::int64_t token_width = 0, token_layers = 0;
  std::int64_t width = 0, heads = 0, layers = 0, reach = 0;
};

/// One trace; all memory is the caller's.
struct V2Trace {
  std::int64_t windows = 0;
  std::span<const float> features;               ///< [windows, features]
  std::span<const std::int64_t> window;          ///< [tokens], ascending
  std::span<const std::int64_t> codes;           ///< [tokens, codes]
  std::span<const float> numbers;                ///< [tokens, token_numbers]
  std::span<const std::int64_t> name, cpu_name;  ///< [tokens]: rows of names
  std::span<const float> names;                  ///< [names, name_width]
};

/// Logits, but for severity.
struct V2Scores {
  std::vector<float> any;       ///< [windows]: time is lost
  std::vector<float> types;     ///< [windows, types]
  std::vector<float> severity;  ///< [windows]: the part that is lost, 0 to 1
  float trace = 0;              ///< the trace has a fault
  std::vector<float> tokens;    ///< [tokens]; any has log(1 + sum of exp of them)
};

class V2Net {
 public:
  /// `device`: "cpu" or "cuda". Throws SchemaError for weights that don't fit, OptionError for a
  /// device that this build or this machine does not have.
  V2Net(const V2Shape& shape, std::span<const WeightArray> weights,
        const std::string& device = "cpu");
  ~V2Net();
  V2Net(V2Net&&) noexcept;

  /// Throws SchemaError for arrays that don't fit each other or the shape.
  V2Scores score(const V2Trace& trace) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace traceap
