#include "traceap/analysis/costs/kernel_sequences.hpp"
#include "traceap/analysis/costs/launches.hpp"
#include "traceap/bindings/columns.hpp"
#include "traceap/bindings/handles.hpp"

namespace traceap::bindings {
namespace {

/// Sequences as columns; ragged ones as offsets and values.
struct SequenceColumns {
  std::vector<std::uint32_t> length, count, stream, launches, first_offsets{0}, kernel_offsets{0};
  std::vector<std::int64_t> gpu_ns, gap_ns, launch_ns, removable_ns;
  std::vector<Row> op, first_rows, kernel_rows;

  explicit SequenceColumns(const std::vector<KernelSequence>& sequences) {
    for (const KernelSequence& s : sequences) {
      length.push_back(s.length);
      count.push_back(s.count);
      stream.push_back(s.stream);
      launches.push_back(s.launches);
      gpu_ns.push_back(s.gpu_ns);
      gap_ns.push_back(s.gap_ns);
      launch_ns.push_back(s.launch_ns);
      removable_ns.push_back(s.removable_ns);
      op.push_back(s.op);
      append(s.first_rows, first_rows, first_offsets);
      append(s.kernel_rows, kernel_rows, kernel_offsets);
    }
  }

 private:
  static void append(const std::vector<Row>& rows, std::vector<Row>& values,
                     std::vector<std::uint32_t>& offsets) {
    values.insert(values.end(), rows.begin(), rows.end());
    offsets.push_back(static_cast<std::uint32_t>(values.size()));
  }
};

using Symbols = py::array_t<std::int32_t, py::array::c_style | py::array::forcecast>;

std::shared_ptr<SequenceColumns> kernel_sequences(const TablePtr& table, const BoundTree& tree,
                                                  const Symbols& symbols, std::uint32_t length,
                                                  std::uint32_t limit) {
  const EventTree& links = tree_of(table, tree);
  const std::span<const std::int32_t> view{symbols.data(),
                                           static_cast<std::size_t>(symbols.size())};
  SequenceOptions options;
  options.length = length;
  options.limit = limit;
  py::gil_scoped_release release;
  return std::make_shared<SequenceColumns>(find_kernel_sequences(*table, links, view, options));
}

void bind_queue(py::module_& module) {
  py::class_<LaunchQueue, std::shared_ptr<LaunchQueue>>(
      module, "LaunchQueue", "What streams had queued: launched, not yet begun on the GPU.")
      .def_property_readonly("offsets", column_of(&LaunchQueue::offsets),
                             "uint32 [streams + 1]: into the columns.")
      .def_property_readonly("time_ns", column_of(&LaunchQueue::time_ns),
                             "int64: when the length changes, on the host's clock.")
      .def_property_readonly("length", column_of(&LaunchQueue::length), "int32: from then on.")
      .def_property_readonly("row", column_of(&LaunchQueue::row),
                             "uint32: the launch call or the GPU event.")
      .def_property_readonly("found", column_of(&LaunchQueue::found),
                             "int32, per gpu_rows: length that its launch found; -1 for orphans.");
  module.def(
      "launch_queue",
      [](const TablePtr& table, const BoundTree& tree) {
        return std::make_shared<LaunchQueue>(build_launch_queue(*table, tree_of(table, tree)));
      },
      py::arg("table"), py::arg("tree"), py::call_guard<py::gil_scoped_release>(),
      "Queue length of every stream over time.");
}

void bind_sequences(py::module_& module) {
  using S = SequenceColumns;
  py::class_<S, std::shared_ptr<S>>(module, "KernelSequences",
                                    "Sequences of kernels that repeat, most removable time first.")
      .def("__len__", [](const S& self) { return self.length.size(); })
      .def_property_readonly("length", column_of(&S::length), "uint32 [n]: kernels in it.")
      .def_property_readonly("count", column_of(&S::count),
                             "uint32 [n]: occurrences that don't overlap.")
      .def_property_readonly("stream", column_of(&S::stream),
                             "uint32 [n]: index in streams, of the first occurrence.")
      .def_property_readonly("gpu_ns", column_of(&S::gpu_ns), "int64 [n]: time of its kernels.")
      .def_property_readonly("gap_ns", column_of(&S::gap_ns),
                             "int64 [n]: idle time of the stream between its kernels.")
      .def_property_readonly("launch_ns", column_of(&S::launch_ns),
                             "int64 [n]: launch calls of all its kernels but the first.")
      .def_property_readonly("launches", column_of(&S::launches),
                             "uint32 [n]: number of these calls.")
      .def_property_readonly("removable_ns", column_of(&S::removable_ns),
                             "int64 [n]: gaps, or launch calls where the host was late.")
      .def_property_readonly("op", column_of(&S::op),
                             "uint32 [n]: op call that launches the whole sequence, or NO_ROW.")
      .def_property_readonly("first_offsets", column_of(&S::first_offsets),
                             "uint32 [n + 1]: into first_rows.")
      .def_property_readonly("first_rows", column_of(&S::first_rows),
                             "uint32: first kernel of each occurrence.")
      .def_property_readonly("kernel_offsets", column_of(&S::kernel_offsets),
                             "uint32 [n + 1]: into kernel_rows.")
      .def_property_readonly(
          "kernel_rows", column_of(&S::kernel_rows),
          "uint32: kernels of one occurrence, with known launches if there is such.");
  module.def("kernel_sequences", kernel_sequences, py::arg("table"), py::arg("tree"),
             py::arg("symbols"), py::kw_only(), py::arg("length") = 0, py::arg("limit") = 1000,
             "Repeated sequences of kernels; `symbols`, int32 per gpu_rows, says which are equal, "
             "negative ones belong to no sequence. length 0: every length from 2 to 64.");
}

}  // namespace

void bind_launches(py::module_& module) {
  bind_queue(module);
  bind_sequences(module);
}

}  // namespace traceap::bindings
