#include "traceap/trace/foreign_files.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>

#include "traceap/base/text.hpp"
#include "traceap/table/json_text.hpp"

namespace traceap {
namespace {

/// Protocol buffers mark a nested message in field 1 so: the outermost ones of Perfetto and XPlane.
constexpr char kNestedInField1 = 0x0a;
constexpr std::size_t kWhereNamesStand = 256;

/// The end of the nested message at `pos`, or nothing where there is none.
std::optional<std::size_t> skip_nested(std::string_view text, std::size_t pos) {
  if (pos >= text.size() || text[pos++] != kNestedInField1) return std::nullopt;
  std::uint64_t length = 0;
  for (unsigned shift = 0; shift < 63 && pos < text.size(); shift += 7) {
    const auto byte = static_cast<std::uint8_t>(text[pos++]);
    length |= std::uint64_t{byte & 0x7fU} << shift;
    if ((byte & 0x80U) == 0) return pos + static_cast<std::size_t>(length);
  }
  return std::nullopt;
}

bool is_xplane(std::string_view head) {
  const std::string_view names = head.substr(0, kWhereNamesStand);
  return head.starts_with(kNestedInField1) &&
         contains_any(names, {"/device:", "/host:", "Task Environment"});
}

/// Packets follow each other, each a nested message.
bool is_perfetto(std::string_view head) {
  const std::optional<std::size_t> first = skip_nested(head, 0);
  if (!first || *first == 0 || *first >= head.size()) return false;
  return skip_nested(head, *first).has_value();
}

bool is_pickle(std::string_view head) {
  return head.size() > 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5;
}

/// An object whose first member is the version of its schema, of Chakra or older, or the nodes.
bool is_execution_trace(std::string_view head) {
  const std::string_view first = trim_space(head.substr(0, kWhereNamesStand));
  if (!first.starts_with("{")) return false;
  const std::string_view member = trim_space(first.substr(1));
  return member.starts_with("\"nodes\"") ||
         (member.starts_with("\"schema\"") && !contains(first, "\"schemaVersion\""));
}

}  // namespace

std::string_view describe_foreign_file(std::string_view head) {
  if (head.starts_with("SQLite format 3")) {
    return "this is an SQLite database, such as an export of Nsight Systems: give the file itself, "
           "unpacked";
  }
  if (head.starts_with("NVIDIA Tegra Profiler Report")) {
    return "this is a report of Nsight Systems (.nsys-rep), which is not read: give what "
           "`nsys export --type sqlite` makes of it";
  }
  if (head.starts_with(std::string_view("NVR\0", 4))) {
    return "this is a report of Nsight Compute (.ncu-rep), which is not read: it holds counters of "
           "single kernels and no timeline; record with torch.profiler and export_chrome_trace";
  }
  if (is_execution_trace(head)) {
    return "this is an execution trace of PyTorch, which says what operators needed and not when "
           "they ran: give the trace of torch.profiler of the same steps "
           "(torchtraceap.load_execution_trace reads this file)";
  }
  if (is_pickle(head)) {
    return "this is a Python pickle, such as a memory snapshot of PyTorch, which is not read since "
           "unpickling runs code: drop a snapshot on https://docs.pytorch.org/memory_viz, or "
           "record "
           "with torch.profiler and profile_memory=True";
  }
  if (contains(head.substr(0, kWhereNamesStand), "\"rocprofiler-sdk-tool\"")) {
    return "this is the JSON of rocprofv3: give the file itself, unpacked";
  }
  if (is_xplane(head)) {
    return "this is an XPlane profile of XLA (JAX, TensorFlow): give the file itself, as it is or "
           "packed with gzip";
  }
  if (is_perfetto(head)) {
    return "this is a Perfetto trace as protocol buffers: give the file itself, as it is or packed "
           "with gzip";
  }
  if (head.starts_with("PK\x03\x04")) {
    return "this is a zip archive: unpack it and give the trace inside";
  }
  return {};
}

}  // namespace traceap
