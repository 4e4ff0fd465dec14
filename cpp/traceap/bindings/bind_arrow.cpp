#include <pybind11/stl.h>

#include <algorithm>
#include <unordered_map>

#include "traceap/base/error.hpp"
#include "traceap/bindings/arrow.hpp"
#include "traceap/bindings/columns.hpp"

namespace traceap::bindings {
namespace {

/// Batches ready to be exported any number of times.
struct ArrowTable {
  ArrowBatches batches;
};

/// A capsule of the Arrow PyCapsule interface that releases what nobody took out of it.
template <typename Struct>
py::capsule make_capsule(Struct* exported, const char* name) {
  return py::capsule(exported, name, [](PyObject* capsule) {
    auto* held = static_cast<Struct*>(PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule)));
    if (held->release != nullptr) held->release(held);
    delete held;
  });
}

py::capsule stream(const ArrowTable& table) {
  auto exported = std::make_unique<ArrowArrayStream>();
  export_stream(table.batches, exported.get());
  return make_capsule(exported.release(), "arrow_array_stream");
}

py::capsule schema(const ArrowTable& table) {
  auto exported = std::make_unique<ArrowSchema>();
  export_schema(table.batches, exported.get());
  return make_capsule(exported.release(), "arrow_schema");
}

/// Keeps a Python object alive for buffers that may be released on a thread without the GIL.
std::shared_ptr<const void> keep_alive(const py::object& object) {
  return {object.inc_ref().ptr(), [](PyObject* held) {
            if (!Py_IsInitialized()) return;  // too late to give anything back
            py::gil_scoped_acquire acquire;
            Py_DECREF(held);
          }};
}

std::string format_of(const py::dtype& type) {
  static const std::unordered_map<std::string, std::string> formats = {
      {"i1", "c"}, {"u1", "C"}, {"i2", "s"}, {"i4", "i"},
      {"u4", "I"}, {"i8", "l"}, {"u8", "L"}, {"f8", "g"}};
  const auto found = formats.find(std::string(1, type.kind()) + std::to_string(type.itemsize()));
  if (found == formats.end()) throw SchemaError("no Arrow format for this dtype");
  return found->second;
}

/// A bit per row from a bool array [n]; None: every row has a value.
void set_validity(ArrowColumn& column, py::ssize_t length, const py::object& valid) {
  if (valid.is_none()) return;
  const auto mask = py::array_t<bool, py::array::c_style | py::array::forcecast>(valid);
  if (mask.ndim() != 1 || mask.size() != length) {
    throw SchemaError(column.name + ": the mask must have one entry per row");
  }
  const bool* is_valid = mask.data();
  set_validity(column, static_cast<std::size_t>(length),
               [&](std::size_t i) { return is_valid[i]; });
}

ArrowColumn make_column(const std::string& name, const py::array& given, const py::object& texts,
                        const py::object& valid) {
  const py::array values = py::module_::import("numpy").attr("ascontiguousarray")(given);
  if (values.ndim() != 1) throw SchemaError(name + ": columns must have one dimension");
  ArrowColumn column;
  column.name = name;
  column.format = format_of(values.dtype());
  column.values = values.data();
  column.owner = keep_alive(values);
  set_validity(column, values.size(), valid);
  if (texts.is_none()) return column;
  auto dictionary = std::make_shared<ArrowTexts>();
  for (const py::handle text : texts) dictionary->add(py::cast<std::string>(text));
  column.dictionary = dictionary;
  return column;
}

using Columns =
    py::typing::List<py::typing::Tuple<py::str, py::array, py::typing::Optional<TextList>,
                                       py::typing::Optional<py::array>>>;
ArrowBatch make_batch(const Columns& given) {
  ArrowBatch batch;
  for (const py::handle item : given) {
    const auto [name, values, texts, valid] =
        item.cast<std::tuple<std::string, py::array, py::object, py::object>>();
    const std::int64_t length = values.size();
    if (!batch.columns.empty() && length != batch.length) {
      throw SchemaError(name + ": columns must have one length");
    }
    batch.length = length;
    batch.columns.push_back(make_column(name, values, texts, valid));
  }
  return batch;
}

/// All batches have the names and types of the first: a stream has one schema.
void check_like_first(const ArrowBatch& first, const ArrowBatch& batch) {
  const auto like = [](const ArrowColumn& a, const ArrowColumn& b) {
    return a.name == b.name && a.format == b.format && !a.dictionary == !b.dictionary;
  };
  if (!std::equal(first.columns.begin(), first.columns.end(), batch.columns.begin(),
                  batch.columns.end(), like)) {
    throw SchemaError("all batches must have the same columns");
  }
}

ArrowTable batches(const std::vector<Columns>& given) {
  auto batches = std::make_shared<std::vector<ArrowBatch>>();
  for (const Columns& columns : given) {
    batches->push_back(make_batch(columns));
    check_like_first(batches->front(), batches->back());
  }
  if (batches->empty()) throw SchemaError("an Arrow table needs a batch");
  return {batches};
}

}  // namespace

void bind_arrow(py::module_& module) {
  py::class_<ArrowTable>(module, "ArrowTable", "Columns for any consumer of the Arrow C stream.")
      .def("stream", stream, "A fresh arrow_array_stream capsule.")
      .def("schema", schema, "An arrow_schema capsule.");
  module.def("arrow_batches", batches, py::arg("batches"),
             "Batches of columns (name, array [n], texts, valid): with texts the array holds "
             "indices, where valid [n] is False there is no value. Arrays are not copied.");
}

}  // namespace traceap::bindings
