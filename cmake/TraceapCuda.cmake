# nvcc for the kernels of cpp/traceap/cuda/. Code for the GPUs of three generations; PTX of the last,
# from which a driver makes code for those that come.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)
endif()
if(TRACEAP_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${TRACEAP_CCACHE})
endif()
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)

# Not traceap_options: nvcc's own output does not hold to -Wpedantic.
add_library(traceap_cuda_options INTERFACE)
# Spans are read in kernels.
target_compile_options(traceap_cuda_options INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra,-Wshadow>)
if(TRACEAP_WERROR)
  target_compile_options(traceap_cuda_options INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings -Xcompiler=-Werror>)
endif()
