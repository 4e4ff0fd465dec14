#include <algorithm>
#include <memory>

#include "catch.hpp"
#include "simulation/random_graph.hpp"
#include "traceap/base/error.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/simulation/replay.hpp"

using namespace traceap;

namespace {

/// Random edits, some of whose edges lead against the order and close cycles.
std::vector<GraphDelta> random_edits(const ExecutionGraph& graph, unsigned seed,
                                     std::size_t count) {
  std::mt19937 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::uint32_t>(random() % n); };
  std::vector<GraphDelta> deltas(count);
  for (GraphDelta& delta : deltas) {
    for (int i = 0; i < 20; ++i) delta.set_lag(below(graph.points.edges()), below(2000));
    for (int i = 0; i < 5; ++i) delta.drop(below(graph.points.edges()));
    for (int i = 0; i < 6; ++i) delta.add(below(graph.size()), below(graph.size()), below(500));
  }
  return deltas;
}

std::vector<const GraphDelta*> pointers(const std::vector<GraphDelta>& deltas) {
  std::vector<const GraphDelta*> all{nullptr};
  for (const GraphDelta& delta : deltas) all.push_back(&delta);
  return all;
}

struct Work {
  std::vector<Point> points;
  std::vector<std::uint32_t> offsets{0};

  explicit Work(Point size) {
    for (Point p = 0; p < size; ++p) {
      points.push_back(size - 1 - p);
      if (p % 97 == 96) offsets.push_back(p + 1);
    }
    offsets.push_back(size);
  }
  operator StepWork() const { return {points, offsets}; }

  std::vector<std::int64_t> ends(std::span<const std::int64_t> time_ns) const {
    std::vector<std::int64_t> found;
    for (std::size_t s = 0; s + 1 < offsets.size(); ++s) {
      std::int64_t end_ns = kNever;
      for (std::uint32_t i = offsets[s]; i < offsets[s + 1]; ++i) {
        end_ns = std::max(end_ns, time_ns[points[i]]);
      }
      found.push_back(end_ns);
    }
    return found;
  }
};

}  // namespace

TEST_CASE("A batch gives the ends of single replays") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const RandomGraph random(seed);
    const ExecutionGraph graph = build_plain_graph(random.durations, random.edges);
    const std::vector<GraphDelta> deltas = random_edits(graph, seed, 12);
    const Work work(graph.size());
    const std::vector<PlainEdge> carries{{2 * 199 + 1, 0, 5}, {3, 40, 70}};
    const auto all = pointers(deltas);
    const BatchEnds once = BatchReplayer(graph, work).run(all);
    const BatchEnds chained = BatchReplayer(graph, work, carries).run(all, 3);
    std::vector<std::int64_t> expected, expected_chain;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const GraphDelta delta = all[i] ? *all[i] : GraphDelta();
      const auto ends = work.ends(replay(graph, delta));
      expected.insert(expected.end(), ends.begin(), ends.end());
      const auto times = replay_chain(graph, carries, 3, delta);
      for (std::size_t copy = 0; copy < 3; ++copy) {
        const auto of_copy = work.ends(std::span(times).subspan(copy * graph.size(), graph.size()));
        expected_chain.insert(expected_chain.end(), of_copy.begin(), of_copy.end());
      }
      REQUIRE(once.left_out[i] == closing_edges(graph, delta).size());
    }
    REQUIRE(once.end_ns == expected);
    REQUIRE(chained.end_ns == expected_chain);
    REQUIRE(chained.left_out == once.left_out);
  }
}

TEST_CASE("Edits that were replayed before give the same again, and others their own") {
  const RandomGraph random(11);
  const ExecutionGraph graph = build_plain_graph(random.durations, random.edges);
  const std::vector<GraphDelta> some = random_edits(graph, 1, 4),
                                others = random_edits(graph, 2, 5);
  const Work work(graph.size());
  BatchReplayer replayer(graph, work);
  for (const auto* edits : {&some, &some, &others, &some, &others}) {
    for (const bool with_residuals : {true, false}) {
      const ReplayOptions options{with_residuals};
      const BatchEnds found = replayer.run(pointers(*edits), 1, options);
      const BatchEnds wanted = BatchReplayer(graph, work).run(pointers(*edits), 1, options);
      REQUIRE(found.end_ns == wanted.end_ns);
      REQUIRE(found.left_out == wanted.left_out);
    }
  }
}

TEST_CASE("What an edit carries leads from each copy to the next, beside what all carry") {
  const RandomGraph random(3);
  const ExecutionGraph graph = build_plain_graph(random.durations, random.edges);
  std::vector<GraphDelta> deltas = random_edits(graph, 3, 5);
  const Work work(graph.size());
  const std::vector<PlainEdge> shared{{2 * 199 + 1, 0, 5}}, all{{2 * 199 + 1, 0, 5}, {3, 40, 900}};
  const BatchEnds plain = BatchReplayer(graph, work, shared).run(pointers(deltas), 3);
  const BatchEnds expected = BatchReplayer(graph, work, all).run(pointers(deltas), 3);
  deltas[1].carry(3, 40, 900);
  deltas[4].carry(3, 40, 900);
  const BatchEnds found = BatchReplayer(graph, work, shared).run(pointers(deltas), 3);
  const std::size_t each = found.end_ns.size() / 6;
  for (std::size_t i = 0; i < 6; ++i) {
    const auto& wanted = i == 2 || i == 5 ? expected : plain;  // the first has no edit
    const auto ends = std::span(wanted.end_ns).subspan(i * each, each);
    const auto mine = std::span(found.end_ns).subspan(i * each, each);
    REQUIRE(std::equal(ends.begin(), ends.end(), mine.begin(), mine.end()));
  }
  REQUIRE(expected.end_ns != plain.end_ns);
  deltas[1].carry(graph.size(), 0, 1);
  CHECK_THROWS_AS(BatchReplayer(graph, work, shared).run(pointers(deltas), 3), SchemaError);
}

