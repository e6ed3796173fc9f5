# CUDA kernels: nvcc compiles libcore/backends/cuda/kernels/kernels.cu to one image for all architectures, which the programs contain.
# Nothing is linked: the driver is opened at run time. Without nvcc 13.0 or later the build is complete, but `device: cuda` says that it has
# no kernels.
set(GALLEY_CUDA AUTO CACHE STRING "CUDA kernels: AUTO (if there is nvcc 13.0 or later), ON, OFF")
set(architectures "80;90;100")
if(DEFINED ENV{GALLEY_CUDA_ARCHITECTURES})
  set(architectures "$ENV{GALLEY_CUDA_ARCHITECTURES}")
endif()
set(GALLEY_CUDA_ARCHITECTURES "${architectures}" CACHE STRING
    "GPU architectures of the kernels; the last one also as PTX, for later ones; default: the environment's, or all that are tried")
set(GALLEY_CUDA_ROOT "" CACHE PATH "folder of the CUDA toolkit; empty: that of scripts/setup --cuda, of the PATH, or /usr/local/cuda")
set(GALLEY_CUDA_IMAGE "")

if(NOT GALLEY_CUDA STREQUAL "OFF")
  function(galley_nvcc_is_new result file)
    execute_process(COMMAND ${file} --version OUTPUT_VARIABLE text ERROR_QUIET)
    string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" text "${text}")
    if(NOT CMAKE_MATCH_1 VERSION_GREATER_EQUAL 13.0)
      set_property(GLOBAL PROPERTY GALLEY_OLD_NVCC " (${file} is ${CMAKE_MATCH_1})")
      set(${result} FALSE PARENT_SCOPE)
    endif()
  endfunction()
  find_program(GALLEY_NVCC nvcc HINTS ${GALLEY_CUDA_ROOT}/bin ${CMAKE_SOURCE_DIR}/build/third_party/cuda/bin /usr/local/cuda/bin
               VALIDATOR galley_nvcc_is_new)
  get_property(found GLOBAL PROPERTY GALLEY_OLD_NVCC)
  if(GALLEY_NVCC)
    set(flags)
    foreach(architecture ${GALLEY_CUDA_ARCHITECTURES})
      list(APPEND flags -gencode arch=compute_${architecture},code=sm_${architecture})
    endforeach()
    list(GET GALLEY_CUDA_ARCHITECTURES -1 newest)
    list(APPEND flags -gencode arch=compute_${newest},code=compute_${newest})
    list(JOIN GALLEY_CUDA_ARCHITECTURES ", " GALLEY_CUDA_LIST)
    set(GALLEY_CUDA_IMAGE ${CMAKE_BINARY_DIR}/generated/kernels.fatbin)
    set(source ${CMAKE_SOURCE_DIR}/libcore/backends/cuda/kernels/kernels.cu)
    file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/generated)
    add_custom_command(
      OUTPUT ${GALLEY_CUDA_IMAGE}
      COMMAND ${GALLEY_NVCC} -std=c++20 -O3 -fatbin --compress-mode=size -Werror all-warnings ${flags} -I${CMAKE_SOURCE_DIR}
              -MD -MF ${GALLEY_CUDA_IMAGE}.d -o ${GALLEY_CUDA_IMAGE} ${source}
      DEPENDS ${source}
      DEPFILE ${GALLEY_CUDA_IMAGE}.d
      COMMENT "Compiling the CUDA kernels for ${GALLEY_CUDA_LIST}"
      VERBATIM)
    add_custom_target(galley_cuda_image DEPENDS ${GALLEY_CUDA_IMAGE})
    message(STATUS "CUDA kernels: for ${GALLEY_CUDA_LIST}, by ${GALLEY_NVCC}")
  elseif(GALLEY_CUDA STREQUAL "ON")
    message(FATAL_ERROR "GALLEY_CUDA=ON needs nvcc 13.0 or later${found}: scripts/setup --cuda installs it, or set GALLEY_CUDA_ROOT")
  else()
    message(STATUS "CUDA kernels: none, since there is no nvcc 13.0 or later${found}: scripts/setup --cuda")
  endif()
endif()
