#pragma once
// Hand-made traces for tests: append events, get the JSON text or the loaded table.

#include <string>

#include "traceap/trace/read.hpp"

class TraceText {
 public:
  /// A complete event; times in microseconds as text-ready numbers; `args` is the inside of {}.
  TraceText& complete(const std::string& category, const std::string& name, double ts_us,
                      double dur_us, int pid, const std::string& tid_json,
                      const std::string& args = "") {
    return raw(R"({"ph":"X","cat":")" + category + R"(","name":")" + name + R"(","pid":)" +
               std::to_string(pid) + R"(,"tid":)" + tid_json + R"(,"ts":)" + number(ts_us) +
               R"(,"dur":)" + number(dur_us) + (args.empty() ? "" : R"(,"args":{)" + args + "}") +
               "}");
  }
  /// A host range on thread 1 of process 1.
  TraceText& host(const std::string& category, const std::string& name, double ts_us, double dur_us,
                  const std::string& args = "") {
    return complete(category, name, ts_us, dur_us, 1, "1", args);
  }
  /// A GPU event on device 0; `args` follow device, stream and correlation.
  TraceText& gpu(const std::string& category, const std::string& name, double ts_us, double dur_us,
                 int stream, int correlation, const std::string& args = "") {
    return complete(category, name, ts_us, dur_us, 0, std::to_string(stream),
                    R"("device":0,"stream":)" + std::to_string(stream) + R"(,"correlation":)" +
                        std::to_string(correlation) + (args.empty() ? "" : "," + args));
  }
  /// A launch call on the host and its kernel.
  TraceText& launch(const std::string& kernel, double call_us, double call_dur_us, double ts_us,
                    double dur_us, int stream, int correlation, const std::string& args = "") {
    host("cuda_runtime", "cudaLaunchKernel", call_us, call_dur_us,
         R"("correlation":)" + std::to_string(correlation));
    return gpu("kernel", kernel, ts_us, dur_us, stream, correlation, args);
  }
  TraceText& raw(const std::string& event_json) {
    events_ += (events_.empty() ? "" : ",\n") + event_json;
    return *this;
  }
  /// Extra top-level members, such as "\"deviceProperties\": [...]".
  TraceText& top(const std::string& members) {
    top_ += members + ",";
    return *this;
  }
  std::string json() const { return "{" + top_ + "\"traceEvents\":[" + events_ + "]}"; }
  traceap::EventTable table() const { return traceap::read_trace_bytes(json(), "test"); }

 private:
  static std::string number(double us) {
    char text[64];
    std::snprintf(text, sizeof text, "%.3f", us);
    return text;
  }
  std::string events_, top_;
};
