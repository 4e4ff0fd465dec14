#pragma once
// Columns as read-only NumPy arrays: views into an object that stays alive, or arrays that own a
// vector moved into them. Nothing is copied.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/typing.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
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

using TextList = py::typing::List<py::str>;
using Int64Array = py::array_t<std::int64_t>;
/// The start and the end of a stretch of time, in ns.
using Bounds = std::pair<std::int64_t, std::int64_t>;
/// Any sequence of numbers, as an array.
template <typename T>
using AnyArray = py::array_t<T, py::array::c_style | py::array::forcecast>;
/// A view of the numbers that an argument holds.
template <typename T>
std::span<const T> items(const AnyArray<T>& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

/// Clears the writeable flag.
void make_read_only(const py::array& array);

/// Read-only array over memory that `owner` keeps alive.
template <typename Scalar>
py::array_t<Scalar> view(const void* data, std::vector<py::ssize_t> shape,
                         std::vector<py::ssize_t> strides, py::handle owner) {
  py::array_t<Scalar> array(std::move(shape), std::move(strides), static_cast<const Scalar*>(data),
                            owner);
  make_read_only(array);
  return array;
}

/// View of `column` whose base is `owner`.
template <typename T>
py::array_t<scalar_t<T>> view(const std::vector<T>& column, py::handle owner) {
  static_assert(sizeof(scalar_t<T>) == sizeof(T));
  return view<scalar_t<T>>(column.data(), {static_cast<py::ssize_t>(column.size())}, {}, owner);
}
namespace detail {
/// What one entry of a column holds: a scalar, or an array of them.
template <typename T>
struct Entry {
  using scalar = T;
  static constexpr py::ssize_t length = 0;
};
template <typename T, std::size_t n>
struct Entry<std::array<T, n>> {
  using scalar = T;
  static constexpr py::ssize_t length = n;
};
}  // namespace detail

/// View of one member of each struct, strided over them: of what `members` lead to, such as
/// (&PathSegment::row) or (&IdleInterval::interval, &Interval::start_ns). [n], or [n, length] of
/// members that are arrays.
template <typename Struct, typename... Members>
auto member_view(const std::vector<Struct>& structs, py::handle owner, Members... members) {
  using Member = std::remove_cvref_t<decltype((std::declval<const Struct&>().*....*members))>;
  using Entry = detail::Entry<Member>;
  using Scalar = typename Entry::scalar;
  std::vector<py::ssize_t> shape{static_cast<py::ssize_t>(structs.size())};
  std::vector<py::ssize_t> strides{static_cast<py::ssize_t>(sizeof(Struct))};
  if constexpr (Entry::length > 0) {
    shape.push_back(Entry::length);
    strides.push_back(static_cast<py::ssize_t>(sizeof(Scalar)));
  }
  const void* first = structs.empty() ? nullptr : &(structs.front().*....*members);
  return view<scalar_t<Scalar>>(first, std::move(shape), std::move(strides), owner);
}
/// The same as int64 [n, 2].
Int64Array view(const IntervalSet& intervals, py::handle owner);

/// Array that owns `values`.
template <typename T>
auto adopt(std::vector<T>&& values) {
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  const py::capsule owner(owned.get(), [](void* p) { delete static_cast<std::vector<T>*>(p); });
  return view(*owned.release(), owner);
}

/// str from bytes that came out of a file: what is not UTF-8 becomes U+FFFD.
py::str to_str(std::string_view text);
/// All strings of a pool, by id.
TextList to_list(const StringPool& strings);

/// Property getter for a column: column_of(&EventTable::ts_ns).
template <typename Owner, typename T>
auto column_of(std::vector<T> Owner::*member) {
  return [member](py::object self) { return view(self.cast<const Owner&>().*member, self); };
}
/// ... for one member of its structs: column_of(&LaneSet::lanes, &Lane::rank).
template <typename Owner, typename Struct, typename Member, typename... Members>
auto column_of(std::vector<Struct> Owner::*structs, Member member, Members... members) {
  return [=](py::object self) {
    return member_view(self.cast<const Owner&>().*structs, self, member, members...);
  };
}

/// Names of the values of an enum, in order.
template <typename Enum, typename Name>
TextList names_of(int count, Name name) {
  TextList names;
  for (int i = 0; i < count; ++i) names.append(to_str(name(static_cast<Enum>(i))));
  return names;
}

}  // namespace traceap::bindings
