// A driver of CUDA 12.8, and one without graphs (GALLEY_FAKE_INCOMPLETE).

#include <cstdint>
#include <string_view>

namespace {

int version_of(int* version) {
  *version = 12080;
  return 0;
}
int any() { return 0; }

}  // namespace

extern "C" __attribute__((visibility("default"))) int cuGetProcAddress_v2(const char* name, void** function, int, uint64_t, void*) {
#ifdef GALLEY_FAKE_INCOMPLETE
  if (std::string_view(name).starts_with("cuGraph")) return 500;  // CUDA_ERROR_NOT_FOUND
#endif
  *function = std::string_view(name) == "cuDriverGetVersion" ? reinterpret_cast<void*>(version_of) : reinterpret_cast<void*>(any);
  return 0;
}
extern "C" __attribute__((visibility("default"))) int cuInit(unsigned) { return 0; }
