#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <filesystem>
#include <variant>

#include "traceap/bindings/columns.hpp"
#include "traceap/bindings/handles.hpp"
#include "traceap/bindings/interrupt.hpp"
#include "traceap/trace/event_columns.hpp"
#include "traceap/trace/merge.hpp"
#include "traceap/trace/processes.hpp"
#include "traceap/trace/read.hpp"
#include "traceap/trace/stored_table.hpp"
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

using MergeTuple = std::tuple<TablePtr, std::int64_t, std::int64_t, double>;

void write_merged(const std::vector<MergeTuple>& ranks, const std::filesystem::path& path,
                  std::int64_t epoch_ns) {
  std::vector<MergeInput> inputs;
  for (const auto& [table, rank, offset_ns, drift] : ranks) {
    inputs.push_back({table.get(), rank, offset_ns, drift, epoch_ns});
  }
  const Unlocked unlocked;
  write_merged_trace(inputs, path.string());
}

std::vector<std::pair<std::int64_t, TablePtr>> split_merged(const EventTable& table,
                                                            unsigned threads) {
  std::vector<std::pair<std::int64_t, TablePtr>> ranks;
  ReadOptions options;
  options.threads = threads;
  for (SplitRank& split : split_merged_trace(table, options)) {
    ranks.emplace_back(split.rank, std::make_shared<EventTable>(std::move(split.table)));
  }
  return ranks;
}

std::vector<TablePtr> split_into_processes(const EventTable& table) {
  std::vector<TablePtr> parts;
  for (EventTable& part : split_processes(table)) {
    parts.push_back(std::make_shared<EventTable>(std::move(part)));
  }
  return parts;
}

py::bytes table_json(const EventTable& table) {
  std::string text;
  {
    const Unlocked unlocked;
    text = trace_json(table);
  }
  return py::bytes(text);
}

// ---------------------------------------------------------------------------------- from arrays

using Numbers = AnyArray<std::uint32_t>;
using Mask = std::optional<AnyArray<std::uint8_t>>;
/// (codes, texts, whether the texts are JSON as they stand).
using TextsTuple = std::tuple<Numbers, std::vector<std::string>, bool>;
using CellTuple =
    std::tuple<std::string, std::variant<AnyArray<std::int64_t>, AnyArray<double>, TextsTuple>,
               Mask>;
using Members = std::vector<std::pair<std::string, std::string>>;

std::vector<CellColumn> cell_columns(const std::vector<CellTuple>& tuples) {
  std::vector<CellColumn> columns;
  for (const auto& [key, values, present] : tuples) {
    CellColumn& column = columns.emplace_back();
    column.key = key;
    if (present) column.present = items(*present);
    if (const auto* texts = std::get_if<TextsTuple>(&values)) {
      column.cells =
          TextCells{items(std::get<0>(*texts)), std::get<1>(*texts), std::get<2>(*texts)};
    } else if (const auto* numbers = std::get_if<AnyArray<double>>(&values)) {
      column.cells = items(*numbers);
    } else {
      column.cells = items(std::get<AnyArray<std::int64_t>>(values));
    }
  }
  return columns;
}

TablePtr table_of_columns(const AnyArray<std::int64_t>& ts_ns, const AnyArray<std::int64_t>& dur_ns,
                          const AnyArray<std::uint8_t>& phase, const Numbers& name,
                          const Numbers& category, const Numbers& track,
                          const std::vector<std::string>& strings, const Members& tracks,
                          const std::vector<CellTuple>& args, const std::vector<CellTuple>& members,
                          const Members& metadata, const std::string& path) {
  EventColumns columns;
  columns.ts_ns = items(ts_ns);
  columns.dur_ns = items(dur_ns);
  columns.phase = items(phase);
  columns.name = items(name);
  columns.category = items(category);
  columns.track = items(track);
  columns.strings = strings;
  columns.tracks = tracks;
  columns.args = cell_columns(args);
  columns.members = cell_columns(members);
  columns.metadata = metadata;
  columns.path = path;
  const Unlocked unlocked;
  return std::make_shared<EventTable>(build_table(columns));
}

