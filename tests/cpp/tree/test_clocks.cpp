#include "catch.hpp"
#include "tree_helpers.hpp"

using namespace traceap;

namespace {

/// `n` launches every 100 us, kernels of 20 us that find the device idle, GPU clock off by
/// `offset`.
TraceText idle_device(double offset_us, int n = 20) {
  TraceText text;
  for (int i = 0; i < n; ++i) {
    const double t = 100'000 + 100 * i;
    text.launch("k", t, 4, t + 6 + i % 3 + offset_us, 20, 7, i + 1);
  }
  return text;
}

/// A queue that is `backlog` us behind the host from the first launch on; little gaps of 30 us.
TraceText full_queue(double backlog_us) {
  TraceText text;
  for (int i = 0; i < 100; ++i) {
    const double t = 100'000 + 100 * i;
    text.launch("k", t, 4, t + backlog_us + 37 * i, 100, 7, i + 1);
  }
  return text;
}

}  // namespace

TEST_CASE("clocks that agree are left alone", "[tree]") {
  const Built b = build(idle_device(0));
  CHECK(b.tree.launch_delay_correction_ns == 0);
  CHECK(b.tree.diagnostics.count("clock_offset") == 0);
  CHECK(launch_delay_ns(b.table, b.tree, b.tree.gpu_rows[0]) == 6'000);
}

TEST_CASE("a GPU clock that is ahead shows behind idle gaps", "[tree]") {
  const Built b = build(idle_device(21'000));
  CHECK(b.tree.launch_delay_correction_ns == 5'000 - 21'006'000);
  CHECK(b.tree.diagnostics.count("clock_offset") == 1);
  CHECK(launch_delay_ns(b.table, b.tree, b.tree.gpu_rows[1]) == 6'000);
}

TEST_CASE("work before its launch call proves a GPU clock that is behind", "[tree]") {
  const Built b = build(idle_device(-300));
  CHECK(b.tree.launch_delay_correction_ns == 5'000 + 294'000);
  CHECK(b.tree.diagnostics.count("clock_offset") == 1);
  for (const Row r : b.tree.gpu_rows) CHECK(launch_delay_ns(b.table, b.tree, r) >= 5'000);
}

TEST_CASE("a microsecond too early is the resolution of old traces", "[tree]") {
  CHECK(build(idle_device(-7)).tree.launch_delay_correction_ns == 0);
}

TEST_CASE("a queue that was full all the time is no clock offset", "[tree]") {
  const Built b = build(full_queue(21'000));
  CHECK(b.tree.launch_delay_correction_ns == 0);
  CHECK(b.tree.diagnostics.count("clock_offset") == 0);
  CHECK(b.tree.diagnostics.count("launch_delay_floor") == 1);
}

TEST_CASE("a wait that returns with the last work outweighs delays", "[tree]") {
  TraceText text = idle_device(21'000);
  text.host("cuda_runtime", "hipDeviceSynchronize", 102'000, 20'930);
  const Built b = build(text);
  CHECK(b.tree.launch_delay_correction_ns == 0);
  CHECK(b.tree.diagnostics.count("launch_delay_floor") == 1);
}

TEST_CASE("a few launches, or one wrong time stamp, say nothing about clocks", "[tree]") {
  CHECK(build(idle_device(21'000, 5)).tree.launch_delay_correction_ns == 0);
  TraceText text = idle_device(0, 200);
  text.launch("wrong", 200'000, 4, 50'000, 20, 7, 1000);
  CHECK(build(text).tree.launch_delay_correction_ns == 0);
}

TEST_CASE("one early start hides no offset, and one call that agrees by chance does not deny it",
          "[tree]") {
  TraceText text = idle_device(21'000, 200);
  text.launch("early", 150'000, 4, 150'050, 1, 9, 1000);  // a reused id
  text.host("cuda_runtime", "hipDeviceSynchronize", 102'000, 20'930);
  for (int i = 0; i < 3; ++i) {
    text.host("cuda_runtime", "hipDeviceSynchronize", 105'050 + 100 * i, 20);
  }
  const Built b = build(text);
  CHECK(b.tree.launch_delay_correction_ns == 5'000 - 21'006'000);
}

TEST_CASE("a large offset may be measured less exactly", "[tree]") {
  TraceText text;
  for (int i = 0; i < 30; ++i) {
    const double t = 100'000 + 500 * i;
    text.launch("k", t, 4, t + 30'000 + 20 * (i % 15), 20, 7, i + 1);
  }
  CHECK(build(text).tree.launch_delay_correction_ns == 5'000 - 30'000'000);
}
