#include <pybind11/stl.h>

#include "traceap/analysis/compare/comparable_names.hpp"
#include "traceap/analysis/compare/sequence_alignment.hpp"
#include "traceap/analysis/compare/tree_diff.hpp"
#include "traceap/analysis/idle/step_pieces.hpp"
#include "traceap/bindings/columns.hpp"
#include "traceap/bindings/handles.hpp"
#include "traceap/bindings/interrupt.hpp"

namespace traceap::bindings {
namespace {

using TreePtr = std::shared_ptr<const BoundTree>;
using CostsPtr = std::shared_ptr<const GpuCosts>;
using Side = std::tuple<TablePtr, TreePtr, CostsPtr, AnyArray<std::int32_t>>;

std::vector<Interval> checked_intervals(const std::vector<Bounds>& bounds) {
  std::vector<Interval> intervals;
  for (const auto& [start, end] : bounds) {
    if (end < start) throw OptionError("bounds: an end lies before its start");
    if (!intervals.empty() && start < intervals.back().end_ns) {
      throw OptionError("bounds: they must be sorted and disjoint");
    }
    intervals.push_back({start, end});
  }
  return intervals;
}

/// From an array of whole, detail and name by row.
std::vector<AlignKeys> align_keys(const AnyArray<std::uint64_t>& array) {
  if (array.ndim() != 2 || array.shape(1) != 3) {
    throw OptionError("sequences: expected an array of three keys for each item");
  }
  std::vector<AlignKeys> keys;
  const auto numbers = items(array);
  for (std::size_t i = 0; i < numbers.size(); i += 3) {
    keys.push_back({.whole = numbers[i], .detail = numbers[i + 1], .name = numbers[i + 2]});
  }
  return keys;
}

py::array_t<std::uint32_t> align(const AnyArray<std::uint64_t>& first,
                                 const AnyArray<std::uint64_t>& second) {
  const std::vector<AlignKeys> a = align_keys(first), b = align_keys(second);
  return adopt(align_sequences(a, b));
}

std::shared_ptr<StepPieces> step_pieces(const TablePtr& table, const BoundTree& tree,
                                        const std::vector<Bounds>& bounds) {
  const std::vector<Interval> intervals = checked_intervals(bounds);
  return std::make_shared<StepPieces>(build_step_pieces(*table, tree_of(table, tree), intervals));
}

TextList step_part_names() {
  TextList names;
  for (int part = 0; part < kStepPartCount; ++part) {
    names.append(to_str(step_part_name(static_cast<StepPart>(part))));
  }
  return names;
}

DiffSide side_of(const Side& side) {
  const auto& [table, tree, costs, dims] = side;
  const EventTree& links = tree_of(table, *tree);
  if (costs->owner.size() != table->size() ||
      dims.size() != static_cast<py::ssize_t>(table->size())) {
    throw SchemaError("costs and dims must have a row for each of the table");
  }
  return {*table, links, *costs, {dims.data(), static_cast<std::size_t>(dims.size())}};
}

std::shared_ptr<TreeDiff> tree_diff(const std::vector<Side>& before,
                                    const std::vector<Side>& after) {
  if (before.size() != after.size()) throw OptionError("before and after: as many ranks each");
  std::vector<DiffPair> pairs;
  for (std::size_t i = 0; i < before.size(); ++i) {
    pairs.push_back({side_of(before[i]), side_of(after[i])});
  }
  const Unlocked unlocked;
  return std::make_shared<TreeDiff>(build_tree_diff(pairs));
}

template <std::vector<std::vector<std::uint32_t>> TreeDiff::*member>
py::array_t<std::uint32_t> nodes_of_pair(py::object self, std::size_t pair) {
  const auto& nodes = self.cast<const TreeDiff&>().*member;
  if (pair >= nodes.size()) throw py::index_error("there is no such pair");
  return view(nodes[pair], self);
}

TextList comparable_names(const std::vector<std::string>& names, bool vendor_free) {
  TextList out;
  for (const std::string& name : names) {
    const std::string shown = comparable_name(name);
    out.append(to_str(vendor_free ? vendor_free_name(shown) : shown));
  }
  return out;
}

TextList matched_by_names() {
  TextList names;
  for (const char* name : {"name and shape", "name", "position", "unmatched"}) names.append(name);
  return names;
}

void bind_step_pieces(py::module_& module) {
  py::class_<StepPieces, std::shared_ptr<StepPieces>>(
      module, "StepPieces", "Steps cut into disjoint pieces that sum to their lengths.")
      .def_property_readonly("step", column_of(&StepPieces::step), "uint32 [n]: index in bounds.")
      .def_property_readonly("part", column_of(&StepPieces::part),
                             "uint8 [n]: index in step_part_names().")
      .def_property_readonly("row", column_of(&StepPieces::row),
                             "uint32 [n]: GPU event, or host row that explains it; NO_ROW: none.")
      .def_property_readonly("ns", column_of(&StepPieces::ns), "int64 [n].")
      .def_property_readonly("count", column_of(&StepPieces::count),
                             "uint32 [n]: stretches of time.");
  module.def("step_pieces", step_pieces, py::arg("table"), py::arg("tree"), py::arg("bounds"),
             py::call_guard<Unlocked>(),
             "Every instant of the steps (sorted, disjoint bounds) to a GPU event, an idle cause "
             "or, without GPU events, a row of the main thread.");
  module.def("step_part_names", step_part_names, "Names of StepPieces.part.");
}

void bind_tree_diff(py::module_& module) {
  py::class_<TreeDiff, std::shared_ptr<TreeDiff>>(module, "TreeDiff",
                                                  "The call trees of two recordings made one.")
      .def_property_readonly("pair_offsets", column_of(&TreeDiff::pair_offsets),
                             "uint32 [pairs + 1]: into the nodes.")
      .def_property_readonly("before_row", column_of(&TreeDiff::before_row),
                             "uint32 [nodes]: NO_ROW where only the other has it.")
      .def_property_readonly("after_row", column_of(&TreeDiff::after_row), "uint32 [nodes].")
      .def_property_readonly("parent", column_of(&TreeDiff::parent),
                             "uint32 [nodes]: a node, or NO_ROW.")
      .def_property_readonly("depth", column_of(&TreeDiff::depth), "uint16 [nodes].")
      .def_property_readonly("matched_by", column_of(&TreeDiff::matched_by),
                             "uint8 [nodes]: index in matched_by_names().")
      .def_property_readonly("variant", column_of(&TreeDiff::variant), "uint32 [nodes].")
      .def_property_readonly("context_parent", column_of(&TreeDiff::context_parent),
                             "uint32 [contexts]: a context, or NO_ROW.")
      .def_property_readonly("context_before", column_of(&TreeDiff::context_before),
                             "uint32 [contexts]: index in names, or NO_STRING.")
      .def_property_readonly("context_after", column_of(&TreeDiff::context_after),
                             "uint32 [contexts].")
      .def_property_readonly("variant_context", column_of(&TreeDiff::variant_context),
                             "uint32 [variants].")
      .def_property_readonly("variant_before_dims", column_of(&TreeDiff::variant_before_dims),
                             "int32 [variants]: code of the shapes, -1 absent.")
      .def_property_readonly("variant_after_dims", column_of(&TreeDiff::variant_after_dims),
                             "int32 [variants].")
      .def_property_readonly("variant_matched_by", column_of(&TreeDiff::variant_matched_by),
                             "uint8 [variants]: the best of its calls.")
      .def_property_readonly(
          "names", [](const TreeDiff& self) { return to_list(self.names); }, "Names of contexts.")
      .def("before_node", nodes_of_pair<&TreeDiff::before_node>, py::arg("pair"),
           "uint32 [rows]: node of each row, the innermost around it; NO_ROW if none.")
      .def("after_node", nodes_of_pair<&TreeDiff::after_node>, py::arg("pair"), "uint32 [rows].");
  module.def("tree_diff", tree_diff, py::arg("before"), py::arg("after"),
             "Aligns ranks in pairs; each is (table, tree, costs, codes of the shapes by row).");
  module.def("matched_by_names", matched_by_names, "Names of TreeDiff.matched_by.");
  module.def("comparable_names", comparable_names, py::arg("names"), py::kw_only(),
             py::arg("vendor_free") = false,
             "Names without call numbers, addresses and line numbers; vendor_free: CUDA and HIP "
             "alike.");
  module.def("align_sequences", align, py::arg("first"), py::arg("second"),
             "Per item of the first its partner in the second, uint32 [n], or NO_ROW. Items are "
             "uint64 [n, 3]: whole, detail and name, of which equal ones imply those behind.");
}

}  // namespace

void bind_diff(py::module_& module) {
  bind_step_pieces(module);
  bind_tree_diff(module);
}

}  // namespace traceap::bindings
