// Kinds of the events that Ascend's profilers write (torch_npu's trace_view.json, msprof's).
//
// Note [Ascend traces]: events of PyTorch have Kineto's categories, those of the device and its
// runtime have none: what they are follows from their process. "Ascend Hardware" has a thread per
// stream, whose events are tasks with a "Task Type"; "HCCL" (newer: "Communication") has a thread
// per group with its collectives, and planes with what these consist of, which are drawn, not
// counted; "CANN" has the host's calls. A call and what it launches share a `connection_id`. Calls
// are made by a thread of their own that a queue feeds, so that no operator is around them: arrows
// of category async_npu lead from an operator to its tasks. "Overlap Analysis" and counters repeat
// all that, and stay foreign. Source: msprof's trace_view assemblers, torch_npu's flow managers.

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <string>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/text.hpp"
#include "traceap/table/json_text.hpp"
#include "traceap/trace/assemble.hpp"

namespace traceap {

namespace {

constexpr std::string_view kHardware = "Ascend Hardware";
constexpr std::string_view kOperatorArrow = "async_npu";

enum class Plane : std::uint8_t { kForeign, kStream, kCollectives, kParts, kCalls };

struct AscendTrack {
  Plane plane = Plane::kForeign;
  std::int32_t device = -1;
  std::int64_t stream = kNoId;
};

/// 3 of "NPU 3"; -1 without a number.
std::int32_t device_number(std::string_view labels) {
  const std::size_t digit = labels.find_first_of("0123456789");
  std::int32_t number = -1;
  if (digit == std::string_view::npos) return number;
  std::from_chars(labels.data() + digit, labels.data() + labels.size(), number);
  return number;
}

AscendTrack track_of(const Track& track) {
  const std::string_view process = track.process_name();
  AscendTrack found{Plane::kForeign, device_number(track.process_labels()),
                    track.tid_number().value_or(kNoId)};
  if (contains(process, kHardware)) {
    found.plane = Plane::kStream;
  } else if (contains(process, "HCCL") || contains(process, "Communication")) {
    const bool parts = contains(track.thread_name, "Plane");
    found.plane = parts ? Plane::kParts : Plane::kCollectives;
  } else if (process == "CANN") {
    found.plane = Plane::kCalls;
  }
  return found;
}

/// By track; empty unless this is an Ascend trace.
std::vector<AscendTrack> find_ascend_tracks(const std::vector<Track>& tracks) {
  const bool any = std::any_of(tracks.begin(), tracks.end(), [](const Track& track) {
    return contains(track.process_name(), kHardware);
  });
  std::vector<AscendTrack> found;
  if (!any) return found;
  found.reserve(tracks.size());
  for (const Track& track : tracks) found.push_back(track_of(track));
  // One device in the file is everybody's, where only the hardware's process is labelled.
  std::int32_t only = -1;
  for (const AscendTrack& track : found) {
    if (track.plane == Plane::kStream) only = std::max(only, track.device);
  }
  for (AscendTrack& track : found) {
    if (track.device < 0) track.device = std::max(only, 0);
  }
  return found;
}

/// A task that only orders others: it waits, records, or marks a place.
bool orders_tasks(std::string_view type) {
  return contains_any(type, {"WAIT", "RECORD", "NOTIFY", "EVENT", "PLACE_HOLDER", "PROFIL", "LABEL",
                             "FLIP", "MAINTENANCE", "WRITE_VALUE", "STREAM_"});
}
bool copies(std::string_view type) { return contains_any(type, {"SDMA", "MEMCPY", "PCIE_DMA"}); }

class TaskKinds {
 public:
  explicit TaskKinds(const EventTable& table) : table_(table), type_(table, "Task Type") {}

  EventKind operator()(Row row) const {
    const std::string type = type_.text(row).value_or(std::string(table_.name_of(row)));
    if (copies(type)) return EventKind::kGpuMemcpy;
    return orders_tasks(type) ? EventKind::kCudaSync : EventKind::kKernel;
  }

