#pragma once
// Whether a stage of the work can be stopped: how often it looks, and what a stop leaves behind.

#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>

#include "trace_text.hpp"
#include "traceap/base/interrupt.hpp"

struct Stopped : std::runtime_error {
  Stopped() : std::runtime_error("stopped") {}
};

inline constexpr std::chrono::milliseconds kAtEveryLook{0};

/// How often work looks whether it is to go on.
inline std::size_t looks_of(const std::function<void()>& work) {
  std::size_t looks = 0;
  const traceap::InterruptScope scope([&] { ++looks; }, kAtEveryLook);
  work();
  return looks;
}

/// Stops work at its nth look; false where it has fewer.
inline bool stops_at(std::size_t nth, const std::function<void()>& work) {
  std::size_t looks = 0;
  const auto check = [&] {
    if (looks++ == nth) throw Stopped();
  };
  const traceap::InterruptScope scope(check, kAtEveryLook);
  try {
    work();
  } catch (const Stopped&) {
    return true;
  }
  return false;
}

/// Steps of ten operators with a kernel each, on two threads and two streams; 64 events a step.
inline TraceText many_steps(int steps) {
  TraceText text;
  int correlation = 0;
  for (int step = 0; step < steps; ++step) {
    const double at = 1000.0 * step;
    text.host("user_annotation", "ProfilerStep#" + std::to_string(step), at, 1000);
    for (int i = 0; i < 21; ++i) {
      const double begin = at + 45.0 * i;
      text.host("cpu_op", "aten::mm", begin, 40)
          .launch("gemm", begin + 5, 4, begin + 20, 20, i % 2 ? 7 : 20, ++correlation);
    }
  }
  return text;
}
