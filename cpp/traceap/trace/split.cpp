#include <simdjson.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "traceap/base/interrupt.hpp"
#include "traceap/trace/merge.hpp"
#include "traceap/trace/merged_event.hpp"

namespace traceap {
namespace {

/// What all ranks share is repeated for each; ranks that would need more than this are not split.
constexpr std::size_t kMostSharedBytes = std::size_t{256} << 20;

using Members = std::vector<std::pair<std::string, std::string>>;
using Object = simdjson::dom::object;
using Array = simdjson::dom::array;

struct Process {
  std::string was;  ///< JSON
  std::string name, labels;
};

struct Record {
  std::int64_t rank = 0;
  std::map<std::int64_t, Process> processes;  ///< by pid in the merged trace
  Members members;
  std::set<std::string, std::less<>> without;  ///< replaced members too
};

std::string text_of(Object object, std::string_view key) {
  std::string_view text;
  return object[key].get(text) == simdjson::SUCCESS ? std::string(text) : std::string();
}

bool read_process(Object object, Record& record) {
  std::int64_t pid = 0;
  simdjson::dom::element was;
  if (object["pid"].get(pid) != simdjson::SUCCESS) return false;
  if (object["was"].get(was) != simdjson::SUCCESS) return false;
  if (!was.is_int64() && !was.is_string()) return false;
  std::string was_json = simdjson::minify(was);
  if (was_json.size() > Track::kMaxNameBytes) return false;  // each event repeats it
  Process process{std::move(was_json), text_of(object, "name"), text_of(object, "labels")};
  return record.processes.try_emplace(pid, std::move(process)).second;
}

bool read_record(Object object, Record& record) {
  Array processes, without;
  Object members;
  if (object["rank"].get(record.rank) != simdjson::SUCCESS) return false;
  if (object["processes"].get(processes) != simdjson::SUCCESS) return false;
  if (object["members"].get(members) != simdjson::SUCCESS) return false;
  if (object["without"].get(without) != simdjson::SUCCESS) return false;
  for (const simdjson::dom::element process : processes) {
    Object fields;
    if (process.get(fields) != simdjson::SUCCESS || !read_process(fields, record)) return false;
  }
  for (const auto& [key, value] : members) {
    std::string_view json;
    if (value.get(json) != simdjson::SUCCESS || !is_valid_json(json)) return false;
    record.members.emplace_back(key, json);
    record.without.emplace(key);
  }
  for (const simdjson::dom::element key : without) {
    std::string_view text;
    if (key.get(text) != simdjson::SUCCESS) return false;
    record.without.emplace(text);
  }
  return true;
}

/// What was merged; nothing if the trace doesn't say so in a way that makes sense.
std::vector<Record> read_records(const EventTable& merged) {
  const auto member = std::find_if(merged.metadata.begin(), merged.metadata.end(),
                                   [](const auto& own) { return own.first == kMergedRanks; });
  if (member == merged.metadata.end()) return {};
  simdjson::dom::parser parser;
  Array ranks;
  if (parser.parse(member->second).get(ranks) != simdjson::SUCCESS) return {};
  std::vector<Record> records;
  for (const simdjson::dom::element rank : ranks) {
    Object object;
    Record& record = records.emplace_back();
    if (rank.get(object) != simdjson::SUCCESS || !read_record(object, record)) return {};
  }
  return records;
}

bool shares_too_much(const EventTable& merged, std::size_t ranks) {
  std::size_t bytes = 0;
  for (const auto& [key, json] : merged.metadata) {
    if (key != kMergedRanks) bytes += key.size() + json.size();
  }
  return bytes > kMostSharedBytes / ranks;
}

/// By track: the rank that it belongs to; tracks of processes that no rank names go to the first.
/// nullopt where two ranks name the same process.
std::optional<std::vector<std::size_t>> ranks_of_tracks(const EventTable& merged,
                                                        const std::vector<Record>& records) {
  std::map<std::int64_t, std::size_t> rank_of_pid;
  for (std::size_t i = 0; i < records.size(); ++i) {
    for (const auto& [pid, process] : records[i].processes) {
      if (!rank_of_pid.try_emplace(pid, i).second) return std::nullopt;
    }
  }
  std::vector<std::size_t> ranks;
  for (const Track& track : merged.tracks) {
    const auto found = rank_of_pid.find(track.pid_number().value_or(-1));
    ranks.push_back(found == rank_of_pid.end() ? 0 : found->second);
  }
  return ranks;
}

class RankText {
 public:
  RankText(const EventTable& merged, const Record& record, std::size_t index, std::size_t ranks)
      : merged_(merged), record_(record), ids_(index, ranks) {
    write_members();
    for (const auto& [pid, process] : record_.processes) {
      if (!process.name.empty()) add_name("process_name", "name", process.was, process.name);
      if (!process.labels.empty())
        add_name("process_labels", "labels", process.was, process.labels);
    }
  }

