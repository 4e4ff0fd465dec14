#pragma once
// Exchanges of tokens with the ranks of their experts, and how long this rank waits in each.

#include <optional>
#include <vector>

#include "traceap/detect/finding.hpp"

namespace traceap {

struct Exchange {
  Row row;
  CollectiveKind kind;                  ///< dispatch or combine
  std::optional<std::int64_t> wait_ns;  ///< see Note [Kernels that wait inside]; empty if not told
  /// Place among the dispatches, or combines, of one graph replay or iteration, from 0.
  std::uint32_t place;
  std::uint32_t pass;              ///< which replay or iteration, by start
  std::int64_t last_rank = kNoId;  ///< number of the rank that came last; kNoId if not told
};

/// By start.
std::vector<Exchange> find_exchanges(const Signals& signals);

}  // namespace traceap
