// The eight rules on real traces whose authors state what is wrong with them, or which show it
// outright.

#include "detect/corpus_verdicts.hpp"

using namespace traceap;

namespace {

void expect(const std::string& name, std::initializer_list<const char*> present,
            std::initializer_list<const char*> others) {
  expect_verdicts(name, present, others, {Verdict::kAbsent});
}

}  // namespace

TEST_CASE("ResNet-50 with and without workers", "[detect][corpus]") {
  expect("kineto/resnet50_num_workers_0.json.gz", {"single_process_data_loading"},
         {"graph_break", "small_nccl_kernels", "nccl_blocks_main_stream"});
  expect("kineto/resnet50_num_workers_4.json.gz", {}, {"single_process_data_loading"});
  expect("hta/ddp_a100_rank_of_8_control.json.gz", {},
         {"single_process_data_loading", "no_memory_pin"});
}

TEST_CASE("copies, pageable and pinned, there and back", "[detect][corpus]") {
  expect("pytorch_benchmark/copies_pageable.json", {"no_memory_pin"}, {});
  expect("pytorch_benchmark/copies_pinned.json", {}, {"no_memory_pin"});
  expect("gpu_puzzlers/d2h_sync.json.gz", {"high_memcpy"}, {"no_memory_pin"});
  expect("gpu_puzzlers/d2h_sync_fixed.json.gz", {}, {"high_memcpy", "no_memory_pin", "cpu_bound"});
  expect("gpu_puzzlers/dtoh_blocking.json.gz", {"high_memcpy", "no_memory_pin"}, {});
  expect("gpu_puzzlers/dtoh_non_blocking.json.gz", {"no_memory_pin"}, {});
}

TEST_CASE("a host that cannot keep up", "[detect][corpus]") {
  expect("param/linear_training_2080ti.json.gz", {"cpu_bound"}, {"high_memcpy"});
  expect("tracelens/h100/vit_nsfw_inference.json.gz", {"cpu_bound"}, {});
  expect("tracelens/mi300/bert_inference.json.gz", {"cpu_bound"}, {});
  expect("tracelens/h100/timesformer_inference.json.gz", {}, {"cpu_bound"});
}

TEST_CASE("compiled training is not a graph break, and a healthy run shows nothing",
          "[detect][corpus]") {
  expect("modded_nanogpt/overlap_before.json.gz", {}, {"graph_break", "cpu_bound"});
  expect("modded_nanogpt/overlap_hook.json.gz", {}, {"graph_break", "cpu_bound"});
  expect("luatil/compiled_training_cudagraph.json.gz", {},
         {"single_process_data_loading", "no_memory_pin", "high_memcpy", "graph_break", "cpu_bound",
          "small_nccl_kernels", "nccl_blocks_main_stream", "nccl_compute_not_overlapped"});
}

TEST_CASE("collectives that nothing covers, and ranks that wait for a late one",
          "[detect][corpus]") {
  for (const char* rank : {"0", "1"}) {
    expect("tokenomics/llama_tp2_rank" + std::string(rank) + ".json",
           {"nccl_compute_not_overlapped", "nccl_blocks_main_stream"}, {"small_nccl_kernels"});
  }
  for (const char* rank : {"0", "1", "3"}) {
    expect("torchrec_4ranks_late_rank/rank" + std::string(rank) + ".json.gz",
           {"nccl_blocks_main_stream"}, {});
  }
  expect("torchrec_4ranks_late_rank/rank2.json.gz", {},
         {"small_nccl_kernels", "nccl_blocks_main_stream", "nccl_compute_not_overlapped"});
}

TEST_CASE("without GPU events every type that needs them abstains", "[detect][corpus]") {
  const auto verdicts = verdicts_of("hta/cpu_only_rank_34.json.gz");
  if (!verdicts) return;
  for (const Rule& rule : all_rules()) {
    if (rule.paper_place == 0) continue;
    INFO(rule.type);
    CHECK(verdicts->at(rule.type) ==
          (rule.type == "graph_break" ? Verdict::kAbsent : Verdict::kUnknown));
  }
}
