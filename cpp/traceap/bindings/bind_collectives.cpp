#include <pybind11/stl.h>

#include "traceap/analysis/collectives/lateness.hpp"
#include "traceap/analysis/collectives/meetings.hpp"
#include "traceap/analysis/collectives/missing_ranks.hpp"
#include "traceap/analysis/collectives/peers.hpp"
#include "traceap/bindings/columns.hpp"
#include "traceap/bindings/handles.hpp"
#include "traceap/bindings/interrupt.hpp"
#include "traceap/tree/name_traits.hpp"

namespace traceap::bindings {
namespace {

using RankTuple = std::tuple<TablePtr, std::shared_ptr<BoundTree>, std::optional<std::int64_t>>;

/// With the tables and trees, which what is asked later goes back to.
struct BoundCollectives {
  std::vector<RankTuple> owners;
  std::vector<RankInput> ranks;
  RankCollectives all;
};
using CollectivesClass = py::class_<BoundCollectives, std::shared_ptr<BoundCollectives>>;

std::shared_ptr<BoundCollectives> collectives(const std::vector<RankTuple>& ranks) {
  auto bound = std::make_shared<BoundCollectives>();
  bound->owners = ranks;
  for (const auto& [table, tree, rank] : ranks) {
    bound->ranks.push_back({table.get(), &tree_of(table, *tree), rank.value_or(kNoId)});
  }
  bound->all = build_rank_collectives(bound->ranks);
  return bound;
}

using IntList = py::typing::List<py::int_>;
IntList int_list(const std::vector<std::int64_t>& values) {
  IntList list;
  for (std::int64_t value : values) list.append(py::int_(value));
  return list;
}

/// One text of every part.
template <typename Get>
auto part_texts(Get get) {
  return [get](const BoundCollectives& self) {
    TextList texts;
    for (const CollectivePart& part : self.all.parts) texts.append(to_str(get(part.call)));
    return texts;
  };
}

/// (part, bytes to each rank of the group, bytes from each) where parts are uneven.
using Splits = py::typing::List<py::typing::Tuple<py::int_, IntList, IntList>>;
Splits splits_of(const BoundCollectives& self) {
  Splits list;
  for (std::size_t i = 0; i < self.all.parts.size(); ++i) {
    const Collective& c = self.all.parts[i].call;
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

void bind_meetings(py::module_& module) {
  using M = Meetings;
  py::class_<M, std::shared_ptr<M>>(module, "Meetings",
                                    "Collectives whose end needs every member; ragged.")
      .def("__len__", &M::size)
      .def_property_readonly("offsets", column_of(&M::offsets),
                             "uint32 [n + 1]: members of each, into the columns.")
      .def_property_readonly("rank", column_of(&M::members, &CollectiveMember::rank),
                             "uint32: index of the rank in the graph.")
      .def_property_readonly("row", column_of(&M::members, &CollectiveMember::row),
                             "uint32: of that rank.");
}

void bind_missing(py::module_& module) {
  py::class_<MissingRanks>(module, "MissingRanks", "Ranks without a part in a match.")
      .def_property_readonly("list_of", column_of(&MissingRanks::list_of),
                             "uint32 [matches]: index in lists.")
      .def_readonly("lists", &MissingRanks::lists, "Numbers of ranks; the first one is empty.");
}

struct BoundLateness {
  std::vector<RankLateness> ranks;
};

void bind_lateness(py::module_& module) {
  using L = RankLateness;
  using Late = BoundLateness;
  py::class_<Late> lateness(module, "Lateness", "By rank: who keeps the others waiting, and why.");
  const auto column = [&](const char* name, auto member, const char* doc) {
    lateness.def_property_readonly(name, column_of(&Late::ranks, member), doc);
  };
  column("wait_ns", &L::wait_ns, "int64 [ranks]: waited in collectives for later ranks.");
  column("compared", &L::compared, "int64 [ranks]: collectives with arrivals to compare.");
  column("times_last", &L::times_last, "int64 [ranks]: how often it came last of all.");
  column("lateness_ns", &L::lateness_ns,
         "int64 [ranks]: start behind the median of the others, summed over collectives.");
  column("excess_ns", &L::excess_ns,
         "int64 [ranks, late_cause_names()]: time beyond the others' median, in the segments "
         "of late arrivals.");
  column("verdict", &L::verdict, "uint8 [ranks]: index in rank_verdict_names().");
  column("cause", &L::cause, "uint8 [ranks]: index in late_cause_names(): largest excess.");
  column("cause_share", &L::cause_share, "float64 [ranks]: of the lateness, what it explains.");
  column("host_cause", &L::host_cause,
         "uint8 [ranks]: index in idle_cause_names(): of a late host, what most of it is.");
  module.attr("PROVEN_SHARE") = kProvenShare;
  py::class_<PeerView>(module, "PeerView", "What the traces of other ranks say of one rank.")
      .def_readonly("known", &PeerView::known, "Were there others to compare it with?");
}

/// Member of a part, or of its call.
template <typename... Members>
auto part_column(Members... members) {
  return [=](py::object self) {
    return member_view(self.cast<const BoundCollectives&>().all.parts, self, members...);
  };
}

template <typename Member>
auto match_column(Member member) {
  return [=](py::object self) {
    return member_view(self.cast<const BoundCollectives&>().all.matches, self, member);
  };
}

void bind_parts(CollectivesClass& all) {
  using P = CollectivePart;
  using C = Collective;
  const auto part = [&](const char* name, auto getter, const char* doc) {
    all.def_property_readonly(name, getter, doc);
  };
  part("match", part_column(&P::match), "uint32 [parts]: by time.");
  part("rank", part_column(&P::rank), "uint32 [parts]: index in the input.");
  part("start_ns", part_column(&P::start_ns), "int64 [parts]: common clock.");
  part("end_ns", part_column(&P::end_ns), "int64 [parts]: common clock.");
  part("exposed_ns", part_column(&P::exposed_ns), "int64 [parts]: it ran no compute kernel.");
  part("wait_ns", part_column(&P::wait_ns),
       "int64 [parts]: for the last rank; 0 where nothing tells it from the transfer.");
  part("bytes", part_column(&P::bytes), "int64 [parts]: NO_ID where unknown.");
  part("group", part_column(&P::call, &C::group), "uint32 [parts]: index in groups.");
  part("row", part_column(&P::call, &C::row), "uint32 [parts]: kernel, or host range.");
  part("host_row", part_column(&P::call, &C::host),
       "uint32 [parts]: host event that describes it, or NO_ROW.");
  part("experts", part_column(&P::call, &C::experts),
       "int64 [parts]: of a dispatch or combine; NO_ID where not recorded.");
  part("members", part_column(&P::call, &C::members), "uint32 [parts]: calls it serves.");
  part("kind", part_column(&P::call, &C::kind), "uint8 [parts]: see collective_kind_names.");
  part("sequence", part_column(&P::call, &C::sequence), "int64 [parts]: NO_ID if none.");
  part("peer", part_column(&P::call, &C::peer), "int64 [parts]: of send and recv.");
  part("names", part_texts([](const C& c) { return std::string_view(c.name); }), "[parts].");
  part("dtypes", part_texts([](const C& c) { return c.dtype; }), "[parts].");
  part("splits", splits_of, "(part, bytes to, bytes from each rank) of uneven all-to-alls.");
}

void bind_matches(CollectivesClass& all) {
  using M = CollectiveMatch;
  const auto match = [&](const char* name, auto member, const char* doc) {
    all.def_property_readonly(name, match_column(member), doc);
  };
  all.def_property_readonly(
      "matches", [](const BoundCollectives& self) { return self.all.matches.size(); }, "How many.");
  match("first", &M::first, "uint32 [matches]: first part of each.");
  match("count", &M::count, "uint32 [matches]: parts.");
  match("group_of", &M::group, "uint32 [matches]: index in groups.");
  match("kind_of", &M::kind,
        "uint8 [matches]: by the ranks that know it; send_recv for a matched pair.");
  match("comparable", &M::comparable,
        "bool [matches]: several ranks whose clocks can be compared.");
  match("split", &M::split, "bool [matches]: waits are told from transfers.");
  match("synchronising", &M::synchronising,
        "bool [matches]: no rank leaves before every rank has come.");
  match("latest_start_ns", &M::latest_start_ns,
        "int64 [matches]: when the last rank came, common clock.");
  match("latest_rank", &M::latest_rank,
        "uint32 [matches]: index of that rank; NO_ROW where nothing is comparable.");
}

void bind_ranks(CollectivesClass& all) {
  using Self = BoundCollectives;
  all.def_property_readonly("groups", [](const Self& self) { return self.all.groups; })
      .def_property_readonly(
          "expected_ranks", [](const Self& self) { return expected_ranks(self.all, self.ranks); },
          "By group: numbers of its ranks, as recorded, else of all that use it.")
      .def_property_readonly("clocks", [](const Self& self) { return self.all.clocks.clocks; })
      .def_property_readonly("clock_epoch_ns",
                             [](const Self& self) { return self.all.clocks.epoch_ns; })
      .def_property_readonly(
          "recorded_ns",
          [](py::object self) { return view(self.cast<const Self&>().all.recorded, self); },
          "int64 [ranks, 2]: what each file covers, common clock.")
      .def(
          "missing_ranks",
          [](const Self& self) { return find_missing_ranks(self.all, self.ranks); },
          "Of each match the ranks of its group (of its pair, for send and recv) without a part.")
      .def(
          "meetings",
          [](const Self& self, const std::vector<std::uint32_t>& places) {
            return std::make_shared<Meetings>(find_meetings(self.all, places));
          },
          py::arg("places"),
          "Where the ranks of a graph meet; places: the index of each in the input.")
      .def(
          "lateness",
          [](const Self& self, double material_share) {
            return BoundLateness{measure_lateness(self.all, self.ranks, material_share)};
          },
          py::kw_only(), py::arg("material_share"), py::call_guard<Unlocked>(),
          "Who keeps the others waiting for that share of the profiled time, and because of what.")
      .def(
          "peer_views",
          [](const Self& self, const BoundLateness& lateness) {
            if (lateness.ranks.size() != self.ranks.size()) {
              throw SchemaError("lateness of other ranks");
            }
            return build_peer_views(self.all, lateness.ranks, self.ranks);
          },
          py::arg("lateness"), "For each rank what the traces of the others say of it.");
}

}  // namespace

void bind_collectives(py::module_& module) {
  bind_clock(module);
  bind_group(module);
  bind_meetings(module);
  bind_missing(module);
  bind_lateness(module);
  CollectivesClass all(module, "RankCollectives",
                       "Collectives matched across ranks. A part is one rank's share in one "
                       "match; parts of a match stand beside each other.");
  bind_parts(all);
  bind_matches(all);
  bind_ranks(all);
  module.def("collectives", collectives, py::arg("ranks"), py::call_guard<Unlocked>(),
             "Matches the collectives of ranks, each (table, tree, rank), and aligns the clocks.");
  const auto names = [&](const char* name, auto get, const char* doc) {
    module.def(name, get, doc);
  };
  module.def(
      "is_communication_name", [](const std::string& name) { return is_communication_name(name); },
      py::arg("name"), "Is a kernel of this name communication?");
  names(
      "collective_kind_names",
      [] { return names_of<CollectiveKind>(kCollectiveKindCount, collective_kind_name); },
      "By number.");
  names(
      "late_cause_names", [] { return names_of<LateCause>(kLateCauseCount, late_cause_name); },
      "Names of Lateness.cause.");
  names(
      "rank_verdict_names",
      [] { return names_of<RankVerdict>(kRankVerdictCount, rank_verdict_name); },
      "Names of Lateness.verdict.");
}

}  // namespace traceap::bindings
