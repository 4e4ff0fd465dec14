// Invariants of the tree on real traces, with links counted a second time the slow way.

#include <algorithm>
#include <filesystem>
#include <set>

#include "catch.hpp"
#include "corpus.hpp"
#include "tree_helpers.hpp"

using namespace traceap;
namespace fs = std::filesystem;

namespace {

bool is_trace(const fs::path& path) {
  const std::string name = path.filename().string();
  const bool json = name.ends_with(".json") || name.ends_with(".json.gz");
  return json && path.string().find("_reference") == std::string::npos;
}

std::vector<fs::path> corpus_files() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(corpus_folder())) {
    if (entry.is_regular_file() && is_trace(entry.path())) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

void check_nesting(const EventTable& table, const EventTree& tree, std::int64_t tolerance_ns) {
  std::size_t host_rows = 0;
  for (Row r = 0; r < table.size(); ++r) {
    const bool host = is_host(table.kind[r]) && table.is_complete(r);
    host_rows += host;
    REQUIRE((tree.host_position[r] != kNoRow) == host);
    const Row p = tree.parent[r];
    if (p == kNoRow) continue;
    REQUIRE(host);
    REQUIRE(p < r);
    REQUIRE(table.track[p] == table.track[r]);
    REQUIRE(table.end_ns(r) <= table.end_ns(p) + tolerance_ns);
    REQUIRE(tree.depth[r] == tree.depth[p] + 1);
    REQUIRE(is_inside(tree, r, p));
  }
  REQUIRE(tree.host_rows.size() == host_rows);
}

void check_links(const EventTable& table, const EventTree& tree) {
  std::set<std::int64_t> call_ids;
  for (Row r = 0; r < table.size(); ++r) {
    if (is_api_call(table.kind[r]) && table.is_complete(r)) call_ids.insert(table.correlation[r]);
  }
  std::size_t gpu = 0, linked = 0, launched = 0, in_streams = 0;
  for (Row r = 0; r < table.size(); ++r) {
    launched += tree.launched_by(r).size();
    for (const Row g : tree.launched_by(r)) REQUIRE(tree.launch[g] == r);
    if (!table.is_gpu_event(r)) continue;
    ++gpu;
    const bool by_id = table.correlation[r] != kNoId && call_ids.contains(table.correlation[r]);
    linked += by_id;
    REQUIRE((!by_id || tree.launch[r] != kNoRow));
    if (tree.launch[r] != kNoRow) REQUIRE(is_api_call(table.kind[tree.launch[r]]));
    if (tree.op[r] != kNoRow) REQUIRE(table.kind[tree.op[r]] == EventKind::kCpuOp);
  }
  REQUIRE(tree.gpu_rows.size() == gpu);
  REQUIRE(tree.linked_gpu_rows.size() == linked);
  REQUIRE(tree.diagnostics.count("orphan_gpu_events") == gpu - linked);
  REQUIRE(launched >= linked);
  for (const Stream& stream : tree.streams) in_streams += stream.rows.size();
  REQUIRE(in_streams == gpu);
}

/// A second witness for nesting: newer profilers write the op's External id on each API call (older
/// ones repeat the correlation id there).
void check_ops(const EventTable& table, const EventTree& tree) {
  std::size_t compared = 0, different = 0;
  for (Row r = 0; r < table.size(); ++r) {
    if (!is_api_call(table.kind[r]) || tree.op[r] == kNoRow) continue;
    if (table.external_id[r] == kNoId || table.external_id[r] == table.correlation[r]) continue;
    ++compared;
    different += table.external_id[tree.op[r]] != table.external_id[r];
  }
  INFO(different << " of " << compared << " API calls name another op");
  REQUIRE(100 * different <= compared);
}

void check_steps(const EventTable& table, const EventTree& tree) {
  std::set<std::string> marks;
  for (Row r = 0; r < table.size(); ++r) {
    const bool mark =
        table.kind[r] == EventKind::kUserAnnotation || table.kind[r] == EventKind::kCpuOp;
    if (mark && table.name_of(r).starts_with("ProfilerStep#"))
      marks.insert(std::string(table.name_of(r)));
  }
  if (!marks.empty()) REQUIRE(tree.steps.size() == marks.size());
  REQUIRE((marks.empty() || !tree.steps_inferred));
  for (std::size_t i = 1; i < tree.steps.size(); ++i) {
    REQUIRE(tree.steps[i - 1].end_ns <= tree.steps[i].start_ns);
  }
}

void check_forward(const EventTable& table, const EventTree& tree) {
  const ArgReader sequence(table, "Sequence number");
  for (Row r = 0; r < table.size(); ++r) {
    const Row f = tree.forward[r];
    if (f == kNoRow) continue;
    REQUIRE(f < r);
    REQUIRE(sequence.integer(f) == sequence.integer(r));
    REQUIRE(tree.phase[r] == Phase::kBackward);
    REQUIRE((tree.phase[f] == Phase::kForward || tree.phase[f] == Phase::kInput));
  }
}

}  // namespace

TEST_CASE("trees of real traces keep their invariants", "[tree][corpus]") {
  const std::vector<fs::path> files = corpus_files();
  REQUIRE_FALSE(files.empty());
  for (const fs::path& file : files) {
    INFO(file.string());
    const EventTable table = read_trace(file.string());
    const EventTree tree = build_tree(table);
    check_nesting(table, tree, TreeOptions{}.overlap_tolerance_ns);
    check_links(table, tree);
    check_ops(table, tree);
    check_steps(table, tree);
    check_forward(table, tree);
  }
}
