#pragma once
// A trace and what analysis makes of it, for tests.

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "trace_text.hpp"
#include "traceap/analysis/idle/idle.hpp"
#include "traceap/analysis/idle/timeline.hpp"

struct Analysed {
  traceap::EventTable table;
  traceap::EventTree tree;
  traceap::GpuIntervals gpu;

  explicit Analysed(const TraceText& text) : Analysed(text.table()) {}
  explicit Analysed(traceap::EventTable&& read)
      : table(std::move(read)),
        tree(traceap::build_tree(table)),
        gpu(traceap::build_gpu_intervals(table, tree)) {}

  traceap::Interval span() const { return gpu.span; }
  traceap::IdleBreakdown idle(traceap::Interval bounds) const {
    return traceap::explain_idle(table, tree, gpu, bounds);
  }
  traceap::IdleBreakdown idle() const { return idle(gpu.span); }
  std::string name(traceap::Row row) const {
    return row == traceap::kNoRow ? "" : std::string(table.name_of(row));
  }
};

/// Idle pieces as text, "cause start-end by name", times in us from the trace's zero.
inline std::vector<std::string> describe(const Analysed& a, const traceap::IdleBreakdown& idle) {
  std::vector<std::string> lines;
  for (const traceap::IdleInterval& piece : idle.intervals) {
    const auto us = [](std::int64_t ns) {
      std::string text = std::to_string(ns / 1000);
      if (ns % 1000 != 0) text += "." + std::to_string(1000 + ns % 1000).substr(1);
      return text;
    };
    std::string line = std::string(traceap::idle_cause_name(piece.cause)) + " " +
                       us(piece.interval.start_ns) + "-" + us(piece.interval.end_ns);
    if (piece.explained_by != traceap::kNoRow) line += " by " + a.name(piece.explained_by);
    lines.push_back(line);
  }
  return lines;
}

/// Random events of all kinds on a few threads and streams, nested or not, linked or not, within
/// `span_ns`. What a fuzzer would make, but always the same for a seed.
class RandomTrace {
 public:
  RandomTrace(unsigned seed, int events, std::int64_t span_ns) : random_(seed), span_ns_(span_ns) {
    for (int i = 0; i < events; ++i) add_event(i);
  }

  /// The trace with all times moved by `shift_ns` and events in another order.
  TraceText text(std::int64_t shift_ns = 0, std::optional<unsigned> shuffle = {}) const {
    std::vector<Event> events = events_;
    if (shuffle) {
      std::mt19937 order(*shuffle);
      std::shuffle(events.begin(), events.end(), order);
    }
    TraceText text;
    for (const Event& e : events) {
      text.complete(e.category, e.name, static_cast<double>(e.ts_ns + shift_ns) / 1000.0,
                    static_cast<double>(e.dur_ns) / 1000.0, e.pid, std::to_string(e.tid), e.args);
    }
    return text;
  }

 private:
  struct Event {
    std::string category, name, args;
    std::int64_t ts_ns, dur_ns;
    int pid, tid;
  };
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n));
  }

  void add_event(int id) {
    static const std::vector<std::pair<std::string, std::string>> host{
        {"cpu_op", "aten::add"},
        {"cpu_op", "aten::item"},
        {"cpu_op", "aten::to"},
        {"cpu_op", "aten::convolution"},
        {"user_annotation", "ProfilerStep#1"},
        {"user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"},
        {"user_annotation", "compile_fx (dynamo_timed)"},
        {"user_annotation", "gloo:all_reduce"},
        {"python_function", "torch/utils/data/dataloader.py(701): __next__"},
        {"python_function", "model.py(7): forward"},
        {"cuda_runtime", "cudaStreamSynchronize"},
        {"cuda_runtime", "cudaMalloc"},
        {"overhead", "Activity Buffer Request"}};
    static const std::vector<std::pair<std::string, std::string>> gpu{
        {"kernel", "gemm"},
        {"kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"},
        {"gpu_memcpy", "Memcpy HtoD (Pageable -> Device)"},
        {"gpu_memcpy", "Memcpy DtoH (Device -> Pinned)"},
        {"gpu_memset", "Memset (Device)"}};
    const std::int64_t start = below(span_ns_),
                       length = below(std::max<std::int64_t>(2, span_ns_ / 8));
    const int track = static_cast<int>(below(3));
    if (below(5) < 2) {
      const auto& [category, name] = host[static_cast<std::size_t>(below(std::ssize(host)))];
      events_.push_back({category, name, "", start, length, 1, track});
      return;
    }
    const auto& [category, name] = gpu[static_cast<std::size_t>(below(std::ssize(gpu)))];
    const int stream = 7 + static_cast<int>(below(3));
    const bool copies = category == "gpu_memcpy";
    const std::int64_t called = std::max<std::int64_t>(0, start - below(span_ns_ / 8 + 1));
    if (below(8) != 0) {
      events_.push_back({"cuda_runtime", copies ? "cudaMemcpyAsync" : "cudaLaunchKernel",
                         "\"correlation\":" + std::to_string(id + 1), called,
                         below(span_ns_ / 16 + 1), 1, track});
    }
    events_.push_back({category, name,
                       "\"device\":0,\"stream\":" + std::to_string(stream) +
                           ",\"correlation\":" + std::to_string(id + 1),
                       start, below(4) == 0 ? 0 : length / 4, 0, stream});
  }

  std::mt19937 random_;
  std::int64_t span_ns_;
  std::vector<Event> events_;
};
