#pragma once
// Columns as read-only NumPy arrays: views into an object that stays alive, or arrays that own a
// vector moved into them. Nothing is copied.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "traceap/base/intervals.hpp"
#include "traceap/base/string_pool.hpp"

namespace traceap::bindings {

namespace py = pybind11;

namespace detail {
/// What NumPy sees of a column of T: enums as their integer, char as uint8.
template <typename T, bool = std::is_enum_v<T>>
struct Scalar {
  using type = std::conditional_t<std::is_same_v<T, char>, std::uint8_t, T>;
};
template <typename T>
struct Scalar<T, true> {
  using type = std::underlying_type_t<T>;
};
}  // namespace detail

template <typename T>
using scalar_t = typename detail::Scalar<T>::type;

/// Clears the writeable flag.
py::array read_only(py::array array);

/// View of `column` whose base is `owner`.
template <typename T>
py::array view(const std::vector<T>& column, py::handle owner) {
  using Scalar = scalar_t<T>;
  static_assert(sizeof(Scalar) == sizeof(T));
  const auto size = static_cast<py::ssize_t>(column.size());
  return read_only(py::array(py::dtype::of<Scalar>(), {size}, {},
                             reinterpret_cast<const Scalar*>(column.data()), owner));
}

/// Array of the given shape that owns `values`.
template <typename T>
py::array adopt(std::vector<T>&& values, std::vector<py::ssize_t> shape) {
  using Scalar = scalar_t<T>;
  auto* owned = new std::vector<T>(std::move(values));
  py::capsule owner(owned, [](void* p) { delete static_cast<std::vector<T>*>(p); });
  return read_only(py::array(py::dtype::of<Scalar>(), std::move(shape), {},
                             reinterpret_cast<const Scalar*>(owned->data()), owner));
}

template <typename T>
py::array adopt(std::vector<T>&& values) {
  const auto size = static_cast<py::ssize_t>(values.size());
  return adopt(std::move(values), {size});
}

/// int64 [n, 2] of starts and ends.
py::array adopt_intervals(IntervalSet&& intervals);

/// str from bytes that came out of a file: what is not UTF-8 becomes U+FFFD.
py::str to_str(std::string_view text);
/// All strings of a pool, by id.
py::list to_list(const StringPool& strings);

/// Property getter for a column: column_of(&EventTable::ts_ns).
template <typename Owner, typename T>
auto column_of(std::vector<T> Owner::*member) {
  return [member](py::object self) { return view(self.cast<const Owner&>().*member, self); };
}

}  // namespace traceap::bindings
