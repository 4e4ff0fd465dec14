#include <pybind11/stl.h>

#include "traceap/bindings/codes.hpp"
#include "traceap/bindings/columns.hpp"
#include "traceap/bindings/handles.hpp"
#include "traceap/bindings/interrupt.hpp"
#include "traceap/features/quantize.hpp"
#include "traceap/features/tokens.hpp"
#include "traceap/features/window_features.hpp"

namespace traceap::bindings {
namespace {

using WindowsClass = py::class_<BoundWindows, std::shared_ptr<BoundWindows>>;
using FeatureClass = py::class_<FeatureBlock, std::shared_ptr<FeatureBlock>>;
using Times = py::array_t<std::int64_t, py::array::c_style>;

std::shared_ptr<BoundWindows> windows(const TablePtr& table, const std::shared_ptr<BoundTree>& tree,
                                      std::uint32_t count, std::int64_t length_ns, bool host_rows,
                                      const std::optional<Bounds>& bounds) {
  const EventTree& links = tree_of(table, *tree);
  Interval span = links.profiled;
  if (bounds) span = {bounds->first, bounds->second};
  if (span.end_ns < span.start_ns) throw OptionError("bounds: the end lies before the start");
  return std::make_shared<BoundWindows>(
      BoundWindows{tree, build_windows(*table, links, span, {count, length_ns, host_rows})});
}

/// Throws SchemaError unless the three belong together.
const EventTree& tree_of(const TablePtr& table, const BoundTree& tree, const BoundWindows& bound) {
  if (bound.tree.get() != &tree) throw SchemaError("the windows were built from another tree");
  return tree_of(table, tree);
}

std::shared_ptr<IdleBreakdown> idle_of(const BoundTree& tree, const WindowSet& windows) {
  return tree.idle(Interval{windows.bounds_ns.front(), windows.bounds_ns.back()});
}

std::shared_ptr<FeatureBlock> features(const TablePtr& table, const BoundTree& tree,
                                       const BoundWindows& bound) {
  const EventTree& links = tree_of(table, tree, bound);
  const auto idle = idle_of(tree, bound.windows);
  return std::make_shared<FeatureBlock>(
      build_features(*table, links, tree.gpu(), *idle, bound.windows));
}

template <typename T>
auto window_column(std::vector<T> WindowSet::*member) {
  return [member](py::object self) {
    return view(self.cast<const BoundWindows&>().windows.*member, self);
  };
}

void bind_windows(py::module_& module) {
  WindowsClass(module, "WindowSet", "Windows of a trace: bounds and ragged lists of rows.")
      .def("__len__", [](const BoundWindows& self) { return self.windows.count(); })
      .def_property_readonly("bounds_ns", window_column(&WindowSet::bounds_ns),
                             "int64 [count + 1].")
      .def_property_readonly("offsets", window_column(&WindowSet::offsets),
                             "uint32 [count + 1]: into rows.")
      .def_property_readonly("rows", window_column(&WindowSet::rows),
                             "uint32: events by the window of their start.")
      .def_property_readonly("overlapping_offsets", window_column(&WindowSet::overlapping_offsets),
                             "uint32 [count + 1]: into overlapping.")
      .def_property_readonly("overlapping", window_column(&WindowSet::overlapping),
                             "uint32: events that began earlier and reach into the window.");
  module.def("build_windows", windows, py::arg("table"), py::arg("tree"), py::kw_only(),
             py::arg("count") = WindowOptions().count, py::arg("length_ns") = 0,
             py::arg("host_rows") = false, py::arg("bounds") = py::none(),
             py::call_guard<Unlocked>(),
             "Windows of equal time, or of length_ns, over the profiled time or bounds.");
}

/// View of a row-major [windows, features] matrix.
auto matrix(std::vector<double> FeatureBlock::*member) {
  return [member](py::object self) {
    const auto& block = self.cast<const FeatureBlock&>();
    const auto rows = static_cast<py::ssize_t>(block.window_count);
    const auto columns = static_cast<py::ssize_t>(block.names.size());
    return view<double>((block.*member).data(), {rows, columns}, {}, self);
  };
}

void bind_feature_block(py::module_& module) {
  FeatureClass(module, "FeatureBlock", "Numbers per window; docs/scorers.md lists them.")
      .def_property_readonly(
          "names",
          [](const FeatureBlock& self) {
            return std::vector<std::string>(self.names.begin(), self.names.end());
          },
          "[features].")
      .def_property_readonly("values", matrix(&FeatureBlock::values),
                             "float64 [windows, features].")
      .def_property_readonly("zscores", matrix(&FeatureBlock::zscores),
                             "float64 [windows, features]: robust, per trace.");
  module.def("build_features", features, py::arg("table"), py::arg("tree"), py::arg("windows"),
             py::call_guard<Unlocked>(), "Features of every window.");
}

/// Tokens and the table whose names they show.
struct BoundTokens {
  TablePtr table;
  Tokens tokens;
};
using TokensClass = py::class_<BoundTokens, std::shared_ptr<BoundTokens>>;

std::shared_ptr<BoundTokens> tokens(const TablePtr& table, const BoundTree& tree,
                                    const BoundWindows& bound, std::uint32_t cap, bool gaps,
                                    bool host, bool continued) {
  const EventTree& links = tree_of(table, tree, bound);
  const auto idle = gaps ? idle_of(tree, bound.windows) : std::make_shared<IdleBreakdown>();
  return std::make_shared<BoundTokens>(BoundTokens{
      table, build_tokens(*table, links, *idle, bound.windows, {cap, gaps, host, continued})});
}

template <typename T>
auto token_column(std::vector<T> Tokens::*member) {
  return [member](py::object self) {
    return view(self.cast<const BoundTokens&>().tokens.*member, self);
  };
}

void bind_tokens(py::module_& module) {
  bind_codes<TokenKind>(module, "TokenKind", kTokenKindCount, token_kind_name,
                        "What a token stands for.");
  module.def(
      "token_class_names", [] { return token_class_names(); },
      "Names of Tokens.class_code, by code: kinds, and what the events of some do.");
  TokensClass(module, "Tokens",
              "The events of each window as arrays; docs/scorers.md defines them.")
      .def("__len__", [](const BoundTokens& self) { return self.tokens.row.size(); })
      .def_property_readonly("offsets", token_column(&Tokens::offsets),
                             "uint32 [windows + 1]: into the columns.")
      .def_property_readonly("folded", token_column(&Tokens::folded),
                             "uint32 [windows]: events left out by the cap.")
      .def_property_readonly("row", token_column(&Tokens::row),
                             "uint32 [n]: the event; of gaps what explains them.")
      .def_property_readonly("kind", token_column(&Tokens::kind), "uint8 [n]: TokenKind.")
      .def_property_readonly("class_code", token_column(&Tokens::class_code),
                             "uint8 [n]: in token_class_names().")
      .def_property_readonly("flags", token_column(&Tokens::flags),
                             "uint8 [n]: 1 continued, 2 in a graph, 4 backward, 8 compiled.")
      .def_property_readonly("start_ns", token_column(&Tokens::start_ns), "int64 [n].")
      .def_property_readonly("dur_ns", token_column(&Tokens::dur_ns), "int64 [n].")
      .def_property_readonly("position", token_column(&Tokens::position),
                             "float32 [n]: start within the window, 0 to 1000.")
      .def_property_readonly("name", token_column(&Tokens::name), "int32 [n]: in names.")
      .def_property_readonly("cpu_name", token_column(&Tokens::cpu_name),
                             "int32 [n]: of the innermost operator above, in names.")
      .def_property_readonly("delay_code", token_column(&Tokens::delay_code),
                             "int16 [n]: of the launch delay, 0 to 255; 256 without one.")
      .def_property_readonly("duration_code", token_column(&Tokens::duration_code),
                             "int16 [n]: 0 to 255.")
      .def_property_readonly("stream", token_column(&Tokens::stream),
                             "int32 [n]: index of the stream; -1 for gaps and host rows.")
      .def_property_readonly("stream_role", token_column(&Tokens::stream_role),
                             "uint8 [n]: 0 compute, 1 communication, 2 copy, 3 none.")
      .def_property_readonly("bytes", token_column(&Tokens::bytes),
                             "int64 [n]: of copies, memsets and collectives; 0 if not told.")
      .def_property_readonly("grid_blocks", token_column(&Tokens::grid_blocks),
                             "int64 [n]: of kernels; 0 if not told.")
      .def_property_readonly("queue_depth", token_column(&Tokens::queue_depth),
                             "int32 [n]: what the launch found queued; -1 if unknown.")
      .def_property_readonly("stream_gap_ns", token_column(&Tokens::stream_gap_ns),
                             "int64 [n]: since the event before on the stream; -1 if none.")
      .def_property_readonly("launch_dur_ns", token_column(&Tokens::launch_dur_ns),
                             "int64 [n]: of the launch call; -1 without one.")
      .def_property_readonly(
          "names",
          [](const BoundTokens& self) {
            TextList names;
            for (const std::string_view name : self.tokens.names) names.append(to_str(name));
            return names;
          },
          "Distinct names as recorded; [0] stands for none, [1] for an event without launch.");
  module.def("build_tokens", tokens, py::arg("table"), py::arg("tree"), py::arg("windows"),
             py::kw_only(), py::arg("cap") = TokenOptions().cap, py::arg("gaps") = true,
             py::arg("host") = true, py::arg("continued") = true, py::call_guard<Unlocked>(),
             "The events of every window.");
}

py::array_t<std::int32_t> quantize(const Times& times, const QuantizeRange& range) {
  if (times.ndim() != 1) throw SchemaError("times must be int64 [n]");
  return adopt(quantize_ns({times.data(), static_cast<std::size_t>(times.size())}, range));
}

}  // namespace

void bind_features(py::module_& module) {
  bind_windows(module);
  bind_feature_block(module);
  bind_tokens(module);
  module.def(
      "feature_names",
      [] {
        const auto names = window_feature_names();
        return std::vector<std::string>(names.begin(), names.end());
      },
      "[features]: FeatureBlock.names of every block.");
  module.def(
      "quantize_delays_ns", [](const Times& times) { return quantize(times, kDelayRange); },
      py::arg("times"), "int32 [n]: logarithmic ids of launch delays (paper, Eq. 3).");
  module.def(
      "quantize_durations_ns", [](const Times& times) { return quantize(times, kDurationRange); },
      py::arg("times"), "int32 [n]: logarithmic ids of durations (paper, Eq. 3).");
}

}  // namespace traceap::bindings
