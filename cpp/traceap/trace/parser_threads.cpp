#include "traceap/trace/parser_threads.hpp"

#include <algorithm>
#include <string_view>

namespace traceap {

ParserThreads::ParserThreads(unsigned threads, std::size_t free_templates) {
  for (unsigned i = 0; i <= threads; ++i) {
    parsers_.push_back(std::make_unique<ChunkParser>(free_templates));
  }
  for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this, i] { work(i); });
}

ParserThreads::~ParserThreads() { stop(); }

void ParserThreads::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void ParserThreads::submit(const std::shared_ptr<ParseJob>& job) {
  if (threads_.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(job);
  }
  wake_.notify_one();
}

void ParserThreads::wait(ParseJob& job) {
  if (threads_.empty()) return run_here(job);
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [&] { return job.done_; });
  if (job.error_) std::rethrow_exception(job.error_);
}

void ParserThreads::withdraw(const std::shared_ptr<ParseJob>& job) {
  if (threads_.empty()) return;
  std::unique_lock lock(mutex_);
  const auto waiting = std::find(queue_.begin(), queue_.end(), job);
  if (waiting != queue_.end()) {
    queue_.erase(waiting);
  } else {
    ready_.wait(lock, [&] { return job->done_; });
  }
  if (job->error_) std::rethrow_exception(job->error_);
}

void ParserThreads::run_here(ParseJob& job) { run(job, parsers_.size() - 1); }

std::vector<ParserPools> ParserThreads::take_pools() {
  stop();
  std::vector<ParserPools> all;
  for (const auto& parser : parsers_) all.push_back(std::move(parser->pools()));
  parsers_.clear();
  return all;
}

void ParserThreads::run(ParseJob& job, std::size_t parser) {
  // The padding is part of the string while the parser reads it.
  const std::size_t size = job.text.size();
  job.text.append(kTextPadding, '\0');
  job.task.text = std::string_view(job.text).substr(0, size);
  job.parser = parser;
  job.result = parsers_[parser]->parse(job.task);
  job.task.text = {};
  job.text.resize(size);
}

void ParserThreads::work(std::size_t parser) {
  for (;;) {
    std::shared_ptr<ParseJob> job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      if (stopping_) return;
      job = queue_.front();
      queue_.pop_front();
    }
    try {
      run(*job, parser);
    } catch (...) {
      job->error_ = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    job->done_ = true;
    ready_.notify_all();
  }
}

}  // namespace traceap
