#pragma once
// Arrays between Python and the networks: borrowed on the way in, copied on the way out.

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <map>
#include <span>
#include <string>
#include <vector>

#include "traceap/bindings/handles.hpp"
#include "traceap/model/networks/weights.hpp"

namespace traceap::bindings {

using Floats = py::array_t<float, py::array::c_style>;
using Integers = py::array_t<std::int64_t, py::array::c_style>;

template <typename T>
std::span<const T> span_of(const py::array_t<T, py::array::c_style>& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

inline std::vector<WeightArray> weights_of(const std::map<std::string, Floats>& arrays) {
  std::vector<WeightArray> weights;
  for (const auto& [name, array] : arrays) {
    weights.push_back({name, {array.shape(), array.shape() + array.ndim()}, array.data()});
  }
  return weights;
}

inline py::array_t<float> array_of(const std::vector<float>& values) {
  return py::array_t<float>(static_cast<py::ssize_t>(values.size()), values.data());
}

void bind_v2(py::module_& module);

}  // namespace traceap::bindings
