# Third-party C++ libraries, all from the system (apt-get or conda-forge); nothing is downloaded. What
# is missing is said at once, in one sentence with the commands that install it.

# Notes a thing that was not found, with its packages in Debian and conda-forge. Without a compiler
# libraries are not looked for; their packages are named all the same.
macro(traceap_need found thing debian conda)
  if(NOT ${found})
    if(CMAKE_CXX_COMPILER OR NOT TRACEAP_MISSING)
      list(APPEND TRACEAP_MISSING "${thing}")
    endif()
    list(APPEND TRACEAP_MISSING_DEBIAN ${debian})
    list(APPEND TRACEAP_MISSING_CONDA ${conda})
  endif()
endmacro()

function(traceap_stop_if_missing)
  if(NOT TRACEAP_MISSING)
    return()
  endif()
  list(JOIN TRACEAP_MISSING ", " things)
  list(JOIN TRACEAP_MISSING_DEBIAN " " debian)
  list(JOIN TRACEAP_MISSING_CONDA " " conda)
  # Lines that begin with a space are not filled anew by CMake, so that commands can be copied.
  message(FATAL_ERROR
    " torchtraceap can't be built here, since this is missing: ${things}; install it, then build again:\n"
    "   Debian or Ubuntu:  sudo apt-get install ${debian}\n"
    "   conda:             conda install -c conda-forge ${conda}\n")
endfunction()

include(CheckLanguage)
check_language(CXX)
traceap_need(CMAKE_CXX_COMPILER "a C++20 compiler (and no library was looked for without it)" g++ cxx-compiler)
if(CMAKE_CXX_COMPILER)
  enable_language(CXX)
  if(TRACEAP_STATIC)
    set(ZLIB_USE_STATIC_LIBS ON)
    set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
  endif()
  find_package(Threads REQUIRED)
  find_package(simdjson QUIET CONFIG)
  find_package(zstd QUIET CONFIG)
  find_package(Eigen3 QUIET CONFIG)
  find_package(xtensor QUIET CONFIG)
  find_package(PkgConfig QUIET)
  if(PkgConfig_FOUND)
    pkg_check_modules(isal QUIET IMPORTED_TARGET libisal)
  endif()
  find_package(ZLIB QUIET)
endif()
traceap_need(simdjson_FOUND simdjson libsimdjson-dev simdjson)
traceap_need(zstd_FOUND zstd libzstd-dev zstd)
traceap_need(Eigen3_FOUND Eigen libeigen3-dev "'eigen<4'")
traceap_need(xtensor_FOUND xtensor libxtensor-dev "'xtensor<0.26'")
traceap_need(PkgConfig_FOUND pkg-config pkg-config pkg-config)
traceap_need(isal_FOUND ISA-L libisal-dev isa-l)
traceap_need(ZLIB_FOUND zlib zlib1g-dev zlib)

if(TARGET zstd::libzstd_static)
  set(TRACEAP_ZSTD zstd::libzstd_static)
else()
  set(TRACEAP_ZSTD zstd::libzstd_shared)
endif()

if(TRACEAP_BUILD_PYTHON)
  set(PYBIND11_FINDPYTHON ON)
  find_package(Python QUIET COMPONENTS Interpreter Development.Module)
  traceap_need(Python_Development.Module_FOUND "the headers of Python" python3-dev python)
endif()
traceap_stop_if_missing()

if(TRACEAP_BUILD_PYTHON)
  if(NOT pybind11_DIR AND NOT SKBUILD)
    execute_process(COMMAND ${Python_EXECUTABLE} -m pybind11 --cmakedir
                    OUTPUT_VARIABLE pybind11_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  find_package(pybind11 REQUIRED CONFIG)
endif()
