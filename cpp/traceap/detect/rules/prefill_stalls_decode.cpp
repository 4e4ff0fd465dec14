// Prompts are read for so long that the requests in generation stall: beside their tokens, in one
// iteration, or in iterations of their own between those that generate.
//
// Cost: of an iteration that does both the time beyond what the iterations take that only generate;
// iterations that only read, where requests in generation go on behind them. A small chunk of a
// prompt that fits beside the decode costs nothing.

#include <algorithm>

#include "traceap/base/statistics.hpp"
#include "traceap/base/sums.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// The prompts have to be read at some time: smaller chunks spread the work, another GPU takes it.
constexpr SavingShares kSaving{.basis = SavingBasis::kCost, .best = 0.5};
/// So many times the usual iteration is felt as a stall.
constexpr double kStallRatio = 1.5;
constexpr std::size_t kMinDecodes = 3;

struct Timed {
  const ServedIteration* iteration;
  Interval work;  ///< from the end of the work before to that of its own; GPU clock
};

std::vector<Timed> work_of_iterations(const Signals& signals) {
  std::vector<Timed> timed;
  for (const ServedIteration& iteration : signals.served.iterations) {
    const std::int64_t start_ns = timed.empty()
                                      ? iteration.gpu.start_ns
                                      : std::max(timed.back().work.end_ns, iteration.gpu.start_ns);
    timed.push_back({&iteration, {start_ns, std::max(start_ns, iteration.gpu.end_ns)}});
  }
  return timed;
}

/// Do requests generate that were not among those whose prompts were read right before? Unknown
/// numbers say no; pieces of one prompt count as several, so that a yes is sure.
bool older_go_on(const ServedIteration& after, std::int64_t read) {
  if (!after.mark) return false;
  const auto generating = after.is_decode() ? after.mark->requests : after.mark->decode.requests;
  return generating && *generating > read;
}

/// Iterations that only read prompts while requests in generation wait.
std::vector<Timed> reading_between(const std::vector<Timed>& all, double least_ns) {
  std::vector<Timed> found, run;
  std::int64_t read = 0, length_ns = 0;
  bool generated = false, counted = true;
  for (const Timed& each : all) {
    const ServedIteration& own = *each.iteration;
    if (own.phase == IterationPhase::kPrefill) {
      run.push_back(each);
      length_ns = add_saturated(length_ns, each.work.length_ns());
      counted = counted && own.mark && own.mark->requests;
      if (counted) read = add_saturated(read, *own.mark->requests);
      continue;
    }
    if (!own.generates()) continue;
    const bool stalls = generated && counted && static_cast<double>(length_ns) >= least_ns;
    if (stalls && older_go_on(own, read)) found.insert(found.end(), run.begin(), run.end());
    run.clear();
    read = length_ns = 0;
    generated = counted = true;
  }
  return found;
}

Finding detect(const Signals& signals) {
  const std::vector<Timed> all = work_of_iterations(signals);
  std::vector<std::int64_t> decodes, lengths;
  for (const Timed& each : all) {
    if (each.iteration->is_decode()) decodes.push_back(each.work.length_ns());
  }
  if (decodes.size() < kMinDecodes) return absent();
  const std::int64_t usual_ns = median_of(decodes);
  const auto usual = static_cast<double>(usual_ns);
  Draft draft(kSaving);
  const auto add = [&](const Timed& each, std::int64_t own_ns) {
    draft.cost.push_back({each.work.start_ns + own_ns, each.work.end_ns});
    draft.evidence.push_back(evidence_of(signals, *each.iteration));
    lengths.push_back(each.work.length_ns());
  };
  for (const Timed& each : all) {
    const bool is_mixed = each.iteration->phase == IterationPhase::kMixed;
    const auto length_ns = static_cast<double>(each.work.length_ns());
    if (is_mixed && length_ns >= kStallRatio * usual) add(each, usual_ns);
  }
  for (const Timed& each : reading_between(all, (kStallRatio - 1) * usual)) add(each, 0);
  if (lengths.empty()) return absent();
  draft.count("iterations", lengths.size());
  draft.duration("with prompts", median_of(lengths));
  draft.duration("without", usual_ns);
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule prefill_stalls_decode{.type = "prefill_stalls_decode",
                                            .subject = Subject::kServing,
                                            .saving = kSaving,
                                            .detect = detect};
}

}  // namespace traceap
