// Work of MTIA's command processors.
//
// Note [MTIA traces]: torch.profiler records of MTIA its runtime calls (mtia_runtime) and, in place
// of kernels, events of the device's control processors (mtia_ccp_events; newer releases name them
// kernel): these are its work. Copies are among them, as requests to the DMA engines
// (dma_request). An event that names neither stream nor device has them in its line: Kineto writes
// the device as process and its queue as thread. Where a trace has kernels beside mtia_ccp_events
// (other devices' profilers write notifications under that name), the kernels are the work, and
// these are drawn, not counted. mtia_insight and mtia_counters repeat or count. Sources:
// kineto_shim.cpp of PyTorch, output_json.cpp of Kineto, types.py of HTA.

#include <limits>

#include "traceap/base/interrupt.hpp"
#include "traceap/trace/assemble.hpp"

namespace traceap {
namespace {

/// Whether a word begins the name: "dma" of "dma_request", not of "dmatmul".
bool begins_with_word(std::string_view name, std::string_view word) {
  if (!name.starts_with(word)) return false;
  if (name.size() == word.size()) return true;
  const char next = name[word.size()];
  return !(next >= 'a' && next <= 'z') && !(next >= 'A' && next <= 'Z');
}

EventKind kind_of_work(std::string_view name) {
  if (name.starts_with("Memset") || name.starts_with("memset")) return EventKind::kGpuMemset;
  const bool copies = begins_with_word(name, "dma") || begins_with_word(name, "DMA") ||
                      name.starts_with("Memcpy") || name.starts_with("memcpy");
  return copies ? EventKind::kGpuMemcpy : EventKind::kKernel;
}

}  // namespace

void classify_mtia_events(EventTable& table) {
  const StringId processors = table.strings.find("mtia_ccp_events");
  const StringId calls = table.strings.find("mtia_runtime");
  const StringId kernel = table.strings.find("kernel");
  if (processors == kNoString && calls == kNoString) return;
  bool has_calls = false, has_kernels = false;
  for (Row row = 0; row < table.size(); ++row) {
    poll_interrupt();
    const StringId category = table.category[row];
    if (category == kNoString) continue;
    has_calls = has_calls || (category == calls && table.kind[row] == EventKind::kRuntime);
    has_kernels = has_kernels || (category == kernel && table.kind[row] == EventKind::kKernel);
  }
  for (Row row = 0; row < table.size(); ++row) {
    poll_interrupt();
    const StringId category = table.category[row];
    if (category == kNoString || table.kind[row] != EventKind::kKernel) continue;
    if (category == processors && has_kernels) {
      table.kind[row] = EventKind::kGpuUserAnnotation;
    } else if (category == processors || (category == kernel && has_calls)) {
      table.kind[row] = kind_of_work(table.name_of(row));
      const Track& line = table.tracks[table.track[row]];
      constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();
      const std::int64_t device = line.pid_number().value_or(-1);
      if (table.device[row] < 0 && device >= 0 && device <= kLargest) {
        table.device.set(row, static_cast<std::int32_t>(device));
      }
      if (table.stream[row] == kNoId) table.stream.set(row, line.tid_number().value_or(kNoId));
    }
  }
}

}  // namespace traceap
