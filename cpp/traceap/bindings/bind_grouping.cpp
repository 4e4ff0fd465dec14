#include <pybind11/stl.h>

#include "traceap/base/row_groups.hpp"
#include "traceap/bindings/columns.hpp"
#include "traceap/bindings/handles.hpp"
#include "traceap/bindings/interrupt.hpp"

namespace traceap::bindings {
namespace {

template <typename Scalar>
using ArrayOf = py::array_t<Scalar, py::array::c_style | py::array::forcecast>;

template <typename Scalar>
std::span<const Scalar> span_of(const ArrayOf<Scalar>& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

std::shared_ptr<RowGroups> make_groups(const std::vector<ArrayOf<std::int64_t>>& keys) {
  if (keys.empty()) throw OptionError("groups need a key");
  std::vector<std::span<const std::int64_t>> spans;
  for (const auto& key : keys) spans.push_back(span_of(key));
  for (const auto& span : spans) {
    if (span.size() != spans[0].size()) throw OptionError("keys differ in length");
  }
  const Unlocked unlocked;
  return std::make_shared<RowGroups>(group_rows(spans));
}

py::array_t<double> quantiles(const RowGroups& groups, const ArrayOf<double>& values, double q) {
  const std::span<const double> numbers = span_of(values);
  if (numbers.size() != groups.index.size()) throw OptionError("values need an entry for each row");
  if (!(q >= 0 && q <= 1)) throw OptionError("q must lie between 0 and 1");
  std::vector<double> result;
  {
    const Unlocked unlocked;
    result = group_quantiles(groups, numbers, q);
  }
  return adopt(std::move(result));
}

}  // namespace

void bind_grouping(py::module_& module) {
  py::class_<RowGroups, std::shared_ptr<RowGroups>>(module, "RowGroups",
                                                    "Rows with equal keys, by their first row.")
      .def("__len__", &RowGroups::size)
      .def_property_readonly("first", column_of(&RowGroups::first),
                             "int64 [groups]: first row of each group, ascending.")
      .def_property_readonly("index", column_of(&RowGroups::index), "int64 [n]: group of each row.")
      .def_property_readonly("rows", column_of(&RowGroups::rows),
                             "int64 [n]: rows group by group, ascending within each.")
      .def_property_readonly("offsets", column_of(&RowGroups::offsets),
                             "int64 [groups + 1]: where each group begins in rows.")
      .def("quantiles", quantiles, py::arg("values"), py::arg("q"),
           "float64 [groups]: linear between neighbours, NaN sorts last.");
  module.def("group_rows", make_groups, py::arg("keys"),
             "Groups of rows whose keys (integers, of equal lengths) are all equal.");
}

}  // namespace traceap::bindings
