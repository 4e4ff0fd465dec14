#pragma once
// Threads that parse chunks side by side. Results are waited for one by one, in the owner's order.

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "traceap/trace/chunk_parser.hpp"

namespace traceap {

/// One piece of text on its way through a parser. Between submit() and the return of wait() or
/// withdraw() it belongs to the threads: the owner touches no member.
class ParseJob {
 public:
  std::string text;
  ChunkTask task;  ///< task.text is set while the job runs
  ChunkResult result;
  std::size_t parser = 0;  ///< whose pools the result's ids belong to

 private:
  friend class ParserThreads;
  bool done_ = false;  ///< guarded by ParserThreads::mutex_
  std::exception_ptr error_;
};

class ParserThreads {
 public:
  /// With no threads a job runs when it is waited for. `free_templates`: see ReadOptions.
  ParserThreads(unsigned threads, std::size_t free_templates);
  ~ParserThreads();
  ParserThreads(const ParserThreads&) = delete;
  ParserThreads& operator=(const ParserThreads&) = delete;

  void submit(const std::shared_ptr<ParseJob>& job);
  /// Waits for the job's result; rethrows what the job threw.
  void wait(ParseJob& job);
  /// Takes a submitted job back for its text, whether it has run or not; rethrows what it threw.
  void withdraw(const std::shared_ptr<ParseJob>& job);
  /// Runs a job that no thread has on the caller's own parser, also one that has run before.
  void run_here(ParseJob& job);
  std::size_t thread_count() const { return threads_.size(); }
  /// Ends the threads, frees what the parsers hold but their pools, and returns these by
  /// ParseJob::parser. Nothing may be submitted or run afterwards.
  std::vector<ParserPools> take_pools();

 private:
  void stop();
  void run(ParseJob& job, std::size_t parser);
  void work(std::size_t parser);

  std::vector<std::unique_ptr<ChunkParser>> parsers_;  // the last one is the caller's
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_, ready_;
  std::deque<std::shared_ptr<ParseJob>> queue_;
  bool stopping_ = false;
};

}  // namespace traceap
