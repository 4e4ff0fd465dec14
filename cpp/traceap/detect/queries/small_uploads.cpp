#include "traceap/detect/queries/small_uploads.hpp"

#include <algorithm>
#include <span>

#include "traceap/base/statistics.hpp"
#include "traceap/detect/evidence.hpp"

namespace traceap {
namespace {

/// A batch of a recommendation model comes in some fifty tensors (26 features with indices and
/// offsets, labels), any other in fewer.
constexpr std::int64_t kMinPerStep = 64;
/// Without steps: kernels must have run between them so often.
constexpr std::size_t kMinBursts = 10;

std::vector<const Copy*> unpinned_uploads(const Signals& signals, bool unsized_are_small) {
  std::vector<const Copy*> uploads;
  for (const Copy& copy : signals.copies) {
    const std::int64_t bytes = copy.bytes.value_or(unsized_are_small ? 0 : kSmallUploadBytes);
    if (copy.kind.direction == CopyDirection::kHostToDevice &&
        copy.kind.memory != HostMemory::kPinned && bytes < kSmallUploadBytes &&
        copy.launch != kNoRow && in_profile(signals, copy.row)) {
      uploads.push_back(&copy);
    }
  }
  return uploads;
}

/// Median over the steps behind the first, which may still set things up.
std::int64_t typical_per_step(const Signals& signals, const std::vector<const Copy*>& uploads) {
  const auto& steps = signals.tree.steps;
  std::vector<std::int64_t> counts(steps.size(), 0);
  for (const Copy* copy : uploads) {
    const std::int64_t time_ns = signals.table.ts_ns[copy->launch];
    const auto after =
        std::upper_bound(steps.begin(), steps.end(), time_ns,
                         [](std::int64_t t, const Step& s) { return t < s.start_ns; });
    if (after != steps.begin()) ++counts[static_cast<std::size_t>(after - steps.begin()) - 1];
  }
  return median_of(std::span(counts).subspan(1));
}

/// Groups of uploads without a compute kernel between them.
std::size_t count_bursts(const Signals& signals, const std::vector<const Copy*>& uploads) {
  std::size_t bursts = 0;
  auto next = uploads.begin();
  bool open = false;
  for (Row r : signals.tree.gpu_rows) {
    if (next == uploads.end()) break;
    if (r == (*next)->row) {
      bursts += open ? 0 : 1;
      open = true;
      ++next;
    } else if (signals.tree.gpu_class[r] == GpuClass::kCompute) {
      open = false;
    }
  }
  return bursts;
}

bool are_too_many(const Signals& signals, const std::vector<const Copy*>& uploads) {
  if (static_cast<std::int64_t>(uploads.size()) < kMinPerStep) return false;
  return signals.tree.steps.size() >= 2 ? typical_per_step(signals, uploads) >= kMinPerStep
                                        : count_bursts(signals, uploads) >= kMinBursts;
}

}  // namespace

SmallUploads find_small_uploads(const Signals& signals) {
  SmallUploads found{.copies = unpinned_uploads(signals, false)};
  if (are_too_many(signals, found.copies)) return found;
  found.copies.clear();
  found.sizes_missing = are_too_many(signals, unpinned_uploads(signals, true));
  return found;
}

}  // namespace traceap
