#include "traceap/bindings/columns.hpp"

namespace traceap::bindings {

void make_read_only(const py::array& array) {
  py::detail::array_proxy(array.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
}

Int64Array view(const IntervalSet& intervals, py::handle owner) {
  static_assert(sizeof(Interval) == 2 * sizeof(std::int64_t));
  const auto count = static_cast<py::ssize_t>(intervals.size());
  return view<std::int64_t>(intervals.data(), {count, 2}, {}, owner);
}

py::str to_str(std::string_view text) {
  PyObject* decoded =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

TextList to_list(const StringPool& strings) {
  TextList list(strings.size());
  for (StringId id = 0; id < strings.size(); ++id) list[id] = to_str(strings[id]);
  return list;
}

}  // namespace traceap::bindings
