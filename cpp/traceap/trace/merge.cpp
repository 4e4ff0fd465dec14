#include "traceap/trace/merge.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/intervals.hpp"
#include "traceap/table/json_text.hpp"
#include "traceap/trace/text_file.hpp"

namespace traceap {
namespace {

/// Process ids of one rank begin at (index + 1) times this.
constexpr std::int64_t kProcessesPerRank = 100'000;

void append_integer(std::string& out, std::int64_t value) {
  char text[24];
  out.append(text, std::to_chars(text, text + sizeof text, value).ptr);
}

void append_member(std::string& out, bool& first, std::string_view quoted_key) {
  if (!first) out += ',';
  first = false;
  out += quoted_key;
  out += ':';
}

class RankRewriter {
 public:
  RankRewriter(const MergeInput& input, std::size_t index, std::size_t ranks)
      : input_(input),
        table_(*input.table),
        index_(static_cast<std::int64_t>(index)),
        ranks_(static_cast<std::int64_t>(ranks)) {
    number_processes();
  }

  /// Names and order of the processes, as metadata events.
  std::vector<std::string> process_events() const {
    std::vector<std::string> events;
    for (const auto& [pid, process] : processes_) {
      std::string name = input_.label;
      name += ": " + (process.name.empty() ? pid : process.name);
      if (!process.labels.empty() && process.labels != process.name) {
        name += " (" + process.labels + ")";
      }
      std::string quoted;
      append_json_string(quoted, name);
      events.push_back(metadata_event("process_name", process.number, "name", quoted));
      events.push_back(metadata_event("process_sort_index", process.number, "sort_index",
                                      std::to_string(process.number)));
    }
    return events;
  }

  /// The event of a row in the merged trace; empty for one that process_events() replaces.
  std::string rewrite(Row row) const {
    if (table_.kind[row] == EventKind::kMetadata) {
      if (table_.name_of(row).starts_with("process_")) return {};
      if (processes_.find(table_.tracks[table_.track[row]].pid) == processes_.end()) return {};
    }
    const std::string event = event_json(table_, row);
    std::string out = "{";
    bool first = true;
    const bool has_id =
        table_.kind[row] == EventKind::kFlow || table_.kind[row] == EventKind::kAsync;
    for_each_member(event,
                    [&](std::string_view quoted, std::string_view key, std::string_view value) {
                      append_member(out, first, quoted);
                      if (key == "pid") {
                        append_integer(out, number_of(row));
                      } else if (key == "ts" && (table_.flags[row] & kHasTime) != 0 && is_moved()) {
                        append_ns_as_us(out, moved(table_.ts_ns[row]));
                      } else if (key == "id" && has_id) {
                        append_id(out, value);
                      } else if (key == "args") {
                        append_args(out, value);
                      } else {
                        out += value;
                      }
                    });
    out += '}';
    return out;
  }

 private:
  struct Process {
    std::int64_t number;
    std::string name, labels;
  };

  /// Processes that have more than metadata.
  void number_processes() {
    std::vector<bool> used(table_.tracks.size(), false);
    for (Row r = 0; r < table_.size(); ++r) {
      poll_interrupt();
      if (table_.kind[r] != EventKind::kMetadata) used[table_.track[r]] = true;
    }
    std::int64_t next = (index_ + 1) * kProcessesPerRank;
    for (std::size_t t = 0; t < table_.tracks.size(); ++t) {
      const Track& track = table_.tracks[t];
      if (!used[t]) continue;
      const auto [it, added] = processes_.try_emplace(track.pid, Process{next, {}, {}});
      if (added) ++next;
      if (it->second.name.empty()) it->second.name = track.process_name();
      if (it->second.labels.empty()) it->second.labels = track.process_labels();
    }
  }

  std::int64_t number_of(Row row) const {
    const auto it = processes_.find(table_.tracks[table_.track[row]].pid);
    return it == processes_.end() ? (index_ + 1) * kProcessesPerRank : it->second.number;
  }

  static std::string metadata_event(std::string_view name, std::int64_t pid, std::string_view key,
                                    std::string_view value) {
    std::string event = R"({"ph":"M","name":")" + std::string(name) + R"(","pid":)";
    append_integer(event, pid);
    event += R"(,"tid":0,"args":{")" + std::string(key) + "\":" + std::string(value) + "}}";
    return event;
  }

  bool is_moved() const { return input_.offset_ns != 0 || input_.drift != 0.0; }
  /// A time that the reader takes, however far the clocks are apart.
  std::int64_t moved(std::int64_t time_ns) const {
    const std::int64_t level = add_saturated(time_ns, -input_.offset_ns);
    const auto since_epoch = static_cast<double>(add_saturated(level, -input_.epoch_ns));
    constexpr double kMost = 1e18;
    const std::int64_t drifted =
        std::llround(std::clamp(input_.drift * since_epoch, -kMost, kMost));
    return std::clamp(add_saturated(level, -drifted), -kMaxTimeNs, kMaxTimeNs);
  }

  /// Integers are spread out; other ids get the rank before them. 0 and -1 mean none.
  void append_id(std::string& out, std::string_view value) const {
    const auto number = parse_int64(value);
    constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
    if (number && *number > 0 && *number < (kLargest - index_) / ranks_) {
      append_integer(out, *number * ranks_ + index_);
    } else if (!number && value.size() >= 2 && value.front() == '"') {
      std::string id = std::to_string(index_) + ":";
      id += unescape_json(value.substr(1, value.size() - 2));
      append_json_string(out, id);
    } else {
      out += value;
    }
  }

  void append_args(std::string& out, std::string_view args) const {
    if (args.empty() || args.front() != '{') {
      out += args;
      return;
    }
    out += '{';
    bool first = true;
    for_each_member(args,
                    [&](std::string_view quoted, std::string_view key, std::string_view value) {
                      append_member(out, first, quoted);
                      if (key == "correlation" || key == "External id" || key == "external id") {
                        append_id(out, value);
                      } else {
                        out += value;
                      }
                    });
    out += '}';
  }

  const MergeInput& input_;
  const EventTable& table_;
  std::int64_t index_, ranks_;
  std::map<std::string, Process> processes_;
};

/// Top-level members of the first rank that hold for all of them.
void write_head(const EventTable& table, TextFile& file) {
  file.write("{\n");
  for (const auto& [key, json] : table.metadata) {
    if (key == "distributedInfo" || key == "traceName" || key == "trace_id") continue;
    std::string member;
    append_json_string(member, key);
    file.write(member + ": " + json + ",\n");
  }
  file.write("\"traceEvents\": [\n");
}

}  // namespace

void write_merged_trace(const std::vector<MergeInput>& ranks, const std::string& path) {
  TextFile file(path);
  if (ranks.empty()) {
    file.write("{\"traceEvents\": []}\n");
    file.close();
    return;
  }
  write_head(*ranks.front().table, file);
  bool first = true;
  const auto add = [&](const std::string& event) {
    if (event.empty()) return;
    if (!first) file.write(",\n");
    first = false;
    file.write(event);
  };
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const RankRewriter rewriter(ranks[i], i, ranks.size());
    for (const std::string& event : rewriter.process_events()) add(event);
    for (Row row = 0; row < ranks[i].table->size(); ++row) add(rewriter.rewrite(row));
  }
  file.write("\n]}\n");
  file.close();
}

}  // namespace traceap
