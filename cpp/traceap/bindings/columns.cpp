#include "traceap/bindings/columns.hpp"

namespace traceap::bindings {

py::array read_only(py::array array) {
  py::detail::array_proxy(array.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  return array;
}

py::array adopt_intervals(IntervalSet&& intervals) {
  static_assert(sizeof(Interval) == 2 * sizeof(std::int64_t));
  const auto count = static_cast<py::ssize_t>(intervals.size());
  auto* owned = new IntervalSet(std::move(intervals));
  py::capsule owner(owned, [](void* p) { delete static_cast<IntervalSet*>(p); });
  return read_only(py::array(py::dtype::of<std::int64_t>(), {count, py::ssize_t{2}}, {},
                             reinterpret_cast<const std::int64_t*>(owned->data()), owner));
}

py::str to_str(std::string_view text) {
  PyObject* decoded =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

py::list to_list(const StringPool& strings) {
  py::list list(strings.size());
  for (StringId id = 0; id < strings.size(); ++id) list[id] = to_str(strings[id]);
  return list;
}

}  // namespace traceap::bindings
