#include <pybind11/stl.h>

#include "traceap/analysis/collectives/rank_collectives.hpp"
#include "traceap/bindings/columns.hpp"
#include "traceap/bindings/handles.hpp"

namespace traceap::bindings {
namespace {

using RankTuple = std::tuple<TablePtr, std::shared_ptr<BoundTree>, std::optional<std::int64_t>>;

/// Columns with one entry per part (one rank's share in one matched collective).
struct BoundCollectives {
  RankCollectives all;
  std::vector<std::uint32_t> match, rank, group, row, host_row, members;
  std::vector<std::uint8_t> kind;
  std::vector<std::int64_t> start_ns, end_ns, exposed_ns, bytes, sequence, peer;
  std::vector<std::string> names, dtypes;
};

void fill_columns(BoundCollectives& out) {
  for (const CollectivePart& part : out.all.parts) {
    const Collective& c = out.all.lists[part.rank].collectives[part.index];
    out.match.push_back(part.match);
    out.rank.push_back(part.rank);
    out.group.push_back(c.group);
    out.row.push_back(c.row);
    out.host_row.push_back(c.host);
    out.members.push_back(c.members);
    out.kind.push_back(static_cast<std::uint8_t>(c.kind));
    out.start_ns.push_back(part.start_ns);
    out.end_ns.push_back(part.end_ns);
    out.exposed_ns.push_back(part.exposed_ns);
    out.bytes.push_back(c.bytes.value_or(kNoId));
    out.sequence.push_back(c.sequence);
    out.peer.push_back(c.peer);
    out.names.push_back(c.name);
    out.dtypes.emplace_back(c.dtype);
  }
}

std::shared_ptr<BoundCollectives> collectives(const std::vector<RankTuple>& ranks) {
  std::vector<RankInput> inputs;
  for (const auto& [table, tree, rank] : ranks) {
    inputs.push_back({table.get(), &tree_of(table, *tree), rank.value_or(kNoId)});
  }
  auto bound = std::make_shared<BoundCollectives>();
  bound->all = build_rank_collectives(inputs);
  fill_columns(*bound);
  return bound;
}

TextList text_list(const std::vector<std::string>& texts) {
  TextList list;
  for (const std::string& text : texts) list.append(to_str(text));
  return list;
}

using IntList = py::typing::List<py::int_>;
IntList int_list(const std::vector<std::int64_t>& values) {
  IntList list;
  for (std::int64_t value : values) list.append(py::int_(value));
  return list;
}

/// (part, bytes to each rank of the group, bytes from each) where parts are uneven.
using Splits = py::typing::List<py::typing::Tuple<py::int_, IntList, IntList>>;
Splits splits_of(const BoundCollectives& self) {
  Splits list;
  for (std::size_t i = 0; i < self.all.parts.size(); ++i) {
    const CollectivePart& part = self.all.parts[i];
    const Collective& c = self.all.lists[part.rank].collectives[part.index];
    if (c.sent_bytes.empty() && c.received_bytes.empty()) continue;
    list.append(py::make_tuple(i, int_list(c.sent_bytes), int_list(c.received_bytes)));
  }
  return list;
}

void bind_clock(py::module_& module) {
  py::class_<ClockFit>(module, "ClockFit", "One rank's clock against the others'.")
      .def_readonly("offset_ns", &ClockFit::offset_ns, "To the first clock of its component.")
      .def_readonly("drift", &ClockFit::drift, "ns per ns.")
      .def_readonly("residual_ns", &ClockFit::residual_ns, "Median absolute deviation.")
      .def_readonly("uncertainty_ns", &ClockFit::uncertainty_ns, "An offset below it is none.")
      .def_readonly("readings", &ClockFit::readings, "Common ends that were used.")
      .def_readonly("component", &ClockFit::component, "First rank that it can be compared with.")
      .def_readonly("applied", &ClockFit::applied, "The offset is larger than its uncertainty.");
}

void bind_group(py::module_& module) {
  py::class_<ProcessGroup>(module, "ProcessGroup", "A process group.")
      .def_property_readonly("name", [](const ProcessGroup& self) { return to_str(self.name); })
      .def_property_readonly("description",
                             [](const ProcessGroup& self) { return to_str(self.description); })
      .def_property_readonly(
          "ranks", [](const ProcessGroup& self) { return int_list(self.ranks); },
          "Global ranks by group rank; empty where not recorded.")
      .def_readonly("size", &ProcessGroup::size, "0 where not recorded.");
}

std::vector<std::string> kind_names() {
  std::vector<std::string> names;
  for (int k = 0; k < kCollectiveKindCount; ++k) {
    names.emplace_back(collective_kind_name(static_cast<CollectiveKind>(k)));
  }
  return names;
}

std::vector<bool> synchronising_kinds() {
  std::vector<bool> flags;
  for (int k = 0; k < kCollectiveKindCount; ++k) {
    flags.push_back(ends_together(static_cast<CollectiveKind>(k)));
  }
  return flags;
}

}  // namespace

void bind_collectives(py::module_& module) {
  bind_clock(module);
  bind_group(module);
  using Self = BoundCollectives;
  py::class_<Self, std::shared_ptr<Self>>(module, "RankCollectives",
                                          "Collectives matched across ranks; one entry per part, "
                                          "which is one rank's share in one match.")
      .def_property_readonly("match", column_of(&Self::match), "uint32: by time.")
      .def_property_readonly("rank", column_of(&Self::rank), "uint32: index in the input.")
      .def_property_readonly("group", column_of(&Self::group), "uint32: index in groups.")
      .def_property_readonly("row", column_of(&Self::row), "uint32: kernel, or host range.")
      .def_property_readonly("host_row", column_of(&Self::host_row),
                             "uint32: host event that describes it, or NO_ROW.")
      .def_property_readonly("members", column_of(&Self::members), "uint32: calls it serves.")
      .def_property_readonly("kind", column_of(&Self::kind), "uint8: see collective_kind_names.")
      .def_property_readonly("start_ns", column_of(&Self::start_ns), "int64: common clock.")
      .def_property_readonly("end_ns", column_of(&Self::end_ns), "int64: common clock.")
      .def_property_readonly("exposed_ns", column_of(&Self::exposed_ns),
                             "int64: the rank ran no compute kernel.")
      .def_property_readonly("bytes", column_of(&Self::bytes), "int64: NO_ID where unknown.")
      .def_property_readonly("sequence", column_of(&Self::sequence), "int64: NO_ID if none.")
      .def_property_readonly("peer", column_of(&Self::peer), "int64: of send and recv.")
      .def_property_readonly("names", [](const Self& self) { return text_list(self.names); })
      .def_property_readonly("dtypes", [](const Self& self) { return text_list(self.dtypes); })
      .def_property_readonly("splits", splits_of,
                             "(part, bytes to, bytes from each rank) of uneven all-to-alls.")
      .def_property_readonly(
          "matches", [](const Self& self) { return self.all.matches; }, "How many.")
      .def_property_readonly("groups", [](const Self& self) { return self.all.groups; })
      .def_property_readonly("clocks", [](const Self& self) { return self.all.clocks.clocks; })
      .def_property_readonly("clock_epoch_ns",
                             [](const Self& self) { return self.all.clocks.epoch_ns; });
  module.def("collectives", collectives, py::arg("ranks"), py::call_guard<py::gil_scoped_release>(),
             "Matches the collectives of ranks, each (table, tree, rank), and aligns the clocks.");
  module.def("collective_kind_names", kind_names, "By number.");
  module.def("synchronising_kinds", synchronising_kinds,
             "By number: does no rank leave before every rank has come?");
}

}  // namespace traceap::bindings
