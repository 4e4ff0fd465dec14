#pragma once
// The network of the TorchTraceAP paper. docs/scorers.md says how its ambiguous places are read;
// python/torchtraceap/training/paper_net.py is the same network for training, with the same names
// of weights.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "traceap/model/networks/weights.hpp"

namespace traceap {

struct PaperConfig {
  std::int64_t text_width = 384;  ///< of a name's vector
  std::int64_t width = 128;       ///< d; tokens and windows have 2d
  std::int64_t layers = 6, heads = 8, feed_forward = 1024;
  std::int64_t platforms = 1;  ///< [0] is the unknown one
  std::int64_t platform_tokens = 4;
  // Table 5: without the adapter names pass a fixed projection, without the transformer a window is
  // the mean of its tokens, without the relation windows don't see each other.
  bool adapter = true, transformer = true, relation = true;
};

/// Tokens in windows in traces; all memory is the caller's. Names are those of all traces, each
/// once.
struct PaperBatch {
  std::span<const float> names;                 ///< [names, text_width]
  std::span<const std::int64_t> trace_offsets;  ///< [traces + 1]: into windows
  std::span<const std::int64_t> platform;       ///< [traces]
  std::span<const std::int64_t> offsets;        ///< [windows + 1]: into tokens
  std::span<const std::int64_t> name, cpu_name, delay_code, duration_code;  ///< [tokens]
  std::span<const float> position, stream;                                  ///< [tokens]
};

class PaperNet {
 public:
  /// `device`: "cpu" or "cuda". Throws SchemaError for weights that don't fit, OptionError for a
  /// device that this build or this machine does not have.
  PaperNet(const PaperConfig& config, std::span<const WeightArray> weights,
           Precision precision = Precision::kFloat32, const std::string& device = "cpu");
  ~PaperNet();
  PaperNet(PaperNet&&) noexcept;

  /// [windows]: how likely each is part of a fault, in [0, 1]. A window without tokens has a score
  /// too. Throws SchemaError for arrays that don't fit each other.
  std::vector<float> score(const PaperBatch& batch) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace traceap
