// Copies within the device: contiguous, clone, cat and plain device-to-device copies. Where the run
// computes on the host, those within its memory.

#include <algorithm>

#include "traceap/base/sums.hpp"
#include "traceap/detect/queries/host_work.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/ranges.hpp"
#include "traceap/detect/queries/shapes.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// Some of the joining and reordering is what the model computes; half is the guess for the rest.
constexpr SavingShares kSaving{.basis = SavingBasis::kGpuWork, .best = 0.5};

bool is_cat_kernel(std::string_view name) { return contains(name, "CatArrayBatchedCopy"); }

/// A copy kernel of PyTorch that does not change the number type (that is cast_storm's).
bool is_same_type_copy_kernel(std::string_view name) {
  return contains(name, "direct_copy_kernel") && !contains(name, "LoadWithCast");
}

/// Operators that copy only to give a tensor another layout or a place beside others.
bool is_copying_operator(std::string_view name) {
  return name == "aten::clone" || name == "aten::contiguous" || name == "aten::cat" ||
         name == "aten::stack" || name == "aten::repeat" || name == "aten::reshape";
}

class DeviceCopies {
 public:
  explicit DeviceCopies(const Signals& signals)
      : signals_(signals),
        copying_(outermost_ranges(
            signals, [&, is_copying = LazyNames(signals.table, is_copying_operator)](Row r) {
              return signals.table.kind[r] == EventKind::kCpuOp && is_copying(r);
            })) {}

  void add_memcpys(Draft& draft) {
    for (const Copy& copy : signals_.copies) {
      if (copy.kind.direction != CopyDirection::kDeviceToDevice) continue;
      add(copy.row, draft);
      add_to(bytes_, copy.bytes.value_or(0));
    }
  }
  void add_kernels(Draft& draft) {
    const EventTable& table = signals_.table;
    const LazyNames cat(table, is_cat_kernel), copy(table, is_same_type_copy_kernel);
    const InputReader reader(table);
    for (Row r : signals_.tree.gpu_rows) {
      if (table.kind[r] != EventKind::kKernel) continue;
      if (cat(r) || (copy(r) && copying_operator(r) != kNoRow && same_types(reader, r))) {
        add(r, draft);
      }
    }
  }
  /// Copy kernels of which only the operator could tell whether it copies for a layout.
  std::vector<Interval> doubtful_kernels() const {
    std::vector<Interval> doubtful;
    if (signals_.links_operators()) return doubtful;
    const LazyNames copy(signals_.table, is_same_type_copy_kernel);
    for (Row r : signals_.tree.gpu_rows) {
      if (copy(r)) doubtful.push_back(interval_of(signals_.table, r));
    }
    return doubtful;
  }
  std::int64_t bytes() const { return bytes_; }
  const std::vector<Row>& operators() const { return operators_; }

 private:
  Row copying_operator(Row gpu_row) const {
    const Row launch = signals_.tree.launch[gpu_row];
    return launch == kNoRow ? kNoRow : copying_[launch];
  }
  /// Casts by aten::copy_ use the same kernel when PyTorch is older than 1.8: the types tell.
  bool same_types(const InputReader& reader, Row gpu_row) const {
    const Row op = signals_.tree.op[gpu_row];
    if (op == kNoRow || signals_.table.name_of(op) != "aten::copy_") return true;
    const std::vector<std::string> types = reader.types(op);
    return types.size() < 2 || types[0] == types[1];
  }
  void add(Row gpu_row, Draft& draft) {
    draft.cost.push_back(interval_of(signals_.table, gpu_row));
    draft.evidence.push_back(gpu_row);
    Row op = copying_operator(gpu_row);
    if (op == kNoRow) op = signals_.tree.op[gpu_row];
    if (op != kNoRow) operators_.push_back(op);
  }

  const Signals& signals_;
  std::vector<Row> copying_;
  std::vector<Row> operators_;
  std::int64_t bytes_ = 0;
};

/// Are the copies that are seen immaterial, but not with those that could be some?
bool is_open(const Signals& signals, const Draft& draft, const DeviceCopies& copies) {
  const IntervalSet seen = set_clip(make_union(draft.cost), signals.profiled);
  const IntervalSet doubtful = set_clip(make_union(copies.doubtful_kernels()), signals.profiled);
  return !is_material(signals, total_length_ns(seen)) &&
         is_material(signals, total_length_ns(set_union(seen, doubtful)));
}

/// Where types are not recorded, what is called tells but for aten::to and copies of layouts.
Finding detect_on_host(const Signals& signals) {
  Draft draft(kSaving);
  std::vector<Row> unknown;
  for (const HostCopy& copy : copies_on_host(signals)) {
    if (copy.purpose == CopyPurpose::kUnknown) unknown.push_back(copy.called);
    if (copy.purpose == CopyPurpose::kMove) draft.evidence.push_back(copy.called);
  }
  if (is_material(signals, host_cost_ns(signals, unknown))) {
    return abstain({"input types (record_shapes=True)"});
  }
  if (draft.evidence.empty()) return absent();
  draft.cost = intervals_of(signals, draft.evidence);
  draft.count("copies", draft.evidence.size());
  draft.text("operations", most_frequent_names(signals.table, draft.evidence, 2));
  return finish_finding(signals, std::move(draft));
}

Finding detect(const Signals& signals) {
  if (signals.on_host) return detect_on_host(signals);
  if (!signals.has_gpu) return abstain({"GPU events"});
  Draft draft(kSaving);
  DeviceCopies copies(signals);
  copies.add_memcpys(draft);
  copies.add_kernels(draft);
  if (is_open(signals, draft, copies)) return abstain({missing_link(signals)});
  if (!signals.has_operators) {
    draft.missing_signals.emplace_back("host operators: copy kernels can't be told apart");
    draft.confidence = 0.6;  // memcpys alone
  }
  if (draft.evidence.empty()) {
    Finding finding = absent(draft.confidence);
    finding.missing_signals = std::move(draft.missing_signals);
    return finding;
  }
  draft.count("copies", draft.evidence.size());
  if (copies.bytes() >= 1 << 20) draft.bytes("bytes", copies.bytes());
  if (!copies.operators().empty()) {
    draft.text("operations", most_frequent_names(signals.table, copies.operators(), 2));
  }
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule device_to_device_copies{.type = "device_to_device_copies",
                                              .reads_kernel_names = true,
                                              .saving = kSaving,
                                              .detect = detect};
}

}  // namespace traceap
