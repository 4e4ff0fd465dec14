#include "traceap/base/interrupt.hpp"

#include <algorithm>
#include <utility>

namespace traceap {

namespace {
constinit thread_local InterruptScope* innermost = nullptr;
constinit thread_local std::chrono::steady_clock::time_point next_look{};
}  // namespace

InterruptScope::InterruptScope(InterruptCheck check, std::chrono::milliseconds period)
    : check_(std::move(check)), period_(period), outer_(std::exchange(innermost, this)) {
  next_look = std::min(next_look, std::chrono::steady_clock::now() + period);
}

InterruptScope::~InterruptScope() { innermost = outer_; }

void poll_interrupt_now() {
  InterruptScope* scope = innermost;
  if (scope == nullptr) return;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_look) return;
  next_look = now + scope->period_;
  scope->check_();
}

void detail::look_again() {
  polls_left = kPollsPerLook;
  poll_interrupt_now();
}

}  // namespace traceap
