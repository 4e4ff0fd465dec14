// The rules on pointwise work, grids, allocators and torch's own patterns on real traces.

#include "detect/corpus_verdicts.hpp"

using namespace traceap;

namespace {

constexpr std::initializer_list<const char*> kPatterns = {
    "conv_bias_before_batch_norm", "created_on_host",  "for_loop_indexing", "pageable_readback",
    "recomputed_activations",      "shared_gpu",       "small_grids",       "synchronous_memset",
    "uncached_allocator",          "unfused_pointwise"};

void expect(const std::string& name, std::initializer_list<const char*> present) {
  const auto verdicts = verdicts_of(name);
  if (!verdicts) return;
  for (const char* type : kPatterns) {
    INFO(name << ": " << type);
    const bool there =
        std::find(present.begin(), present.end(), std::string_view(type)) != present.end();
    CHECK((verdicts->at(type) == Verdict::kPresent) == there);
  }
}

}  // namespace

TEST_CASE("a model with norms and rotations written out as formulas", "[detect][corpus]") {
  expect("tracelens/h100/qwen_inference.json.gz", {"unfused_pointwise"});
  expect("tracelens/mi300/qwen_inference.json.gz", {"unfused_pointwise"});
}

TEST_CASE("training with activation checkpointing repeats its layers", "[detect][corpus]") {
  expect("tracelens/mi300/resnet_ddp_act_checkpoint_training.json.gz", {"recomputed_activations"});
}

TEST_CASE("4096 elements are updated one after the other", "[detect][corpus]") {
  expect("gpu_puzzlers/d2h_sync.json.gz", {"for_loop_indexing"});
  expect("gpu_puzzlers/d2h_sync_fixed.json.gz", {});
}

TEST_CASE("runs that are well in these respects", "[detect][corpus]") {
  for (const char* name :
       {"luatil/compiled_training_cudagraph.json.gz", "modded_nanogpt/overlap_before.json.gz",
        "modded_nanogpt/overlap_hook.json.gz", "kineto/resnet50_num_workers_0.json.gz",
        "kineto/resnet50_num_workers_4.json.gz", "hta/resnet_ddp_v100_ns_resolution.json.gz",
        "gpu_puzzlers/dtoh_non_blocking.json.gz", "pytorch_benchmark/copies_pinned.json",
        "param/linear_training_2080ti.json.gz", "tracelens/h100/timesformer_inference.json.gz"}) {
    expect(name, {});
  }
}
