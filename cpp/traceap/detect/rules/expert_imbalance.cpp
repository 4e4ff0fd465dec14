// Ranks wait for each other inside dispatch and combine, because the experts of some rank got more
// tokens, or its attention more work.
//
// Cost: the wait in each exchange, at its start. An exchange counts where it waits for a quarter of
// its transfer: transfers themselves vary. The first exchange of an iteration does not count, since
// there the host of a rank may be late.

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "traceap/base/sums.hpp"
#include "traceap/detect/queries/exchanges.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr std::int64_t kLeastWaitPart = 4;  ///< of the transfer
/// Fewer are no layers that repeat.
constexpr std::size_t kMinExchanges = 4;
/// Experts are moved or copied so that ranks get even shares; some unevenness stays.
constexpr SavingShares kSaving{
    .basis = SavingBasis::kIdleOrExposed, .low = 0.2, .best = 0.7, .high = 1.0};

bool waits(const Signals& signals, const Exchange& exchange) {
  if (!exchange.wait_ns || *exchange.wait_ns <= 0) return false;
  const std::int64_t transfer_ns = signals.table.dur_ns[exchange.row] - *exchange.wait_ns;
  return *exchange.wait_ns >= transfer_ns / kLeastWaitPart;
}

/// The exchanges that wait longest over all passes, such as "combine 3, dispatch 12".
std::string worst_places(
    const std::map<std::pair<CollectiveKind, std::uint32_t>, std::int64_t>& waits) {
  constexpr std::size_t kShown = 3;
  std::vector<std::pair<std::int64_t, std::string>> ranked;
  for (const auto& [place, wait_ns] : waits) {
    ranked.emplace_back(-wait_ns, std::string(collective_kind_name(place.first)) + ' ' +
                                      std::to_string(place.second));
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, ranked.size()); ++i) {
    text += (i > 0 ? ", " : "") + ranked[i].second;
  }
  return text;
}

/// Of counts by key the key with the largest; the smallest of equals.
std::int64_t most_frequent(const std::map<std::int64_t, std::size_t>& counts) {
  return std::max_element(counts.begin(), counts.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

Finding detect(const Signals& signals) {
  const std::vector<Exchange> exchanges = find_exchanges(signals);
  if (exchanges.empty()) return absent();
  if (std::none_of(exchanges.begin(), exchanges.end(),
                   [](const Exchange& exchange) { return exchange.wait_ns.has_value(); })) {
    return abstain({"traces of the other ranks, or exchanges of equal work"});
  }
  Draft draft(kSaving);
  std::int64_t in_dispatch_ns = 0, in_combine_ns = 0;
  std::map<std::pair<CollectiveKind, std::uint32_t>, std::int64_t> by_place;
  std::map<std::int64_t, std::size_t> last_ranks;
  std::uint32_t pass = kNoRow;
  for (const Exchange& exchange : exchanges) {
    const bool first = exchange.pass != pass;
    pass = exchange.pass;
    if (first || !waits(signals, exchange)) continue;
    const std::int64_t start_ns = signals.table.ts_ns[exchange.row], wait_ns = *exchange.wait_ns;
    draft.cost.push_back({start_ns, start_ns + wait_ns});
    draft.evidence.push_back(exchange.row);
    draft.evidence_weights.push_back(wait_ns);
    add_to(exchange.kind == CollectiveKind::kDispatch ? in_dispatch_ns : in_combine_ns, wait_ns);
    add_to(by_place[{exchange.kind, exchange.place}], wait_ns);
    if (exchange.last_rank != kNoId) ++last_ranks[exchange.last_rank];
  }
  if (draft.evidence.size() < kMinExchanges) return absent();
  draft.cost = set_difference(make_union(std::move(draft.cost)), signals.gpu.compute);
  draft.confidence = signals.peers.known ? 0.9 : 0.7;  // one rank sees its waits, not for whom
  draft.count("exchanges", draft.evidence.size());
  draft.duration("in dispatch", in_dispatch_ns);
  draft.duration("in combine", in_combine_ns);
  draft.text("longest", worst_places(by_place));
  if (!last_ranks.empty()) draft.count("rank that comes last", most_frequent(last_ranks));
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule expert_imbalance{.type = "expert_imbalance",
                                       .claim = Claim::kSpecific,
                                       .subject = Subject::kCollectives,
                                       .saving = kSaving,
                                       .detect = detect};
}

}  // namespace traceap
