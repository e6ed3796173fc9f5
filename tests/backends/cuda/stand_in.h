#pragma once
// The CUDA back end with the stand-in driver (stand_in/driver.cpp).

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "libcore/backends/cuda/device.h"
#include "libcore/base/error.h"
#include "libcore/vendor/cuda/dnn.h"

namespace galley::test {

/// Whether tests run on the machine's GPU (scripts/gpu-check), not on the stand-in driver.
inline bool on_gpu() { return std::getenv("GALLEY_TEST_GPU") != nullptr; }

/// The GPU of the stand-in driver, or of the machine. All tests of a program must call it before they use CUDA.
inline CudaDevice& stand_in_device() {
  static CudaDevice& device = [&]() -> CudaDevice& {
    if (!on_gpu()) {
      const std::string file = GALLEY_STAND_IN_DRIVER;
      setenv("GALLEY_CUDA_DRIVER", file.c_str(), 1);
      setenv("GALLEY_CUDA_PLANS", "none", 0);
      setenv("GALLEY_CUDA_LIBRARIES", file.substr(0, file.rfind('/')).c_str(), 1);
    }
    return cuda_device(0);
  }();
  return device;
}

/// Opens NVIDIA's cuDNN for the whole process, which must run no other tests: of the folder GALLEY_TEST_CUDNN, or, if that is "installed",
/// of the usual places. Returns why not.
inline std::string open_real_cudnn() {
  const char* folder = std::getenv("GALLEY_TEST_CUDNN");
  if (folder == nullptr) return "runs in a process of its own, with GALLEY_TEST_CUDNN=FOLDER of cuDNN, or =installed";
  if (std::string(folder) == "installed") {
    unsetenv("GALLEY_CUDA_LIBRARIES");
  } else {
    setenv("GALLEY_CUDA_LIBRARIES", folder, 1);
  }
  return cuda::dnn::dnn().state.problem;
}

/// A function that the stand-in driver offers to tests.
template <class F>
F* of_stand_in(const char* name) {
  stand_in_device();
  return reinterpret_cast<F*>(dlsym(dlopen(GALLEY_STAND_IN_DRIVER, RTLD_NOW), name));
}

/// Makes the n-th next call of a function of the driver return an error.
inline void fail_stand_in(const char* function, int64_t n, cuda::Result result) {
  static const auto set = of_stand_in<void(const char*, int64_t, cuda::Result)>("galley_stand_in_fail");
  set(function, n, result);
}
/// How often a function of the driver has been called.
inline int64_t stand_in_calls(const char* function) {
  static const auto count = of_stand_in<int64_t(const char*)>("galley_stand_in_calls");
  return count(function);
}
/// How many events were recorded again or destroyed before anything had waited for them, so far.
inline int64_t stand_in_missed_events() {
  static const auto missed = of_stand_in<int64_t()>("galley_stand_in_missed_events");
  return missed();
}
/// Sets the order of threads and blocks of launches: 0: as they are; 1: reverse; else random. A GPU has its own.
inline void seed_stand_in(uint64_t seed) {
  if (on_gpu()) return;
  static const auto set = of_stand_in<void(uint64_t)>("galley_stand_in_seed");
  set(seed);
}

/// The names and blocks of the launches since the last call, a line each.
inline std::string stand_in_launches() {
  static const auto take = of_stand_in<const char*()>("galley_stand_in_launches");
  return take();
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
