#include "rule_case.hpp"

using namespace traceap;

TEST_CASE("a copy holds the host to the end of the synchronisation behind it",
          "[detect][host_queries]") {
  RuleCase t;
  t.op("aten::item", 0, 100).copy("Memcpy DtoH (Device -> Pageable)", 10, 5, 40, 2, 4);
  t.api("cudaStreamIsCapturing", 16, 1).api("cudaStreamSynchronize", 18, 30);
  t.op("aten::copy_", 200, 50).copy("Memcpy HtoD (Pinned -> Device)", 210, 5, 240, 2, 1 << 20);
  t.api("cudaDeviceSynchronize", 260, 100);
  const EventTable table = t.table();
  const EventTree tree = build_tree(table);
  const Signals signals = build_signals(table, tree);
  REQUIRE(signals.copies.size() == 2);
  CHECK(signals.copies[0].host == Interval{10'000, 48'000});
  CHECK(signals.copies[0].bytes == 4);
  CHECK(signals.copies[1].sync == kNoRow);  // the synchronisation is not the copy's
  CHECK(signals.copies[1].host == Interval{210'000, 215'000});
}

namespace {

std::vector<Copy> copies_of(const RuleCase& t) {
  const EventTable table = t.table();
  return build_copies(table, build_tree(table));
}

}  // namespace

TEST_CASE("up to five calls may stand between a copy and its synchronisation",
          "[detect][host_queries]") {
  const auto waits = [](int between) {
    RuleCase t;
    t.op("aten::item", 0, 100).copy("Memcpy DtoH (Device -> Pageable)", 10, 5, 40, 2, 4);
    for (int i = 0; i < between; ++i) t.api("cudaStreamIsCapturing", 16 + 2.0 * i, 1);
    t.api("cudaStreamSynchronize", 40, 30);
    return copies_of(t).at(0).sync != kNoRow;
  };
  CHECK(waits(5));
  CHECK_FALSE(waits(6));
}

TEST_CASE("a copy that claims more than 256 GiB has no size", "[detect][host_queries]") {
  const auto bytes = [](std::int64_t size) {
    return copies_of(RuleCase().copy("Memcpy HtoD (Pinned -> Device)", 10, 5, 40, 2, size))
        .at(0)
        .bytes;
  };
  CHECK(bytes(274'877'906'944) == 274'877'906'944);
  CHECK_FALSE(bytes(274'877'906'945));
}
