# Third-party C++ libraries, all from the system (apt-get or conda-forge); nothing is downloaded.

find_package(Threads REQUIRED)
find_package(simdjson REQUIRED CONFIG)
find_package(zstd REQUIRED CONFIG)
find_package(Eigen3 REQUIRED CONFIG)
find_package(xtensor REQUIRED CONFIG)
find_package(PkgConfig REQUIRED)
pkg_check_modules(isal REQUIRED IMPORTED_TARGET libisal)
find_package(ZLIB REQUIRED)

if(TARGET zstd::libzstd_static)
  set(TRACEAP_ZSTD zstd::libzstd_static)
else()
  set(TRACEAP_ZSTD zstd::libzstd_shared)
endif()

if(TRACEAP_BUILD_PYTHON)
  set(PYBIND11_FINDPYTHON ON)
  find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
  if(NOT pybind11_DIR AND NOT SKBUILD)
    execute_process(COMMAND ${Python_EXECUTABLE} -m pybind11 --cmakedir
                    OUTPUT_VARIABLE pybind11_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  find_package(pybind11 REQUIRED CONFIG)
endif()
