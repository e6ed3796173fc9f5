// A cuBLASLt, an NCCL and an NVRTC of old versions.

#include <cstddef>

extern "C" __attribute__((visibility("default"))) size_t cublasLtGetVersion() { return 120803; }
extern "C" __attribute__((visibility("default"))) int ncclGetVersion(int* version) {
  *version = 21805;
  return 0;
}
extern "C" __attribute__((visibility("default"))) int nvrtcVersion(int* major, int* minor) {
  *major = 12;
  *minor = 9;
  return 0;
}
