#pragma once
// How long work is stopped from outside. A loop over rows asks now and then whether it is to go on;
// what answers is installed by whoever called, so that the core knows neither signals nor Python.

#include <chrono>
#include <cstdint>
#include <functional>

namespace traceap {

/// Throws if the work is to stop.
using InterruptCheck = std::function<void()>;

/// Asked this often while work goes on: often enough to answer at once, too seldom to cost
/// anything.
inline constexpr std::chrono::milliseconds kInterruptPeriod{50};

/// Installs a check for this thread until it goes out of scope; scopes nest. The period runs on
/// from one scope to the next, so that many short calls are stopped as one long one is.
class InterruptScope {
 public:
  explicit InterruptScope(InterruptCheck check,
                          std::chrono::milliseconds period = kInterruptPeriod);
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  friend void poll_interrupt_now();
  InterruptCheck check_;
  std::chrono::milliseconds period_;
  InterruptScope* outer_;
};

/// Runs the check if it is due. For loops of few and long turns.
void poll_interrupt_now();

namespace detail {
inline constexpr std::uint32_t kPollsPerLook = 512;
// Every row asks: the C library would be called for the variable's address each time. Of glibc a
// module that is loaded later gets some bytes beside the thread's pointer; other libraries refuse.
#if defined(__GLIBC__)
[[gnu::tls_model("initial-exec")]]
#endif
inline constinit thread_local std::uint32_t polls_left = kPollsPerLook;
void look_again();
}  // namespace detail

/// The same for loops of many short turns: looks at the clock at every 512th call. Whatever the
/// caller holds must bear an exception here.
inline void poll_interrupt() {
  if (--detail::polls_left == 0) [[unlikely]]
    detail::look_again();
}

}  // namespace traceap
