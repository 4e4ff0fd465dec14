#include <pybind11/stl.h>

#include <map>
#include <string>

#include "traceap/base/error.hpp"
#include "traceap/bindings/networks/arrays.hpp"
#include "traceap/model/networks/v2.hpp"

namespace traceap::bindings {
namespace {

V2Shape shape_of(std::int64_t features, std::int64_t types, std::vector<std::int64_t> token_codes,
                 std::int64_t token_numbers, std::int64_t name_width, std::int64_t token_width,
                 std::int64_t token_layers, std::int64_t width, std::int64_t heads,
                 std::int64_t layers, std::int64_t reach) {
  return {features,      types,      std::move(token_codes),
          token_numbers, name_width, token_width,
          token_layers,  width,      heads,
          layers,        reach};
}

py::array_t<float> matrix_of(const std::vector<float>& values, std::size_t rows) {
  const auto columns = rows == 0 ? 0 : values.size() / rows;
  return py::array_t<float>({rows, columns}, values.data());
}

py::dict score_v2(const V2Net& net, const Floats& features, const Integers& window,
                  const Integers& codes, const Floats& numbers, const Integers& name,
                  const Integers& cpu_name, const Floats& names) {
  if (features.ndim() != 2) throw SchemaError("v2: features are not [windows, features]");
  const V2Trace trace{features.shape(0), span_of(features), span_of(window),   span_of(codes),
                      span_of(numbers),  span_of(name),     span_of(cpu_name), span_of(names)};
  V2Scores scores;
  {
    const py::gil_scoped_release unlocked;
    scores = net.score(trace);
  }
  py::dict found;
  found["any"] = array_of(scores.any);
  found["types"] = matrix_of(scores.types, scores.any.size());
  found["severity"] = array_of(scores.severity);
  found["trace"] = array_of({scores.trace});
  found["tokens"] = array_of(scores.tokens);
  return found;
}

}  // namespace

void bind_v2(py::module_& module) {
  py::class_<V2Shape>(module, "V2Shape", "The sizes of a V2Net.")
      .def(py::init(&shape_of), py::kw_only(), py::arg("features"), py::arg("types"),
           py::arg("token_codes"), py::arg("token_numbers"), py::arg("name_width"),
           py::arg("token_width"), py::arg("token_layers"), py::arg("width"), py::arg("heads"),
           py::arg("layers"), py::arg("reach"));
  py::class_<V2Net>(module, "V2Net", "Windows of a trace from their features and events.")
      .def(py::init(
               [](const V2Shape& shape, const std::map<std::string, Floats>& weights,
                  const std::string& device) { return V2Net(shape, weights_of(weights), device); }),
           py::arg("shape"), py::arg("weights"), py::arg("device") = "cpu")
      .def("score", score_v2, py::arg("features"), py::kw_only(), py::arg("window") = Integers(0),
           py::arg("codes") = Integers(0), py::arg("numbers") = Floats(0),
           py::arg("name") = Integers(0), py::arg("cpu_name") = Integers(0),
           py::arg("names") = Floats(0),
           "Logits `any` [windows], `types` [windows, types], `tokens` [tokens] and `trace` [1]; "
           "`severity` [windows] in [0, 1]. float32.");
}

}  // namespace traceap::bindings
