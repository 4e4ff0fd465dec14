// Kinds of the events that XLA's profiler writes (JAX, TensorFlow).
//
// Note [XLA traces]: they have no categories; what an event is follows from the names of its
// process and thread. A device process has a thread per stream, whose events are the work, and
// threads such as "XLA Ops" and "XLA Modules" that repeat the same time by operation and program:
// these are drawn, not counted. Devices without streams (TPU) have their work on "XLA Ops" itself.
// All numbers in `args` are texts, and the correlation id is called correlation_id. Source:
// xplane_schema.cc and cupti_collector.cc of openxla/xla.

#include <charconv>
#include <limits>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/text.hpp"
#include "traceap/trace/assemble.hpp"

namespace traceap {

namespace {

enum class Line : std::uint8_t { kForeign, kHost, kStream, kDeviceOps, kDrawn, kOverhead };

struct XlaTrack {
  Line line = Line::kForeign;
  std::int32_t device = -1;
  std::int64_t stream = kNoId;
};

constexpr std::string_view kDevice = "/device:", kHost = "/host:", kStream = "Stream #";

/// The number at the beginning of a text, if there is one.
std::optional<std::int64_t> leading_number(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data() || number < 0) return std::nullopt;
  return number;
}

/// 3 of "/device:GPU:3"; -1 without a number.
std::int32_t device_number(std::string_view process) {
  process.remove_prefix(process.find(kDevice) + kDevice.size());
  const std::size_t colon = process.find(':');
  if (colon == std::string_view::npos) return -1;
  const auto number = leading_number(process.substr(colon + 1));
  constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();
  return number && *number <= kLargest ? static_cast<std::int32_t>(*number) : -1;
}

XlaTrack device_track(const Track& track, bool has_streams) {
  const std::string_view thread = track.thread_name;
  XlaTrack found{Line::kDrawn, device_number(track.process_name()), kNoId};
  if (thread.starts_with(kStream)) {
    found.line = Line::kStream;
    found.stream = leading_number(thread.substr(kStream.size())).value_or(kNoId);
  } else if (contains(thread, "overhead")) {
    found.line = Line::kOverhead;
  } else if (!has_streams && thread.ends_with("Ops") && !thread.starts_with("Framework") &&
             !thread.starts_with("TensorFlow")) {
    // "XLA Ops", "Async XLA Ops", "Sparse Core Ops": units that work side by side.
    found.line = Line::kDeviceOps;
    found.stream = track.tid_number().value_or(kNoId);
  }
  return found;
}

/// By track; empty unless this is an XLA trace.
std::vector<XlaTrack> find_xla_tracks(const std::vector<Track>& tracks) {
  const std::vector<std::uint32_t> process = number_processes(tracks);
  std::vector<bool> has_streams(tracks.size());  // by process
  bool any = false;
  for (std::size_t i = 0; i < tracks.size(); ++i) {
    const std::string_view name = tracks[i].process_name();
    any = any || contains(name, kDevice) || contains(name, kHost);
    if (tracks[i].thread_name.starts_with(kStream)) has_streams[process[i]] = true;
  }
  std::vector<XlaTrack> found(any ? tracks.size() : 0);
  for (std::size_t i = 0; i < found.size(); ++i) {
    const Track& track = tracks[i];
    if (contains(track.process_name(), kDevice)) {
      found[i] = device_track(track, has_streams[process[i]]);
    } else if (contains(track.process_name(), kHost)) {
      found[i].line = Line::kHost;
    }
  }
  return found;
}

/// What the arguments of XLA's events say.
class XlaArgs {
 public:
  explicit XlaArgs(const EventTable& table)
      : table_(table),
        correlation_(table, "correlation_id"),
        hlo_op_(table, "hlo_op"),
        memcpy_(table, "memcpy_details"),
        memset_(table, "Memset_details"),
        allocation_(table, "memalloc_details"),
        release_(table, "MemFree_details") {}

  std::int64_t correlation(Row row) const { return correlation_.integer(row).value_or(kNoId); }

  EventKind host_kind(Row row) const {
    const std::string_view name = table_.name_of(row);
    if (name.starts_with('$')) return EventKind::kPythonFunction;
    if (name.starts_with("end: ")) return EventKind::kOther;  // marks, inside of what they end
    if (correlation_.has(row)) {
      const bool driver = name.starts_with("cu") && !name.starts_with("cuda");
      return driver ? EventKind::kDriver : EventKind::kRuntime;
    }
    return hlo_op_.has(row) ? EventKind::kCpuOp : EventKind::kUserAnnotation;
  }

  EventKind device_kind(Row row) const {
    const std::string_view name = table_.name_of(row);
    if (memcpy_.has(row) || name.starts_with("Memcpy") || name.starts_with("copy-start")) {
      return EventKind::kGpuMemcpy;
    }
    if (memset_.has(row) || name.starts_with("Memset")) return EventKind::kGpuMemset;
    const bool allocates = allocation_.has(row) || release_.has(row) ||
                           name.starts_with("MemoryAlloc") || name.starts_with("MemoryFree");
    return allocates ? EventKind::kOther : EventKind::kKernel;
  }

 private:
  const EventTable& table_;
  ArgReader correlation_, hlo_op_, memcpy_, memset_, allocation_, release_;
};

EventKind kind_on(Line line, const XlaArgs& args, Row row) {
  switch (line) {
    case Line::kHost:
      return args.host_kind(row);
    case Line::kStream:
    case Line::kDeviceOps:
      return args.device_kind(row);
    case Line::kDrawn:
      return EventKind::kGpuUserAnnotation;
    case Line::kOverhead:
      return EventKind::kOverhead;
    case Line::kForeign:
      break;
  }
  return EventKind::kOther;
}

}  // namespace

void classify_xla_events(EventTable& table) {
  const std::vector<XlaTrack> tracks = find_xla_tracks(table.tracks);
  if (tracks.empty()) return;
  const XlaArgs args(table);
  for (Row row = 0; row < table.size(); ++row) {
    poll_interrupt();
    const bool slice = table.phase[row] == 'X' || table.phase[row] == 'B';
    if (!slice || table.category[row] != kNoString) continue;
    const XlaTrack& track = tracks[table.track[row]];
    table.kind[row] = kind_on(track.line, args, row);
    if (table.device[row] < 0) table.device.set(row, track.device);
    if (table.stream[row] == kNoId) table.stream.set(row, track.stream);
    const bool linked = track.line == Line::kHost || track.line == Line::kStream;
    if (linked && table.correlation[row] == kNoId)
      table.correlation.set(row, args.correlation(row));
  }
}

}  // namespace traceap
