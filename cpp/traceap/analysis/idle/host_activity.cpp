#include "traceap/analysis/idle/host_activity.hpp"

#include <algorithm>
#include <string>

#include "traceap/base/text.hpp"

namespace traceap {
namespace {

/// Lower case of a name's beginning; the words looked for stand there.
std::string lower_case(std::string_view text) {
  constexpr std::size_t kEnough = 512;
  return to_lower(text.substr(0, kEnough));
}

/// "compile", "autotune" and kin as the name of a function; "compiled" is the result being called.
bool is_compiling_function(std::string_view frame) {
  const std::size_t colon = frame.rfind(": ");
  const std::string_view function =
      colon == std::string_view::npos ? frame : frame.substr(colon + 2);
  const std::size_t at = function.find("compile");
  if (at != std::string_view::npos && function.substr(at, 8) != "compiled") return true;
  return contains_any(function, {"autotun", "benchmark", "do_bench", "_bench", "ninja"}) ||
         is_any(function, {"build", "_build", "build_and_load", "gen_and_load"});
}

/// Libraries that generate code when a function is first called. Where they are, some by starting a
/// compiler as a process of its own.
bool is_jit_library(std::string_view frame) {
  return contains_any(frame, {"torch/_inductor/", "triton/", "flashinfer/jit/", "deep_gemm/jit",
                              "torch/utils/cpp_extension.py", "tvm_ffi/", "tilelang/", "numba/",
                              "cupy/", "cutlass/"});
}

/// Python frames read "path/file.py(line): function" or "<built-in method ...>".
HostActivity classify_frame(std::string_view raw_name) {
  std::string forward_slashes;  // paths written on Windows
  if (contains(raw_name, "\\")) {
    forward_slashes = raw_name;
    std::replace(forward_slashes.begin(), forward_slashes.end(), '\\', '/');
  }
  const std::string_view name = forward_slashes.empty() ? raw_name : forward_slashes;
  if (contains_any(name, {"torch/utils/data/", "torchdata/", "nvidia/dali/", "webdataset/"})) {
    return HostActivity::kDataLoading;
  }
  if (contains_any(name, {": synchronize", "_synchronize>", "method synchronize of"})) {
    return HostActivity::kSynchronize;
  }
  if (contains_any(name, {"torch/_dynamo/convert_frame.py", "torch/_dynamo/symbolic_convert.py",
                          "torch/_dynamo/output_graph.py"})) {
    return HostActivity::kCompilation;
  }
  if (is_jit_library(name) && is_compiling_function(name)) {
    return HostActivity::kCompilation;
  }
  if (contains_any(name, {"method wait of torch._C._distributed", "distributed_c10d.py"}) &&
      contains_any(name, {"method wait of", ": barrier", ": monitored_barrier", ": wait"})) {
    return HostActivity::kCommunicationWait;
  }
  return contains(name, "torch/profiler/profiler.py") ? HostActivity::kProfiler
                                                      : HostActivity::kPlain;
}

HostActivity classify_aten_op(std::string_view name) {
  if (is_any(name, {"aten::to", "aten::_to_copy", "aten::copy_", "aten::_copy_from"})) {
    return HostActivity::kCopyOp;
  }
  if (is_any(name, {"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero"})) {
    return HostActivity::kScalarReadOp;
  }
  if (is_any(name, {"aten::nonzero", "aten::nonzero_numpy", "aten::argwhere", "aten::equal",
                    "aten::masked_select", "aten::bincount", "aten::repeat_interleave"}) ||
      starts_with_any(name, {"aten::unique", "aten::_unique"})) {
    return HostActivity::kSyncingOp;
  }
  return contains(name, "convolution") ? HostActivity::kConvolutionOp : HostActivity::kPlain;
}

/// Words that people and libraries give to ranges around the loader.
bool is_loading_range(std::string_view name) {
  if (name.starts_with("enumerate(DataLoader)")) return true;
  const std::string lower = lower_case(name);
  return contains_any(lower,
                      {"dataloader_next", "dataloader.next", "dataloader.__next__", "data_loading",
                       "dataloading", "data loading", "data_load ", "load_batch", "load_data",
                       "next_batch", "fetch_batch", "get_batch"}) ||
         lower.ends_with("data_load");
}

/// dynamo_timed and record_function ranges of torch.compile; not "TorchDynamo Cache Lookup", which
/// evaluates guards in every call.
bool is_compiling_range(std::string_view name) {
  return name.ends_with("(dynamo_timed)") ||
         starts_with_any(name, {"compile_fx", "CachingAutotuner.", "OutputGraph.call_user_compiler",
                                "entire_frame_compile", "backend_compile"}) ||
         contains_any(name, {"benchmark_all_configs"});
}

bool is_waiting_range(std::string_view name) {
  if (is_any(name, {"_c10d_functional::wait_tensor", "c10d_functional::wait_tensor", "c10d::wait",
                    "c10d::barrier", "c10d::monitored_barrier_"})) {
    return true;
  }
  return name.ends_with("_Wait") || contains(name, "waitable wait()") ||
         contains(name, "Request wait()");
}

HostActivity classify_range(EventKind kind, std::string_view name) {
  if (name.starts_with("aten::")) return classify_aten_op(name);
  if (name == "torchvision::nms") return HostActivity::kSyncingOp;
  if (starts_with_any(name, {"Torch-Compiled Region", "## Call CompiledFxGraph", "CompiledFunction",
                             "CompiledFxGraph"})) {
    return HostActivity::kCompiledRegion;
  }
  if (starts_with_any(name, {"gloo:", "mpi:", "ucc:"})) return HostActivity::kHostCollective;
  if (is_waiting_range(name)) return HostActivity::kCommunicationWait;
  if (is_compiling_range(name)) return HostActivity::kCompilation;
  if (starts_with_any(name, {"ProfilerStep#", "Optimizer."})) return HostActivity::kMarker;
  // Operators bear names of code, not of intentions: only the profiler's own legacy range counts.
  if (kind == EventKind::kCpuOp && !name.starts_with("enumerate(")) return HostActivity::kPlain;
  return is_loading_range(name) ? HostActivity::kDataLoading : HostActivity::kPlain;
}

/// CUPTI's overhead rows.
HostActivity classify_overhead(std::string_view name) {
  return contains_any(name, {"Lazy Function Loading", "Module Loading", "Driver Compiler"})
             ? HostActivity::kCompilation
             : HostActivity::kProfiler;
}

}  // namespace

HostActivity activity_of(ApiClass api) {
  if (is_synchronisation(api)) return HostActivity::kSynchronize;
  if (is_allocator_call(api)) return HostActivity::kAllocator;
  switch (api) {
    case ApiClass::kCopy:
      return HostActivity::kSyncCopy;
    case ApiClass::kAsyncCopy:
      return HostActivity::kAsyncCopy;
    case ApiClass::kCodeLoading:
    case ApiClass::kGraphBuilding:
      return HostActivity::kCompilation;
    default:
      return HostActivity::kApiCall;
  }
}

HostActivity classify_host_activity(EventKind kind, std::string_view name) {
  if (is_api_call(kind)) return activity_of(classify_api_call(name));
  if (kind == EventKind::kPythonFunction) return classify_frame(name);
  if (kind == EventKind::kOverhead) return classify_overhead(name);
  return classify_range(kind, name);
}

HostActivities::Namespace HostActivities::namespace_of(EventKind kind) {
  if (kind == EventKind::kPythonFunction) return kFrame;
  return kind == EventKind::kOverhead ? kOverheadRow : kRange;
}

HostActivity HostActivities::operator()(Row row) const {
  const EventKind kind = table_.kind[row];
  if (is_api_call(kind)) return activity_of(tree_.api[row]);
  // An annotation and an operator of one name are judged by different words: two slots a string.
  std::vector<std::uint8_t>& seen = seen_[namespace_of(kind)];
  if (seen.empty()) seen.assign(2 * table_.strings.size(), kUnseen);
  const std::size_t slot = 2 * std::size_t{table_.name[row]} + (kind == EventKind::kCpuOp ? 1 : 0);
  if (seen[slot] == kUnseen) {
    seen[slot] = static_cast<std::uint8_t>(classify_host_activity(kind, table_.name_of(row)));
  }
  return static_cast<HostActivity>(seen[slot]);
}

bool is_blocking_copy(const EventTable& table, const EventTree& tree, Row call) {
  bool any_copy = false;
  for (const Row gpu : tree.launched_by(call)) {
    if (tree.gpu_class[gpu] != GpuClass::kMemcpy) continue;
    any_copy = true;
    if (tree.host_memory[gpu] == HostMemory::kPageable) return true;
    const std::int64_t done_ns = table.end_ns(gpu) + tree.launch_delay_correction_ns;
    if (!is_between_devices(tree.copy_direction[gpu]) && table.end_ns(call) >= done_ns) return true;
  }
  return !any_copy && table.dur_ns[call] >= kLongCallNs;
}

}  // namespace traceap
