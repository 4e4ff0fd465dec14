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
/// What a pass through a model takes is there before it begins. In so many groups with kernels
/// between them it is made on the way, however few tensors that are: a loss uploads its targets in
/// some more groups, a model that makes constants in its layers in as many as it has layers.
constexpr std::int64_t kMinBurstsPerPass = 8;

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

/// Groups as above in the longest pass of a step, median over the steps behind the first. A pass
/// ends where a kernel of the backward pass runs: each of several microbatches has its own uploads.
/// Small ones beside large ones are part of what is uploaded there.
std::int64_t typical_bursts_per_pass(const Signals& signals,
                                     const std::vector<const Copy*>& uploads) {
  const EventTree& tree = signals.tree;
  std::vector<std::int64_t> most(tree.steps.size(), 0);
  std::int64_t bursts = 0;
  std::uint32_t step = kNoStep, step_of_burst = kNoStep;
  auto next = uploads.begin();
  bool large = false;
  for (Row r : tree.gpu_rows) {
    if (next != uploads.end() && r == (*next)->row) {
      step_of_burst = tree.step[(*next)->launch];
      ++next;
    } else if (tree.copy_direction[r] == CopyDirection::kHostToDevice) {
      large = true;
    } else if (tree.gpu_class[r] == GpuClass::kCompute) {
      if (step_of_burst != kNoStep && !large) {
        if (step_of_burst != step) bursts = 0;
        step = step_of_burst;
        most[step] = std::max(most[step], ++bursts);
      }
      step_of_burst = kNoStep;
      large = false;
      if (tree.phase[r] == Phase::kBackward) bursts = 0;
    }
  }
  return median_of(std::span(most).subspan(1));
}

bool are_too_many(const Signals& signals, const std::vector<const Copy*>& uploads) {
  const auto count = static_cast<std::int64_t>(uploads.size());
  if (signals.tree.steps.size() < 2) {
    return count >= kMinPerStep && count_bursts(signals, uploads) >= kMinBursts;
  }
  if (count < kMinBurstsPerPass) return false;
  return typical_per_step(signals, uploads) >= kMinPerStep ||
         typical_bursts_per_pass(signals, uploads) >= kMinBurstsPerPass;
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