  /// Names and order of the processes are those of the merged trace: the record has the rank's.
  void add(Row row) {
    const Track& track = merged_.tracks[merged_.track[row]];
    const auto process = record_.processes.find(track.pid_number().value_or(-1));
    const bool known = process != record_.processes.end();
    if (known && merged_.kind[row] == EventKind::kMetadata &&
        merged_.name_of(row).starts_with("process_")) {
      return;
    }
    const bool has_id =
        merged_.kind[row] == EventKind::kFlow || merged_.kind[row] == EventKind::kAsync;
    add_event(rewrite_event(
        event_json(merged_, row), has_id,
        [&](std::string& out, std::string_view value) { ids_.append_gathered(out, value); },
        [&](std::string& out, std::string_view key, std::string_view value) {
          out += known && key == "pid" ? std::string_view(process->second.was) : value;
        }));
  }

  bool has_events() const { return has_events_; }
  std::string take() {
    text_ += "]}";
    return std::move(text_);
  }

 private:
  void write_members() {
    text_ = "{";
    bool first = true;
    const auto write = [&](const std::string& key, const std::string& json) {
      std::string quoted;
      append_json_string(quoted, key);
      append_member(text_, first, quoted);
      text_ += json;
    };
    for (const auto& [key, json] : merged_.metadata) {
      if (key != kMergedRanks && !record_.without.contains(key)) write(key, json);
    }
    for (const auto& [key, json] : record_.members) {
      if (key != "traceEvents") write(key, json);
    }
    append_member(text_, first, "\"traceEvents\"");
    text_ += '[';
  }

  void add_name(std::string_view event, std::string_view key, std::string_view pid,
                std::string_view name) {
    std::string quoted;
    append_json_string(quoted, name);
    add_event(metadata_event(event, pid, key, quoted));
  }

  void add_event(std::string_view event) {
    if (has_events_) text_ += ",\n";
    has_events_ = true;
    text_ += event;
  }

  const EventTable& merged_;
  const Record& record_;
  RankIds ids_;
  std::string text_;
  bool has_events_ = false;
};

}  // namespace

std::vector<SplitRank> split_merged_trace(const EventTable& merged, const ReadOptions& options) {
  const std::vector<Record> records = read_records(merged);
  if (records.empty() || shares_too_much(merged, records.size())) return {};
  const auto ranks = ranks_of_tracks(merged, records);
  if (!ranks) return {};
  std::vector<std::vector<Row>> rows(records.size());
  for (Row row = 0; row < merged.size(); ++row) {
    poll_interrupt();
    rows[(*ranks)[merged.track[row]]].push_back(row);
  }
  std::vector<SplitRank> split;
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (rows[i].empty()) continue;
    RankText text(merged, records[i], i, records.size());
    for (const Row row : rows[i]) {
      poll_interrupt();
      text.add(row);
    }
    if (!text.has_events()) continue;
    const std::string json = text.take();
    ReadOptions how = options;
    if (json.size() <= options.chunk_bytes) how.threads = 1;
    split.push_back({records[i].rank, read_trace_bytes(json, merged.path, how)});
  }
  if (split.empty()) return {};
  Diagnostics diagnostics = merged.diagnostics;
  diagnostics.merge(split.front().table.diagnostics);
  split.front().table.diagnostics = std::move(diagnostics);
  return split;
}

}  // namespace traceap
