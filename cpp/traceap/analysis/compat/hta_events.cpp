#include "traceap/analysis/compat/hta_events.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>

#include "traceap/base/interrupt.hpp"

namespace traceap {
namespace {

/// The double that a parser makes of the decimal text in microseconds.
double to_us(std::int64_t ns) {
  return static_cast<double>(ns / 1000) + static_cast<double>(ns % 1000) / 1000.0;
}

}  // namespace

HtaEvents::HtaEvents(const EventTable& event_table, const HtaOptions& options)
    : table(event_table) {
  for (Row row = 0; row < table.size(); ++row) {
    poll_interrupt();
    const bool kept = table.is_complete(row) && table.category[row] != kNoString &&
                      table.category_of(row) != "Trace" && !(table.flags[row] & kMatchedEnd);
    if (kept) all.push_back(row);
  }
  round_times();
  find_partners();
  if (!options.keep_last_step) cut_last_step();
  const auto window = find_window(options);
  found = window.has_value();
  if (found) clip(window->first, window->second);
}

/// Inwards: HTA does so because rounding start and duration apart makes neighbours overlap.
void HtaEvents::round_times() {
  ts_us.assign(table.size(), 0);
  end_us.assign(table.size(), 0);
  stream.assign(table.size(), -1);
  for (const Row row : all) {
    poll_interrupt();
    const double start = to_us(table.ts_ns[row]);
    ts_us[row] = static_cast<std::int64_t>(std::ceil(start));
    end_us[row] = static_cast<std::int64_t>(std::floor(start + to_us(table.dur_ns[row])));
    if (table.stream[row] != kNoId) stream[row] = table.stream[row];
  }
}

bool HtaEvents::on_gpu(Row row) const {
  if (stream[row] >= 0 && correlation(row) >= 0) return true;
  const std::string_view name = table.name_of(row);
  return name == "Event Sync" || name == "Context Sync";
}

bool HtaEvents::is_drawn_on_gpu(Row row) const {
  return stream[row] != -1 || table.kind[row] == EventKind::kGpuUserAnnotation;
}

/// Of several partners the last wins.
void HtaEvents::find_partners() {
  partner.assign(table.size(), kNoRow);
  struct Entry {
    std::int64_t id;
    Row row;
  };
  std::vector<Entry> calls, work;
  for (const Row row : all) {
    poll_interrupt();
    if (correlation(row) != -1) (on_gpu(row) ? work : calls).push_back({correlation(row), row});
  }
  const auto by_id = [](const Entry& a, const Entry& b) { return a.id < b.id; };
  std::stable_sort(calls.begin(), calls.end(), by_id);
  std::stable_sort(work.begin(), work.end(), by_id);
  for (auto call = calls.begin(), gpu = work.begin(); call != calls.end() && gpu != work.end();) {
    if (call->id != gpu->id) {
      ++(call->id < gpu->id ? call : gpu);
      continue;
    }
    const auto calls_end = std::upper_bound(call, calls.end(), *call, by_id);
    const auto work_end = std::upper_bound(gpu, work.end(), *gpu, by_id);
    for (auto it = call; it != calls_end; ++it) partner[it->row] = (work_end - 1)->row;
    for (auto it = gpu; it != work_end; ++it) partner[it->row] = (calls_end - 1)->row;
    call = calls_end;
    gpu = work_end;
  }
}

/// With more than one step: host events from the last one on, and the work that they launched.
void HtaEvents::cut_last_step() {
  std::unordered_set<StringId> names;
  std::int64_t last_start_us = std::numeric_limits<std::int64_t>::min();
  std::vector<bool> is_step(table.strings.size());
  for (StringId id = 0; id < table.strings.size(); ++id) {
    is_step[id] = table.strings[id].find("ProfilerStep") != std::string_view::npos;
  }
  for (const Row row : all) {
    poll_interrupt();
    if (!is_step[table.name[row]]) continue;
    names.insert(table.name[row]);
    if (!on_gpu(row)) last_start_us = std::max(last_start_us, ts_us[row]);
  }
  if (names.size() < 2) return;
  std::unordered_set<std::int64_t> correlations;
  for (const Row row : all) {
    poll_interrupt();
    if (!on_gpu(row) && ts_us[row] < last_start_us) correlations.insert(correlation(row));
  }
  std::erase_if(all, [&](Row row) {
    return on_gpu(row) ? !correlations.contains(correlation(row)) : ts_us[row] >= last_start_us;
  });
}

/// HTA counts in the order of the file, where the profiler writes the host's annotations before
/// their copies on the GPU's tracks, which bear no stream. The order of the copies among each other
/// is not kept here: they are counted by time.
std::optional<std::pair<std::int64_t, std::int64_t>> HtaEvents::find_window(
    const HtaOptions& options) {
  std::vector<Row> instances;
  if (options.annotation.empty()) {
    instances = all;
  } else {
    std::vector<bool> matches(table.strings.size());
    for (StringId id = 0; id < table.strings.size(); ++id) {
      matches[id] = table.strings[id].find(options.annotation) != std::string_view::npos;
    }
    std::copy_if(all.begin(), all.end(), std::back_inserter(instances),
                 [&](Row row) { return matches[table.name[row]]; });
    std::stable_partition(instances.begin(), instances.end(),
                          [&](Row row) { return !is_drawn_on_gpu(row); });
    const auto size = static_cast<std::uint32_t>(instances.size());
    const std::uint32_t end = options.last_instance < size ? options.last_instance + 1 : size;
    instances.resize(end);
    instances.erase(instances.begin(), instances.begin() + std::min(options.first_instance, end));
    of_gpu_copy = std::any_of(instances.begin(), instances.end(),
                              [&](Row row) { return is_drawn_on_gpu(row); });
  }
  if (instances.empty()) return std::nullopt;
  std::int64_t start_us = std::numeric_limits<std::int64_t>::max();
  std::int64_t last_us = std::numeric_limits<std::int64_t>::min();
  for (const Row row : instances) {
    poll_interrupt();
    start_us = std::min(start_us, ts_us[row]);
    last_us = std::max(last_us, end_us[row]);
  }
  return std::pair(start_us, last_us);
}

/// Host events that start in the window and have a duration; GPU work whose call does. Streams that
/// wait are kept wherever they are.
void HtaEvents::clip(std::int64_t start_us, std::int64_t last_us) {
  const auto starts_inside = [&](Row row) {
    return ts_us[row] >= start_us && ts_us[row] <= last_us && dur_us(row) > 0;
  };
  std::vector<bool> has_call(table.size()), kept_rows(table.size());
  for (const Row row : all) kept_rows[row] = true;
  for (const Row call : all) {
    poll_interrupt();
    const Row work = partner[call];
    if (stream[call] == -1 && work != kNoRow && starts_inside(call)) has_call[work] = true;
  }
  for (const Row row : all) {
    poll_interrupt();
    if (stream[row] == -1 && !starts_inside(row)) continue;
    if (stream[row] != -1 && !has_call[row] && !is_named(row, "Stream Wait Event")) continue;
    clipped.push_back(row);
  }
}

}  // namespace traceap
