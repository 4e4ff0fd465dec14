// Copies from or to pinned memory that run far below what the link gave others of the same trace.
//
// The fastest transfers of a trace show what its link gives. A slow one shares it with other
// traffic, reads memory of the other socket, or goes through a link that has fallen back. Cost: the
// time beyond what its bytes would have taken at that speed, where no kernel covers it.

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "traceap/base/sums.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// The speed is what was lost, and all of it comes back where the link is free; who disturbs it the
/// trace does not say.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdleOrExposed, .best = 0.7};
/// Below it the start of a transfer, some microseconds, is a part of its time.
constexpr std::int64_t kLeastBytes = 1 << 20;
/// Traffic of kernels and of the other direction takes a tenth or two.
constexpr double kSlowShare = 0.6;
/// So many transfers must reach a speed: one alone may be a wrong record.
constexpr std::size_t kWitnesses = 3;
/// Once is no pattern.
constexpr std::size_t kMinRepeats = 2;

/// Copies of one device and direction that share the link: they overlap in time.
struct Transfer {
  Interval time{0, 0};
  std::int64_t bytes = 0;
  std::vector<Row> rows;
  bool sized = true;  ///< all say how many bytes they carry
  bool pinned = true;
  bool known = true;  ///< the kind of host memory is recorded
  double rate() const {
    return static_cast<double>(bytes) /
           static_cast<double>(std::max<std::int64_t>(time.length_ns(), 1));
  }
};

/// By device and direction, each by start.
using Links = std::map<std::pair<std::int32_t, CopyDirection>, std::vector<Transfer>>;

void add(const Signals& signals, const Copy& copy, std::vector<Transfer>& transfers) {
  const Interval time = interval_of(signals.table, copy.row);
  if (transfers.empty() || time.start_ns >= transfers.back().time.end_ns) {
    transfers.push_back({.time = time});
  }
  Transfer& transfer = transfers.back();
  transfer.time.end_ns = std::max(transfer.time.end_ns, time.end_ns);
  transfer.rows.push_back(copy.row);
  add_to(transfer.bytes, copy.bytes.value_or(0));
  transfer.sized = transfer.sized && copy.bytes.has_value();
  transfer.pinned = transfer.pinned && copy.kind.memory == HostMemory::kPinned;
  transfer.known = transfer.known && copy.kind.memory != HostMemory::kUnknown;
}

Links find_links(const Signals& signals) {
  Links links;
  for (const Copy& copy : signals.copies) {
    if (!is_host_device(copy.kind.direction) || !in_profile(signals, copy.row)) continue;
    add(signals, copy, links[{signals.table.device[copy.row], copy.kind.direction}]);
  }
  return links;
}

/// Bytes per ns that kWitnesses transfers reach; 0 where there are fewer.
double speed_of(const std::vector<Transfer>& transfers) {
  std::array<double, kWitnesses> fastest{};  // descending
  for (const Transfer& transfer : transfers) {
    const double rate = transfer.rate();
    if (rate <= fastest.back()) continue;
    fastest.back() = rate;
    std::sort(fastest.begin(), fastest.end(), std::greater<>());
  }
  return fastest.back();
}

/// The last part of the exposed time that the transfer takes beyond its bytes at this speed.
void add_excess(const Signals& signals, const Transfer& transfer, double speed, Draft& draft) {
  const auto needed_ns =
      static_cast<std::int64_t>(std::ceil(static_cast<double>(transfer.bytes) / speed));
  std::int64_t left_ns = transfer.time.length_ns() - needed_ns;
  const IntervalSet exposed = set_difference(std::span(&transfer.time, 1), signals.gpu.compute);
  for (auto part = exposed.rbegin(); part != exposed.rend() && left_ns > 0; ++part) {
    const std::int64_t taken_ns = std::min(left_ns, part->length_ns());
    draft.cost.push_back({part->end_ns - taken_ns, part->end_ns});
    left_ns -= taken_ns;
  }
}

enum class Memory : std::uint8_t { kPinned, kPinnedOrUnknown };

Finding judge(const Signals& signals, Links links, Memory memory) {
  Draft draft(kSaving);
  std::int64_t bytes = 0, time_ns = 0;
  double fastest = 0.0;
  for (auto& [link, transfers] : links) {
    std::erase_if(transfers, [&](const Transfer& transfer) {
      const bool counts = transfer.known ? transfer.pinned : memory == Memory::kPinnedOrUnknown;
      return !counts || !transfer.sized || transfer.bytes < kLeastBytes;
    });
    const double speed = speed_of(transfers);
    for (const Transfer& transfer : transfers) {
      if (transfer.rate() >= kSlowShare * speed) continue;
      add_excess(signals, transfer, speed, draft);
      draft.evidence.insert(draft.evidence.end(), transfer.rows.begin(), transfer.rows.end());
      add_to(bytes, transfer.bytes);
      add_to(time_ns, transfer.time.length_ns());
      fastest = std::max(fastest, speed);
    }
  }
  if (draft.evidence.size() < kMinRepeats) return absent(0.6);  // all may be slow
  draft.confidence = 0.8;
  draft.count("copies", draft.evidence.size());
  draft.rate("GB per s",
             static_cast<double>(bytes) / static_cast<double>(std::max<std::int64_t>(time_ns, 1)));
  draft.rate("GB per s of others", fastest);
  return finish_finding(signals, std::move(draft));
}

/// Could copies without a size be slow enough to matter?
bool is_open_without_sizes(const Signals& signals, const Links& links) {
  std::vector<Interval> unsized;
  for (const auto& [link, transfers] : links) {
    for (const Transfer& transfer : transfers) {
      if (!transfer.sized && transfer.pinned) unsized.push_back(transfer.time);
    }
  }
  const IntervalSet exposed = set_difference(
      set_clip(make_union(std::move(unsized)), signals.profiled), signals.gpu.compute);
  return is_material(signals, total_length_ns(exposed));
}

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  const Links links = find_links(signals);
  Finding finding = judge(signals, links, Memory::kPinned);
  if (finding.verdict == Verdict::kPresent) return finding;
  if (is_open_without_sizes(signals, links)) return abstain({"sizes of the copies"});
  if (judge(signals, links, Memory::kPinnedOrUnknown).verdict == Verdict::kPresent) {
    return abstain({"pinned or pageable in copy names"});
  }
  return finding;
}

}  // namespace

namespace rules {
extern constexpr Rule slow_copies{.type = "slow_copies", .saving = kSaving, .detect = detect};
}

}  // namespace traceap