TEST_CASE("A batch leaves nothing of itself to the next, not where it was refused either") {
  const RandomGraph random(7);
  const ExecutionGraph graph = build_plain_graph(random.durations, random.edges);
  const Work work(graph.size());
  const std::vector<PlainEdge> carries{{3, 40, 70}};
  BatchReplayer replayer(graph, work, carries);
  GraphDelta missing;
  missing.drop(1'000'000);
  for (unsigned seed = 0; seed < 6; ++seed) {
    const ReplayOptions options{.with_residuals = seed % 2 == 0};
    {
      const std::vector<GraphDelta> gone = random_edits(graph, 50 + seed, 1 + seed * 3);
      replayer.run(pointers(gone), 1 + seed % 3, options);
    }
    const std::vector<const GraphDelta*> bad{nullptr, &missing};
    CHECK_THROWS_AS(replayer.run(bad), SchemaError);
    const std::vector<GraphDelta> deltas = random_edits(graph, seed, 9 - seed);
    const BatchEnds again = replayer.run(pointers(deltas), 2, options);
    const BatchEnds expected =
        BatchReplayer(graph, work, carries).run(pointers(deltas), 2, options);
    REQUIRE(again.end_ns == expected.end_ns);
    REQUIRE(again.left_out == expected.left_out);
  }
}

TEST_CASE("Many edits of a large graph, on several threads, are those of one") {
  const RandomGraph random(5, 20'000);
  const ExecutionGraph graph = build_plain_graph(random.durations, random.edges);
  const std::vector<GraphDelta> deltas = random_edits(graph, 5, 60);
  const Work work(graph.size());
  const BatchEnds batch = BatchReplayer(graph, work).run(pointers(deltas));
  for (std::size_t i = 0; i < deltas.size(); ++i) {
    const auto ends = work.ends(replay(graph, deltas[i]));
    const auto found = std::span(batch.end_ns).subspan((i + 1) * ends.size(), ends.size());
    REQUIRE(std::equal(ends.begin(), ends.end(), found.begin(), found.end()));
  }
}

TEST_CASE("Of edges that close a cycle those go that contradict the measured times most") {
  // Three nodes one behind the other: points 0 to 5 at 0, 10, 10, 30, 30, 60.
  const std::vector<std::int64_t> durations{10, 20, 30}, starts{0, 10, 30};
  const std::vector<PlainEdge> edges{{1, 2, 0}, {3, 4, 0}};
  const ExecutionGraph graph = build_plain_graph(durations, edges, starts);
  GraphDelta delta;
  delta.add(5, 0, 1);    // 60 ns back, closes a cycle with the graph
  delta.add(1, 3, 100);  // forward
  delta.add(0, 0, 1);    // itself
  CHECK(closing_edges(graph, delta) == std::vector<std::uint32_t>{0, 2});
  CHECK(replay(graph, delta) == std::vector<std::int64_t>{0, 10, 10, 110, 110, 140});

  GraphDelta against;  // the graph's own edges are gone: the two close a cycle with each other
  against.drop(1);     // point 1 to point 2
  against.drop(3);
  against.add(5, 0, 1);
  against.add(1, 4, 1);
  CHECK(closing_edges(graph, against) == std::vector<std::uint32_t>{0});
}

TEST_CASE("What is left of edges that close cycles is acyclic, and nothing is missing") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    const RandomGraph random(seed, 60);
    const ExecutionGraph graph = build_plain_graph(random.durations, random.edges);
    GraphDelta delta = random_edits(graph, 100 + seed, 1).front();
    const auto closing = closing_edges(graph, delta);
    GraphDelta kept = delta;
    kept.added.clear();
    for (std::uint32_t i = 0; i < delta.added.size(); ++i) {
      if (!std::binary_search(closing.begin(), closing.end(), i)) {
        kept.added.push_back(delta.added[i]);
      }
    }
    REQUIRE(closing_edges(graph, kept).empty());
    REQUIRE(replay(graph, kept) == replay(graph, delta));
    for (const std::uint32_t i : closing) {  // none of them could have stayed
      GraphDelta more = kept;
      more.added.push_back(delta.added[i]);
      REQUIRE(closing_edges(graph, more).size() == 1);
    }
  }
}

TEST_CASE("A batch is refused in words, and can be stopped") {
  const RandomGraph random(1);
  const ExecutionGraph graph = build_plain_graph(random.durations, random.edges);
  const Work work(graph.size());
  GraphDelta missing;
  missing.drop(1'000'000);
  const std::vector<const GraphDelta*> bad{nullptr, &missing};
  CHECK_THROWS_AS(BatchReplayer(graph, work).run(bad), SchemaError);
  const std::vector<PlainEdge> outside{{0, 1'000'000, 0}};
  CHECK_THROWS_AS(BatchReplayer(graph, work, outside).run(bad, 2), SchemaError);
  const std::vector<std::uint32_t> short_offsets{0, 3};
  CHECK_THROWS_AS(BatchReplayer(graph, {work.points, short_offsets}), SchemaError);

  struct Stop {};
  const RandomGraph large_random(1, 20'000);
  const ExecutionGraph large = build_plain_graph(large_random.durations, large_random.edges);
  const std::vector<const GraphDelta*> many(500, nullptr);
  const InterruptScope scope([] { throw Stop(); }, std::chrono::milliseconds(0));
  CHECK_THROWS_AS(BatchReplayer(large, Work(large.size())).run(many), Stop);
}
