// A cuBLASLt of an old version.

#include <cstddef>

extern "C" __attribute__((visibility("default"))) size_t cublasLtGetVersion() { return 120803; }
