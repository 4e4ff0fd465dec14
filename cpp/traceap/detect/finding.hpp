#pragma once
// A finding is a cost, not a name: intervals in ns, the rows that show it, what was missing.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "traceap/analysis/collectives/metadata.hpp"
#include "traceap/analysis/collectives/peers.hpp"
#include "traceap/analysis/idle/idle.hpp"
#include "traceap/analysis/idle/timeline.hpp"
#include "traceap/analysis/idle/unawaited.hpp"
#include "traceap/detect/queries/host_queries.hpp"
#include "traceap/detect/queries/served.hpp"
#include "traceap/detect/queries/value_reads.hpp"
#include "traceap/table/event_table.hpp"
#include "traceap/tree/event_tree.hpp"

namespace traceap {

enum class Verdict : std::uint8_t { kAbsent = 0, kPresent, kUnknown };

/// What a number is of; Python writes it with the unit that fits (units.py).
enum class FactKind : std::uint8_t { kCount = 0, kDuration, kBytes, kShare, kRate, kText };
/// A figure for the sentence a person reads, such as ("fetches", kCount, 6).
struct Fact {
  std::string name;
  FactKind kind = FactKind::kCount;
  /// Counts, nanoseconds and bytes; shares and rates; texts.
  std::variant<std::int64_t, double, std::string> value;
};

/// What one rule says of one trace. `type` is the stable snake_case name; title, why and fix
/// come from the knowledge base by that name (python/torchtraceap/knowledge/).
struct Finding {
  std::string_view type;               ///< set by `detect_all`
  Verdict verdict = Verdict::kAbsent;  ///< present: material (DetectOptions::material_share)
  bool applies = true;                 ///< the trace holds what the rule is about
  IntervalSet intervals;               ///< the cost
  std::int64_t cost_ns = 0;            ///< total length of intervals
  std::vector<Row> evidence;  ///< most telling rows first, at most DetectOptions::most_evidence
  std::uint64_t evidence_count = 0;          ///< how many rows there are in all
  std::vector<std::string> missing_signals;  ///< why the verdict is unknown, or less sure
  double confidence = 0.0;                   ///< in [0, 1]
  std::vector<Fact> facts;
  /// Bound on the saving: GPU idle or exposed time inside the intervals.
  std::int64_t saving_low_ns = 0, saving_best_ns = 0, saving_high_ns = 0;
};
/// A person looks at a few events and believes the rest; the report has room for these.
inline constexpr std::size_t kMaxEvidence = 20;
/// Of the profiled time: INTERFACE's definition of "present".
inline constexpr double kMaterialShare = 0.02;

/// Matrix arithmetic of a device relative to what plain fp32 products reach on it.
struct MatrixUnits {
  double half_ratio = 0;  ///< fp16/bf16 with fp32 accumulation over fp32; 0: no matrix units
  double tf32_ratio = 0;  ///< TF32 over fp32; 0: no TF32
  /// FLOPs in half precision for each byte that its memory moves meanwhile; 0: not known.
  double half_flops_per_byte = 0;
  std::string device;  ///< name for a person; empty where the trace names none
};

/// Every constant that a rule uses stands here or on top of the rule's own file, with its reason.
struct DetectOptions {
  double material_share = kMaterialShare;    ///< of profiled time
  std::size_t most_evidence = kMaxEvidence;  ///< rows that a finding keeps
  /// Of the trace's device, by the database of devices; empty: the names of kernels have to tell.
  std::optional<MatrixUnits> matrix_units;
};

/// What all rules share, computed once per trace. Refers to table and tree: keep them alive.
struct Signals {
  const EventTable& table;
  const EventTree& tree;
  GpuIntervals gpu;    ///< orphans included
  IdleBreakdown idle;  ///< of `gpu_idle`
  Interval profiled;   ///< tree.profiled
  DetectOptions options;
  /// Nothing runs, or only collectives that computation surely does not wait for while it waits for
  /// the host; as far as it is judged.
  IntervalSet gpu_idle;
  IntervalSet host_idle;         ///< without gaps between nodes of one replay of a graph
  Unawaited unawaited;           ///< what of exposed communication computation does not wait for
  std::vector<Copy> copies;      ///< every memcpy-class GPU event, by start
  std::vector<Row> api_rows;     ///< complete runtime and driver calls by start
  bool has_host_ops = false;     ///< a complete cpu_op, annotation or python frame exists
  bool has_operators = false;    ///< a complete operator exists, not only ranges or frames
  bool has_gpu = false;          ///< a complete GPU event exists
  bool foreign_kernels = false;  ///< of a device whose kernels are not named as CUDA's
  bool on_host = false;          ///< the run computes on the host (`runs_on_host`)
  std::vector<Collective> collectives;  ///< communication kernels by start
  std::vector<ProcessGroup> groups;     ///< those that `Collective::group` counts
  ValueReads value_reads;               ///< where the host waits for a value of the device
  PeerView peers;                       ///< empty where this rank was read alone
  Served served;                        ///< iterations of a serving engine; empty for other runs
  /// Of the profiled time, what the recording can be trusted for.
  std::int64_t profiled_ns() const {
    return profiled.length_ns() - covered_ns(gpu.not_judged, profiled);
  }
  /// Is there hardly any time to judge?
  bool is_unrecorded() const {
    constexpr std::int64_t kLeastPart = 50;
    return !gpu.not_judged.empty() && profiled_ns() < profiled.length_ns() / kLeastPart;
  }
  /// A host interval in the GPU's clock (they differ in some ROCm traces).
  Interval on_gpu_clock(Interval host) const {
    const std::int64_t shift_ns = -tree.launch_delay_correction_ns;
    return {add_saturated(host.start_ns, shift_ns), add_saturated(host.end_ns, shift_ns)};
  }
  Interval on_host_clock(Interval on_gpu) const {
    const std::int64_t shift_ns = tree.launch_delay_correction_ns;
    return {add_saturated(on_gpu.start_ns, shift_ns), add_saturated(on_gpu.end_ns, shift_ns)};
  }
  ApiClass api(Row row) const { return tree.api[row]; }
  /// Does the trace tell which operator launched what, and so in which phase of a step?
  bool links_operators() const { return has_operators && !tree.linked_gpu_rows.empty(); }
};
/// Does the run compute on the host? Nothing of a GPU is recorded, neither work nor calls nor a
/// device, and operators fill a tenth of the profiled time or more; a recording that left the GPU
/// out names its devices. O(host rows).
bool runs_on_host(const EventTable& table, const EventTree& tree);
Signals build_signals(const EventTable& table, const EventTree& tree,
                      const DetectOptions& options = {});
/// The same where `gpu`, and `idle` over tree.profiled, are known already.
Signals build_signals(const EventTable& table, const EventTree& tree, GpuIntervals gpu,
                      IdleBreakdown idle, const DetectOptions& options);

}  // namespace traceap
