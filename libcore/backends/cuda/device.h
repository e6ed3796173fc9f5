#pragma once
// CUDA devices: memory, streams and events of an NVIDIA GPU through the driver API, in its primary context, which vendor libraries use too.

#include <functional>
#include <string>

#include "libcore/device/device.h"
#include "libcore/vendor/cuda/driver.h"

namespace galley {

/// Facts of a GPU.
struct CudaFacts {
  std::string name;          ///< "NVIDIA H100 80GB HBM3"
  int capability = 0;        ///< Compute capability: 90 is 9.0.
  int processors = 0;        ///< Streaming multiprocessors.
  int64_t memory = 0;        ///< Bytes.
  int64_t shared_bytes = 0;  ///< Shared memory that a block of threads may have.
};

/// A GPU, for the CUDA back end.
class CudaDevice : public Device {
 public:
  virtual const CudaFacts& facts() const = 0;
  /// Makes its context that of the calling thread.
  virtual void make_current() const = 0;
  /// The same. False: the driver refuses it.
  virtual bool try_current() const noexcept = 0;
  /// Calls `check` again and again while a thread waits for the GPU; it may throw, which ends the waiting. nullptr: nothing. For work that
  /// never ends if another process fails.
  virtual void watch(std::function<void()> check) = 0;
};

/// The GPU of that number, as nvidia-smi counts those in CUDA_VISIBLE_DEVICES. The first call opens it. Throws Error (kResource) if there
/// is no driver or no such GPU.
CudaDevice& cuda_device(int index);

/// Returns the number of GPUs. Throws Error (kResource) if there is no driver.
int count_of_gpus();

/// The handle of a stream of a CUDA device.
cuda::StreamHandle cuda_stream(Stream& stream);

}  // namespace galley