TablePtr edited_table(const EventTable& table, const AnyArray<std::int64_t>& ts_ns,
                      const AnyArray<std::int64_t>& dur_ns, const AnyArray<std::uint8_t>& kept,
                      const AnyArray<std::int64_t>& correlation,
                      const std::vector<std::string>& more_events) {
  const RowEdits edits{items(ts_ns), items(dur_ns), items(kept), items(correlation)};
  const Unlocked unlocked;
  return std::make_shared<EventTable>(edit_table(table, edits, more_events));
}

// ------------------------------------------------------------------------- from and to a file

using Bytes = AnyArray<std::uint8_t>;
/// (sizes, bytes end to end).
using StoredTextsTuple = std::tuple<py::array, Bytes>;
/// (values, what they count from or None).
using FromTuple = std::tuple<py::array, std::optional<std::int64_t>>;
/// (distinct values, indices into them).
template <typename T>
using CodesTuple = std::tuple<AnyArray<T>, py::array>;
/// (code, count, first byte offset, message).
using DiagnosticTuple =
    std::tuple<std::string, std::uint64_t, std::optional<std::uint64_t>, std::string>;

template <typename T>
StoredIntegers span_of(const py::array& column) {
  return std::span(static_cast<const T*>(column.data()), static_cast<std::size_t>(column.size()));
}

StoredIntegers integers_of(const py::array& column) {
  const std::string type =
      std::string(1, column.dtype().kind()) + std::to_string(column.dtype().itemsize());
  if (column.ndim() == 1 && (column.flags() & py::array::c_style) != 0) {
    if (type == "u1") return span_of<std::uint8_t>(column);
    if (type == "u2") return span_of<std::uint16_t>(column);
    if (type == "u4") return span_of<std::uint32_t>(column);
    if (type == "i8") return span_of<std::int64_t>(column);
  }
  throw SchemaError("columns of unsigned integers or int64 were expected, not " + type);
}

StoredTexts stored_texts(const StoredTextsTuple& texts) {
  return {integers_of(std::get<0>(texts)), items(std::get<1>(texts))};
}

TablePtr table_of_file(const FromTuple& ts_ns, const py::array& dur_ns, const py::array& name,
                       const py::array& category, const Bytes& kind, const Bytes& phase,
                       const Bytes& flags, const py::array& track,
                       const CodesTuple<std::int32_t>& device,
                       const CodesTuple<std::int64_t>& stream, const FromTuple& correlation,
                       const FromTuple& external_id, const py::array& template_id,
                       const StoredTextsTuple& values, const StoredTextsTuple& strings,
                       const StoredTextsTuple& templates, const Members& tracks,
                       const Members& metadata, const std::vector<DiagnosticTuple>& diagnostics,
                       std::uint64_t total_objects, std::uint64_t text_bytes,
                       const std::string& path, unsigned threads) {
  StoredTable stored;
  stored.starts = {integers_of(std::get<0>(ts_ns)), std::get<1>(ts_ns)};
  stored.dur_ns = integers_of(dur_ns);
  stored.name = integers_of(name);
  stored.category = integers_of(category);
  stored.kind = items(kind);
  stored.phase = items(phase);
  stored.flags = items(flags);
  stored.track = integers_of(track);
  stored.device = {items(std::get<0>(device)), integers_of(std::get<1>(device))};
  stored.stream = {items(std::get<0>(stream)), integers_of(std::get<1>(stream))};
  stored.correlation = {integers_of(std::get<0>(correlation)), std::get<1>(correlation)};
  stored.external_id = {integers_of(std::get<0>(external_id)), std::get<1>(external_id)};
  stored.template_id = integers_of(template_id);
  stored.values = stored_texts(values);
  stored.strings = stored_texts(strings);
  stored.templates = stored_texts(templates);
  stored.tracks = tracks;
  stored.metadata = metadata;
  for (const auto& [code, count, offset, message] : diagnostics) {
    stored.diagnostics.push_back({code, count, offset, message});
  }
  stored.total_objects = total_objects;
  stored.text_bytes = text_bytes;
  stored.path = path;
  const Unlocked unlocked;
  return std::make_shared<EventTable>(restore_table(stored, threads));
}

using PackedTuple = py::typing::Tuple<Int64Array, py::array_t<std::uint8_t>>;
PackedTuple packed_values(const EventTable& table) {
  PackedRows rows;
  {
    const Unlocked unlocked;
    rows = pack_rows(table);
  }
  return py::make_tuple(adopt(std::move(rows.offsets)), adopt(std::move(rows.data)));
}

