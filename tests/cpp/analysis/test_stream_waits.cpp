// Partners of waits whose calls name none: both sides of what is taken for one.

#include <vector>

#include "catch.hpp"
#include "traceap/analysis/dependencies/stream_waits.hpp"

using namespace traceap;

namespace {

/// Calls of one thread, one per nanosecond. The rows of launches are their places in the list.
class Calls {
 public:
  /// Work that ran on `stream` from begin to end.
  Calls& launch(std::uint32_t stream, std::int64_t begin_ns, std::int64_t end_ns) {
    const auto time_ns = static_cast<std::int64_t>(calls_.size());
    calls_.push_back({time_ns, 0, StreamCall::kLaunch, static_cast<Row>(calls_.size()), stream,
                      time_ns, begin_ns, end_ns});
    return *this;
  }
  Calls& record() { return add(StreamCall::kRecord); }
  Calls& wait() { return add(StreamCall::kWait); }

  /// The rows that the last launch waits for.
  std::vector<Row> awaited_by_last() const {
    std::vector<Row> sources;
    for (const StreamDependency& d : find_stream_dependencies(calls_, 3)) {
      if (d.destination + 1 == calls_.size()) sources.push_back(d.source);
    }
    return sources;
  }

 private:
  Calls& add(StreamCall::Kind kind) {
    calls_.push_back({static_cast<std::int64_t>(calls_.size()), 0, kind});
    return *this;
  }
  std::vector<StreamCall> calls_;
};

using Rows = std::vector<Row>;

}  // namespace

TEST_CASE("work may end 1 us behind the begin that waited for it", "[stream_waits]") {
  const auto awaited = [](std::int64_t end_ns) {
    return Calls().launch(0, 100, end_ns).record().wait().launch(1, 50'000, 60'000);
  };
  CHECK(awaited(51'000).awaited_by_last() == Rows{0});
  CHECK(awaited(51'001).awaited_by_last().empty());
}

TEST_CASE("an end explains a begin within 10 us of it", "[stream_waits]") {
  const auto awaited = [](std::int64_t third_stream_end_ns) {
    return Calls()
        .launch(2, 100, third_stream_end_ns)
        .launch(0, 100, 10'000)
        .record()
        .wait()
        .launch(1, 100'000, 110'000);
  };
  CHECK(awaited(90'000).awaited_by_last() == Rows{0});
  CHECK(awaited(89'999).awaited_by_last() == Rows{1});  // what was recorded
}

TEST_CASE("another stream's work without a record lies fewer than 24 calls back",
          "[stream_waits]") {
  const auto awaited = [](int launches_between) {
    Calls calls;
    calls.launch(1, 100, 200);
    for (int i = 0; i < launches_between; ++i) calls.launch(0, 300, 400);
    return calls.record().wait().launch(0, 100'000, 110'000).awaited_by_last();
  };
  CHECK(awaited(22) == Rows{0});
  CHECK(awaited(23).empty());
}

TEST_CASE("the launch that waits is among the next 64 calls", "[stream_waits]") {
  const auto awaited = [](int calls_between) {
    Calls calls;
    calls.launch(0, 100, 45'000).record().wait();
    for (int i = 0; i < calls_between; ++i) calls.record();
    return calls.launch(1, 50'000, 60'000).awaited_by_last();
  };
  CHECK(awaited(63) == Rows{0});
  CHECK(awaited(64).empty());
}
