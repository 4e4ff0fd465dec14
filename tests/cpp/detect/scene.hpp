#pragma once
// A stage for rules: a few events with running correlation ids, then one rule's verdict.

#include <string>
#include <vector>

#include "judged.hpp"

/// Times in microseconds. Host events run on thread 1, GPU events on stream 7 of device 0.
class Scene {
 public:
  Scene& step(int number, double ts, double dur) {
    return range("ProfilerStep#" + std::to_string(number), ts, dur);
  }
  Scene& range(const std::string& name, double ts, double dur) {
    text_.host("user_annotation", name, ts, dur);
    return *this;
  }
  Scene& op(const std::string& name, double ts, double dur, const std::string& args = "") {
    text_.host("cpu_op", name, ts, dur, args);
    return *this;
  }
  Scene& python(const std::string& name, double ts, double dur) {
    text_.host("python_function", name, ts, dur);
    return *this;
  }
  Scene& call(const std::string& name, double ts, double dur) {
    text_.host("cuda_runtime", name, ts, dur, R"("correlation":)" + std::to_string(++id_));
    return *this;
  }
  /// Launch call at `call` and its kernel from `ts`.
  Scene& kernel(const std::string& name, double call, double ts, double dur,
                double call_dur = 5.0) {
    text_.launch(name, call, call_dur, ts, dur, 7, ++id_);
    return *this;
  }
  /// Copy call of `call_dur` at `call` and the copy on the GPU.
  Scene& copy(const std::string& name, double call, double call_dur, double ts, double dur,
              long long bytes, const std::string& api = "cudaMemcpyAsync") {
    text_.host("cuda_runtime", api, call, call_dur, R"("correlation":)" + std::to_string(++id_));
    text_.gpu("gpu_memcpy", name, ts, dur, 7, id_, R"("bytes":)" + std::to_string(bytes));
    return *this;
  }
  /// What the device's matrix units do relative to plain fp32.
  Scene& units(const std::string& device, double half_ratio, double tf32_ratio) {
    options_.matrix_units = {.half_ratio = half_ratio, .tf32_ratio = tf32_ratio, .device = device};
    return *this;
  }
  TraceText& text() { return text_; }

  traceap::Finding judge(std::string_view type) const { return ::judge(type, text_, options_); }

 private:
  TraceText text_;
  traceap::DetectOptions options_;
  int id_ = 0;
};

/// Input Dims and Input type of two matrices, as args.
inline std::string two_inputs(const std::string& dims_a, const std::string& dims_b,
                              const std::string& type) {
  return R"("Input Dims":[)" + dims_a + "," + dims_b + R"(],"Input type":[")" + type + R"(",")" +
         type + R"("])";
}
