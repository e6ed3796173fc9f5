// A cuBLASLt, and an NCCL, of old versions.

#include <cstddef>

extern "C" __attribute__((visibility("default"))) size_t cublasLtGetVersion() { return 120803; }
extern "C" __attribute__((visibility("default"))) int ncclGetVersion(int* version) {
  *version = 21805;
  return 0;
}
