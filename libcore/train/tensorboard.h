#pragma once
// TensorBoard event files: scalars that TensorBoard opens. Format: TFRecord framing (length, masked CRC-32C, payload, masked CRC-32C)
// around Event protocol buffers (tensorflow/core/util/event.proto, summary.proto), written by hand: four messages with nine fields.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace galley {

class TensorBoardWriter {
 public:
  /// Creates `folder`/events.out.tfevents.<time>.<host>.<pid>. A run that continues says at which step (`first_step` > 1), so that
  /// TensorBoard drops what an earlier file has from there on. Throws Error (kResource) where it cannot be written.
  explicit TensorBoardWriter(const std::string& folder, int64_t first_step = 1);
  /// Scalars of one step. Non-finite values are written as they are. Flushed at once: a killed run keeps its curves.
  void scalars(int64_t step, const std::vector<std::pair<std::string, double>>& values);

 private:
  void record(const std::string& payload);
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
  std::string path_;
};

/// CRC-32C (Castagnoli, RFC 3720) of some bytes.
uint32_t crc32c(const std::string& bytes);

}  // namespace galley
