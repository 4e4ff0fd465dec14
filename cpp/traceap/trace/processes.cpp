// Note [Several processes]: scripts join the traces of ranks into one file. Correlation ids,
// streams and threads are a process's own, so two ranks carry the same ones, and what one of them
// launched would be linked to the other. A process that launches GPU work is a rank. The GPU's
// records stand under ids of their own (of a device, or of a line): such a group belongs to the
// process whose launch calls have its correlation ids and begin shortly before; of equal ones in
// the order of their ids, one group for each process. Where ranks share a group (each of them calls
// its device 0), records of an id go to the calls of that id in the order of time if there are as
// many, else each to the last call before it.

#include "traceap/trace/processes.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "traceap/base/interrupt.hpp"
#include "traceap/table/api_call.hpp"
#include "traceap/trace/assemble.hpp"
#include "traceap/trace/event_columns.hpp"

namespace traceap {
namespace {

constexpr std::uint32_t kEverywhere = std::numeric_limits<std::uint32_t>::max();
/// Clocks of host and GPU may be off by so much without a launch behind its work being believed.
constexpr std::int64_t kToleranceNs = 1'000'000;

struct Call {
  std::int64_t id, start_ns;
  std::uint32_t part;
  friend bool operator<(const Call& a, const Call& b) {
    return std::tie(a.id, a.part, a.start_ns) < std::tie(b.id, b.part, b.start_ns);
  }
};

/// How well a process explains a group of GPU records.
struct Fit {
  std::int64_t linked = 0;
  double delay_ns = 0;  ///< summed over the linked records
};

class ProcessSplitter {
 public:
  explicit ProcessSplitter(const EventTable& table)
      : table_(table), process_(number_processes(table.tracks)) {}

  std::vector<EventTable> split() {
    find_parts();
    if (parts_ < 2) return {};
    std::sort(calls_.begin(), calls_.end());
    assign_groups();
    std::vector<EventTable> tables;
    for (std::uint32_t part = 0; part < parts_; ++part) tables.push_back(table_of(part));
    tables.front().diagnostics.merge(table_.diagnostics);
    std::uint64_t others = 0;
    for (std::size_t i = 1; i < tables.size(); ++i) others += tables[i].total_objects;
    tables.front().total_objects = table_.total_objects - std::min(others, table_.total_objects);
    tables.front().text_bytes = table_.text_bytes;
    return tables;
  }

 private:
  std::uint32_t process_of(Row row) const { return process_[table_.track[row]]; }

  /// A part for each process that launches GPU work.
  void find_parts() {
    const std::size_t processes = process_.empty() ? 0 : process_.back() + 1;
    part_of_.assign(processes, kEverywhere);
    std::vector<std::int8_t> launches(table_.strings.size(), -1);  // by name; -1: not known
    std::vector<bool> is_part(processes);
    for (Row row = 0; row < table_.size(); ++row) {
      poll_interrupt();
      if (!is_api_call(table_.kind[row]) || !table_.is_complete(row)) continue;
      if (table_.correlation[row] == kNoId) continue;
      std::int8_t& known = launches[table_.name[row]];
      if (known < 0) known = starts_gpu_work(classify_api_call(table_.name_of(row))) ? 1 : 0;
      if (known == 0) continue;
      is_part[process_of(row)] = true;
      calls_.push_back({table_.correlation[row], table_.ts_ns[row], process_of(row)});
    }
    for (std::size_t i = 0; i < processes; ++i) {
      if (is_part[i]) part_of_[i] = parts_++;
    }
    for (Call& call : calls_) call.part = part_of_[call.part];
  }

  /// The last call of a part with an id that began at or before a time; nullptr if there is none.
  const Call* call_before(std::int64_t id, std::uint32_t part, std::int64_t time_ns) const {
    const auto after =
        std::upper_bound(calls_.begin(), calls_.end(), Call{id, time_ns + kToleranceNs, part});
    if (after == calls_.begin()) return nullptr;
    const Call& call = *(after - 1);
    return call.id == id && call.part == part ? &call : nullptr;
  }

