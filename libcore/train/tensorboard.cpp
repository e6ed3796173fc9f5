#include "libcore/train/tensorboard.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "libcore/base/error.h"

namespace galley {
namespace {

template <class T>
std::string little_endian(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// Protocol buffer wire format: key = field << 3 | wire type (0 varint, 1 64-bit, 2 length-delimited, 5 32-bit).
std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
std::string key(int field, int wire) { return varint(static_cast<uint64_t>(field << 3 | wire)); }
std::string bytes_field(int field, const std::string& bytes) { return key(field, 2) + varint(bytes.size()) + bytes; }

std::string event(int64_t step, const std::string& rest) {
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return key(1, 1) + little_endian(now) + key(2, 0) + varint(static_cast<uint64_t>(step)) + rest;
}

uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

}  // namespace

uint32_t crc32c(const std::string& bytes) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> entries{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t word = i;
      for (int bit = 0; bit < 8; ++bit) word = (word >> 1) ^ (word & 1u ? 0x82f63b78u : 0u);
      entries[i] = word;
    }
    return entries;
  }();
  uint32_t crc = ~0u;
  for (char c : bytes) crc = (crc >> 8) ^ table[(crc ^ static_cast<unsigned char>(c)) & 0xffu];
  return ~crc;
}

TensorBoardWriter::TensorBoardWriter(const std::string& folder, int64_t first_step) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  char host[256] = "host";
  gethostname(host, sizeof host - 1);
  path_ = cat(folder, "/events.out.tfevents.", std::chrono::system_clock::to_time_t(std::chrono::system_clock::now()), ".", host, ".",
              getpid());
  file_.reset(std::fopen(path_.c_str(), "wb"));
  if (file_ == nullptr) fail(ErrorCode::kResource, path_, " cannot be written: ", std::strerror(errno));
  record(event(0, bytes_field(3, "brain.Event:2")));
  constexpr uint64_t kSessionStart = 1;
  if (first_step > 1) record(event(first_step, bytes_field(7, key(1, 0) + varint(kSessionStart))));
}

void TensorBoardWriter::scalars(int64_t step, const std::vector<std::pair<std::string, double>>& values) {
  std::string summary;
  for (const auto& [tag, value] : values) {
    summary += bytes_field(1, bytes_field(1, tag) + key(2, 5) + little_endian(static_cast<float>(value)));
  }
  record(event(step, bytes_field(5, summary)));
}

void TensorBoardWriter::record(const std::string& payload) {
  const std::string length = little_endian(static_cast<uint64_t>(payload.size()));
  const std::string bytes = length + little_endian(masked(crc32c(length))) + payload + little_endian(masked(crc32c(payload)));
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size() || std::fflush(file_.get()) != 0) {
    fail(ErrorCode::kResource, path_, " cannot be written: ", std::strerror(errno));
  }
}

}  // namespace galley
