#include <simdjson.h>

#include "traceap/table/json_text.hpp"
#include "traceap/trace/assemble.hpp"
#include "traceap/trace/repair.hpp"

namespace traceap {

namespace {

constexpr std::string_view kBadMetadata =
    "a member next to traceEvents that is no valid JSON was mended or dropped";
/// deviceProperties beyond it are left out; a machine has a dozen.
constexpr std::size_t kMaxDevices = 1024;

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

/// The text of an argument, cut between characters where it is too long for a name.
std::string shown_name(const ArgReader& reader, Row row) {
  std::string text = reader.text(row).value_or("");
  if (text.size() <= Track::kMaxNameBytes) return text;
  std::size_t end = Track::kMaxNameBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end);
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
    diagnostics.add("bad_metadata", kBadMetadata);
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
      table.diagnostics.add("bad_metadata", kBadMetadata);
    } else if (key == "distributedInfo") {
      read_distributed(value, table.distributed);
    } else if (simdjson::dom::array devices; value.get(devices) == simdjson::SUCCESS) {
      for (const simdjson::dom::element device : devices) {
        if (table.devices.size() == kMaxDevices) {
          const ReasonText& text = text_of(Reason::kMembersLeftOut);
          table.diagnostics.add(text.code, text.message, devices.size() - kMaxDevices);
          break;
        }
        if (device.is_object()) table.devices.push_back(read_device(device));
      }
    }
  }
}

std::vector<std::uint32_t> number_processes(const std::vector<Track>& tracks) {
  std::vector<std::uint32_t> numbers(tracks.size());
  for (std::size_t i = 1; i < tracks.size(); ++i) {
    numbers[i] = numbers[i - 1] + (tracks[i].pid != tracks[i - 1].pid ? 1 : 0);
  }
  return numbers;
}

void name_tracks(EventTable& table) {
  const StringId process = table.strings.find("process_name");
  const StringId labels = table.strings.find("process_labels");
  const StringId thread = table.strings.find("thread_name");
  const ArgReader name(table, "name");
  const ArgReader label(table, "labels");
  const std::vector<std::uint32_t> number = number_processes(table.tracks);
  TrackTexts& owned = *table.track_texts;
  std::vector<ProcessNames*> processes(number.empty() ? 0 : number.back() + 1);
  const auto of_process = [&](Row r) -> ProcessNames& {
    ProcessNames*& names = processes[number[table.track[r]]];
    if (names == nullptr) names = &owned.processes.emplace_back();
    return *names;
  };
  const auto shown = [&](const ArgReader& reader, Row r) {
    return owned.texts.store(shown_name(reader, r));
  };
  for (Row r = 0; r < table.size(); ++r) {
    if (table.kind[r] != EventKind::kMetadata) continue;
    if (table.name[r] == process) of_process(r).name = shown(name, r);
    if (table.name[r] == labels) of_process(r).labels = shown(label, r);
    if (table.name[r] == thread) table.tracks[table.track[r]].thread_name = shown(name, r);
  }
  for (std::size_t i = 0; i < table.tracks.size(); ++i) {
    table.tracks[i].process = processes[number[i]];
  }
}

}  // namespace traceap
