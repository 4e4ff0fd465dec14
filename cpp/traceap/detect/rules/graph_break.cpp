// torch.compile had to leave its graph in the middle of a call and take it up again.
//
// How it shows in a trace (recorded with torch 2.13): dynamo draws "Torch-Compiled Region: F/C"
// around the whole frame whose bytecode it replaced, F being the frame's number. Behind a graph
// break that bytecode calls a resume function, which is a compiled frame of its own. Its region
// therefore lies inside the first one, and not inside the compiled graph's call (CompiledFunction,
// "## Call CompiledFxGraph") nor inside another operator. Separate compiled functions are called
// from eager code and stand side by side; one that a custom operator calls lies inside that
// operator. With Python frames the resume function's name tells too:
// torch_dynamo_resume_in_forward_at_12.
//
// Cost: from the end of the graph before to the start of the next region, where the GPU is idle
// (to its next event at most) or runs what eager code launched there.

#include <algorithm>
#include <limits>

#include "traceap/detect/queries/compile.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// Taking a break away also takes the guards of the resume function away, but the eager work in it
/// may be needed (a log line, a metric): half the idle time is the middle of none and all.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdle, .best = 0.5};

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}
bool is_region(std::string_view name) { return starts_with(name, "Torch-Compiled Region"); }
bool is_compiled_call(std::string_view name) {
  return starts_with(name, "CompiledFunction") || contains(name, "Call CompiledFxGraph");
}
bool is_resume_frame(std::string_view name) {
  return contains(name, "torch_dynamo_resume_in_") || contains(name, "<resume in ");
}
/// Dynamo's own ranges, which may stand between a region and a region inside it.
bool is_dynamo_range(std::string_view name) {
  return starts_with(name, "TorchDynamo") || starts_with(name, "Pregraph") ||
         starts_with(name, "AOTDispatcher");
}
/// The Python frame in which a call of a compiled object begins (torch 2.x, old and new name).
bool is_compiled_entry(std::string_view name) {
  return contains(name, "torch/_dynamo/eval_frame.py") &&
         (contains(name, ": compile_wrapper") || contains(name, ": _fn"));
}
/// "5" of "Torch-Compiled Region: 5/1"; empty if the name carries no number.
std::string_view frame_number(std::string_view name) {
  const auto number = region_number(name);
  return number ? number->frame : std::string_view{};
}

struct Names {
  LazyNames<> region, compiled_call, resume, dynamo, entry, lookup;
  explicit Names(const EventTable& table)
      : region(table, is_region),
        compiled_call(table, is_compiled_call),
        resume(table, is_resume_frame),
        dynamo(table, is_dynamo_range),
        entry(table, is_compiled_entry),
        lookup(table, [](std::string_view n) { return n == "TorchDynamo Cache Lookup"; }) {}
};

/// What encloses a row: the nearest region, if no operator stands between, and the nearest
/// call of a compiled object, likewise.
struct Enclosure {
  Row region = kNoRow;
  Row entry = kNoRow;
  bool in_operator = false;
};

/// Enclosures of all rows. One per row is kept: what its children are enclosed by.
class Enclosures {
 public:
  Enclosures(const Signals& signals, const Names& names)
      : tree_(signals.tree), below_(signals.table.size()) {
    const EventTable& table = signals.table;
    for (Row r = 0; r < table.size(); ++r) {  // parents precede children
      if (tree_.host_position[r] == kNoRow) continue;
      below_[r] = (*this)[r];
      if (names.region(r)) {
        below_[r] = {r, kNoRow, false};
      } else if (names.compiled_call(r) ||
                 (table.kind[r] == EventKind::kCpuOp && !names.dynamo(r))) {
        below_[r] = {kNoRow, kNoRow, true};
      } else if (names.entry(r) && table.kind[r] == EventKind::kPythonFunction) {
        below_[r].entry = r;
      }
    }
  }
  Enclosure operator[](Row row) const {
    const Row parent = tree_.parent[row];
    return parent == kNoRow ? Enclosure{} : below_[parent];
  }

 private:
  const EventTree& tree_;
  std::vector<Enclosure> below_;
};

/// One place where compiled code was left and entered again.
struct Break {
  Interval gap;                              ///< on the host
  Row into;                                  ///< the region, or resume frame, that goes on
  std::size_t position_begin, position_end;  ///< rows of the gap in tree.host_rows
};

