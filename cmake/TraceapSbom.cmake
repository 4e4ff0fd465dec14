# The bill of materials of a wheel, with the versions that this build found, in dist-info/sboms (PEP 770).

# static, shared or headers, of a target or of the path of a library.
function(traceap_how library result)
  set(how headers)
  if(TARGET ${library})
    get_target_property(type ${library} TYPE)
  elseif(library MATCHES "\\.(a|lib)$")
    set(type STATIC_LIBRARY)
  else()
    set(type SHARED_LIBRARY)
  endif()
  if(type STREQUAL STATIC_LIBRARY)
    set(how static)
  elseif(NOT type STREQUAL INTERFACE_LIBRARY)
    set(how shared)
  endif()
  set(${result} ${how} PARENT_SCOPE)
endfunction()

traceap_how(simdjson::simdjson simdjson_how)
traceap_how(${TRACEAP_ZSTD} zstd_how)
traceap_how("${ZLIB_LIBRARIES}" zlib_how)
traceap_how("${isal_LINK_LIBRARIES}" isal_how)

set(TRACEAP_SBOM ${CMAKE_CURRENT_BINARY_DIR}/torchtraceap.cdx.json)
execute_process(
  COMMAND ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/cmake/make_sbom.py
          ${PROJECT_SOURCE_DIR} ${TRACEAP_SBOM} ${PROJECT_VERSION}
          Eigen3=${Eigen3_VERSION}=headers
          isal=${isal_VERSION}=${isal_how}
          pybind11=${pybind11_VERSION}=headers
          simdjson=${simdjson_VERSION}=${simdjson_how}
          xtensor=${xtensor_VERSION}=headers
          xtl=${xtl_VERSION}=headers
          zlib=${ZLIB_VERSION_STRING}=${zlib_how}
          zstd=${zstd_VERSION}=${zstd_how}
  COMMAND_ERROR_IS_FATAL ANY)
install(FILES ${TRACEAP_SBOM} DESTINATION ${SKBUILD_METADATA_DIR}/sboms)
