// C++ errors become the classes of torchtraceap.errors. That module imports nothing of the package,
// so importing it here, while the package itself is being imported, is safe.

#include "traceap/base/error.hpp"
#include "traceap/bindings/handles.hpp"

namespace traceap::bindings {
namespace {

void raise(const char* name, const std::exception& error) {
  py::object type = py::module_::import("torchtraceap.errors").attr(name);
  // Paths are bytes: what is not UTF-8 in them must not turn an error into another one.
  py::object text = py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
      error.what(), static_cast<Py_ssize_t>(std::char_traits<char>::length(error.what())),
      "replace"));
  PyErr_SetObject(type.ptr(), text.ptr());
}

void translate(std::exception_ptr pointer) {
  if (!pointer) return;
  try {
    std::rethrow_exception(pointer);
  } catch (const ParseError& error) {
    raise("ParseError", error);
  } catch (const SchemaError& error) {
    raise("SchemaError", error);
  } catch (const OptionError& error) {
    raise("OptionError", error);
  } catch (const Error& error) {
    raise("TraceError", error);
  }
}

}  // namespace

void bind_errors(py::module_&) { py::register_exception_translator(translate); }

}  // namespace traceap::bindings
