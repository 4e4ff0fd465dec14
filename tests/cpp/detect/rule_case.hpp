#pragma once
// Runs one rule on a hand-made trace, and builds what such traces have in common.

#include <string>

#include "judged.hpp"

/// A trace of training steps on stream 7; times in microseconds.
class RuleCase : public TraceText {
 public:
  RuleCase& step(int number, double ts_us, double dur_us) {
    host("user_annotation", "ProfilerStep#" + std::to_string(number), ts_us, dur_us);
    return *this;
  }
  /// A kernel whose launch lies well before it, so that it is queued when its turn comes.
  RuleCase& queued(const std::string& name, double call_us, double ts_us, double dur_us,
                   int stream = 7, const std::string& args = "") {
    launch(name, call_us, 5, ts_us, dur_us, stream, next_correlation_++, args);
    return *this;
  }
  /// A kernel that starts 5 us after its launch call begins.
  RuleCase& kernel(const std::string& name, double ts_us, double dur_us, int stream = 7,
                   const std::string& args = "") {
    return queued(name, ts_us - 5, ts_us, dur_us, stream, args);
  }
  /// A copy call of `call_dur_us` and its copy.
  RuleCase& copy(const std::string& name, double call_us, double call_dur_us, double ts_us,
                 double dur_us, std::int64_t bytes, int stream = 7) {
    host("cuda_runtime", "cudaMemcpyAsync", call_us, call_dur_us,
         R"("correlation":)" + std::to_string(next_correlation_));
    gpu("gpu_memcpy", name, ts_us, dur_us, stream, next_correlation_++,
        R"("bytes":)" + std::to_string(bytes));
    return *this;
  }
  RuleCase& op(const std::string& name, double ts_us, double dur_us) {
    host("cpu_op", name, ts_us, dur_us);
    return *this;
  }
  RuleCase& annotation(const std::string& name, double ts_us, double dur_us) {
    host("user_annotation", name, ts_us, dur_us);
    return *this;
  }
  RuleCase& frame(const std::string& name, double ts_us, double dur_us) {
    host("python_function", name, ts_us, dur_us);
    return *this;
  }
  RuleCase& api(const std::string& name, double ts_us, double dur_us) {
    host("cuda_runtime", name, ts_us, dur_us,
         R"("correlation":)" + std::to_string(next_correlation_++));
    return *this;
  }

 private:
  int next_correlation_ = 1;
};

/// Cost in microseconds.
inline double cost_us(const traceap::Finding& finding) {
  return static_cast<double>(finding.cost_ns) * 1e-3;
}
