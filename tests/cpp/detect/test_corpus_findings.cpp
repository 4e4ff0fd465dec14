// The extended rules on real traces: what their authors state or what stands in them outright.

#include "detect/corpus_verdicts.hpp"

using namespace traceap;

namespace {

void expect(const std::string& name, std::initializer_list<const char*> present,
            std::initializer_list<const char*> others) {
  expect_verdicts(name, present, others, {Verdict::kAbsent, Verdict::kUnknown});
}

bool needs_ranks(std::string_view type) { return type == "straggler" || type == "rotating_pauses"; }

}  // namespace

TEST_CASE("4097 reads of one value, and their removal", "[detect][corpus]") {
  expect("gpu_puzzlers/d2h_sync.json.gz", {"host_sync_in_loop"}, {"blocking_copy"});
  expect("gpu_puzzlers/d2h_sync_fixed.json.gz", {}, {"host_sync_in_loop", "tiny_kernels"});
}

TEST_CASE("a V100 that trains in fp32, with and without worker processes", "[detect][corpus]") {
  for (const char* name :
       {"kineto/resnet50_num_workers_0.json.gz", "kineto/resnet50_num_workers_4.json.gz"}) {
    expect(name, {"fp32_matmul", "zero_grad_not_none"},
           {"worker_starvation", "host_sync_in_loop", "allocator_thrash", "recompilation",
            "cold_start", "host_silence", "attention_not_fused", "cast_storm"});
  }
}

TEST_CASE("attention over 3137 patches without a fused kernel", "[detect][corpus]") {
  for (const char* name : {"tracelens/h100/timesformer_inference.json.gz",
                           "tracelens/mi300/timesformer_inference.json.gz"}) {
    expect(name, {"attention_not_fused", "misaligned_dimensions"},
           {"fp32_matmul", "tiny_kernels", "recompilation"});
  }
}

TEST_CASE("compiled training with CUDA graphs keeps its GPU busy", "[detect][corpus]") {
  // Its products do run in plain fp32 on a GPU with tensor cores; nothing else is to be found.
  expect(
      "luatil/compiled_training_cudagraph.json.gz", {},
      {"worker_starvation", "host_sync_in_loop", "explicit_synchronize", "allocator_thrash",
       "tiny_kernels", "unfused_optimizer", "zero_grad_not_none", "misaligned_dimensions",
       "layout_conversion", "cast_storm", "blocking_copy", "recompilation", "cold_start",
       "find_unused_parameters", "attention_not_fused", "device_to_device_copies", "host_silence"});
}

TEST_CASE("compiled bf16 training on eight GPUs has no extended finding", "[detect][corpus]") {
  for (const char* name :
       {"modded_nanogpt/overlap_before.json.gz", "modded_nanogpt/overlap_hook.json.gz"}) {
    const auto verdicts = verdicts_of(name);
    if (!verdicts) continue;
    for (const Rule& rule : all_rules()) {
      if (rule.paper_place != 0) continue;
      INFO(name << ": " << rule.type);
      // Whether it waits for a late rank, one rank of eight can't tell.
      CHECK(verdicts->at(rule.type) ==
            (needs_ranks(rule.type) ? Verdict::kUnknown : Verdict::kAbsent));
    }
  }
}

TEST_CASE("a late rank is silent, the ranks that wait for it are not", "[detect][corpus]") {
  expect("torchrec_4ranks_late_rank/rank2.json.gz", {"host_silence", "allocator_thrash"}, {});
  expect("torchrec_4ranks_late_rank/rank0.json.gz", {"allocator_thrash"}, {"host_silence"});
}

TEST_CASE("a profile of the first calls is a cold start", "[detect][corpus]") {
  expect("tokenomics/llama_tp2_rank0.json", {"cold_start"}, {"recompilation"});
  expect("tracelens/perf_model/normalization_layers.json.gz", {"cold_start"}, {});
}

TEST_CASE("MIOpen's transposes are layout conversions", "[detect][corpus]") {
  expect("tracelens/mi210/gpu_only.json.gz", {"layout_conversion"}, {});
  expect("tracelens/mi300/resnet_ddp_act_checkpoint_training.json.gz", {"layout_conversion"},
         {"fp32_matmul", "unfused_optimizer"});
}
