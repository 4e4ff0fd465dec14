#include "traceap/analysis/collectives/peers.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "traceap/base/intervals.hpp"

namespace traceap {
namespace {

/// Largest over mean from which parts of an all-to-all count as uneven (TraceLens's bound).
constexpr double kUneven = 1.2;

/// How much sooner the last but one rank came than the last.
std::int64_t lead_of_last_ns(std::span<const CollectivePart> parts) {
  std::int64_t last = std::numeric_limits<std::int64_t>::min(), before = last;
  for (const CollectivePart& part : parts) {
    before = std::max(before, std::min(last, part.start_ns));
    last = std::max(last, part.start_ns);
  }
  return parts.size() > 1 ? last - before : 0;
}

std::int64_t sum_of(const std::vector<std::int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}, add_saturated);
}

/// Largest over mean of what each rank sends or receives, whichever is more: the fullest rank sets
/// the time where bandwidth decides. Nothing where a rank's sizes are not known.
std::optional<double> imbalance_of(std::span<const CollectivePart> parts) {
  double largest = 0.0, total = 0.0;
  for (const CollectivePart& part : parts) {
    const Collective& call = part.call;
    if (call.sent_bytes.empty() && call.received_bytes.empty()) return std::nullopt;
    const auto volume =
        static_cast<double>(std::max(sum_of(call.sent_bytes), sum_of(call.received_bytes)));
    largest = std::max(largest, volume);
    total += volume;
  }
  if (parts.size() < 2) return std::nullopt;
  const double mean = total / static_cast<double>(parts.size());
  return mean > 0.0 ? largest / mean : 1.0;
}

class PeerViewer {
 public:
  PeerViewer(const RankCollectives& all, std::span<const RankLateness> lateness,
             std::span<const RankInput> ranks)
      : all_(all), lateness_(lateness), ranks_(ranks), views_(ranks.size()) {}

  std::vector<PeerView> build() {
    for (const CollectiveMatch& match : all_.matches) add_parts(match);
    for (std::size_t r = 0; r < views_.size(); ++r) finish(r);
    return std::move(views_);
  }

 private:
  void add_parts(const CollectiveMatch& match) {
    const std::span<const CollectivePart> parts = all_.parts_of(match);
    const bool for_straggler = match.comparable && match.synchronising &&
                               lateness_[match.latest_rank].verdict == RankVerdict::kStraggler;
    const std::int64_t lead_ns = lead_of_last_ns(parts);
    const bool tells_last = match.comparable && match.synchronising && match.latest_rank != kNoRank;
    const std::int64_t last_rank = tells_last ? number_of(ranks_, match.latest_rank) : kNoId;
    const std::optional<double> imbalance = imbalance_of(parts);
    if (imbalance) worst_imbalance_ = std::max(worst_imbalance_.value_or(1.0), *imbalance);
    const bool uneven = match.comparable && imbalance.value_or(1.0) > kUneven;
    for (const CollectivePart& part : parts) {
      const std::int64_t wait_ns = for_straggler ? part.wait_ns : 0;
      const auto transfer_ns = static_cast<double>(part.transfer_ns());
      const double lost_ns = uneven ? std::nearbyint(transfer_ns * (1.0 - 1.0 / *imbalance)) : 0.0;
      views_[part.rank].parts.push_back({.row = part.call.row,
                                         .wait_ns = wait_ns,
                                         .gain_ns = std::min(wait_ns, lead_ns),
                                         .wait_any_ns = part.wait_ns,
                                         .imbalance_ns = static_cast<std::int64_t>(lost_ns),
                                         .last_rank = last_rank});
    }
  }

  void finish(std::size_t r) {
    PeerView& view = views_[r];
    view.known = lateness_[r].compared > 0 || !view.parts.empty();
    // Several parts of one row, a batch of sends, count as the one that waited longest.
    std::sort(view.parts.begin(), view.parts.end(), [](const PeerPart& a, const PeerPart& b) {
      return a.row != b.row ? a.row < b.row : a.wait_ns > b.wait_ns;
    });
    const auto same_row = [](const PeerPart& a, const PeerPart& b) { return a.row == b.row; };
    view.parts.erase(std::unique(view.parts.begin(), view.parts.end(), same_row), view.parts.end());
    view.straggler = straggler();
    view.imbalance = worst_imbalance_;
    for (std::size_t i = 0; i < lateness_.size(); ++i) {
      if (lateness_[i].verdict == RankVerdict::kLate) {
        view.unproven.push_back(number_of(ranks_, i));
      }
    }
  }

  std::optional<Straggler> straggler() const {
    std::optional<Straggler> worst;
    for (std::size_t i = 0; i < lateness_.size(); ++i) {
      const RankLateness& rank = lateness_[i];
      if (rank.verdict != RankVerdict::kStraggler) continue;
      if (worst && worst->lateness_ns >= rank.lateness_ns) continue;
      worst = Straggler{.rank = number_of(ranks_, i),
                        .cause = rank.cause,
                        .host_cause = rank.host_cause,
                        .lateness_ns = rank.lateness_ns,
                        .explained = rank.cause_share};
    }
    return worst;
  }

  const RankCollectives& all_;
  std::span<const RankLateness> lateness_;
  std::span<const RankInput> ranks_;
  std::vector<PeerView> views_;
  std::optional<double> worst_imbalance_;
};

}  // namespace

const PeerPart* PeerView::find(Row row) const {
  const auto it = std::lower_bound(parts.begin(), parts.end(), row,
                                   [](const PeerPart& part, Row r) { return part.row < r; });
  return it != parts.end() && it->row == row ? &*it : nullptr;
}

std::vector<PeerView> build_peer_views(const RankCollectives& all,
                                       std::span<const RankLateness> lateness,
                                       std::span<const RankInput> ranks) {
  const bool any = std::any_of(all.matches.begin(), all.matches.end(),
                               [](const CollectiveMatch& match) { return match.comparable; });
  if (!any) return std::vector<PeerView>(ranks.size());
  return PeerViewer(all, lateness, ranks).build();
}

}  // namespace traceap