 private:
  const EventTable& table_;
  ArgReader type_;
};

EventKind kind_on(Plane plane, const TaskKinds& tasks, Row row) {
  switch (plane) {
    case Plane::kStream:
      return tasks(row);
    case Plane::kCollectives:
      return EventKind::kKernel;
    case Plane::kParts:
      return EventKind::kGpuUserAnnotation;
    case Plane::kCalls:
      return EventKind::kRuntime;
    case Plane::kForeign:
      break;
  }
  return EventKind::kOther;
}

using PlaceOnTrack = std::pair<TrackId, std::int64_t>;

/// The first row of operators, or of tasks, that starts at a place.
std::map<PlaceOnTrack, Row> first_rows(const EventTable& table, bool of_device) {
  std::map<PlaceOnTrack, Row> first;
  for (Row row = 0; row < table.size(); ++row) {
    poll_interrupt();
    const bool wanted = of_device ? is_gpu(table.kind[row]) : table.kind[row] == EventKind::kCpuOp;
    if (wanted && table.is_complete(row)) {
      first.try_emplace({table.track[row], table.ts_ns[row]}, row);
    }
  }
  return first;
}

/// The text of an arrow's own member `id`, which may be a number of any size.
std::string arrow_id(const EventTable& table, Row row) {
  std::string id;
  for_each_member(event_json(table, row),
                  [&](std::string_view, std::string_view key, std::string_view value) {
                    if (key == "id") id = value;
                  });
  return id;
}

/// Gives operators and the tasks that arrows lead to one External id.
void link_operators(EventTable& table) {
  const StringId category = table.strings.find(kOperatorArrow);
  if (category == kNoString) return;
  const auto operators = first_rows(table, false), tasks = first_rows(table, true);
  const auto row_at = [&](const std::map<PlaceOnTrack, Row>& rows, Row arrow) {
    const auto found = rows.find({table.track[arrow], table.ts_ns[arrow]});
    return found == rows.end() ? kNoRow : found->second;
  };
  std::map<std::string, Row> starts;
  for (const char phase : {'s', 'f'}) {
    for (Row row = 0; row < table.size(); ++row) {
      poll_interrupt();
      if (table.phase[row] != phase || table.category[row] != category) continue;
      if (phase == 's') {
        const Row op = row_at(operators, row);
        if (op != kNoRow) starts.try_emplace(arrow_id(table, row), op);
        continue;
      }
      const auto start = starts.find(arrow_id(table, row));
      const Row task = row_at(tasks, row);
      if (start == starts.end() || task == kNoRow) continue;
      const Row op = start->second;
      if (table.external_id[op] == kNoId) table.external_id.set(op, std::int64_t{op} + 1);
      if (table.external_id[task] == kNoId) table.external_id.set(task, table.external_id[op]);
    }
  }
}

}  // namespace

void classify_ascend_events(EventTable& table) {
  const std::vector<AscendTrack> tracks = find_ascend_tracks(table.tracks);
  if (tracks.empty()) return;
  const TaskKinds tasks(table);
  const ArgReader connection(table, "connection_id");
  for (Row row = 0; row < table.size(); ++row) {
    poll_interrupt();
    const bool slice = table.phase[row] == 'X' || table.phase[row] == 'B';
    const AscendTrack& track = tracks[table.track[row]];
    if (!slice || table.category[row] != kNoString || track.plane == Plane::kForeign) continue;
    table.kind[row] = kind_on(track.plane, tasks, row);
    if (table.kind[row] == EventKind::kRuntime || is_gpu(table.kind[row])) {
      if (table.correlation[row] == kNoId) {
        table.correlation.set(row, connection.integer(row).value_or(kNoId));
      }
    }
    if (track.plane == Plane::kCalls) continue;
    if (table.device[row] < 0) table.device.set(row, track.device);
    if (table.stream[row] == kNoId) table.stream.set(row, track.stream);
  }
  link_operators(table);
}

}  // namespace traceap
