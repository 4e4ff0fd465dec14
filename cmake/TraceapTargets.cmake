# One static library per layer: traceap_add_layer(table SOURCES ... DEPENDS base PRIVATE_DEPENDS x).

add_library(traceap_options INTERFACE)
target_include_directories(traceap_options INTERFACE ${PROJECT_SOURCE_DIR}/cpp)
target_compile_options(traceap_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion
                       -Wsign-conversion -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False alarms on std::string concatenation at -O3: GCC bug 105651.
  target_compile_options(traceap_options INTERFACE -Wno-restrict)
endif()
if(TRACEAP_WERROR)
  target_compile_options(traceap_options INTERFACE -Werror)
endif()
if(TRACEAP_SANITIZE)
  # What a sanitizer finds ends the program, and so does an index out of bounds. Checks of every
  # pointer cost most and find little that the address sanitizer does not see.
  target_compile_options(traceap_options INTERFACE -fsanitize=${TRACEAP_SANITIZE}
                         -fno-sanitize-recover=all -fno-omit-frame-pointer)
  if(TRACEAP_SANITIZE MATCHES undefined)
    target_compile_options(traceap_options INTERFACE -fno-sanitize=null,alignment,vptr,object-size)
  endif()
  target_compile_definitions(traceap_options INTERFACE _GLIBCXX_ASSERTIONS)
  target_link_options(traceap_options INTERFACE -fsanitize=${TRACEAP_SANITIZE})
endif()
if(TRACEAP_BUILD_FUZZ)
  # The layers, not only a target's own file: what is not instrumented, the fuzzer cannot see.
  # Without tracing of comparisons, which takes a quarter of the time: the targets have dictionaries.
  target_compile_options(traceap_options INTERFACE -fsanitize=fuzzer-no-link
                         -fno-sanitize-coverage=trace-cmp)
endif()

# Compiles the files of a target in groups of `size`: where headers and their templates cost more than the files' own
# text, as those of pybind11 do. Names in unnamed namespaces must differ between the files of such a target.
function(traceap_compile_together target size)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${TRACEAP_UNITY} UNITY_BUILD_BATCH_SIZE ${size})
endfunction()

function(traceap_add_layer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  add_library(traceap_${name} STATIC ${ARG_SOURCES})
  add_library(traceap::${name} ALIAS traceap_${name})
  target_link_libraries(traceap_${name} PUBLIC traceap_options PRIVATE ${ARG_PRIVATE_DEPENDS})
  foreach(layer IN LISTS ARG_DEPENDS)
    target_link_libraries(traceap_${name} PUBLIC traceap_${layer})
  endforeach()
endfunction()
