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
/// What a pass through a model takes is there before it begins, in one group without kernels
/// between. So many uploads behind that one are made on the way: a loss uploads a few targets.
constexpr std::int64_t kMinBehindFirstBurst = 7;

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

/// Uploads behind the first group of a pass, the most of all passes of a step; median over the
/// steps behind the first. A pass ends where a kernel of the backward pass runs: each of several
/// microbatches has its own uploads. Small ones beside large ones are part of what is uploaded
/// there.
std::int64_t typical_behind_first_burst(const Signals& signals,
                                        const std::vector<const Copy*>& uploads) {
  const EventTree& tree = signals.tree;
  std::vector<std::int64_t> most(tree.steps.size(), 0);
  std::int64_t in_burst = 0, in_pass = 0, first_burst = 0;
  std::uint32_t step = kNoStep, step_of_burst = kNoStep;
  auto next = uploads.begin();
  bool large = false;
  for (Row r : tree.gpu_rows) {
    if (next != uploads.end() && r == (*next)->row) {
      step_of_burst = tree.step[(*next)->launch];
      ++in_burst;
      ++next;
    } else if (tree.copy_direction[r] == CopyDirection::kHostToDevice) {
      large = true;
    } else if (tree.gpu_class[r] == GpuClass::kCompute) {
      if (step_of_burst != kNoStep && !large) {
        if (step_of_burst != step) in_pass = 0;
        step = step_of_burst;
        if (in_pass == 0) first_burst = in_burst;
        in_pass += in_burst;
        most[step] = std::max(most[step], in_pass - first_burst);
      }
      step_of_burst = kNoStep;
      in_burst = 0;
      large = false;
      if (tree.phase[r] == Phase::kBackward) in_pass = 0;
    }
  }
  return median_of(std::span(most).subspan(1));
}

bool are_too_many(const Signals& signals, const std::vector<const Copy*>& uploads) {
  if (signals.tree.steps.size() < 2) return count_bursts(signals, uploads) >= kMinBursts;
  return typical_per_step(signals, uploads) >= kMinPerStep ||
         typical_behind_first_burst(signals, uploads) >= kMinBehindFirstBurst;
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
