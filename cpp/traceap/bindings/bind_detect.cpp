#include <pybind11/stl.h>

#include "traceap/bindings/columns.hpp"
#include "traceap/bindings/handles.hpp"
#include "traceap/bindings/interrupt.hpp"
#include "traceap/detect/queries/compile.hpp"
#include "traceap/detect/queries/matmul.hpp"
#include "traceap/detect/rules.hpp"

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

std::vector<BoundFinding> detect(const TablePtr& table, const BoundTree& tree,
                                 double material_share, const PeerView* peers,
                                 const std::optional<MatrixUnits>& matrix_units) {
  if (!(material_share >= 0.0 && material_share <= 1.0)) {
    throw OptionError("material_share must lie in [0, 1]");
  }
  const EventTree& links = tree_of(table, tree);
  Signals signals = build_signals(*table, links, tree.gpu(), *tree.idle(links.profiled),
                                  {.material_share = material_share, .matrix_units = matrix_units});
  if (peers) signals.peers = *peers;
  std::vector<Finding> findings = detect_all(signals);
  const std::vector<std::int64_t> unclaimed = compute_unclaimed_cost(findings);
  std::vector<BoundFinding> bound;
  for (std::size_t i = 0; i < findings.size(); ++i) {
    bound.push_back({.finding = std::move(findings[i]),
                     .paper = all_rules()[i].paper_place != 0,
                     .unclaimed_cost_ns = unclaimed[i]});
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

const char* fact_kind_name(FactKind kind) {
  switch (kind) {
    case FactKind::kDuration:
      return "duration_ns";
    case FactKind::kBytes:
      return "bytes";
    case FactKind::kShare:
      return "share";
    case FactKind::kRate:
      return "rate";
    case FactKind::kText:
      return "text";
    case FactKind::kCount:
      break;
  }
  return "count";
}

const char* saving_basis_name(SavingBasis basis) {
  switch (basis) {
    case SavingBasis::kIdle:
      return "idle";
    case SavingBasis::kCost:
      return "cost";
    case SavingBasis::kGpuWork:
      return "gpu_work";
    case SavingBasis::kIdleAndWork:
      return "idle_and_work";
    case SavingBasis::kIdleOrExposed:
      break;
  }
  return "idle_or_exposed";
}

py::object value_of(const Fact& fact) {
  if (const auto* text = std::get_if<std::string>(&fact.value)) return to_str(*text);
  return std::visit([](const auto& value) { return py::cast(value); }, fact.value);
}

using FactTuple = py::typing::Tuple<py::str, py::object>;
using Facts = py::typing::Dict<py::str, FactTuple>;
Facts facts_of(const BoundFinding& self) {
  Facts facts;
  for (const Fact& fact : self.finding.facts) {
    facts[to_str(fact.name)] = py::make_tuple(fact_kind_name(fact.kind), value_of(fact));
  }
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
      .def_property_readonly(
          "applies", [](const BoundFinding& self) { return self.finding.applies; },
          "The trace holds what the rule is about.")
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
      .def_property_readonly("facts", facts_of,
                             "By name (kind, value): count, duration_ns, bytes (int), share, rate "
                             "(float) or text (str).");
}

void bind_rules(py::module_& module) {
  py::class_<Rule>(module, "Rule", "One rule: a type of finding and what its saving rests on.")
      .def_property_readonly("type", [](const Rule& self) { return to_str(self.type); })
      .def_property_readonly(
          "paper", [](const Rule& self) { return self.paper_place != 0; },
          "One of the paper's eight types.")
      .def_property_readonly(
          "saving_basis", [](const Rule& self) { return saving_basis_name(self.saving.basis); },
          "idle, idle_or_exposed, cost, gpu_work or idle_and_work.")
      .def_property_readonly(
          "saving_shares",
          [](const Rule& self) {
            return std::tuple(self.saving.low, self.saving.best, self.saving.high);
          },
          "Careful figure, guess and bound as shares of the basis.");
  module.def("rules", all_rules, py::return_value_policy::reference,
             "All rules, the paper's eight first.");
  py::class_<MatrixUnits>(module, "MatrixUnits",
                          "Matrix arithmetic of a device relative to plain fp32 products.")
      .def(py::init([](double half_ratio, double tf32_ratio, double half_flops_per_byte,
                       const std::string& device) {
             return MatrixUnits{.half_ratio = half_ratio,
                                .tf32_ratio = tf32_ratio,
                                .half_flops_per_byte = half_flops_per_byte,
                                .device = device};
           }),
           py::kw_only(), py::arg("half_ratio"), py::arg("tf32_ratio"),
           py::arg("half_flops_per_byte") = 0.0, py::arg("device"),
           "Ratios of 0: no such units. `device` is its name for a person.")
      .def_readonly("half_ratio", &MatrixUnits::half_ratio, "fp16 or bf16 over plain fp32.")
      .def_readonly("tf32_ratio", &MatrixUnits::tf32_ratio, "TF32 over plain fp32.")
      .def_readonly("half_flops_per_byte", &MatrixUnits::half_flops_per_byte,
                    "FLOPs in half precision for each byte that memory moves; 0: not known.")
      .def_property_readonly("device", [](const MatrixUnits& self) { return to_str(self.device); });
  module.attr("MATERIAL_SHARE") = kMaterialShare;
  module.attr("MAX_EVIDENCE") = kMaxEvidence;
}

}  // namespace

void bind_detect(py::module_& module) {
  bind_finding(module);
  bind_rules(module);
  module.def("detect", detect, py::arg("table"), py::arg("tree"), py::kw_only(),
             py::arg("material_share") = kMaterialShare, py::arg("peers") = py::none(),
             py::arg("matrix_units") = py::none(), py::call_guard<Unlocked>(),
             "Runs every rule on one rank. Without `matrix_units` the names of kernels tell what "
             "the device can do.");
  module.def(
      "recompiled_rows",
      [](const TablePtr& table, const BoundTree& tree) {
        std::vector<Row> rows;
        {
          const Unlocked unlocked;
          rows = find_compile_ranges(build_signals(*table, tree_of(table, tree))).again;
        }
        return adopt(std::move(rows));
      },
      py::arg("table"), py::arg("tree"),
      "uint32: outermost rows in which something is compiled that was compiled before.");
  module.def(
      "evidence_rows",
      [](const TablePtr& table, const BoundTree& tree, const std::string& type) {
        std::vector<Row> rows;
        {
          const Unlocked unlocked;
          rows = evidence_rows(*table, tree_of(table, tree), type);
        }
        return adopt(std::move(rows));
      },
      py::arg("table"), py::arg("tree"), py::arg("type"),
      "uint32: all rows that show a type of anti-pattern, by start; none for an unknown type.");
  module.def(
      "runs_on_host",
      [](const TablePtr& table, const BoundTree& tree) {
        return runs_on_host(*table, tree_of(table, tree));
      },
      py::arg("table"), py::arg("tree"), py::call_guard<Unlocked>(),
      "Does the run compute on the host? Nothing of a GPU is recorded, and operators fill a tenth "
      "of the profiled time or more.");
  module.def(
      "is_plain_fp32_product",
      [](std::string_view kernel_name) {
        return classify_matmul(kernel_name) == MatmulKind::kPlainFp32;
      },
      py::arg("kernel_name"),
      "Does the name say a product or convolution of fp32 data without TF32?");
}

}  // namespace traceap::bindings
