#include <algorithm>
#include <numeric>
#include <set>

#include "analysis/analysed.hpp"
#include "catch.hpp"
#include "traceap/base/error.hpp"
#include "traceap/features/quantize.hpp"
#include "traceap/features/tokens.hpp"

using namespace traceap;

namespace {

struct Built {
  Analysed a;
  WindowSet windows;
  Tokens tokens;

  Built(const TraceText& text, Interval bounds, std::uint32_t count, TokenOptions options = {})
      : a(text),
        windows(build_windows(a.table, a.tree, bounds, {.count = count})),
        tokens(build_tokens(a.table, a.tree, a.idle(bounds), windows, options)) {}

  std::string class_of(std::size_t i) const { return token_class_names()[tokens.class_code[i]]; }
  std::string_view name(std::size_t i) const {
    return tokens.names[static_cast<std::size_t>(tokens.name[i])];
  }
  std::string_view cpu_name(std::size_t i) const {
    return tokens.names[static_cast<std::size_t>(tokens.cpu_name[i])];
  }
  std::vector<std::string> classes(std::uint32_t window) const {
    std::vector<std::string> all;
    for (std::size_t i = tokens.offsets[window]; i < tokens.offsets[window + 1]; ++i) {
      all.push_back(class_of(i));
    }
    return all;
  }
};

constexpr TokenOptions kGpuOnly{.gaps = false, .host = false, .continued = false};

void check_columns(const Tokens& t) {
  const std::size_t n = t.row.size();
  for (const std::size_t size :
       {t.kind.size(), t.class_code.size(), t.flags.size(), t.start_ns.size(), t.dur_ns.size(),
        t.position.size(), t.name.size(), t.cpu_name.size(), t.delay_code.size(),
        t.duration_code.size(), t.stream.size(), t.stream_role.size(), t.bytes.size(),
        t.grid_blocks.size(), t.queue_depth.size(), t.stream_gap_ns.size(),
        t.launch_dur_ns.size()}) {
    CHECK(size == n);
  }
  CHECK(t.offsets.size() == t.folded.size() + 1);
  CHECK(t.offsets.back() == n);
}

}  // namespace

