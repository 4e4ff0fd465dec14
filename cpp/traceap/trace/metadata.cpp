#include <simdjson.h>

#include <unordered_map>

#include "traceap/table/json_text.hpp"
#include "traceap/trace/assemble.hpp"
#include "traceap/trace/repair.hpp"

namespace traceap {

namespace {

std::optional<std::int64_t> integer(simdjson::dom::element object, std::string_view key) {
  std::int64_t value = 0;
  if (object[key].get(value) == simdjson::SUCCESS) return value;
  std::string_view text;
  if (object[key].get(text) == simdjson::SUCCESS) return parse_int64(trim_space(text));
  return std::nullopt;
}

DeviceProperties read_device(simdjson::dom::element object) {
  DeviceProperties device;
  device.id = integer(object, "id").value_or(kNoId);
  std::string_view name;
  if (object["name"].get(name) == simdjson::SUCCESS) device.name = name;
  device.compute_major = integer(object, "computeMajor");
  device.compute_minor = integer(object, "computeMinor");
  device.sm_count = integer(object, "numSms");
  device.memory_bytes = integer(object, "totalGlobalMem");
  return device;
}

void read_distributed(simdjson::dom::element object, DistributedInfo& info) {
  info.rank = integer(object, "rank");
  info.world_size = integer(object, "world_size");
  std::string_view backend;
  if (object["backend"].get(backend) == simdjson::SUCCESS) info.backend = backend;
}

}  // namespace

void clean_metadata(TopMembers& members, Diagnostics& diagnostics) {
  constexpr std::string_view kOpen = "{\"v\":";
  TopMembers kept;
  for (auto& [key, json] : members) {
    const std::string clean_key = replace_bad_utf8(key);
    if (clean_key == key && is_valid_json(json) && replace_bad_utf8(json) == json) {
      kept.emplace_back(std::move(key), std::move(json));
      continue;
    }
    diagnostics.add("bad_metadata",
                    "a member beside traceEvents that is no valid JSON was mended or dropped");
    std::string object(kOpen), mended;
    object += json;
    object += '}';
    ReasonCounts ignored;
    const RepairResult result = repair_event(object, 0, true, 0, mended, ignored);
    if (result.status != RepairStatus::kKept || result.end != object.size()) continue;
    if (!mended.starts_with(kOpen)) continue;
    const std::string value = mended.substr(kOpen.size(), mended.size() - kOpen.size() - 1);
    if (is_valid_json(value)) kept.emplace_back(clean_key, value);
  }
  members.swap(kept);
}

void read_metadata(EventTable& table) {
  simdjson::dom::parser parser;
  for (const auto& [key, json] : table.metadata) {
    if (key != "deviceProperties" && key != "distributedInfo") continue;
    simdjson::dom::element value;
    if (parser.parse(json).get(value) != simdjson::SUCCESS) {
      table.diagnostics.add(
          "bad_metadata",
          "a member beside traceEvents that is no valid JSON was mended or dropped");
    } else if (key == "distributedInfo") {
      read_distributed(value, table.distributed);
    } else if (simdjson::dom::array devices; value.get(devices) == simdjson::SUCCESS) {
      for (const simdjson::dom::element device : devices) {
        if (device.is_object()) table.devices.push_back(read_device(device));
      }
    }
  }
}

void name_tracks(EventTable& table) {
  const StringId process = table.strings.find("process_name");
  const StringId labels = table.strings.find("process_labels");
  const StringId thread = table.strings.find("thread_name");
  const ArgReader name(table, "name");
  const ArgReader label(table, "labels");
  std::unordered_map<std::string, std::pair<std::string, std::string>> of_process;
  for (Row r = 0; r < table.size(); ++r) {
    if (table.kind[r] != EventKind::kMetadata) continue;
    Track& track = table.tracks[table.track[r]];
    if (table.name[r] == process) of_process[track.pid].first = name.text(r).value_or("");
    if (table.name[r] == labels) of_process[track.pid].second = label.text(r).value_or("");
    if (table.name[r] == thread) track.thread_name = name.text(r).value_or("");
  }
  for (Track& track : table.tracks) {
    const auto found = of_process.find(track.pid);
    if (found == of_process.end()) continue;
    track.process_name = found->second.first;
    track.process_labels = found->second.second;
  }
}

}  // namespace traceap