struct Breaks {
  std::vector<Break> sure;       ///< by nesting, resume frames, or one call seen in frames
  std::vector<Break> ambiguous;  ///< side by side, and no frames to tell one call from two
  std::int64_t regions = 0;
};

/// Walks one thread's rows in order of start and collects breaks.
class Walk {
 public:
  Walk(const Signals& signals, const Names& names, const Enclosures& around, Breaks& breaks)
      : signals_(signals), names_(names), around_(around), breaks_(breaks) {}

  void visit(std::size_t position) {
    const EventTable& table = signals_.table;
    const Row row = signals_.tree.host_rows[position];
    if (names_.compiled_call(row)) {
      graph_end_ns_ = std::max(graph_end_ns_, table.end_ns(row));
    } else if (is_launch(signals_.api(row))) {
      launch_end_ns_ = std::max(launch_end_ns_, table.end_ns(row));
    }
    if (names_.region(row)) visit_region(position, row);
    if (names_.resume(row)) visit_resume(position, row);
  }

 private:
  void visit_region(std::size_t position, Row row) {
    ++breaks_.regions;
    const Row outer = around_[row].region;
    if (outer != kNoRow) {
      add(breaks_.sure, position, row, signals_.table.ts_ns[outer]);
    } else if (!around_[row].in_operator) {
      if (previous_ != kNoRow) visit_neighbour(position, row);
      previous_ = row;
    }
  }

  /// A resume function that dynamo did not compile, or whose region lies inside it; a frame inside
  /// the region of its own was met as that region already.
  void visit_resume(std::size_t position, Row row) {
    const EventTable& table = signals_.table;
    const Row region = around_[row].region;
    if (region != kNoRow && last_into_ == region) return;
    std::int64_t earliest = table.ts_ns[row];
    if (region != kNoRow) {
      earliest = table.ts_ns[region];
    } else if (previous_ != kNoRow && same_step(previous_, row)) {
      earliest = std::min(earliest, table.end_ns(previous_));
    }
    add(breaks_.sure, position, row, earliest);
  }

  /// Two regions side by side: one call of a compiled object if frames say so, ambiguous if there
  /// are no frames and the frame numbers differ, else two calls.
  void visit_neighbour(std::size_t position, Row row) {
    const EventTable& table = signals_.table;
    const std::int64_t begin = table.end_ns(previous_);
    if (begin > table.ts_ns[row] || !same_step(previous_, row)) return;
    const Row entry = around_[row].entry, previous_entry = around_[previous_].entry;
    if (entry != kNoRow || previous_entry != kNoRow) {
      if (entry == previous_entry) add(breaks_.sure, position, row, begin);
      return;
    }
    const bool same_frame =
        frame_number(table.name_of(row)) == frame_number(table.name_of(previous_));
    if (same_frame || signals_.tree.phase[row] == Phase::kOptimizer ||
        signals_.tree.phase[row] != signals_.tree.phase[previous_]) {
      return;
    }
    add(breaks_.ambiguous, position, row, begin);
  }

  bool same_step(Row a, Row b) const { return signals_.tree.step[a] == signals_.tree.step[b]; }

  void add(std::vector<Break>& list, std::size_t position, Row into, std::int64_t earliest_ns) {
    const EventTable& table = signals_.table;
    const std::int64_t end = table.ts_ns[into];
    const std::int64_t begin = std::max(graph_end_by(end, earliest_ns), last_end_ns_);
    std::size_t first = position;
    while (first > last_position_ && table.ts_ns[signals_.tree.host_rows[first - 1]] >= begin) {
      --first;
    }
    list.push_back({{std::min(begin, end), end}, into, first, position});
    last_end_ns_ = end;
    last_position_ = position;
    last_into_ = into;
  }

  /// End of the last compiled call since `earliest_ns`. Where none is recorded (inference with an
  /// old torch), of the last launch, which may be an eager one: then the gap is understated.
  std::int64_t graph_end_by(std::int64_t end_ns, std::int64_t earliest_ns) const {
    for (std::int64_t mark : {graph_end_ns_, launch_end_ns_}) {
      if (mark > earliest_ns && mark <= end_ns) return mark;
    }
    return earliest_ns;
  }

