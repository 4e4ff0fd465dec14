#include "traceap/trace/merge.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/intervals.hpp"
#include "traceap/table/json_text.hpp"
#include "traceap/trace/merged_event.hpp"
#include "traceap/trace/text_file.hpp"

namespace traceap {
namespace {

using Members = std::vector<std::pair<std::string, std::string>>;

/// Process ids of one rank begin at (index + 1) times this.
constexpr std::int64_t kProcessesPerRank = 100'000;

/// Top-level members that name one rank: the merged trace has none of its own.
bool is_of_one_rank(std::string_view key) {
  return key == "distributedInfo" || key == "traceName" || key == "trace_id" || key == kMergedRanks;
}

class RankRewriter {
 public:
  RankRewriter(const MergeInput& input, std::size_t index, std::size_t ranks)
      : input_(input),
        table_(*input.table),
        index_(static_cast<std::int64_t>(index)),
        ids_(index, ranks) {
    number_processes();
  }

  /// Names and order of the processes, as metadata events.
  std::vector<std::string> process_events() const {
    std::vector<std::string> events;
    for (const auto& [pid, process] : processes_) {
      std::string name = "rank " + std::to_string(input_.rank) + ": ";
      name += process.name.empty() ? pid : process.name;
      if (!process.labels.empty() && process.labels != process.name) {
        name += " (" + process.labels + ")";
      }
      const std::string number = std::to_string(process.number);
      events.push_back(metadata_event("process_name", number, "name", quoted(name)));
      events.push_back(metadata_event("process_sort_index", number, "sort_index", number));
    }
    return events;
  }

  /// The rank's entry of kMergedRanks. `head` are the merged trace's own members.
  std::string record(const Members& head) const {
    std::string out = "{\"rank\":" + std::to_string(input_.rank) + ",\"processes\":[";
    bool first = true;
    for (const auto& [pid, process] : processes_) {
      if (!first) out += ',';
      first = false;
      out += "{\"pid\":" + std::to_string(process.number) + ",\"was\":" + process.was;
      if (!process.name.empty()) out += ",\"name\":" + quoted(process.name);
      if (!process.labels.empty()) out += ",\"labels\":" + quoted(process.labels);
      out += '}';
    }
    out += "],\"members\":{";
    first = true;
    for (const auto& member : table_.metadata) {
      if (member.first == kMergedRanks || contains(head, member)) continue;
      append_member(out, first, quoted(member.first));
      out += quoted(member.second);
    }
    out += "},\"without\":[";
    first = true;
    for (const auto& member : head) {
      const std::string& key = member.first;
      const bool has = std::any_of(table_.metadata.begin(), table_.metadata.end(),
                                   [&](const auto& own) { return own.first == key; });
      if (has) continue;
      if (!first) out += ',';
      first = false;
      out += quoted(key);
    }
    return out + "]}";
  }

  /// The event of a row in the merged trace; empty for one that process_events() replaces.
  std::string rewrite(Row row) const {
    if (table_.kind[row] == EventKind::kMetadata) {
      if (table_.name_of(row).starts_with("process_")) return {};
      if (processes_.find(table_.tracks[table_.track[row]].pid) == processes_.end()) return {};
    }
    const bool has_id =
        table_.kind[row] == EventKind::kFlow || table_.kind[row] == EventKind::kAsync;
    return rewrite_event(
        event_json(table_, row), has_id,
        [&](std::string& out, std::string_view value) { ids_.append_spread(out, value); },
        [&](std::string& out, std::string_view key, std::string_view value) {
          if (key == "pid") {
            append_integer(out, number_of(row));
          } else if (key == "ts" && (table_.flags[row] & kHasTime) != 0 && is_moved()) {
            append_ns_as_us(out, moved(table_.ts_ns[row]));
          } else {
            out += value;
          }
        });
  }

 private:
  struct Process {
    std::int64_t number;
    std::string was;  ///< JSON
    std::string name, labels;
  };

  static std::string quoted(std::string_view text) {
    std::string out;
    append_json_string(out, text);
    return out;
  }

  static bool contains(const Members& members, const Members::value_type& member) {
    return std::find(members.begin(), members.end(), member) != members.end();
  }

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
      const auto [it, added] = processes_.try_emplace(
          std::string(track.pid),
          Process{next, track.pid_number() ? std::string(track.pid) : quoted(track.pid), {}, {}});
      if (added) ++next;
      if (it->second.name.empty()) it->second.name = track.process_name();
      if (it->second.labels.empty()) it->second.labels = track.process_labels();
    }
  }

  std::int64_t number_of(Row row) const {
    const auto it = processes_.find(table_.tracks[table_.track[row]].pid);
    return it == processes_.end() ? (index_ + 1) * kProcessesPerRank : it->second.number;
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

  const MergeInput& input_;
  const EventTable& table_;
  std::int64_t index_;
  RankIds ids_;
  std::map<std::string, Process, std::less<>> processes_;
};

/// Top-level members of the first rank that may hold for all of them.
Members shared_members(const EventTable& table) {
  Members members;
  for (const auto& member : table.metadata) {
    if (!is_of_one_rank(member.first)) members.push_back(member);
  }
  return members;
}

void write_head(const Members& head, const std::vector<RankRewriter>& ranks, TextFile& file) {
  file.write("{\n");
  for (const auto& [key, json] : head) {
    std::string member;
    append_json_string(member, key);
    file.write(member + ": " + json + ",\n");
  }
  file.write('"' + std::string(kMergedRanks) + "\": [\n");
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    file.write((i == 0 ? "" : ",\n") + ranks[i].record(head));
  }
  file.write("\n],\n\"traceEvents\": [\n");
}

}  // namespace

void write_merged_trace(const std::vector<MergeInput>& ranks, const std::string& path) {
  TextFile file(path);
  if (ranks.empty()) {
    file.write("{\"traceEvents\": []}\n");
    file.close();
    return;
  }
  std::vector<RankRewriter> rewriters;
  for (std::size_t i = 0; i < ranks.size(); ++i) rewriters.emplace_back(ranks[i], i, ranks.size());
  write_head(shared_members(*ranks.front().table), rewriters, file);
  bool first = true;
  const auto add = [&](const std::string& event) {
    if (event.empty()) return;
    if (!first) file.write(",\n");
    first = false;
    file.write(event);
  };
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    for (const std::string& event : rewriters[i].process_events()) add(event);
    for (Row row = 0; row < ranks[i].table->size(); ++row) add(rewriters[i].rewrite(row));
  }
  file.write("\n]}\n");
  file.close();
}

}  // namespace traceap
