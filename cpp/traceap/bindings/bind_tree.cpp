#include <pybind11/stl.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "traceap/bindings/arg_columns.hpp"
#include "traceap/bindings/columns.hpp"
#include "traceap/bindings/handles.hpp"
#include "traceap/bindings/interrupt.hpp"
#include "traceap/tree/excerpt.hpp"
#include "traceap/tree/iteration_name.hpp"
#include "traceap/tree/iterations.hpp"

namespace traceap::bindings {
namespace {

using TreeClass = py::class_<BoundTree, std::shared_ptr<BoundTree>>;

const char* role_name(StreamRole role) {
  switch (role) {
    case StreamRole::kCommunication:
      return "communication";
    case StreamRole::kCopy:
      return "copy";
    default:
      return "compute";
  }
}

std::optional<std::int64_t> unless(std::int64_t value, std::int64_t absent) {
  return value == absent ? std::optional<std::int64_t>() : value;
}

py::typing::Tuple<py::str, Int64Array, py::array_t<Row>> iteration_spans(const BoundTree& self) {
  IterationSpans found;
  {
    const Unlocked unlocked;
    found = find_iteration_spans(*self.table, self.tree);
  }
  return py::make_tuple(to_str(iteration_source_name(found.source)), adopt(std::move(found.spans)),
                        adopt(std::move(found.rows)));
}

void bind_step(py::module_& module) {
  py::class_<Step>(module, "Step", "A training step.")
      .def_property_readonly("name", [](const Step& self) { return to_str(self.name); })
      .def_readonly("start_ns", &Step::start_ns)
      .def_readonly("end_ns", &Step::end_ns)
      .def_property_readonly(
          "row", [](const Step& self) { return unless(self.row, kNoRow); },
          "Row of its annotation; None where the step is inferred.")
      .def_property_readonly(
          "kind", [](const Step& self) { return to_str(iteration_phase_name(self.kind)); },
          "Phase of an iteration of a serving engine, such as `decode`; else `unmarked`.");
}

void bind_iterations(py::module_& module) {
  py::class_<RequestGroup>(module, "RequestGroup",
                           "Requests of one phase; None for what is not recorded.")
      .def_readonly("requests", &RequestGroup::requests)
      .def_readonly("tokens", &RequestGroup::tokens, "Queries, summed over the requests.")
      .def_readonly("cached_tokens", &RequestGroup::cached_tokens,
                    "Keys, summed over the requests.")
      .def_readonly("query_squares", &RequestGroup::query_squares, "Sum of queries squared.")
      .def_readonly("query_keys", &RequestGroup::query_keys, "Sum of queries times keys.");
  py::class_<IterationMark>(module, "IterationMark",
                            "An iteration, as the annotation of a serving engine tells it.")
      .def_property_readonly(
          "engine",
          [](const IterationMark& self) { return to_str(serving_engine_name(self.engine)); },
          "vllm, sglang, atom, xdit or tensorrt-llm.")
      .def_property_readonly(
          "phase",
          [](const IterationMark& self) { return to_str(iteration_phase_name(self.phase)); },
          "prefill, decode, mixed, speculative, diffusion, idle or unmarked.")
      .def_readonly("requests", &IterationMark::requests, "Requests of all phases, or None.")
      .def_readonly("graph_batch", &IterationMark::graph_batch,
                    "Batch of the CUDA graph that ran, padding included, or None.")
      .def_readonly("prefill", &IterationMark::prefill)
      .def_readonly("decode", &IterationMark::decode);
  module.def(
      "read_iteration_name", read_iteration_name, py::arg("name"),
      "Read the annotation of vLLM, SGLang, ATOM, xDiT or TensorRT-LLM; None for other names.");
}

void bind_warm_up(py::module_& module) {
  py::class_<WarmUp>(module, "WarmUp", "Where warm-up ends.")
      .def_readonly("known", &WarmUp::known, "Steps or the repetition of kernels tell.")
      .def_readonly("by_steps", &WarmUp::by_steps, "Steps tell.")
      .def_readonly("end_ns", &WarmUp::end_ns, "On the host's clock; 0 where it is not known.");
}

void bind_workload(py::module_& module) {
  py::class_<Workload>(module, "Workload", "What the recorded program is.")
      .def_property_readonly(
          "framework", [](const Workload& self) { return to_str(framework_name(self.framework)); },
          "pytorch, xla or unknown.")
      .def_property_readonly(
          "framework_row", [](const Workload& self) { return unless(self.framework_row, kNoRow); },
          "Row of an event that shows it; None if unknown.")
      .def_property_readonly(
          "role", [](const Workload& self) { return to_str(traceap::role_name(self.role)); },
          "training, inference, prefill, decode, mixed, diffusion, evaluation or unknown.")
      .def_property_readonly(
          "role_row", [](const Workload& self) { return unless(self.role_row, kNoRow); },
          "Row of an event that shows it; None if unknown.")
      .def_property_readonly(
          "parallelism",
          [](const Workload& self) {
            std::map<std::string, Row> rows;
            for (int kind = 0; kind < kParallelismCount; ++kind) {
              const Row row = self.parallelism[static_cast<std::size_t>(kind)];
              if (row == kNoRow) continue;
              rows.emplace(parallelism_name(static_cast<Parallelism>(kind)), row);
            }
            return rows;
          },
          "Row of an event that shows each of ddp, fsdp, tensor, pipeline and expert.");
}

void bind_stream(py::module_& module) {
  py::class_<Stream>(module, "Stream", "A GPU stream that ran something.")
      .def_property_readonly(
          "device", [](const Stream& self) { return unless(self.device, -1); },
          "None if the trace does not say.")
      .def_property_readonly(
          "stream", [](const Stream& self) { return unless(self.stream, kNoId); },
          "None if the trace does not say.")
      .def_property_readonly(
          "role", [](const Stream& self) { return role_name(self.role); },
          "compute, communication or copy, by what runs there.")
      .def_property_readonly(
          "count", [](const Stream& self) { return self.rows.size(); }, "GPU events.");
}

void bind_recording_note(py::module_& module) {
  py::class_<RecordingNote>(module, "RecordingNote", "What is wrong with a recording, and where.")
      .def_property_readonly(
          "code",
          [](const RecordingNote& self) { return to_str(recording_fault_name(self.fault)); },
          "Such as `impossible_duration`.")
      .def_readonly("count", &RecordingNote::count, "Records or launches concerned.")
      .def_property_readonly(
          "start_ns",
          [](const RecordingNote& self) {
            return self.time ? std::optional(self.time->start_ns) : std::nullopt;
          },
          "On the GPU's clock; None where no time can be trusted.")
      .def_property_readonly(
          "end_ns",
          [](const RecordingNote& self) {
            return self.time ? std::optional(self.time->end_ns) : std::nullopt;
          },
          "On the GPU's clock; None where no time can be trusted.")
      .def_property_readonly(
          "message", [](const RecordingNote& self) { return to_str(self.message); },
          "One sentence for a person.");
}

/// Getter for a vector of the tree as a view that keeps the tree alive.
template <typename T>
auto tree_column(std::vector<T> EventTree::*member) {
  return
      [member](py::object self) { return view(self.cast<const BoundTree&>().tree.*member, self); };
}

void bind_tree_columns(TreeClass& tree) {
  const auto column = [&](const char* name, auto member, const char* doc) {
    tree.def_property_readonly(name, tree_column(member), doc);
  };
  column("parent", &EventTree::parent, "uint32 [n]: enclosing host row, or NO_ROW.");
  column("depth", &EventTree::depth, "uint16 [n]: 0 for roots; saturates.");
  column("launch", &EventTree::launch, "uint32 [n]: call that launched a GPU event, or NO_ROW.");
  column("op", &EventTree::op, "uint32 [n]: innermost cpu_op above a row, or NO_ROW.");
  column("forward", &EventTree::forward, "uint32 [n]: a backward op's forward op, or NO_ROW.");
  column("gpu_class", &EventTree::gpu_class, "uint8 [n]: GpuClass.");
  column("api", &EventTree::api, "uint8 [n]: ApiClass; NONE for rows that are no API call.");
  column("copy_direction", &EventTree::copy_direction,
         "uint8 [n]: CopyDirection of GPU events that copy; NONE for others.");
  column("host_memory", &EventTree::host_memory,
         "uint8 [n]: HostMemory, the host's side of a copy; NONE without one.");
  column("step", &EventTree::step,
         "uint32 [n]: index in steps of the step that holds a row's start (of GPU events: its "
         "launch), or NO_ROW.");
  column("phase", &EventTree::phase, "uint8 [n]: Phase.");
  column("stream_of", &EventTree::stream_of, "uint32 [n]: index in streams, or NO_ROW.");
  column("host_rows", &EventTree::host_rows, "uint32: host rows by track, a pre-order each.");
  column("host_offsets", &EventTree::host_offsets, "uint32 [tracks + 1]: into host_rows.");
  column("host_position", &EventTree::host_position, "uint32 [n]: in host_rows, or NO_ROW.");
  column("subtree_end", &EventTree::subtree_end,
         "uint32, per index in host_rows: one past its last descendant's index.");
  column("host_tracks", &EventTree::host_tracks, "uint32: tracks with host rows.");
  column("gpu_rows", &EventTree::gpu_rows, "uint32: all GPU events by start.");
  column("linked_gpu_rows", &EventTree::linked_gpu_rows, "uint32: those with a launch.");
  column("launched_offsets", &EventTree::launched_offsets, "uint32 [n + 1]: into launched_rows.");
  column("launched_rows", &EventTree::launched_rows, "uint32: GPU events by launching row.");
}

void bind_tree_members(TreeClass& tree) {
  tree.def_property_readonly(
          "steps", [](const BoundTree& self) { return self.tree.steps; },
          "By start; they do not overlap.")
      .def_property_readonly(
          "steps_inferred", [](const BoundTree& self) { return self.tree.steps_inferred; },
          "The steps come from a repeated pattern.")
      .def_property_readonly(
          "warm_up", [](const BoundTree& self) { return self.tree.warm_up; }, "Where warm-up ends.")
      .def_property_readonly(
          "workload", [](const BoundTree& self) { return self.tree.workload; },
          "What the recorded program is.")
      .def_property_readonly(
          "streams", [](const BoundTree& self) { return self.tree.streams; },
          "By device and stream.")
      .def_property_readonly(
          "main_track",
          [](const BoundTree& self) { return unless(self.tree.main_track, kNoTrack); },
          "Track id of the thread that carries steps or most launches.")
      .def_property_readonly(
          "launch_delay_correction_ns",
          [](const BoundTree& self) { return self.tree.launch_delay_correction_ns; },
          "Added to a launch delay; 0 unless host and GPU clock disagree.")
      .def_property_readonly(
          "profiled",
          [](const BoundTree& self) {
            return py::make_tuple(self.tree.profiled.start_ns, self.tree.profiled.end_ns);
          },
          "(start_ns, end_ns): first to last step, else complete events.")
      .def_property_readonly(
          "recording_notes", [](const BoundTree& self) { return self.tree.recording.notes; },
          "What is wrong with the recording; empty for one that is fine.")
      .def_property_readonly(
          "missing",
          [](py::object self) {
            return view(self.cast<const BoundTree&>().tree.recording.missing, self);
          },
          "int64 [n, 2]: where GPU work has no record, on the GPU's clock; sorted, disjoint.")
      .def_property_readonly(
          "not_judged",
          [](py::object self) {
            return view(self.cast<const BoundTree&>().tree.recording.not_judged, self);
          },
          "int64 [n, 2]: what no timeline, idle cause, cost or share covers; `missing` and waits "
          "for the start of other recordings.")
      .def_property_readonly(
          "step_is_recorded",
          [](const BoundTree& self) { return self.tree.recording.step_is_recorded; },
          "Per step: its launches have their records, and most of it is judged.")
      .def_property_readonly(
          "diagnostics", [](const BoundTree& self) { return self.tree.diagnostics.entries(); },
          "Of linking.")
      .def(
          "launch_delays_ns",
          [](const BoundTree& self) { return adopt(read_launch_delays(*self.table, self.tree)); },
          "int64, per gpu_rows: start behind the launching call's start; NO_ID for orphans.")
      .def("iteration_spans", iteration_spans,
           "Iterations of a serving engine: what tells them, such as \"profiler steps\"; int64 "
           "[n, 2]: host clock, by start; uint32: the engine's annotations, if they tell.");
}

std::shared_ptr<BoundTree> build(const TablePtr& table, std::int64_t overlap_tolerance_ns,
                                 std::optional<std::int64_t> last_rank_began_ns) {
  TreeOptions options;
  options.last_rank_began_ns = last_rank_began_ns;
  options.overlap_tolerance_ns = overlap_tolerance_ns;
  return std::make_shared<BoundTree>(BoundTree{table, build_tree(*table, options)});
}

using ExcerptOut = py::typing::Tuple<TablePtr, std::shared_ptr<BoundTree>>;
using IntervalsIn = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;
IntervalSet read_intervals(const IntervalsIn& array) {
  const auto values = array.unchecked<2>();
  if (values.shape(1) != 2) throw py::value_error("intervals are int64 [n, 2]");
  std::vector<Interval> intervals;
  for (py::ssize_t i = 0; i < values.shape(0); ++i) {
    intervals.push_back({values(i, 0), values(i, 1)});
  }
  return intervals;
}

using BoundsIn = std::optional<std::pair<std::int64_t, std::int64_t>>;

ExcerptOut excerpt(const TablePtr& table, const BoundTree& tree, const IntervalsIn& windows,
                   const std::optional<IntervalsIn>& left_out, const BoundsIn& profiled) {
  const EventTree& whole = tree_of(table, tree);
  const IntervalSet inside = make_union(read_intervals(windows));
  const IntervalSet outside = left_out ? make_union(read_intervals(*left_out)) : IntervalSet{};
  std::optional<Interval> bounds;
  if (profiled) bounds = Interval{profiled->first, profiled->second};
  TablePtr part;
  std::shared_ptr<BoundTree> links;
  {
    const Unlocked unlocked;
    Excerpt taken = take_excerpt(*table, whole, inside, outside, bounds);
    part = std::make_shared<EventTable>(std::move(taken.table));
    links = std::make_shared<BoundTree>(BoundTree{part, std::move(taken.tree)});
  }
  return py::make_tuple(part, links);
}

}  // namespace

void bind_tree(py::module_& module) {
  bind_step(module);
  bind_iterations(module);
  bind_warm_up(module);
  bind_workload(module);
  bind_stream(module);
  bind_recording_note(module);
  TreeClass tree(module, "EventTree", "Links between the rows of an EventTable.");
  bind_tree_columns(tree);
  bind_tree_members(tree);
  module.def("build_tree", build, py::arg("table"), py::kw_only(),
             py::arg("overlap_tolerance_ns") = TreeOptions().overlap_tolerance_ns,
             py::arg("last_rank_began_ns") = py::none(), py::call_guard<Unlocked>(),
             "Links the rows of a table. `last_rank_began_ns`: first event of the rank of the job "
             "that began to record last; None where the rank is read alone.");
  module.def(
      "excerpt", excerpt, py::arg("table"), py::arg("tree"), py::arg("windows"),
      py::arg("left_out") = py::none(), py::arg("profiled") = py::none(),
      "The rows that lie inside stretches of time (int64 `[n, 2]`, host clock), with the GPU "
      "events launched there, as a table and tree of their own; `left_out` is neither busy nor "
      "idle, `profiled` (start, end) the profiled time, by default that of the steps.");
}

}  // namespace traceap::bindings
