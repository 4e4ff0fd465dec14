// Note [First compilation]: what lies in warm-up by steps is first. Later it depends on what was
// compiled. Dynamo compiles a frame right before the region that bears the frame's number and the
// number of its compilation: it is first if that is 0 and no region of the frame ran before. What
// is compiled or tuned inside a region, or in the backward node of one, belongs to that region. A
// compiler outside of regions (a kernel of Triton's, flashinfer) compiles the kernel that its
// thread launches next: it is first if no kernel of that name was launched before. Where none of
// this can be told, steady state begins when a compiled region has run to its end without any
// compilation inside.

#include "traceap/detect/queries/compile.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "traceap/analysis/idle/host_activity.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/ranges.hpp"

namespace traceap {
namespace {

bool is_region_name(std::string_view name) { return name.starts_with("Torch-Compiled Region"); }

/// Dynamo at work on a frame, which runs as a region afterwards; not what inductor or Triton do
/// when the region is called.
bool is_frame_compilation(std::string_view name) {
  return contains_any(name, {"torch/_dynamo/", "_compile.compile_inner", "entire_frame_compile",
                             "backend_compile", "call_user_compiler", "compile_fx"});
}
bool is_of_torch_compile(std::string_view name) {
  return name.ends_with("(dynamo_timed)") || contains(name, "torch/_inductor/");
}

/// Rows of one property by thread, by start.
class RowsByTrack {
 public:
  explicit RowsByTrack(const EventTable& table) : table_(table), rows_(table.tracks.size()) {}
  void add(Row row) { rows_[table_.track[row]].push_back(row); }
  /// The first of the row's thread that starts when `row` has ended; kNoRow if none.
  Row behind(Row row) const {
    const std::vector<Row>& rows = rows_[table_.track[row]];
    const std::int64_t end_ns = table_.end_ns(row);
    const auto it = std::partition_point(rows.begin(), rows.end(),
                                         [&](Row r) { return table_.ts_ns[r] < end_ns; });
    return it == rows.end() ? kNoRow : *it;
  }

 private:
  const EventTable& table_;
  std::vector<std::vector<Row>> rows_;
};

/// Tells first compilations from others. See Note [First compilation].
class CompileJudge {
 public:
  CompileJudge(const Signals& signals, const std::vector<Row>& compiles)
      : table_(signals.table),
        tree_(signals.tree),
        compiles_(compiles),
        regions_(table_),
        frame_compiles_(table_),
        launches_(table_),
        region_of_(table_.size(), kNoRow) {
    for (Row r : compiles) {
      if (is_frame_compilation(table_.name_of(r))) frame_compiles_.add(r);
    }
    for (Row r : signals.api_rows) {
      if (is_launch(signals.api(r)) && !tree_.launched_by(r).empty()) launches_.add(r);
    }
    find_regions();
    note_first_kernels();
    plain_end_ns_ = first_plain_end_ns();
  }

  bool is_first(Row range) const {
    const WarmUp& warm_up = tree_.warm_up;
    if (warm_up.by_steps && table_.ts_ns[range] < warm_up.end_ns) return true;
    const std::string_view name = table_.name_of(range);
    const bool of_frame = is_frame_compilation(name);
    const bool of_torch_compile = of_frame || is_of_torch_compile(name);
    Row region = of_frame ? kNoRow : region_of_[range];
    if (region == kNoRow && of_torch_compile) region = region_behind(range);
    if (region != kNoRow) {
      const auto number = region_number(table_.name_of(region));
      if (number) return number->compilation == 0 && !(of_frame && ran_before(*number, range));
    } else if (!of_torch_compile) {
      if (const Row launch = launches_.behind(range); launch != kNoRow) {
        return first_kernels_.contains(tree_.launched_by(launch).front());
      }
    }
    const std::int64_t steady_ns = warm_up.by_steps ? warm_up.end_ns : plain_end_ns_;
    return table_.ts_ns[range] < steady_ns;
  }

 private:
  /// Regions by thread and by frame, and of each row the one around it, or the one whose backward
  /// pass is around it.
  void find_regions() {
    const LazyNames is_region(table_, is_region_name);
    std::vector<Row> around(table_.size(), kNoRow);
    for (Row r = 0; r < table_.size(); ++r) {  // parents precede children
      poll_interrupt();
      if (tree_.host_position[r] == kNoRow) continue;
      const Row parent = tree_.parent[r];
      around[r] = is_region(r) ? r : parent == kNoRow ? kNoRow : around[parent];
      if (around[r] != r) continue;
      regions_.add(r);
      const auto number = region_number(table_.name_of(r));
      if (number) frames_.try_emplace(std::string(number->frame), r);
    }
    for (Row r = 0; r < table_.size(); ++r) {
      poll_interrupt();
      if (tree_.host_position[r] == kNoRow) continue;
      const Row parent = tree_.parent[r], forward = tree_.forward[r];
      region_of_[r] = around[r];
      if (region_of_[r] == kNoRow && forward != kNoRow) region_of_[r] = around[forward];
      if (region_of_[r] == kNoRow && parent != kNoRow) region_of_[r] = region_of_[parent];
    }
  }

