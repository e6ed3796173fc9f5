#pragma once
// TensorBoard event files with scalars. Format: TFRecord framing (length, masked CRC-32C, payload, masked CRC-32C) of Event protocol
// buffers (tensorflow/core/util/event.proto, summary.proto), which are encoded here: four messages with nine fields.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace galley {

/// Writes scalars to an event file.
class TensorBoardWriter {
 public:
  /// Creates `folder`/events.out.tfevents.<time>.<host>.<pid>. A resumed run passes its `first_step` (> 1), so that TensorBoard discards
  /// later steps of earlier files. Throws Error (kResource) if the file cannot be written.
  explicit TensorBoardWriter(const std::string& folder, int64_t first_step = 1);
  /// Writes the scalars of one step, including non-finite values, and flushes them, so that a killed run keeps its curves.
  void scalars(int64_t step, const std::vector<std::pair<std::string, double>>& values);

 private:
  void record(const std::string& payload);
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
  std::string path_;
};

/// CRC-32C (Castagnoli, RFC 3720).
uint32_t crc32c(const std::string& bytes);

}  // namespace galley