  const Signals& signals_;
  const Names& names_;
  const Enclosures& around_;
  Breaks& breaks_;
  Row previous_ = kNoRow;  ///< last region that stands free
  Row last_into_ = kNoRow;
  std::int64_t graph_end_ns_ = std::numeric_limits<std::int64_t>::min();
  std::int64_t launch_end_ns_ = std::numeric_limits<std::int64_t>::min();
  std::int64_t last_end_ns_ = std::numeric_limits<std::int64_t>::min();
  std::size_t last_position_ = 0;
};

Breaks find_breaks(const Signals& signals, const Names& names) {
  Breaks breaks;
  const Enclosures around(signals, names);
  const EventTree& tree = signals.tree;
  for (std::size_t track = 0; track + 1 < tree.host_offsets.size(); ++track) {
    Walk walk(signals, names, around, breaks);
    for (std::size_t i = tree.host_offsets[track]; i < tree.host_offsets[track + 1]; ++i) {
      walk.visit(i);
    }
  }
  return breaks;
}

/// GPU idle that the gap causes, and GPU events launched inside it.
IntervalSet cost_of(const Signals& signals, const std::vector<Break>& breaks) {
  const EventTable& table = signals.table;
  std::vector<Interval> cost, holds;
  for (const Break& b : breaks) {
    holds.push_back(b.gap);
    const Interval gap = signals.on_gpu_clock(b.gap);
    if (!signals.has_gpu) {
      cost.push_back(gap);
      continue;
    }
    const std::int64_t latest = signals.on_gpu_clock(interval_of(table, b.into)).end_ns;
    const auto& idle = signals.gpu_idle;
    auto it = std::upper_bound(idle.begin(), idle.end(), gap.start_ns,
                               [](std::int64_t t, const Interval& i) { return t < i.end_ns; });
    for (; it != idle.end() && it->start_ns < gap.end_ns; ++it) {
      cost.push_back({std::max(it->start_ns, gap.start_ns), std::min(it->end_ns, latest)});
    }
    for (std::size_t i = b.position_begin; i < b.position_end; ++i) {
      for (Row gpu : signals.tree.launched_by(signals.tree.host_rows[i])) {
        cost.push_back(interval_of(table, gpu));
      }
    }
  }
  return with_lost_lead(signals, make_union(std::move(cost)), std::move(holds));
}

/// No region at all: was something compiled that left no region in the trace?
Finding judge_without_regions(const Signals& signals, const Names& names) {
  const bool idle_matters = is_material(signals, total_length_ns(signals.gpu_idle));
  if (host_rows_named(signals.table, signals.tree, names.lookup).size() > 1 && idle_matters) {
    return abstain({"ranges of compiled regions"});  // torch before 2.2
  }
  if (!signals.has_operators && idle_matters) {
    const LazyNames triton(signals.table,
                           [](std::string_view name) { return starts_with(name, "triton_"); });
    const auto& rows = signals.tree.gpu_rows;
    if (std::any_of(rows.begin(), rows.end(), [&](Row r) { return triton(r); })) {
      return abstain({"host events"});
    }
  }
  return absent();
}

Finding detect(const Signals& signals) {
  const Names names(signals.table);
  const auto& host_rows = signals.tree.host_rows;
  const bool any = std::any_of(host_rows.begin(), host_rows.end(),
                               [&](Row r) { return names.region(r) || names.resume(r); });
  if (!any) return judge_without_regions(signals, names);
  const Breaks breaks = find_breaks(signals, names);
  Draft draft(kSaving);
  draft.cost = cost_of(signals, breaks.sure);
  for (const Break& b : breaks.sure) draft.evidence.push_back(b.into);
  draft.count("compiled regions", breaks.regions);
  draft.count("graph breaks", breaks.sure.size());
  Finding finding = finish_finding(signals, std::move(draft));
  if (!signals.has_gpu && finding.verdict == Verdict::kPresent) {
    return abstain({"GPU events"});
  }
  if (finding.verdict == Verdict::kPresent || breaks.ambiguous.empty()) return finding;
  Draft possible(kSaving);
  possible.cost = cost_of(signals, breaks.ambiguous);
  if (finish_finding(signals, std::move(possible)).verdict != Verdict::kPresent) return finding;
  return abstain({"Python frames (with_stack) to tell one compiled call from several"});
}

}  // namespace

namespace rules {
extern constexpr Rule graph_break{.type = "graph_break",
                                  .paper_place = 4,
                                  .subject = Subject::kCompiledCode,
                                  .saving = kSaving,
                                  .detect = detect};
}

}  // namespace traceap
