#pragma once
// A finding is a cost, not a name: intervals in ns, the rows that show it, what was missing.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "traceap/analysis/collectives/metadata.hpp"
#include "traceap/analysis/idle/idle.hpp"
#include "traceap/analysis/idle/timeline.hpp"
#include "traceap/detect/queries/host_queries.hpp"
#include "traceap/table/event_table.hpp"
#include "traceap/tree/event_tree.hpp"

namespace traceap {

enum class Verdict : std::uint8_t { kAbsent = 0, kPresent, kUnknown };

/// What one detector says of one trace. `type` is the stable snake_case name; title, why and fix
/// come from the knowledge base by that name (python/torchtraceap/knowledge/).
struct Finding {
  std::string_view type;
  Verdict verdict = Verdict::kAbsent;        ///< present: material (DetectOptions::material_share)
  IntervalSet intervals;                     ///< the cost
  std::int64_t cost_ns = 0;                  ///< total length of intervals
  std::vector<Row> evidence;                 ///< most telling rows first, at most kMaxEvidence
  std::uint64_t evidence_count = 0;          ///< how many rows there are in all
  std::vector<std::string> missing_signals;  ///< why the verdict is unknown, or less sure
  double confidence = 0.0;                   ///< in [0, 1]
  /// Facts for the sentence a person reads: (name, value), such as ("fetches", "6").
  std::vector<std::pair<std::string, std::string>> facts;
  /// Bound on the saving: GPU idle or exposed time inside the intervals.
  std::int64_t saving_low_ns = 0, saving_best_ns = 0, saving_high_ns = 0;
};
inline constexpr std::size_t kMaxEvidence = 20;

/// Every constant that a rule uses stands here or on top of the rule's own file, with its reason.
struct DetectOptions {
  double material_share = 0.02;  ///< of profiled time: INTERFACE's definition of "present"
};

/// One collective of this rank as the other ranks' traces show it.
struct PeerPart {
  Row row;
  std::int64_t wait_ns = 0;  ///< it waited at the start for a rank that keeps the others waiting
  std::int64_t gain_ns = 0;  ///< of that, what is gone if that rank comes with the last but one
  std::int64_t wait_any_ns = 0;   ///< waited for whichever rank came last
  std::int64_t imbalance_ns = 0;  ///< transfer that even parts of an all-to-all would save
};
/// What only the traces of several ranks can tell.
struct PeerView {
  bool known = false;           ///< traces of other ranks were compared with this one
  std::vector<PeerPart> parts;  ///< by row
  bool has_straggler = false;   ///< some rank is late, and one cause explains it
  std::string late_rank, cause, lateness, explained;  ///< for the sentence a person reads
  std::string unproven;   ///< ranks that are late without a proven cause
  std::string imbalance;  ///< largest over mean of what ranks receive; empty if not known
  const PeerPart* find(Row row) const;
};

/// What all rules share, computed once per trace. Refers to table and tree: keep them alive.
struct Signals {
  const EventTable& table;
  const EventTree& tree;
  GpuIntervals gpu;    ///< orphans included
  IdleBreakdown idle;  ///< over `profiled`
  Interval profiled;   ///< tree.profiled
  DetectOptions options;
  IntervalSet gpu_idle;             ///< complement of gpu.busy in `profiled`
  std::vector<ApiClass> api_class;  ///< per StringId; meaningful for runtime and driver rows only
  std::vector<Copy> copies;         ///< every memcpy-class GPU event, by start
  std::vector<Row> api_rows;        ///< complete runtime and driver calls by start
  bool has_host_ops = false;        ///< a complete cpu_op, annotation or python frame exists
  bool has_gpu = false;             ///< a complete GPU event exists
  std::vector<Collective> collectives;  ///< communication kernels by start
  PeerView peers;                       ///< empty where this rank was read alone
  std::int64_t profiled_ns() const { return profiled.end_ns - profiled.start_ns; }
  /// A host interval in the GPU's clock (they differ in some ROCm traces).
  Interval on_gpu_clock(Interval host) const {
    const std::int64_t shift_ns = -tree.launch_delay_correction_ns;
    return {add_saturated(host.start_ns, shift_ns), add_saturated(host.end_ns, shift_ns)};
  }
  ApiClass api(Row row) const {
    return is_api_call(table.kind[row]) ? api_class[table.name[row]] : ApiClass::kNone;
  }
};
Signals build_signals(const EventTable& table, const EventTree& tree,
                      const DetectOptions& options = {});

using Detector = Finding (*)(const Signals&);
struct DetectorEntry {
  std::string_view type;
  bool paper;  ///< one of the paper's eight
  Detector detect;
};
/// All rules, the paper's eight first, in INTERFACE's order. One file per rule.
const std::vector<DetectorEntry>& detectors();

/// Runs every rule.
std::vector<Finding> detect_all(const Signals& signals);
/// cost_ns of each finding that no finding ranked before it has claimed (by cost, largest first):
/// overlapping causes are not counted twice. Same order as `findings`.
std::vector<std::int64_t> compute_unclaimed_cost(const std::vector<Finding>& findings);

}  // namespace traceap
