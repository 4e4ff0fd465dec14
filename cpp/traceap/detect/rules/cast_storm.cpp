// Kernels whose only work is to convert between number types: autocast without its cache, layers
// that disagree on their type. Where the run computes on the host, operators that do.

#include <unordered_map>

#include "traceap/detect/queries/host_work.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/shapes.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// Half of the casts stay even in a model that casts well: activations at autocast's borders.
constexpr SavingShares kSaving{.basis = SavingBasis::kGpuWork, .best = 0.5};

/// Kernels that say so: copies into half types, and the copy kernel that loads another type.
bool is_cast_kernel(std::string_view name) {
  return contains(name, "bfloat16_copy_kernel") || contains(name, "float16_copy_kernel") ||
         contains(name, "float8_copy_kernel") || contains(name, "float8_e4m3fn_copy_kernel") ||
         (contains(name, "direct_copy_kernel") && contains(name, "LoadWithCast"));
}
bool is_copy_kernel(std::string_view name) {
  return contains(name, "copy_kernel") || contains(name, "CopyDeviceToDevice");
}

/// Does the name show that both types are the same? Vectorised copies load what they store.
bool shows_no_cast(std::string_view name) {
  return contains(name, "nocast") || contains(name, "vectorized_elementwise_kernel");
}

/// Types of source and target of an aten::copy_(target, source); empty where not recorded.
struct CastTypes {
  std::string from, to;
  bool known() const { return !from.empty() && !to.empty(); }
  bool differ() const { return known() && from != to; }
};

class CastJudge {
 public:
  explicit CastJudge(const Signals& signals)
      : signals_(signals),
        reader_(signals.table),
        copy_op_(signals.table, [](std::string_view name) { return name == "aten::copy_"; }),
        cast_kernel_(signals.table, is_cast_kernel),
        copy_kernel_(signals.table, is_copy_kernel),
        no_cast_(signals.table, shows_no_cast) {}

  /// Is this kernel a cast? By the types of its aten::copy_ where recorded, else by its own name.
  bool is_cast(Row kernel) {
    const Row op = signals_.tree.op[kernel];
    types_ = {};
    if (op != kNoRow && copy_op_(op)) {
      const std::vector<std::string> types = reader_.types(op);
      if (types.size() >= 2) types_ = {types[1], types[0]};
      if (types_.known()) return types_.differ() && copy_kernel_(kernel);
      told_all_ = false;
    }
    if (cast_kernel_(kernel)) return true;
    if (copy_kernel_(kernel) && !no_cast_(kernel)) {
      untold_.push_back(interval_of(signals_.table, kernel));
    }
    return false;
  }
  const CastTypes& types() const { return types_; }
  /// Copies of which neither types nor names tell whether they cast.
  bool told_all() const { return told_all_; }
  const std::vector<Interval>& untold() const { return untold_; }

 private:
  const Signals& signals_;
  InputReader reader_;
  LazyNames<bool (*)(std::string_view)> copy_op_, cast_kernel_, copy_kernel_, no_cast_;
  CastTypes types_;
  std::vector<Interval> untold_;
  bool told_all_ = true;
};

/// "c10::BFloat16" to "BFloat16".
std::string short_type(const std::string& type) {
  return type.substr(0, 5) == "c10::" ? type.substr(5) : type;
}

std::string most_frequent(const std::unordered_map<std::string, std::size_t>& counts) {
  std::string best;
  std::size_t most = 0;
  for (const auto& [text, count] : counts) {
    if (count > most || (count == most && text < best)) {
      best = text;
      most = count;
    }
  }
  return best;
}

Finding detect_on_host(const Signals& signals) {
  Draft draft(kSaving);
  std::vector<Row> unknown;
  std::unordered_map<std::string, std::size_t> kinds;
  for (const HostCopy& copy : copies_on_host(signals)) {
    if (copy.purpose == CopyPurpose::kUnknown) unknown.push_back(copy.called);
    if (copy.purpose != CopyPurpose::kCast) continue;
    draft.evidence.push_back(copy.called);
    ++kinds[short_type(copy.from) + " to " + short_type(copy.to)];
  }
  if (is_material(signals, host_cost_ns(signals, unknown))) {
    return abstain({"input types (record_shapes=True)"});
  }
  if (draft.evidence.empty()) return absent();
  draft.cost = intervals_of(signals, draft.evidence);
  draft.count("casts", draft.evidence.size());
  add_per_step_fact(signals, draft, "per step", draft.evidence.size());
  draft.text("example", most_frequent(kinds));
  return finish_finding(signals, std::move(draft));
}

Finding detect(const Signals& signals) {
  if (signals.on_host) return detect_on_host(signals);
  if (!signals.has_gpu) return abstain({"GPU events"});
  CastJudge judge(signals);
  Draft draft(kSaving);
  std::unordered_map<std::string, std::size_t> kinds;
  for (Row r : signals.tree.gpu_rows) {
    if (signals.table.kind[r] != EventKind::kKernel || !judge.is_cast(r)) continue;
    draft.cost.push_back(interval_of(signals.table, r));
    draft.evidence.push_back(r);
    if (judge.types().differ()) {
      ++kinds[short_type(judge.types().from) + " to " + short_type(judge.types().to)];
    }
  }
  const IntervalSet seen = make_union(draft.cost);
  const IntervalSet possible = set_union(seen, make_union(judge.untold()));
  const std::string_view signal =
      signals.links_operators() ? "input types (record_shapes=True)" : missing_link(signals);
  if (!is_material(signals, covered_ns(seen, signals.profiled)) &&
      is_material(signals, covered_ns(possible, signals.profiled))) {
    return abstain({signal});
  }
  if (draft.evidence.empty()) return absent();
  if (!judge.told_all()) {
    draft.missing_signals.emplace_back(signal);
    draft.confidence = 0.7;  // not every kernel that casts says so
  }
  draft.count("casts", draft.evidence.size());
  add_per_step_fact(signals, draft, "per step", draft.evidence.size());
  if (!kinds.empty()) draft.text("example", most_frequent(kinds));
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule cast_storm{
    .type = "cast_storm", .reads_kernel_names = true, .saving = kSaving, .detect = detect};
}

}  // namespace traceap
