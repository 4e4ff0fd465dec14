#include "catch.hpp"
#include "traceap/trace/parser_threads.hpp"

using namespace traceap;

namespace {

constexpr std::size_t kFreeTemplates = 16;

/// `count` events of one name, as they stand between the brackets of traceEvents.
std::string events(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += R"({"ph":"X","name":"op","pid":1,"tid":1,"ts":)" + std::to_string(i) + R"(,"dur":1},)";
  }
  return text;
}

std::shared_ptr<ParseJob> job_of(std::string text) {
  auto job = std::make_shared<ParseJob>();
  job->text = std::move(text);
  return job;
}

}  // namespace

TEST_CASE("every job comes back with its own result and its text unchanged", "[trace]") {
  for (const unsigned threads : {0U, 1U, 4U}) {
    CAPTURE(threads);
    ParserThreads parsers(threads, kFreeTemplates);
    CHECK(parsers.thread_count() == threads);
    std::vector<std::shared_ptr<ParseJob>> jobs;
    for (int i = 0; i < 50; ++i) jobs.push_back(job_of(events(i)));
    for (const auto& job : jobs) parsers.submit(job);
    for (int i = 0; i < 50; ++i) {
      ParseJob& job = *jobs[static_cast<std::size_t>(i)];
      parsers.wait(job);
      CHECK(job.result.objects == static_cast<std::uint64_t>(i));
      CHECK(job.result.events.ts_ns.size() == static_cast<std::size_t>(i));
      CHECK(job.text == events(i));
      CHECK(job.parser <= threads);
    }
    CHECK(parsers.take_pools().size() == threads + 1);
  }
}

TEST_CASE("a parser reads no byte behind the padded text", "[trace]") {
  ParserThreads parsers(0, kFreeTemplates);
  ParseJob job;
  job.text = events(3) + R"({"ph":"X","name":"cut)";
  job.text.shrink_to_fit();  // no capacity is left behind the text
  parsers.run_here(job);
  CHECK(job.result.objects == 3);
  CHECK(job.result.consumed == events(3).size());
  CHECK(job.text.ends_with("cut"));
}

TEST_CASE("a job that is taken back can be changed at once", "[trace]") {
  for (const unsigned threads : {1U, 3U}) {
    CAPTURE(threads);
    ParserThreads parsers(threads, kFreeTemplates);
    for (int round = 0; round < 300; ++round) {
      const auto first = job_of(events(20)), second = job_of(events(20));
      parsers.submit(first);
      parsers.submit(second);
      parsers.withdraw(second);
      second->text += events(1);
      parsers.run_here(*second);
      REQUIRE(second->result.objects == 21);
      parsers.wait(*first);
      REQUIRE(first->result.objects == 20);
    }
  }
}

TEST_CASE("without threads a job that is taken back was never parsed", "[trace]") {
  ParserThreads parsers(0, kFreeTemplates);
  const auto job = job_of(events(20));
  parsers.submit(job);
  parsers.withdraw(job);
  CHECK(job->result.objects == 0);
  CHECK(job->text == events(20));
}

TEST_CASE("threads end with jobs that nobody waited for", "[trace]") {
  std::vector<std::shared_ptr<ParseJob>> jobs;
  {
    ParserThreads parsers(2, kFreeTemplates);
    for (int i = 0; i < 20; ++i) parsers.submit(jobs.emplace_back(job_of(events(50))));
  }
  for (const auto& job : jobs) CHECK(job->text == events(50));
}
