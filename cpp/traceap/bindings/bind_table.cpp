#include <pybind11/stl.h>

#include "traceap/bindings/arg_columns.hpp"
#include "traceap/bindings/codes.hpp"
#include "traceap/bindings/columns.hpp"
#include "traceap/bindings/handles.hpp"
#include "traceap/bindings/interrupt.hpp"

namespace traceap::bindings {
namespace {

using TableClass = py::class_<EventTable, TablePtr>;

template <typename T, typename Text>
auto text_of(Text T::*member) {
  return [member](const T& self) { return to_str(self.*member); };
}

Row checked_row(const EventTable& table, std::int64_t row) {
  if (row < 0 || row >= static_cast<std::int64_t>(table.size())) {
    throw py::index_error("row " + std::to_string(row) + " of a table with " +
                          std::to_string(table.size()) + " rows");
  }
  return static_cast<Row>(row);
}

void bind_constants(py::module_& module) {
  module.attr("NO_ROW") = kNoRow;
  module.attr("NO_STRING") = kNoString;
  module.attr("NO_ID") = kNoId;
  module.attr("HAS_TIME") = static_cast<int>(kHasTime);
  module.attr("HAS_DURATION") = static_cast<int>(kHasDuration);
  module.attr("IMPOSSIBLE") = static_cast<int>(kImpossible);
  module.attr("MATCHED_END") = static_cast<int>(kMatchedEnd);
  module.attr("REPAIRED") = static_cast<int>(kRepaired);
}

void bind_track(py::module_& module) {
  py::class_<Track>(module, "Track", "A (pid, tid) pair as written, with its names.")
      .def_property_readonly("pid", text_of(&Track::pid), "As text.")
      .def_property_readonly("tid", text_of(&Track::tid), "As text.")
      .def_property_readonly("pid_number", &Track::pid_number, "As an integer, if it is one.")
      .def_property_readonly("tid_number", &Track::tid_number, "As an integer, if it is one.")
      .def_property_readonly(
          "process_name", [](const Track& self) { return to_str(self.process_name()); },
          "Or empty.")
      .def_property_readonly(
          "process_labels", [](const Track& self) { return to_str(self.process_labels()); },
          "Or empty.")
      .def_property_readonly("thread_name", text_of(&Track::thread_name), "Or empty.");
}

void bind_device(py::module_& module) {
  using Device = DeviceProperties;
  py::class_<Device>(module, "Device", "One entry of deviceProperties.")
      .def_property_readonly(
          "id",
          [](const Device& self) {
            return self.id == kNoId ? std::optional<std::int64_t>() : self.id;
          },
          "Index of the device.")
      .def_property_readonly("name", text_of(&Device::name), "Or empty.")
      .def_readonly("compute_major", &Device::compute_major, "Compute capability.")
      .def_readonly("compute_minor", &Device::compute_minor, "Compute capability.")
      .def_readonly("sm_count", &Device::sm_count, "Multiprocessors.")
      .def_readonly("memory_bytes", &Device::memory_bytes, "Global memory.");
}

void bind_diagnostic(py::module_& module) {
  py::class_<Diagnostic>(module, "Diagnostic", "What could not be taken at face value, counted.")
      .def_property_readonly("code", text_of(&Diagnostic::code), "Listed in docs/errors.md.")
      .def_readonly("count", &Diagnostic::count, "Occurrences.")
      .def_readonly("first_byte_offset", &Diagnostic::first_byte_offset,
                    "In the decompressed text, if it has a place there.")
      .def_property_readonly("message", text_of(&Diagnostic::message), "For a person.");
}

py::array_t<bool> complete_rows(const EventTable& table) {
  std::vector<std::uint8_t> complete(table.size());
  for (Row r = 0; r < table.size(); ++r) complete[r] = table.is_complete(r) ? 1 : 0;
  return adopt(std::move(complete)).attr("view")("bool");
}

void bind_table_columns(TableClass& table) {
  const auto column = [&](const char* name, auto member, const char* doc) {
    table.def_property_readonly(name, column_of(member), doc);
  };
  column("ts_ns", &EventTable::ts_ns, "int64 [n]: start; 0 without HAS_TIME.");
  column("dur_ns", &EventTable::dur_ns, "int64 [n]: duration; 0 without HAS_DURATION.");
  column("name", &EventTable::name, "uint32 [n]: index in strings.");
  column("kind", &EventTable::kind, "uint8 [n]: EventKind.");
  column("phase", &EventTable::phase, "uint8 [n]: the phase letter's code.");
  column("flags", &EventTable::flags, "uint8 [n]: HAS_TIME | HAS_DURATION | ...");
  table.def_property_readonly("complete", complete_rows,
                              "bool [n]: the event has a start and a duration; a new array.");
  column("track", &EventTable::track, "uint32 [n]: index in tracks.");
  // Narrow in the core, so that these are made anew.
  const auto narrow = [&](const char* name, auto member, const char* doc) {
    table.def_property_readonly(
        name, [member](const EventTable& self) { return adopt((self.*member).values()); }, doc);
  };
  narrow("category", &EventTable::category,
         "uint32 [n]: index in strings, or NO_STRING; a new array.");
  narrow("device", &EventTable::device, "int32 [n]: args.device, -1 if absent; a new array.");
  narrow("stream", &EventTable::stream, "int64 [n]: args.stream, or NO_ID; a new array.");
  narrow("correlation", &EventTable::correlation,
         "int64 [n]: args.correlation, or NO_ID; a new array.");
  narrow("external_id", &EventTable::external_id,
         "int64 [n]: args['External id'], or NO_ID; a new array.");
}

using Metadata = py::typing::List<py::typing::Tuple<py::str, py::str>>;
Metadata metadata_of(const EventTable& table) {
  Metadata items;
  for (const auto& [key, json] : table.metadata) {
    items.append(py::make_tuple(to_str(key), to_str(json)));
  }
  return items;
}

/// Each keeps the table, whose texts it points into.
py::typing::List<Track> tracks_of(const py::object& self) {
  py::typing::List<Track> tracks;
  for (const Track& track : self.cast<const EventTable&>().tracks) {
    tracks.append(py::cast(track, py::return_value_policy::reference_internal, self));
  }
  return tracks;
}

void bind_table_members(TableClass& table) {
  table.def("__len__", [](const EventTable& self) { return self.size(); })
      .def_property_readonly(
          "strings", [](const EventTable& self) { return to_list(self.strings); },
          "Names and categories by id; a new list each time.")
      .def_property_readonly("tracks", tracks_of, "By track id; a new list each time.")
      .def_property_readonly("metadata", metadata_of, "Top-level members: (key, JSON text).")
      .def_property_readonly(
          "devices", [](const EventTable& self) { return self.devices; }, "Of deviceProperties.")
      .def_property_readonly(
          "rank", [](const EventTable& self) { return self.distributed.rank; },
          "Of distributedInfo.")
      .def_property_readonly(
          "world_size", [](const EventTable& self) { return self.distributed.world_size; },
          "Of distributedInfo.")
      .def_property_readonly(
          "backend", [](const EventTable& self) { return to_str(self.distributed.backend); },
          "Of distributedInfo, or empty.")
      .def_property_readonly(
          "path", [](const EventTable& self) { return to_str(self.path); }, "Input file.")
      .def_readonly("total_objects", &EventTable::total_objects, "Objects met in traceEvents.")
      .def_readonly("text_bytes", &EventTable::text_bytes, "Decompressed size.")
      .def_property_readonly(
          "diagnostics", [](const EventTable& self) { return self.diagnostics.entries(); },
          "Of reading.");
}

using RowNumbers = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;
RowChoice chosen(const EventTable& table, const std::optional<RowNumbers>& rows) {
  if (!rows) return std::nullopt;
  std::vector<Row> wanted;
  wanted.reserve(static_cast<std::size_t>(rows->size()));
  for (py::ssize_t i = 0; i < rows->size(); ++i)
    wanted.push_back(checked_row(table, rows->data()[i]));
  return wanted;
}

using IntsAndMask = py::typing::Tuple<Int64Array, py::array_t<bool>>;
IntsAndMask int_column(const EventTable& table, const std::string& key,
                       const std::optional<RowNumbers>& rows) {
  const RowChoice wanted = chosen(table, rows);
  IntColumn column;
  {
    const Unlocked unlocked;
    column = read_int_column(table, key, wanted);
  }
  const py::object valid = adopt(std::move(column.valid)).attr("view")("bool");
  return py::make_tuple(adopt(std::move(column.values)), valid);
}

using TextsOrNone = py::typing::List<py::typing::Optional<py::str>>;
TextsOrNone text_column(const EventTable& table, const std::string& key) {
  TextColumn column;
  {
    const Unlocked unlocked;
    column = read_text_column(table, key);
  }
  const TextList texts = to_list(column.texts);
  TextsOrNone values(column.ids.size());
  for (std::size_t i = 0; i < column.ids.size(); ++i) {
    const StringId id = column.ids[i];
    values[i] = id == kNoString ? py::object(py::none()) : py::object(texts[id]);
  }
  return values;
}

using CodesAndTexts = py::typing::Tuple<py::array_t<std::int32_t>, TextList>;
CodesAndTexts text_codes(const EventTable& table, const std::string& key,
                         const std::optional<RowNumbers>& rows) {
  const RowChoice wanted = chosen(table, rows);
  TextCodes column;
  {
    const Unlocked unlocked;
    column = read_text_codes(table, key, wanted);
  }
  return py::make_tuple(adopt(std::move(column.codes)), to_list(column.texts));
}

void bind_table_rows(TableClass& table) {
  table
      .def(
          "name_of",
          [](const EventTable& self, std::int64_t row) {
            return to_str(self.name_of(checked_row(self, row)));
          },
          py::arg("row"), "Name of an event.")
      .def(
          "args_json",
          [](const EventTable& self, std::int64_t row) {
            return to_str(args_json(self, checked_row(self, row)));
          },
          py::arg("row"), "JSON text of an event's args.")
      .def(
          "event_json",
          [](const EventTable& self, std::int64_t row) {
            return to_str(event_json(self, checked_row(self, row)));
          },
          py::arg("row"), "JSON text of a whole event.")
      .def("int_column", int_column, py::arg("key"), py::arg("rows") = py::none(),
           "One key of args as integers for all rows, or for the given ones: values int64 [n], and "
           "where there is one [n].")
      .def("text_column", text_column, py::arg("key"),
           "One key of args [n]: strings unescaped, the rest as JSON text.")
      .def("text_codes", text_codes, py::arg("key"), py::arg("rows") = py::none(),
           "One key of args for all rows, or for the given ones: codes int32 [n] into the distinct "
           "texts, -1 where absent.");
}

}  // namespace

void bind_table(py::module_& module) {
  bind_constants(module);
  bind_track(module);
  bind_device(module);
  bind_diagnostic(module);
  TableClass table(module, "EventTable",
                   "One rank's trace as columns of equal length, sorted by start, longer first.");
  bind_table_columns(table);
  bind_table_members(table);
  bind_table_rows(table);
  module.def(
      "kind_names", [] { return names_of<EventKind>(kEventKindCount, kind_name); },
      "Names of EventTable.kind.");
}

}  // namespace traceap::bindings