TEST_CASE("a GPU event says what launched it, how late, for how long and where", "[tokens]") {
  TraceText text;
  text.host("cpu_op", "aten::addmm", 0, 20);
  text.launch("gemm<float>", 5, 4, 25, 50, 7, 1, R"("grid":[4,2,3])");
  text.gpu("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 80, 10, 9, 99, R"("bytes":4096)");
  const Built b(text, {0, 100'000}, 1, kGpuOnly);
  check_columns(b.tokens);
  REQUIRE(b.tokens.row.size() == 2);
  CHECK(b.classes(0) == std::vector<std::string>{"kernel", "copy/host_to_device/pageable"});
  CHECK(b.name(0) == "gemm<float>");
  CHECK(b.cpu_name(0) == "aten::addmm");
  CHECK(b.tokens.cpu_name[1] == kNoLaunchName);
  CHECK(b.tokens.delay_code[0] == quantize_us(20, kDelayRange));
  CHECK(b.tokens.delay_code[1] == kNoDelayCode);
  CHECK(b.tokens.duration_code[0] == quantize_us(50, kDurationRange));
  CHECK(b.tokens.position[0] == Approx(250));
  CHECK(b.tokens.stream[0] == 0);
  CHECK(b.tokens.stream[1] == 1);
  CHECK(b.tokens.grid_blocks[0] == 24);
  CHECK(b.tokens.bytes[1] == 4096);
  CHECK(b.tokens.queue_depth[0] == 0);
  CHECK(b.tokens.queue_depth[1] == -1);
  CHECK(b.tokens.launch_dur_ns[0] == 4000);
  CHECK(b.tokens.stream_gap_ns[0] == -1);
  CHECK(b.tokens.names[kNoneName] == "[none]");
  CHECK(b.tokens.names[kNoLaunchName] == "[no launch]");
}

TEST_CASE("an event belongs to the window of its start, and where asked to those it reaches into",
          "[tokens]") {
  TraceText text;
  text.launch("long", 0, 5, 10, 25, 7, 1).launch("at the end", 2, 5, 40, 0, 7, 2);
  const Built once(text, {0, 40'000}, 4, kGpuOnly);
  CHECK(once.tokens.offsets == std::vector<std::uint32_t>{0, 0, 1, 1, 2});
  TokenOptions options = kGpuOnly;
  options.continued = true;
  const Built again(text, {0, 40'000}, 4, options);
  CHECK(again.tokens.offsets == std::vector<std::uint32_t>{0, 0, 1, 2, 4});
  CHECK(again.tokens.flags[1] == kTokenContinued);
  CHECK(again.tokens.position[1] == 0);  // clamped to the window's start
  CHECK(again.tokens.start_ns[1] == 10'000);
}

TEST_CASE("gaps are tokens with a cause, in each window that they fill enough of", "[tokens]") {
  TraceText text;
  text.launch("a", 0, 5, 10, 10, 7, 1).launch("b", 270, 5, 280, 10, 7, 2);
  text.host("cpu_op", "aten::slow", 30, 230);
  const Built b(text, {0, 300'000}, 3, {.host = false});
  CHECK(b.classes(0) == std::vector<std::string>{"kernel", "gap/host_wait"});
  CHECK(b.classes(1) == std::vector<std::string>{"gap/host_wait"});
  CHECK(b.name(1) == "host_wait");
  CHECK(b.cpu_name(2) == "aten::slow");
  CHECK(b.tokens.flags[2] == kTokenContinued);
  CHECK(b.tokens.stream[2] == -1);
  CHECK(b.tokens.stream_role[2] == kNoStreamRole);
  // Two microseconds of idle time between kernels are no token.
  TraceText close;
  close.launch("a", 0, 1, 10, 50, 7, 1).launch("b", 2, 1, 62, 38, 7, 2);
  CHECK(Built(close, {10'000, 100'000}, 1, {.host = false}).classes(0).size() == 2);
}

TEST_CASE("the host's waits and compiled regions are tokens, each once", "[tokens]") {
  TraceText text;
  text.launch("a", 0, 5, 10, 10, 7, 1);
  text.host("cuda_runtime", "cudaStreamSynchronize", 20, 5)
      .host("cuda_runtime", "cudaMalloc", 30, 5)
      .host("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 40, 9)
      .host("user_annotation", "enumerate(DataLoader)#inner", 41, 5)
      .host("cpu_op", "Torch-Compiled Region: 0/0", 50, 30);
  text.launch("triton_poi_fused_0", 55, 5, 70, 10, 7, 2);
  text.complete("cuda_runtime", "cudaStreamSynchronize", 0, 90, 1, "2");  // a watchdog
  const Built b(text, {0, 100'000}, 1, {.gaps = false});
  check_columns(b.tokens);
  CHECK(b.classes(0) == std::vector<std::string>{"kernel", "synchronization", "allocator",
                                                 "data_loading", "compiled_region", "kernel"});
  CHECK(b.tokens.flags[5] == kTokenInCompiled);
  CHECK(b.tokens.delay_code[1] == kNoDelayCode);
  CHECK(b.name(2) == "cudaMalloc");
}

TEST_CASE("a full window keeps rare classes whole and the others evenly", "[tokens]") {
  TraceText text;
  for (int i = 0; i < 100; ++i) text.launch("k", i, 0.5, 10 + i, 0.5, 7, i + 1);
  text.gpu("gpu_memset", "Memset (Device)", 60.2, 0.2, 8, 1000);
  TokenOptions options = kGpuOnly;
  options.cap = 11;
  const Built b(text, {0, 200'000}, 1, options);
  const std::vector<std::string> classes = b.classes(0);
  CHECK(classes.size() == 11);
  CHECK(std::count(classes.begin(), classes.end(), "memset") == 1);
  CHECK(b.tokens.folded == std::vector<std::uint32_t>{90});
  for (std::size_t i = 1; i < b.tokens.row.size(); ++i) {
    CHECK(b.tokens.start_ns[i] - b.tokens.start_ns[i - 1] <= 12'000);
  }
  options.cap = 1;
  CHECK(Built(text, {0, 200'000}, 1, options).tokens.row.size() == 1);
  options.cap = 0;
  CHECK_THROWS_AS(Built(text, {0, 200'000}, 1, options), OptionError);
}

TEST_CASE("tokens of random traces hold what the columns promise", "[tokens]") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const RandomTrace random(seed, 300, 3'000'000);
    const Built b(random.text(), {0, 3'000'000}, 7, {.cap = 40});
    const Tokens& t = b.tokens;
    check_columns(t);
    for (std::uint32_t w = 0; w < t.window_count(); ++w) {
      CHECK(t.offsets[w + 1] - t.offsets[w] <= 40);
      const auto from = t.start_ns.begin() + t.offsets[w];
      CHECK(std::is_sorted(from, t.start_ns.begin() + t.offsets[w + 1]));
    }
    for (std::size_t i = 0; i < t.row.size(); ++i) {
      CHECK(t.class_code[i] < token_class_names().size());
      CHECK((t.position[i] >= 0 && t.position[i] <= 1000));
      CHECK((t.delay_code[i] >= 0 && t.delay_code[i] <= kNoDelayCode));
      CHECK((t.duration_code[i] >= 0 && t.duration_code[i] < 256));
      CHECK(static_cast<std::size_t>(std::max(t.name[i], t.cpu_name[i])) < t.names.size());
    }
  }
}

TEST_CASE("classes of tokens have distinct names", "[tokens]") {
  const auto& names = token_class_names();
  CHECK(std::set<std::string>(names.begin(), names.end()).size() == names.size());
}