py::array_t<std::uint32_t> template_ids(const EventTable& table) {
  return adopt(table.args.template_id.values());
}

py::typing::List<py::bytes> template_texts(const EventTable& table) {
  py::typing::List<py::bytes> texts;
  for (StringId id = 0; id < table.args.templates.size(); ++id) {
    texts.append(py::bytes(std::string(table.args.templates[id])));
  }
  return texts;
}

void bind_stored(py::module_& module) {
  module.def("packed_values", packed_values, py::arg("table"),
             "What the templates of the events leave out, end to end: int64 [n + 1] offsets, uint8 "
             "data.");
  module.def("template_ids", template_ids, py::arg("table"),
             "uint32 [n]: the template of each event, an index in template_texts.");
  module.def("template_texts", template_texts, py::arg("table"), "The templates by id.");
  module.def(
      "restore_table", table_of_file, py::kw_only(), py::arg("ts_ns"), py::arg("dur_ns"),
      py::arg("name"), py::arg("category"), py::arg("kind"), py::arg("phase"), py::arg("flags"),
      py::arg("track"), py::arg("device"), py::arg("stream"), py::arg("correlation"),
      py::arg("external_id"), py::arg("template_id"), py::arg("values"), py::arg("strings"),
      py::arg("templates"), py::arg("tracks"), py::arg("metadata"), py::arg("diagnostics"),
      py::arg("total_objects"), py::arg("text_bytes"), py::arg("path"), py::arg("threads") = 0,
      "The table whose columns [n] these are, in its order, as uint8, uint16, uint32 or int64, "
      "with "
      "codes into strings, templates and tracks, (pid, tid); a category is len(strings) where "
      "there "
      "is none. ts_ns, correlation, external_id: values, and None or the number that steps go "
      "from, "
      "or that ids count from, 0 being none. device and stream: distinct values and codes. values, "
      "strings and templates: sizes and bytes. diagnostics: (code, count, first byte offset, "
      "message). Raises SchemaError where they can't be a table's.");
  module.def(
      "checksum", [](const Bytes& data) { return checksum(items(data)); }, py::arg("data"),
      "CRC-32 of uint8 [n].");
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
             "Writes ranks, each (table, rank, offset_ns, drift), as one trace on one clock.");
  module.def("split_merged_trace", split_merged, py::arg("table"), py::kw_only(),
             py::arg("threads") = 0, py::call_guard<Unlocked>(),
             "The ranks, (rank, table), of a trace that write_merged_trace wrote, else nothing.");
  module.def("split_processes", split_into_processes, py::arg("table"), py::call_guard<Unlocked>(),
             "The processes that launch GPU work, a table for each; nothing where there are fewer "
             "than two.");
  module.def("build_table", table_of_columns, py::kw_only(), py::arg("ts_ns"), py::arg("dur_ns"),
             py::arg("phase"), py::arg("name"), py::arg("category"), py::arg("track"),
             py::arg("strings"), py::arg("tracks"), py::arg("args"), py::arg("members"),
             py::arg("metadata"), py::arg("path"),
             "The table that reading a file of these events would give. Columns are [n]: int64 "
             "ts_ns and dur_ns (of phase X), uint8 phase (letters), uint32 name, category "
             "(NO_STRING: none) and track, codes into `strings` and into `tracks`, (pid, tid). "
             "args and members of the events: (key, values, present), where values are int64, "
             "float64 or (codes, texts, texts are JSON), and present is bool or None. metadata: "
             "(key, JSON text).");
  module.def("edit_table", edited_table, py::arg("table"), py::kw_only(), py::arg("ts_ns"),
             py::arg("dur_ns"), py::arg("kept"), py::arg("correlation"),
             py::arg("more_events") = std::vector<std::string>(),
             "The table with its events at other times, int64 [n] twice, without those that are "
             "not kept, bool [n], with other correlation ids where there are such, int64 [n], and "
             "with more_events, JSON objects.");
  bind_stored(module);
  module.def("trace_json", table_json, py::arg("table"), "The JSON text as bytes.");
}

}  // namespace traceap::bindings
