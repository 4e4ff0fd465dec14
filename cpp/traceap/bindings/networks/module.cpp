// Python extension module torchtraceap._model.native: the networks. Arrays in, arrays out; Python's
// part of torch is not loaded.

#include <pybind11/stl.h>

#include <map>
#include <string>

#include "traceap/base/error.hpp"
#include "traceap/bindings/networks/arrays.hpp"
#include "traceap/model/networks/paper.hpp"

namespace traceap::bindings {
namespace {

Precision precision_of(const std::string& name) {
  if (name == "float32") return Precision::kFloat32;
  if (name == "bfloat16") return Precision::kBfloat16;
  throw OptionError("precision is float32 or bfloat16, not " + name);
}

PaperConfig paper_config(std::int64_t text_width, std::int64_t width, std::int64_t layers,
                         std::int64_t heads, std::int64_t feed_forward, std::int64_t platforms,
                         std::int64_t platform_tokens, bool adapter, bool transformer,
                         bool relation) {
  return {text_width, width,           layers,  heads,       feed_forward,
          platforms,  platform_tokens, adapter, transformer, relation};
}

py::array_t<float> score_paper(const PaperNet& net, const Floats& names,
                               const Integers& trace_offsets, const Integers& platform,
                               const Integers& offsets, const Integers& name,
                               const Integers& cpu_name, const Integers& delay_code,
                               const Integers& duration_code, const Floats& position,
                               const Floats& stream) {
  const PaperBatch batch{span_of(names),      span_of(trace_offsets), span_of(platform),
                         span_of(offsets),    span_of(name),          span_of(cpu_name),
                         span_of(delay_code), span_of(duration_code), span_of(position),
                         span_of(stream)};
  std::vector<float> scores;
  {
    const py::gil_scoped_release unlocked;
    scores = net.score(batch);
  }
  return array_of(scores);
}

}  // namespace
}  // namespace traceap::bindings

PYBIND11_MODULE(native, module) {
  using namespace traceap;
  using namespace traceap::bindings;
  bind_errors(module);
  module.doc() = "Networks in LibTorch. Private.";
  module.attr("TORCH_VERSION") = TRACEAP_TORCH_VERSION;
  py::class_<PaperConfig>(module, "PaperConfig", "The sizes and parts of a PaperNet.")
      .def(py::init(&paper_config), py::kw_only(), py::arg("text_width"), py::arg("width"),
           py::arg("layers"), py::arg("heads"), py::arg("feed_forward"), py::arg("platforms"),
           py::arg("platform_tokens"), py::arg("adapter"), py::arg("transformer"),
           py::arg("relation"));
  py::class_<PaperNet>(module, "PaperNet", "The network of the paper.")
      .def(py::init([](const PaperConfig& config, const std::map<std::string, Floats>& weights,
                       const std::string& precision, const std::string& device) {
             return PaperNet(config, weights_of(weights), precision_of(precision), device);
           }),
           py::arg("config"), py::arg("weights"), py::arg("precision") = "float32",
           py::arg("device") = "cpu")
      .def("score", score_paper, py::kw_only(), py::arg("names"), py::arg("trace_offsets"),
           py::arg("platform"), py::arg("offsets"), py::arg("name"), py::arg("cpu_name"),
           py::arg("delay_code"), py::arg("duration_code"), py::arg("position"), py::arg("stream"),
           "float32 [windows] in [0, 1].");
  bind_v2(module);
}
