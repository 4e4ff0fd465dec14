#include "rule_case.hpp"

using namespace traceap;

namespace {
/// Ten milliseconds, of which the GPU computes from 2 to 4 and copies from 6 to 7.
RuleCase ten_milliseconds() {
  RuleCase t;
  t.step(1, 0, 10'000).kernel("gemm", 2'000, 2'000);
  return t.copy("Memcpy HtoD (Pinned -> Device)", 5'990, 5, 6'000, 1'000, 1 << 20);
}
Finding finding_of(std::vector<Interval> intervals) {
  Finding finding;
  finding.verdict = Verdict::kPresent;
  finding.intervals = make_union(std::move(intervals));
  finding.cost_ns = total_length_ns(finding.intervals);
  return finding;
}
}  // namespace

TEST_CASE("a finding's cost is a clipped union and its saving what compute leaves free",
          "[detect][evidence]") {
  const EventTable table = ten_milliseconds().table();
  const EventTree tree = build_tree(table);
  const Signals signals = build_signals(table, tree);
  Draft draft({.low = 0.25, .best = 0.5});
  draft.cost = {{1'000'000, 3'000'000}, {2'500'000, 7'000'000}, {9'500'000, 20'000'000}};
  for (Row r = 0; r < table.size(); ++r) draft.evidence.insert(draft.evidence.end(), {r, r});
  const Finding finding = finish_finding(signals, draft);
  CHECK(finding.intervals == IntervalSet{{1'000'000, 7'000'000}, {9'500'000, 10'000'000}});
  CHECK(finding.cost_ns == 6'500'000);
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.saving_high_ns == 4'500'000);  // idle and the copy, not the kernel
  CHECK(finding.saving_best_ns == 2'250'000);
  CHECK(finding.saving_low_ns == 1'125'000);
  CHECK(finding.evidence_count == table.size());
  for (std::size_t i = 1; i < finding.evidence.size(); ++i) {
    CHECK(table.dur_ns[finding.evidence[i - 1]] >= table.dur_ns[finding.evidence[i]]);
  }
  SECTION("what the GPU is idle for, or all of it") {
    draft.saving.basis = SavingBasis::kIdle;
    CHECK(finish_finding(signals, draft).saving_high_ns == 3'500'000);
    draft.saving.basis = SavingBasis::kCost;
    CHECK(finish_finding(signals, draft).saving_high_ns == 6'500'000);
  }
  SECTION("GPU work that gets shorter helps as far as the GPU is busy, 3 of 10 ms") {
    draft.saving = {.basis = SavingBasis::kGpuWork, .best = 0.5, .high = 0.75};
    const Finding work = finish_finding(signals, draft);
    CHECK(work.saving_low_ns == 0);
    CHECK(work.saving_best_ns == 975'000);
    CHECK(work.saving_high_ns == 4'875'000);
  }
  SECTION("the idle time whole and a share of the work") {
    draft.saving = {.basis = SavingBasis::kIdleAndWork, .best = 0.5};
    const Finding both = finish_finding(signals, draft);
    CHECK(both.saving_best_ns == 3'500'000 + 1'500'000);
    CHECK(both.saving_high_ns == 6'500'000);
  }
  SECTION("a limit from elsewhere bounds what the shares are of") {
    draft.saving_limit_ns = 999'999;
    const Finding limited = finish_finding(signals, draft);
    CHECK(limited.cost_ns == 6'500'000);
    CHECK(limited.saving_low_ns == 250'000);  // rounded
    CHECK(limited.saving_best_ns == 500'000);
    CHECK(limited.saving_high_ns == 999'999);
  }
  SECTION("cost that the fix does not touch is kept and saves nothing") {
    draft.kept_cost = {{0, 2'000'000}};
    const Finding kept = finish_finding(signals, draft);
    CHECK(kept.cost_ns == 6'500'000);
    CHECK(kept.saving_high_ns == 3'500'000);
  }
  SECTION("two per cent of the profiled time is material, less is not") {
    draft.cost = {{0, 200'000}};
    CHECK(finish_finding(signals, draft).verdict == Verdict::kPresent);
    draft.cost = {{0, 199'999}};
    CHECK(finish_finding(signals, draft).verdict == Verdict::kAbsent);
  }
}

TEST_CASE("overlapping causes are not counted twice", "[detect][evidence]") {
  const std::vector<Finding> findings = {finding_of({{0, 40}}), finding_of({{30, 130}}),
                                         finding_of({{120, 125}})};
  CHECK(compute_unclaimed_cost(findings) == std::vector<std::int64_t>{30, 100, 0});
}

TEST_CASE("a root cause claims its time first, then what names the cause, then the larger cost",
          "[detect][evidence]") {
  std::vector<Finding> findings = {finding_of({{0, 100}}), finding_of({{50, 90}}),
                                   finding_of({{80, 95}})};
  findings[0].type = "small_nccl_kernels";
  findings[1].type = "per_parameter_all_reduce";
  findings[2].type = "straggler";
  CHECK(compute_unclaimed_cost(findings) == std::vector<std::int64_t>{55, 30, 15});
  findings[1].type = "no such type";
  CHECK(compute_unclaimed_cost(findings) == std::vector<std::int64_t>{85, 0, 15});
}

TEST_CASE("a generic type never takes the time of a specific one", "[detect][evidence]") {
  std::vector<Finding> findings = {finding_of({{0, 1'000}}), finding_of({{100, 200}}),
                                   finding_of({{0, 40}, {150, 300}})};
  const auto unclaimed = [&](std::string_view generic, std::string_view specific) {
    findings[0].type = generic;
    findings[1].type = specific;
    findings[2].type = "no such type";
    return compute_unclaimed_cost(findings);
  };
  const std::vector<std::int64_t> generic_last = {760, 50, 190};
  for (const char* specific : {"unfused_optimizer", "zero_grad_not_none", "host_sync_in_loop",
                               "recompilation", "graph_break", "cold_start"}) {
    CHECK(unclaimed("cpu_bound", specific) == generic_last);
    CHECK(unclaimed("tiny_kernels", specific) == generic_last);
  }
  CHECK(unclaimed("cpu_bound", "high_memcpy") == std::vector<std::int64_t>{760, 50, 190});
  CHECK(unclaimed("high_memcpy", "no_memory_pin") == generic_last);
  CHECK(unclaimed("host_silence", "no_memory_pin") == std::vector<std::int64_t>{1'000, 0, 0});
  findings[1].type = "per_parameter_all_reduce";
  CHECK(compute_unclaimed_cost(findings) == std::vector<std::int64_t>{900, 100, 0});
}

TEST_CASE("a draft keeps figures as numbers with their kind", "[detect][evidence]") {
  Draft draft({});
  draft.count("rows", std::size_t{3});
  draft.duration("longest", 1'500);
  draft.share("part", 0.25);
  draft.text("name", "gemm");
  REQUIRE(draft.facts.size() == 4);
  CHECK(draft.facts[0].kind == FactKind::kCount);
  CHECK(std::get<std::int64_t>(draft.facts[0].value) == 3);
  CHECK(draft.facts[1].kind == FactKind::kDuration);
  CHECK(std::get<double>(draft.facts[2].value) == 0.25);
  CHECK(std::get<std::string>(draft.facts[3].value) == "gemm");
}

TEST_CASE("the paper's eight come first, in their order", "[detect][registry]") {
  for (std::size_t i = 0; i < all_rules().size(); ++i) {
    CHECK(all_rules()[i].paper_place == (i < 8 ? i + 1 : 0));
    CHECK(find_rule(all_rules()[i].type) == &all_rules()[i]);
  }
  CHECK(find_rule("") == nullptr);
}

TEST_CASE("every rule gives a finding of its own type on any trace", "[detect][registry]") {
  const EventTable table = ten_milliseconds().table();
  const EventTree tree = build_tree(table);
  const std::vector<Finding> findings = detect_all(build_signals(table, tree));
  REQUIRE(findings.size() == all_rules().size());
  std::size_t paper = 0;
  for (std::size_t i = 0; i < findings.size(); ++i) {
    CHECK(findings[i].type == all_rules()[i].type);
    paper += all_rules()[i].paper_place != 0 ? 1U : 0U;
    if (findings[i].verdict == Verdict::kUnknown) CHECK_FALSE(findings[i].missing_signals.empty());
    CHECK(findings[i].saving_low_ns <= findings[i].saving_best_ns);
    CHECK(findings[i].saving_best_ns <= findings[i].saving_high_ns);
  }
  CHECK(paper == 8);
}

TEST_CASE("rules survive traces with next to nothing in them", "[detect][registry]") {
  RuleCase one_kernel;
  one_kernel.gpu("kernel", "gemm", 0, 0, 7, 1);
  RuleCase one_op;
  one_op.op("", 0, 0);
  RuleCase metadata_only;
  metadata_only.raw(R"({"ph":"M","name":"process_name","pid":1,"tid":0,"args":{"name":"p"}})");
  for (const RuleCase* text : {&one_kernel, &one_op, &metadata_only}) {
    const EventTable table = text->table();
    const EventTree tree = build_tree(table);
    CHECK(detect_all(build_signals(table, tree)).size() == all_rules().size());
  }
}

TEST_CASE("rules survive hostile traces", "[detect][registry]") {
  // Everything overlaps, ids repeat, sizes and times are absurd, names are what the rules look for.
  const char* const host_names[] = {"Torch-Compiled Region: 0/0",
                                    "Torch-Compiled Region: /",
                                    "Torch-Compiled Region",
                                    "torch_dynamo_resume_in_",
                                    "CompiledFunction",
                                    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                                    "record_param_comms",
                                    "ProfilerStep#1",
                                    ""};
  const char* const gpu_names[] = {"ncclKernel_AllReduce", "Memcpy HtoD (Pageable -> Device)",
                                   "Memcpy DtoH", "gemm", ""};
  RuleCase t;
  for (int i = 0; i < 300; ++i) {
    const double at = (i * 7'919) % 1'000, length = (i * 104'729) % 700;
    const std::string correlation = R"("correlation":)" + std::to_string(i % 5);
    t.host(i % 3 == 0   ? "cpu_op"
           : i % 3 == 1 ? "user_annotation"
                        : "python_function",
           host_names[i % 9], at, length,
           R"("In msg nelems":-5,"dtype":"Float","Input Dims":[[99999999999999999999,7],[]],)"
           R"("Input type":["float"])");
    t.host("cuda_runtime", i % 2 == 0 ? "cudaMemcpyAsync" : "cudaStreamSynchronize", at, length,
           correlation);
    t.gpu(i % 2 == 0 ? "kernel" : "gpu_memcpy", gpu_names[i % 5], at - 300, length * 2, i % 4,
          i % 5,
          R"("bytes":-9223372036854775807,"In msg nelems":9223372036854775807,"dtype":"Float")");
  }
  t.gpu("kernel", "gemm", -4.0e12, 1, 7, 1).gpu("kernel", "gemm", 4.0e12, 4.0e12, 7, 1);
  const EventTable table = t.table();
  const EventTree tree = build_tree(table);
  for (const Finding& finding : detect_all(build_signals(table, tree))) {
    CHECK(finding.cost_ns >= 0);
    CHECK(finding.cost_ns == total_length_ns(finding.intervals));
    CHECK(finding.saving_high_ns <= finding.cost_ns);
    CHECK(finding.evidence.size() <= kMaxEvidence);
  }
}

TEST_CASE("a finding shows twenty rows and counts them all", "[detect][evidence]") {
  RuleCase t;
  for (int i = 0; i < 25; ++i) t.kernel("gemm", 100 + 20.0 * i, 10);
  const EventTable table = t.table();
  const EventTree tree = build_tree(table);
  const Signals signals = build_signals(table, tree);
  Draft draft({});
  draft.evidence = tree.gpu_rows;
  const Finding finding = finish_finding(signals, draft);
  CHECK(finding.evidence.size() == 20);
  CHECK(finding.evidence_count == 25);
}
