#include "traceap/detect/queries/exchanges.hpp"

#include <map>
#include <utility>

namespace traceap {
namespace {

/// What one pass through the model is told by: a graph launch, else an iteration.
std::pair<Row, std::uint32_t> pass_of(const Signals& signals, Row row) {
  const Row launch = signals.tree.launch[row];
  const bool replayed = launch != kNoRow && signals.api(launch) == ApiClass::kGraphLaunch;
  if (replayed) return {launch, kNoStep};
  return {kNoRow, signals.tree.step[row]};
}

std::optional<std::int64_t> wait_of(const Signals& signals, const Collective& c,
                                    const PeerPart* peer) {
  if (peer != nullptr) return peer->wait_any_ns;
  if (c.transfer_ns == kNoId) return std::nullopt;
  return signals.table.dur_ns[c.row] - c.transfer_ns;
}

}  // namespace

std::vector<Exchange> find_exchanges(const Signals& signals) {
  std::vector<Exchange> found;
  std::map<std::pair<Row, std::uint32_t>, std::uint32_t> passes;
  std::map<std::pair<std::uint32_t, CollectiveKind>, std::uint32_t> places;
  for (const Collective& c : signals.collectives) {
    if (!is_expert_exchange(c.kind)) continue;
    const auto number = static_cast<std::uint32_t>(passes.size());
    const std::uint32_t pass = passes.try_emplace(pass_of(signals, c.row), number).first->second;
    const PeerPart* peer = signals.peers.known ? signals.peers.find(c.row) : nullptr;
    found.push_back({.row = c.row,
                     .kind = c.kind,
                     .wait_ns = wait_of(signals, c, peer),
                     .place = places[{pass, c.kind}]++,
                     .pass = pass,
                     .last_rank = peer != nullptr ? peer->last_rank : kNoId});
  }
  return found;
}

}  // namespace traceap