  /// The next region of the thread, unless another frame is compiled before it: then dynamo gave up
  /// on this one.
  Row region_behind(Row range) const {
    const Row region = regions_.behind(range), compile = frame_compiles_.behind(range);
    const bool given_up = compile != kNoRow && region != kNoRow && compile < region;
    return given_up ? kNoRow : region;
  }

  bool ran_before(const RegionNumber& number, Row range) const {
    const auto first = frames_.find(std::string(number.frame));
    return first != frames_.end() && first->second < range;
  }

  /// The first GPU event of each name to be launched.
  void note_first_kernels() {
    std::unordered_map<StringId, Row> first;
    for (Row gpu : tree_.linked_gpu_rows) {
      poll_interrupt();
      const auto [it, is_new] = first.try_emplace(table_.name[gpu], gpu);
      if (!is_new && tree_.launch[gpu] < tree_.launch[it->second]) it->second = gpu;
    }
    for (const auto& [name, gpu] : first) first_kernels_.insert(gpu);
  }

  /// End of the first compiled region that holds no compilation: from then on the code is compiled.
  std::int64_t first_plain_end_ns() const {
    const LazyNames is_call(table_, is_compiled_region);
    std::int64_t end_ns = std::numeric_limits<std::int64_t>::max();
    for (Row r : tree_.host_rows) {
      poll_interrupt();
      if (!is_call(r)) continue;
      const auto inside =
          std::lower_bound(compiles_.begin(), compiles_.end(), table_.ts_ns[r],
                           [&](Row c, std::int64_t time) { return table_.ts_ns[c] < time; });
      const bool compiles = inside != compiles_.end() && table_.ts_ns[*inside] < table_.end_ns(r);
      if (!compiles) end_ns = std::min(end_ns, table_.end_ns(r));
    }
    return end_ns;
  }

  const EventTable& table_;
  const EventTree& tree_;
  const std::vector<Row>& compiles_;  ///< outermost ranges, by start
  RowsByTrack regions_, frame_compiles_, launches_;
  std::vector<Row> region_of_;                   ///< by row: see find_regions
  std::unordered_map<std::string, Row> frames_;  ///< by frame number: its first region
  std::unordered_set<Row> first_kernels_;
  std::int64_t plain_end_ns_ = 0;
};

}  // namespace

bool is_compiled_region(std::string_view name) {
  return is_region_name(name) || name == "CompiledFunction";
}

std::optional<RegionNumber> region_number(std::string_view name) {
  const std::size_t begin = name.find(": ");
  const std::size_t slash = name.rfind('/');
  if (!is_region_name(name) || begin == std::string_view::npos || slash == std::string_view::npos ||
      slash < begin) {
    return std::nullopt;
  }
  std::int64_t compilation = 0;
  const std::string_view digits = name.substr(slash + 1);
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), compilation);
  if (error != std::errc()) return std::nullopt;
  return RegionNumber{name.substr(begin + 2, slash - begin - 2), compilation};
}

CompileRanges find_compile_ranges(const Signals& signals) {
  const EventTable& table = signals.table;
  const HostActivities activity(table, signals.tree);
  const auto is_compile = [&](Row r) {
    return !is_api_call(table.kind[r]) && activity(r) == HostActivity::kCompilation;
  };
  const std::vector<Row> rows = range_rows(outermost_ranges(signals, is_compile));
  CompileRanges ranges;
  if (rows.empty()) return ranges;
  const CompileJudge judge(signals, rows);
  for (Row r : rows) (judge.is_first(r) ? ranges.first : ranges.again).push_back(r);
  return ranges;
}

bool is_compile_range(const Signals& signals, Row row) {
  const EventKind kind = signals.table.kind[row];
  return !is_api_call(kind) &&
         classify_host_activity(kind, signals.table.name_of(row)) == HostActivity::kCompilation;
}

std::string_view compile_kind(std::string_view name) {
  if (contains_any(name, {"utotun", "benchmark", "_bench"})) return "autotuning";
  if (contains_any(name, {"cpp_extension", "flashinfer/jit/", "ninja", "tvm_ffi/"})) {
    return "building of extensions";
  }
  return "compilation";
}

bool has_compiled_code(const Signals& signals) {
  const LazyNames compiled(signals.table, [](std::string_view name) {
    return is_compiled_region(name) || name.starts_with("triton_");
  });
  const auto holds = [&](Row r) { return compiled(r); };
  return std::any_of(signals.tree.host_rows.begin(), signals.tree.host_rows.end(), holds) ||
         std::any_of(signals.tree.gpu_rows.begin(), signals.tree.gpu_rows.end(), holds);
}

}  // namespace traceap
