#pragma once
// Events as HolisticTraceAnalysis sees them: times in whole microseconds, partners by correlation,
// clipped to an annotation. Private to analysis/.

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "traceap/analysis/compat/hta_graph.hpp"
#include "traceap/table/event_table.hpp"

namespace traceap {

class HtaEvents {
 public:
  HtaEvents(const EventTable& event_table, const HtaOptions& options);

  const EventTable& table;
  bool found = true;         ///< the annotation exists
  bool of_gpu_copy = false;  ///< an instance of it is a copy that is drawn on a GPU's track
  std::vector<Row> all;      ///< events kept, by row
  std::vector<Row> clipped;  ///< of these, the ones inside the annotation
  // By row:
  std::vector<std::int64_t> ts_us, end_us;
  std::vector<std::int64_t> stream;  ///< -1 without one
  std::vector<Row> partner;          ///< the call of GPU work and the other way round, or kNoRow

  std::int64_t dur_us(Row row) const { return end_us[row] - ts_us[row]; }
  std::int64_t correlation(Row row) const {
    return table.correlation[row] == kNoId ? -1 : table.correlation[row];
  }
  /// Work or a synchronisation on the GPU (HTA's GPUKernelFilter).
  bool on_gpu(Row row) const;
  /// HTA's index_correlation >= 0.
  bool is_correlated(Row row) const { return partner[row] != kNoRow || correlation(row) >= 0; }
  bool is_named(Row row, std::string_view name) const { return table.name_of(row) == name; }

 private:
  void round_times();
  void find_partners();
  void cut_last_step();
  bool is_drawn_on_gpu(Row row) const;
  std::optional<std::pair<std::int64_t, std::int64_t>> find_window(const HtaOptions& options);
  void clip(std::int64_t start_us, std::int64_t end_us);
};

}  // namespace traceap
