#include "traceap/detect/queries/compile.hpp"

#include <algorithm>
#include <limits>

#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/ranges.hpp"

namespace traceap {
namespace {

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

/// dynamo_timed puts a range around each phase of compilation while a profiler runs; with stacks
/// recorded the Python frames of the compilers say the same. The guard check of every call
/// (TorchDynamo Cache Lookup) and calls of compiled code are no compilation.
bool is_compile_range(std::string_view name) {
  if (ends_with(name, "(dynamo_timed)")) return true;
  if (!contains(name, ".py(")) return false;
  if (contains(name, "torch/_dynamo/convert_frame.py(")) {
    return ends_with(name, ": _compile") || ends_with(name, ": compile_inner");
  }
  if (contains(name, "torch/_inductor/compile_fx.py(")) return contains(name, ": compile_fx");
  return contains(name, "triton/compiler/compiler.py(") && ends_with(name, ": compile");
}

/// End of the first compiled region that holds no compilation: from then on the code is compiled.
std::int64_t first_plain_region_end_ns(const Signals& signals, const std::vector<Row>& compiles) {
  const EventTable& table = signals.table;
  const LazyNames is_region(table, is_compiled_region);
  std::int64_t end_ns = std::numeric_limits<std::int64_t>::max();
  for (Row r : signals.tree.host_rows) {
    if (!is_region(r)) continue;
    const auto inside =
        std::lower_bound(compiles.begin(), compiles.end(), table.ts_ns[r],
                         [&](Row c, std::int64_t time) { return table.ts_ns[c] < time; });
    const bool compiles_inside = inside != compiles.end() && table.ts_ns[*inside] < table.end_ns(r);
    if (!compiles_inside) end_ns = std::min(end_ns, table.end_ns(r));
  }
  return end_ns;
}

}  // namespace

bool is_compiled_region(std::string_view name) {
  return contains(name, "Torch-Compiled Region") || name == "CompiledFunction";
}

CompileRanges find_compile_ranges(const Signals& signals) {
  const EventTable& table = signals.table;
  const LazyNames is_compile(table, is_compile_range);
  const std::vector<Row> rows = range_rows(outermost_ranges(signals, is_compile));
  CompileRanges ranges;
  if (rows.empty()) return ranges;
  const WarmUp& warm_up = signals.tree.warm_up;
  const std::int64_t steady_ns =
      warm_up.by_steps ? warm_up.end_ns : first_plain_region_end_ns(signals, rows);
  for (Row r : rows) (table.ts_ns[r] < steady_ns ? ranges.first : ranges.again).push_back(r);
  return ranges;
}

bool has_compiled_code(const Signals& signals) {
  const LazyNames compiled(signals.table, [](std::string_view name) {
    return is_compiled_region(name) || name.substr(0, 7) == "triton_";
  });
  const auto holds = [&](Row r) { return compiled(r); };
  return std::any_of(signals.tree.host_rows.begin(), signals.tree.host_rows.end(), holds) ||
         std::any_of(signals.tree.gpu_rows.begin(), signals.tree.gpu_rows.end(), holds);
}

}  // namespace traceap
