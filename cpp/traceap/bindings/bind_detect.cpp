#include <pybind11/stl.h>

#include <algorithm>
#include <map>

#include "traceap/bindings/columns.hpp"
#include "traceap/bindings/handles.hpp"
#include "traceap/detect/finding.hpp"

namespace traceap::bindings {
namespace {

struct BoundFinding {
  Finding finding;
  bool paper;
  std::int64_t unclaimed_cost_ns;
};
using FindingClass = py::class_<BoundFinding>;

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPresent:
      return "present";
    case Verdict::kUnknown:
      return "unknown";
    default:
      return "absent";
  }
}

using PartTuple =
    std::tuple<Row, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;  // as PeerPart

/// Parts in any order; several of one row (a batch of sends) add up to the longest.
PeerView make_peers(const EventTable& table, const std::vector<PartTuple>& parts,
                    bool has_straggler, const std::map<std::string, std::string>& facts) {
  PeerView peers;
  peers.known = true;
  peers.has_straggler = has_straggler;
  const auto fact = [&](const char* name) {
    const auto it = facts.find(name);
    return it == facts.end() ? std::string() : it->second;
  };
  peers.late_rank = fact("late rank");
  peers.cause = fact("cause");
  peers.lateness = fact("lateness");
  peers.explained = fact("explained");
  peers.unproven = fact("unproven");
  peers.imbalance = fact("imbalance");
  for (const auto& [row, wait, gain, wait_any, imbalance] : parts) {
    if (row >= table.size()) throw OptionError("peers: no such row");
    const std::int64_t length = table.dur_ns[row];
    const auto inside = [&](std::int64_t ns) { return std::clamp<std::int64_t>(ns, 0, length); };
    peers.parts.push_back({row, inside(wait), inside(gain), inside(wait_any), inside(imbalance)});
  }
  std::sort(peers.parts.begin(), peers.parts.end(), [](const PeerPart& a, const PeerPart& b) {
    return a.row != b.row ? a.row < b.row : a.wait_ns > b.wait_ns;
  });
  const auto same_row = [](const PeerPart& a, const PeerPart& b) { return a.row == b.row; };
  peers.parts.erase(std::unique(peers.parts.begin(), peers.parts.end(), same_row),
                    peers.parts.end());
  return peers;
}

std::vector<BoundFinding> detect(const TablePtr& table, const BoundTree& tree,
                                 double material_share, const std::optional<PeerView>& peers) {
  if (!(material_share >= 0.0 && material_share <= 1.0)) {
    throw OptionError("material_share must lie in [0, 1]");
  }
  Signals signals = build_signals(*table, tree_of(table, tree), {material_share});
  if (peers) signals.peers = *peers;
  std::vector<Finding> findings = detect_all(signals);
  const std::vector<std::int64_t> unclaimed = compute_unclaimed_cost(findings);
  std::vector<BoundFinding> bound;
  for (std::size_t i = 0; i < findings.size(); ++i) {
    bound.push_back({std::move(findings[i]), detectors()[i].paper, unclaimed[i]});
  }
  return bound;
}

TextList texts(const std::vector<std::string>& strings) {
  TextList list;
  for (const std::string& text : strings) list.append(to_str(text));
  return list;
}

Int64Array intervals_of(py::object self) {
  return view(self.cast<const BoundFinding&>().finding.intervals, self);
}

using Facts = py::typing::Dict<py::str, py::str>;
Facts facts_of(const BoundFinding& self) {
  Facts facts;
  for (const auto& [name, value] : self.finding.facts) facts[to_str(name)] = to_str(value);
  return facts;
}

void bind_cost(FindingClass& finding) {
  const auto number = [&](const char* name, auto member, const char* doc) {
    finding.def_property_readonly(
        name, [member](const BoundFinding& self) { return self.finding.*member; }, doc);
  };
  number("cost_ns", &Finding::cost_ns, "Total length of intervals.");
  number("evidence_count", &Finding::evidence_count, "How many rows there are in all.");
  number("confidence", &Finding::confidence, "In [0, 1].");
  number("saving_low_ns", &Finding::saving_low_ns, "Bound on the saving.");
  number("saving_best_ns", &Finding::saving_best_ns, "Bound on the saving.");
  number("saving_high_ns", &Finding::saving_high_ns, "Bound on the saving.");
}

void bind_finding(py::module_& module) {
  FindingClass finding(module, "Finding", "What one rule says of one rank.");
  bind_cost(finding);
  finding
      .def_property_readonly("type",
                             [](const BoundFinding& self) { return to_str(self.finding.type); })
      .def_readonly("paper", &BoundFinding::paper, "One of the paper's eight types.")
      .def_property_readonly(
          "verdict", [](const BoundFinding& self) { return verdict_name(self.finding.verdict); },
          "present, absent or unknown.")
      .def_property_readonly("intervals", intervals_of, "int64 [n, 2]: the cost.")
      .def_readonly("unclaimed_cost_ns", &BoundFinding::unclaimed_cost_ns,
                    "Cost that no larger finding of the rank covers.")
      .def_property_readonly(
          "evidence",
          [](py::object self) {
            return view(self.cast<const BoundFinding&>().finding.evidence, self);
          },
          "uint32: most telling rows first.")
      .def_property_readonly(
          "missing_signals",
          [](const BoundFinding& self) { return texts(self.finding.missing_signals); },
          "What would have made it surer.")
      .def_property_readonly("facts", facts_of, "Figures for the sentence a person reads.");
}

std::vector<std::string> detector_types() {
  std::vector<std::string> types;
  for (const DetectorEntry& entry : detectors()) types.emplace_back(entry.type);
  return types;
}

}  // namespace

void bind_detect(py::module_& module) {
  bind_finding(module);
  py::class_<PeerView>(module, "PeerView", "What the traces of other ranks say of one rank.")
      .def(py::init([](const TablePtr& table, const std::vector<PartTuple>& parts,
                       bool has_straggler, const std::map<std::string, std::string>& facts) {
             return make_peers(*table, parts, has_straggler, facts);
           }),
           py::arg("table"), py::arg("parts"), py::kw_only(), py::arg("has_straggler"),
           py::arg("facts"),
           "Parts are (row, wait for late ranks, of that gained without them, wait for any rank, "
           "transfer lost to uneven parts), in ns.");
  module.def("detect", detect, py::arg("table"), py::arg("tree"), py::kw_only(),
             py::arg("material_share") = DetectOptions().material_share,
             py::arg("peers") = py::none(), py::call_guard<py::gil_scoped_release>(),
             "Runs every rule on one rank.");
  module.def("detector_types", detector_types, "Types of all rules, the paper's eight first.");
}

}  // namespace traceap::bindings