  void assign_groups() {
    std::map<std::uint32_t, std::vector<Row>> groups;  // by process of the records
    for (Row row = 0; row < table_.size(); ++row) {
      poll_interrupt();
      if (!is_gpu(table_.kind[row]) || part_of_[process_of(row)] != kEverywhere) continue;
      groups[process_of(row)].push_back(row);
    }
    if (groups.size() < parts_) {  // ranks share a group
      for (const auto& [group, rows] : groups) share_out(group, rows);
      return;
    }
    struct Choice {
      std::int64_t linked;
      double delay_ns;
      std::uint32_t group, part;
    };
    std::vector<Choice> choices;
    for (const auto& [group, rows] : groups) {
      for (std::uint32_t part = 0; part < parts_; ++part) {
        const Fit fit = fit_of(rows, part);
        choices.push_back({fit.linked, fit.delay_ns, group, part});
      }
    }
    std::sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
      return std::tuple(-a.linked, a.delay_ns, a.group, a.part) <
             std::tuple(-b.linked, b.delay_ns, b.group, b.part);
    });
    std::vector<bool> has_group(parts_);
    std::vector<bool> has_part(part_of_.size());
    for (const bool second : {false, true}) {  // first one group for each part, then the rest
      for (const Choice& choice : choices) {
        if (has_part[choice.group] || (!second && has_group[choice.part])) continue;
        part_of_[choice.group] = choice.part;
        has_part[choice.group] = has_group[choice.part] = true;
      }
    }
  }

  Fit fit_of(const std::vector<Row>& rows, std::uint32_t part) const {
    Fit fit;
    for (const Row row : rows) {
      poll_interrupt();
      const Call* call = call_before(table_.correlation[row], part, table_.ts_ns[row]);
      if (call == nullptr) continue;
      ++fit.linked;
      fit.delay_ns += static_cast<double>(table_.ts_ns[row] - call->start_ns);
    }
    return fit;
  }

  std::uint32_t part_of(Row row) const {
    const auto own = part_of_record_.find(row);
    return own == part_of_record_.end() ? part_of_[process_of(row)] : own->second;
  }

  /// Records of several parts in one group, which are in order of time.
  void share_out(std::uint32_t group, const std::vector<Row>& rows) {
    part_of_[group] = 0;  // what is no record of the GPU
    std::map<std::int64_t, std::vector<Row>> by_id;
    for (const Row row : rows) by_id[table_.correlation[row]].push_back(row);
    for (const auto& [id, records] : by_id) {
      poll_interrupt();
      std::vector<Call> calls;
      auto call = std::partition_point(calls_.begin(), calls_.end(),
                                       [&, wanted = id](const Call& c) { return c.id < wanted; });
      for (; call != calls_.end() && call->id == id; ++call) calls.push_back(*call);
      std::sort(calls.begin(), calls.end(), [](const Call& a, const Call& b) {
        return std::tie(a.start_ns, a.part) < std::tie(b.start_ns, b.part);
      });
      std::size_t next = 0;
      for (std::size_t i = 0; i < records.size(); ++i) {
        const std::int64_t until_ns = table_.ts_ns[records[i]] + kToleranceNs;
        while (next < calls.size() && calls[next].start_ns <= until_ns) ++next;
        const std::size_t last = next > 0 ? next - 1 : 0;
        const std::size_t chosen = calls.size() == records.size() ? i : last;
        part_of_record_[records[i]] = calls.empty() ? 0 : calls[chosen].part;
      }
    }
  }

  EventTable table_of(std::uint32_t part) const {
    std::vector<std::uint8_t> kept(table_.size());
    for (Row row = 0; row < table_.size(); ++row) {
      poll_interrupt();
      const std::uint32_t own = part_of(row);
      kept[row] = own == part || own == kEverywhere ? 1 : 0;
    }
    std::vector<std::int64_t> correlation(table_.size());
    for (Row row = 0; row < table_.size(); ++row) correlation[row] = table_.correlation[row];
    return edit_table(table_, {table_.ts_ns, table_.dur_ns, kept, correlation});
  }

  const EventTable& table_;
  std::vector<std::uint32_t> process_;           ///< by track
  std::vector<std::uint32_t> part_of_;           ///< by process
  std::map<Row, std::uint32_t> part_of_record_;  ///< of groups that parts share
  std::vector<Call> calls_;                      ///< those that launch
  std::uint32_t parts_ = 0;
};

}  // namespace

std::vector<EventTable> split_processes(const EventTable& table) {
  return ProcessSplitter(table).split();
}

}  // namespace traceap
