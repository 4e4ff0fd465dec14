#include <pybind11/stl.h>

#include "traceap/bindings/columns.hpp"
#include "traceap/bindings/handles.hpp"
#include "traceap/bindings/interrupt.hpp"
#include "traceap/model/trees.hpp"

namespace traceap::bindings {
namespace {

template <typename T>
using Column = py::array_t<T, py::array::c_style>;
using Matrix = py::array_t<double, py::array::c_style>;

template <typename T>
std::vector<T> vector_of(const Column<T>& column, const char* name) {
  if (column.ndim() != 1) throw SchemaError(std::string("trees: ") + name + " must be [n]");
  return {column.data(), column.data() + column.size()};
}

std::unique_ptr<Trees> make_trees(const Column<std::int32_t>& feature,
                                  const Column<double>& threshold, const Column<std::int32_t>& left,
                                  const Column<std::int32_t>& right, const Column<double>& leaf,
                                  const Column<std::int32_t>& root,
                                  const Column<std::int32_t>& output, std::int32_t columns,
                                  std::int32_t outputs) {
  return std::make_unique<Trees>(TreeArrays{.feature = vector_of(feature, "feature"),
                                            .threshold = vector_of(threshold, "threshold"),
                                            .left = vector_of(left, "left"),
                                            .right = vector_of(right, "right"),
                                            .leaf = vector_of(leaf, "leaf"),
                                            .root = vector_of(root, "root"),
                                            .output = vector_of(output, "output"),
                                            .column_count = columns,
                                            .output_count = outputs});
}

py::array_t<double> sums(const Trees& trees, const Matrix& values) {
  if (values.ndim() != 2 || values.shape(1) != static_cast<py::ssize_t>(trees.column_count())) {
    throw SchemaError("trees: values must be [rows, " + std::to_string(trees.column_count()) + "]");
  }
  const std::span<const double> flat(values.data(), static_cast<std::size_t>(values.size()));
  auto result = std::make_unique<std::vector<double>>();
  {
    const Unlocked unlocked;
    *result = trees.sums(flat);
  }
  const py::capsule owner(result.get(),
                          [](void* p) { delete static_cast<std::vector<double>*>(p); });
  return view<double>(result.release()->data(),
                      {values.shape(0), static_cast<py::ssize_t>(trees.output_count())}, {}, owner);
}

}  // namespace

void bind_model(py::module_& module) {
  py::class_<Trees>(module, "Trees", "Learned decision trees, checked.")
      .def(py::init(&make_trees), py::kw_only(), py::arg("feature"), py::arg("threshold"),
           py::arg("left"), py::arg("right"), py::arg("leaf"), py::arg("root"), py::arg("output"),
           py::arg("columns"), py::arg("outputs"),
           "int32 and float64 [n]: splits of all trees behind each other; a child or root >= 0 is "
           "a split, one < 0 the leaf ~child.")
      .def_property_readonly("columns", &Trees::column_count, "Columns of the values.")
      .def_property_readonly("outputs", &Trees::output_count, "Columns of the sums.")
      .def("sums", sums, py::arg("values"),
           "float64 [rows, outputs]: sums of the leaves of float64 [rows, columns].");
}

}  // namespace traceap::bindings
