#include "traceap/analysis/costs/kernel_sequences.hpp"
#include "traceap/analysis/costs/launches.hpp"
#include "traceap/bindings/columns.hpp"
#include "traceap/bindings/handles.hpp"
#include "traceap/bindings/interrupt.hpp"

namespace traceap::bindings {
namespace {

using Symbols = py::array_t<std::int32_t, py::array::c_style | py::array::forcecast>;

std::shared_ptr<KernelSequences> kernel_sequences(const TablePtr& table, const BoundTree& tree,
                                                  const Symbols& symbols, std::uint32_t length,
                                                  std::uint32_t limit) {
  const EventTree& links = tree_of(table, tree);
  const std::span<const std::int32_t> view{symbols.data(),
                                           static_cast<std::size_t>(symbols.size())};
  SequenceOptions options;
  options.length = length;
  options.limit = limit;
  const Unlocked unlocked;
  return std::make_shared<KernelSequences>(find_kernel_sequences(*table, links, view, options));
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
      py::arg("table"), py::arg("tree"), py::call_guard<Unlocked>(),
      "Queue length of every stream over time.");
}

void bind_sequences(py::module_& module) {
  using All = KernelSequences;
  using S = KernelSequence;
  py::class_<All, std::shared_ptr<All>> sequences(
      module, "KernelSequences", "Sequences of kernels that repeat, most removable time first.");
  const auto column = [&](const char* name, auto member, const char* doc) {
    sequences.def_property_readonly(name, column_of(&All::sequences, member), doc);
  };
  sequences.def("__len__", [](const All& self) { return self.sequences.size(); });
  column("length", &S::length, "uint32 [n]: kernels in it.");
  column("count", &S::count, "uint32 [n]: occurrences that don't overlap.");
  column("stream", &S::stream, "uint32 [n]: index in streams, of the first occurrence.");
  column("gpu_ns", &S::gpu_ns, "int64 [n]: time of its kernels.");
  column("gap_ns", &S::gap_ns, "int64 [n]: idle time of the stream between its kernels.");
  column("launch_ns", &S::launch_ns, "int64 [n]: launch calls of all its kernels but the first.");
  column("launches", &S::launches, "uint32 [n]: number of these calls.");
  column("removable_ns", &S::removable_ns,
         "int64 [n]: gaps, or launch calls where the host was late.");
  column("op", &S::op, "uint32 [n]: op call that launches the whole sequence, or NO_ROW.");
  column("first_row", &S::first_row, "uint32 [n]: first kernel of the first occurrence.");
  sequences.def_property_readonly(
      "kernel_rows", column_of(&All::kernel_rows),
      "uint32: kernels of one occurrence of each, `length` of them, one sequence behind the "
      "other; with known launches if there is such an occurrence.");
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
