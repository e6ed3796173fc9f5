#pragma once
// The CUDA back end with the stand-in driver (stand_in/driver.cpp).

#include <dlfcn.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "libcore/backends/cuda/device.h"
#include "libcore/base/error.h"

namespace galley::test {

/// Whether tests run on the machine's GPU (scripts/gpu-check), not on the stand-in driver.
inline bool on_gpu() { return std::getenv("GALLEY_TEST_GPU") != nullptr; }

/// The GPU of the stand-in driver, or of the machine. All tests of a program must call it before they use CUDA.
inline CudaDevice& stand_in_device() {
  static CudaDevice& device = [&]() -> CudaDevice& {
    if (!on_gpu()) setenv("GALLEY_CUDA_DRIVER", GALLEY_STAND_IN_DRIVER, 1);
    return cuda_device(0);
  }();
  return device;
}

/// Makes the n-th next call of a function of the driver return an error.
inline void fail_stand_in(const char* function, int64_t n, cuda::Result result) {
  stand_in_device();
  static const auto set = reinterpret_cast<void (*)(const char*, int64_t, cuda::Result)>(
      dlsym(dlopen(GALLEY_STAND_IN_DRIVER, RTLD_NOW), "galley_stand_in_fail"));
  set(function, n, result);
}
/// How often a function of the driver has been called.
inline int64_t stand_in_calls(const char* function) {
  stand_in_device();
  static const auto count =
      reinterpret_cast<int64_t (*)(const char*)>(dlsym(dlopen(GALLEY_STAND_IN_DRIVER, RTLD_NOW), "galley_stand_in_calls"));
  return count(function);
}

/// The message of the error that a call throws; empty: none.
inline std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResource);
    return error.message();
  }
  return "";
}

}  // namespace galley::test
