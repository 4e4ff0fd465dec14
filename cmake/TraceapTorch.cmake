# LibTorch, for the networks: the libraries and headers inside the Python package torch, wherever the Python of the
# build finds it. Torch's own CMake package is not asked, since that of a CUDA build wants the CUDA toolkit too.
set(TRACEAP_BUILD_MODEL AUTO CACHE STRING "Build the extension module _model (needs torch): AUTO, ON or OFF")

set(TRACEAP_TORCH_DIR "")
if(TRACEAP_BUILD_PYTHON AND NOT TRACEAP_SANITIZE AND NOT TRACEAP_STATIC AND
   (TRACEAP_BUILD_MODEL OR TRACEAP_BUILD_MODEL STREQUAL AUTO))
  # Found without importing it, which takes seconds.
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
      "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE TRACEAP_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(TRACEAP_TORCH_DIR AND EXISTS ${TRACEAP_TORCH_DIR}/include/ATen/ATen.h)
  file(STRINGS ${TRACEAP_TORCH_DIR}/version.py version_line REGEX "^__version__ = ")
  string(REGEX MATCH "[0-9]+\\.[0-9]+" TRACEAP_TORCH_VERSION "${version_line}")
  message(STATUS "Networks: torch ${TRACEAP_TORCH_VERSION} in ${TRACEAP_TORCH_DIR}")
  add_library(traceap_torch INTERFACE)
  target_include_directories(traceap_torch SYSTEM INTERFACE ${TRACEAP_TORCH_DIR}/include)
  target_link_libraries(traceap_torch INTERFACE ${TRACEAP_TORCH_DIR}/lib/libtorch_cpu.so
                        ${TRACEAP_TORCH_DIR}/lib/libc10.so)
elseif(TRACEAP_BUILD_MODEL AND NOT TRACEAP_BUILD_MODEL STREQUAL AUTO)
  message(FATAL_ERROR "TRACEAP_BUILD_MODEL=ON needs the Python package torch (pip install torch), and neither "
                      "sanitizers nor static linking")
else()
  message(STATUS "Networks: not built (no torch, or not asked for)")
endif()
