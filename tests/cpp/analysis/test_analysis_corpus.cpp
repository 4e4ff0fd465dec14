// Real traces, where they are at hand: exactness on all of them, and causes that their authors
// state.

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "analysis/analysed.hpp"
#include "catch.hpp"
#include "corpus.hpp"

using namespace traceap;
namespace fs = std::filesystem;

namespace {

std::vector<fs::path> all_traces() {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::recursive_directory_iterator(corpus_folder())) {
    const std::string name = entry.path().string();
    const bool is_trace = name.ends_with(".json") || name.ends_with(".json.gz");
    if (entry.is_regular_file() && is_trace && name.find("_reference") == std::string::npos) {
      paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

double share_of_idle(const IdleBreakdown& idle, std::initializer_list<IdleCause> causes) {
  std::int64_t sum = 0, all = 0;
  for (const IdleCause c : causes) sum += idle.total_ns[static_cast<std::size_t>(c)];
  for (const std::int64_t ns : idle.total_ns) all += ns;
  return static_cast<double>(sum) / static_cast<double>(all);
}

double gpu_span_share(const fs::path& path, std::initializer_list<IdleCause> causes) {
  const Analysed a(read_trace(path.string()));
  return share_of_idle(a.idle(), causes);
}

/// type -> time ms of a gpu_timeline.csv.
std::map<std::string, double> read_reference(const fs::path& path) {
  std::map<std::string, double> values;
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    const std::size_t comma = line.find(',');
    values[line.substr(0, comma)] = std::stod(line.substr(comma + 1));
  }
  return values;
}

}  // namespace

TEST_CASE("on every real trace the parts sum to the whole", "[analysis][corpus]") {
  for (const fs::path& path : all_traces()) {
    INFO(path);
    const Analysed a(read_trace(path.string()));
    const Timeline t = compute_timeline(a.gpu);
    CHECK(t.compute_ns + t.exposed_communication_ns + t.exposed_memcpy_ns + t.idle_ns == t.span_ns);
    for (const Interval bounds : {a.gpu.span, a.tree.profiled}) {
      std::int64_t sum = 0;
      for (const std::int64_t ns : a.idle(bounds).total_ns) sum += ns;
      CHECK(sum == compute_timeline(a.gpu, bounds).idle_ns);
    }
  }
}

TEST_CASE("causes agree with what is known of real traces", "[analysis][corpus]") {
  const fs::path root = corpus_folder();
  CHECK(gpu_span_share(root / "kineto/resnet50_num_workers_0.json.gz", {IdleCause::kDataLoading}) >
        0.6);
  CHECK(gpu_span_share(root / "kineto/resnet50_num_workers_4.json.gz", {IdleCause::kDataLoading}) <
        0.1);
  CHECK(gpu_span_share(root / "param/linear_training_2080ti.json.gz", {IdleCause::kHostWait}) >
        0.9);
  CHECK(gpu_span_share(root / "tracelens/h100/vit_nsfw_inference.json.gz", {IdleCause::kHostWait}) >
        0.9);
  CHECK(gpu_span_share(root / "gpu_puzzlers/d2h_sync.json.gz",
                       {IdleCause::kMemoryCopy, IdleCause::kSynchronization}) > 0.5);
  CHECK(gpu_span_share(root / "gpu_puzzlers/dtoh_blocking.json.gz", {IdleCause::kMemoryCopy}) >
        0.7);
}

/// TraceLens computes start + duration in doubles of microseconds, one ulp of which is 0.25 us for
/// times since 1970: half an ulp at each end of some thousand intervals, mostly cancelling.
TEST_CASE("linked timelines agree with TraceLens' tables", "[analysis][corpus]") {
  for (const char* name :
       {"h100/qwen_inference", "h100/timesformer_inference", "h100/vit_nsfw_inference",
        "mi210/gpu_only", "mi300/bert_inference", "mi300/qwen_inference",
        "mi300/timesformer_inference", "torch_compile_triton"}) {
    INFO(name);
    const fs::path trace = corpus_folder() / "tracelens" / (std::string(name) + ".json.gz");
    const Analysed a(read_trace(trace.string()));
    const Timeline t =
        compute_timeline(build_gpu_intervals(a.table, a.tree, {.linked_only = true}));
    auto reference = read_reference(corpus_folder() / "tracelens" /
                                    (std::string(name) + "_reference/gpu_timeline.csv"));
    const auto differs_ns = [&](const char* type, std::int64_t ns) {
      return std::abs(static_cast<double>(ns) - reference.at(type) * 1e6);
    };
    CHECK(differs_ns("computation_time", t.compute_ns) < 100);
    CHECK(differs_ns("exposed_memcpy_time", t.exposed_memcpy_ns) < 100);
    CHECK(differs_ns("busy_time", t.busy_ns) < 100);
    CHECK(differs_ns("idle_time", t.idle_ns) < 100);
    CHECK(differs_ns("total_time", t.span_ns) < 10);
  }
}
