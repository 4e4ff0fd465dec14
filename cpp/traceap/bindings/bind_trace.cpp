#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <filesystem>

#include "traceap/bindings/columns.hpp"
#include "traceap/bindings/handles.hpp"
#include "traceap/bindings/interrupt.hpp"
#include "traceap/trace/merge.hpp"
#include "traceap/trace/read.hpp"
#include "traceap/trace/write.hpp"

namespace traceap::bindings {
namespace {

/// Runs on the thread that called the reader, now and then: reports how far it is, and lets Ctrl-C
/// stop it. What Python raises leaves through the reader, which gives up.
auto make_progress(const py::object& callback) {
  return [&callback](std::uint64_t done, std::uint64_t total) {
    if (!callback.is_none()) {
      const py::gil_scoped_acquire acquire;
      callback(done, total);
    }
    check_python();
  };
}

ReadOptions make_options(unsigned threads, std::size_t chunk_bytes) {
  ReadOptions options;
  options.threads = threads;
  options.chunk_bytes = chunk_bytes;
  return options;
}

TablePtr read_file(const std::filesystem::path& path, unsigned threads, std::size_t chunk_bytes,
                   const py::object& callback) {
  ReadOptions options = make_options(threads, chunk_bytes);
  options.progress = make_progress(callback);
  const Unlocked unlocked;
  return std::make_shared<EventTable>(read_trace(path.string(), options));
}

TablePtr read_bytes(const py::bytes& data, const std::string& name, unsigned threads,
                    std::size_t chunk_bytes) {
  const std::string_view bytes = data;
  const Unlocked unlocked;
  return std::make_shared<EventTable>(
      read_trace_bytes(bytes, name, make_options(threads, chunk_bytes)));
}

void write_file(const EventTable& table, const std::filesystem::path& path,
                const std::vector<std::string>& more_events) {
  const Unlocked unlocked;
  write_trace(table, path.string(), more_events);
}

using MergeTuple = std::tuple<TablePtr, std::string, std::int64_t, double>;

void write_merged(const std::vector<MergeTuple>& ranks, const std::filesystem::path& path,
                  std::int64_t epoch_ns) {
  std::vector<MergeInput> inputs;
  for (const auto& [table, label, offset_ns, drift] : ranks) {
    inputs.push_back({table.get(), label, offset_ns, drift, epoch_ns});
  }
  const Unlocked unlocked;
  write_merged_trace(inputs, path.string());
}

py::bytes table_json(const EventTable& table) {
  std::string text;
  {
    const Unlocked unlocked;
    text = trace_json(table);
  }
  return py::bytes(text);
}

}  // namespace

void bind_trace(py::module_& module) {
  const std::size_t chunk_bytes = ReadOptions().chunk_bytes;
  module.def("read_trace", read_file, py::arg("path"), py::kw_only(), py::arg("threads") = 0,
             py::arg("chunk_bytes") = chunk_bytes, py::arg("progress") = py::none(),
             "Reads a trace file; progress(compressed bytes read, in all) is called now and then.");
  module.def("read_trace_bytes", read_bytes, py::arg("data"), py::arg("name"), py::kw_only(),
             py::arg("threads") = 0, py::arg("chunk_bytes") = chunk_bytes,
             "Reads a trace from bytes; `name` stands for the path in messages.");
  module.def("write_trace", write_file, py::arg("table"), py::arg("path"), py::kw_only(),
             py::arg("more_events") = std::vector<std::string>(),
             "Writes Chrome-trace JSON, gzip when the name ends in '.gz'; more_events are JSON "
             "objects that join the table's own.");
  module.def("write_merged_trace", write_merged, py::arg("ranks"), py::arg("path"), py::kw_only(),
             py::arg("epoch_ns") = 0,
             "Writes ranks, each (table, label, offset_ns, drift), as one trace on one clock.");
  module.def("trace_json", table_json, py::arg("table"), "The JSON text as bytes.");
}

}  // namespace traceap::bindings
