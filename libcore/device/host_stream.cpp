#include <cstring>

#include "libcore/device/stream.h"

namespace galley {
namespace {

class HostStream : public Stream {
 public:
  void copy(void* to, const void* from, int64_t bytes) override { std::memcpy(to, from, static_cast<size_t>(bytes)); }
  void fill(void* to, uint8_t value, int64_t bytes) override { std::memset(to, value, static_cast<size_t>(bytes)); }
  void synchronize() override {}
};

}  // namespace

Stream& host_stream() {
  static HostStream stream;
  return stream;
}

}  // namespace galley
